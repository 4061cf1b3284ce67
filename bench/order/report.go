package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reporter runs workloads in processes of their own and prints a table.
type reporter struct {
	dir    string
	rounds int
	only   []string
	err    error
}

// run starts workloads in turn, rounds times after one that does not count, and returns what each
// printed in each round.
func (r *reporter) run(rounds int, cmds ...string) [][]figures {
	out := make([][]figures, len(cmds))
	first := 1 // a round to warm the page cache
	if rounds == 1 {
		first = 0
	}
	for round := range rounds + first {
		for i, c := range cmds {
			if r.err != nil {
				return out
			}
			f, err := r.child(strings.Fields(c))
			if err != nil {
				r.err = fmt.Errorf("order %s: %w", c, err)
				return out
			}
			if round >= first {
				out[i] = append(out[i], f)
			}
		}
	}
	return out
}

func (r *reporter) child(args []string) (figures, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args = append([]string{args[0], r.dir}, args[1:]...)
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	f := figures{}
	return f, json.Unmarshal(b, &f)
}

// once runs one workload once.
func (r *reporter) once(cmd string) figures {
	if f := r.run(1, cmd); r.err == nil {
		return f[0][0]
	}
	return figures{}
}

// ratio is the median over the rounds of a's figure to b's.
func ratio(a, b []figures, name string) float64 {
	var v []float64
	for i := range min(len(a), len(b)) {
		v = append(v, a[i][name]/b[i][name])
	}
	return median(v)
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// of is a figure of all rounds.
func of(fs []figures, name string) (v []float64) {
	for _, f := range fs {
		v = append(v, f[name])
	}
	return v
}

// row prints a line of the table, unless something failed.
func (r *reporter) row(what, figure string, met bool, goal, cmd string) {
	if r.err != nil {
		return
	}
	if !met {
		figure += " **missed**"
	}
	fmt.Printf("| %s | %s | %s | `%s` |\n", what, figure, goal, cmd)
}

// speed compares how fast a gives rows with b, by wall time, with a second b as the control. least 0: no goal.
func (r *reporter) speed(what, a, b string, least float64) {
	f := r.run(r.rounds, b, a, b)
	goal := "-"
	if least > 0 {
		goal = fmt.Sprintf(">= %.0f %%", 100*least)
	}
	wall, cpu := ratio(f[0], f[1], "seconds"), ratio(f[0], f[1], "cpu")
	r.row(what, fmt.Sprintf("%.0f %% by wall time, %.0f %% by CPU time (%.1f M rows/s, %.1f M rows/CPU s; A/A %.2f, %.2f)", 100*wall, 100*cpu,
		median(of(f[1], "rows"))/median(of(f[1], "seconds"))/1e6, median(of(f[1], "rows"))/median(of(f[1], "cpu"))/1e6,
		ratio(f[0], f[2], "seconds"), ratio(f[0], f[2], "cpu")), wall >= least, goal, "order "+a+"; order "+b)
}

// report prints all figures.
//
//	report [-rounds N] [-only NAME,...] DIR
func report(args []string) error {
	flags := flag.NewFlagSet("report", flag.ExitOnError)
	rounds := flags.Int("rounds", 5, "rounds of commands that are compared")
	only := flags.String("only", "", "parts to measure, by comma: speed, state, resume, bytes, quality, slow, pack, mix, replay, memory; default: all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("usage: order report [-rounds N] [-only NAME,...] DIR")
	}
	r := &reporter{dir: flags.Arg(0), rounds: *rounds}
	if *only != "" {
		r.only = strings.Split(*only, ",")
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	if err := makeData(r.dir); err != nil {
		return err
	}
	heading(strings.Join(args[:len(args)-1], " "))
	for _, part := range []struct {
		name string
		run  func()
	}{
		{"speed", r.speeds}, {"state", r.states}, {"resume", r.resumes}, {"bytes", r.amplification}, {"quality", r.quality},
		{"slow", r.slow}, {"pack", r.packing}, {"mix", r.mixing}, {"replay", r.replays}, {"memory", r.memory},
	} {
		if r.only == nil || slices.Contains(r.only, part.name) {
			part.run()
		}
	}
	return r.err
}

// heading says what was measured where, with the options other than the folder.
func heading(options string) {
	words := func(name string, args ...string) string {
		b, err := exec.Command(name, args...).Output()
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(b))
	}
	model := words("sh", "-c", `awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo`)
	load, _, _ := strings.Cut(words("cat", "/proc/loadavg"), " ")
	fmt.Printf("# Order, resume and packing, measured\n\n")
	fmt.Printf("%s, commit %s, %d cores, %s, %s, load %s at the start. Made by `make bench` (`%s`). Ratios are of one run, commands in turn, medians of the rounds; each\n"+
		"command is a process, and `order` stands for `bin/bench-order`, with the folder of the data as the first argument of each workload.\n"+
		"A/A: the second command against itself, in the same rounds.\n\n",
		time.Now().UTC().Format(time.DateOnly), words("git", "describe", "--always", "--dirty"), runtime.NumCPU(), model, runtime.Version(), load, strings.TrimSpace("order report "+options))
	fmt.Println("| what | figure | goal | command |\n|---|---|---|---|")
}

func (r *reporter) speeds() {
	r.speed("window shuffle against none: 16 Mi rows of 24 bytes that need no decoding, 64 lanes, windows of 16,384 rows", "epoch samples window 64 16384", "epoch samples none", 0.9)
	r.speed("the same with default windows (131,072 rows)", "epoch samples window", "epoch samples none", 0.9)
	r.speed("the same behind three columns of expressions", "epoch-steps window 64 16384", "epoch-steps none", 0.9)
	r.speed("2 Mi rows of 40 columns (164 bytes), zstd, default order", "epoch clicks window", "epoch clicks none", 0.9)
	r.speed("256 Ki rows of 512 float32 (2 KiB), zstd, default order", "epoch vectors window", "epoch vectors none", 0.9)
}

func (r *reporter) states() {
	f := r.once("capture")
	r.row("taking a state, 64 lanes", fmt.Sprintf("%.1f us (median), %.1f us (99th percentile)", f["median_us"], f["p99_us"]), f["p99_us"] <= 50, "<= 50 us", "order capture")
	r.row("its JSON", fmt.Sprintf("%.0f bytes at most", f["max_bytes"]), f["max_bytes"] <= 2048, "<= 2 KiB", "order capture")
	if _, err := exec.LookPath("valgrind"); err != nil {
		return
	}
	var ir [3]float64
	for i, how := range []string{"never", "every", "never"} {
		if r.err == nil {
			ir[i], r.err = instructions("steps", r.dir, how)
		}
	}
	r.row("taking it after every step of 256, instructions", fmt.Sprintf("%+.2f %% (A/A %+.2f %%)", 100*(ir[1]/ir[0]-1), 100*(ir[2]/ir[0]-1)), ir[1]/ir[0] <= 1.01, "<= +1 %", "valgrind --tool=callgrind order steps")
}

var irefs = regexp.MustCompile(`I +refs: +([0-9,]+)`)

// instructions counts those of a workload. Go's preemption signals and valgrind do not mix.
func instructions(args ...string) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command("valgrind", append([]string{"--tool=callgrind", "--callgrind-out-file=/dev/null", self}, args...)...)
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOGC=off", "GOMAXPROCS=1")
	var text bytes.Buffer
	cmd.Stderr = &text
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, text.Bytes())
	}
	m := irefs.FindSubmatch(text.Bytes())
	if m == nil {
		return 0, fmt.Errorf("no instruction count in %q", text.Bytes())
	}
	return strconv.ParseFloat(strings.ReplaceAll(string(m[1]), ",", ""), 64)
}

func (r *reporter) resumes() {
	const cmd = "resume 64 16384"
	f := r.once(cmd)
	r.row("first batch after a restore at 20 random steps, against that at 0 % (files opened anew, page cache warm, best of 3 each)",
		fmt.Sprintf("median %.2fx, worst %.2fx (by CPU time %.2fx, %.2fx; at 0 %%: %.0f ms; A/A worst %.2fx)",
			f["median"], f["worst"], f["median_cpu"], f["worst_cpu"], f["begin_ms"], f["begin_worst"]),
		f["median"] <= 2.5 && f["worst"] <= 4, "<= 2.5x, <= 4x", "order "+cmd)
}

func (r *reporter) amplification() {
	for _, c := range []struct{ what, cmd string }{
		{"1 file of 200 row groups, 16 ranks", "bytes one 16"},
		{"the same without page index", "bytes one-plain 16"},
		{"3 files, 8 ranks", "bytes three 8"},
		{"the same without page index", "bytes three-plain 8"},
	} {
		f := r.once(c.cmd)
		r.row("bytes fetched / needed, 2 of 4 columns: "+c.what, fmt.Sprintf("%.3f with footers and indexes, %.3f without; %.0f to %.0f rows per rank",
			f["fetched"]/f["needed"], f["counted"]/f["needed"], f["least_rows"], f["most_rows"]), f["fetched"] <= 1.05*f["needed"] && f["least_rows"] > 0, "<= 1.05", "order "+c.cmd)
	}
}

func (r *reporter) quality() {
	for _, s := range []string{"64 1024", "64 4096", "64"} {
		cmd := "entropy window " + s
		f := r.once(cmd)
		what := "default windows"
		if _, rows, ok := strings.Cut(s, " "); ok {
			what = "windows of " + rows
		}
		r.row("label entropy of steps of 256, 2 Mi rows sorted by 10 labels, 64 lanes, "+what+", against a full shuffle",
			fmt.Sprintf("%.1f %% (%.3f of %.3f bits)", 100*f["of_full"], f["bits"], f["full_bits"]), f["of_full"] >= 0.95, ">= 95 %", "order "+cmd)
	}
	for _, c := range []struct {
		what, cmd string
		splits    float64 // that are equal; 0: they are not
	}{
		{"256 equal splits", "ranks sorted window", 256},
		{"113 splits, one with half of the rows", "ranks unequal window", 0},
	} {
		f := r.once(c.cmd)
		most, why := f["bound"], "as explain says"
		if c.splits > 0 {
			most, why = 3/math.Sqrt(c.splits), fmt.Sprintf("3/sqrt(splits); explain says at most %.3f", f["bound"])
		}
		r.row("rank correlation of two epochs, the largest of 8 seeds, "+c.what, fmt.Sprintf("%.3f", f["largest"]), f["largest"] <= most,
			fmt.Sprintf("<= %.3f (%s)", most, why), "order "+c.cmd)
	}
}

func (r *reporter) slow() {
	f := r.run(1, "slow 20", "slow 1")
	if r.err != nil {
		return
	}
	r.row("1 % of windows 20 times slower, 8 tasks that sleep: share of the ideal throughput", fmt.Sprintf("%.0f %% (without slow ones %.0f %%)", 100*f[0][0]["of_ideal"], 100*f[1][0]["of_ideal"]),
		f[0][0]["of_ideal"] >= 0.75, ">= 75 %", "order slow 20; order slow 1")
}

var packLine = regexp.MustCompile(`BenchmarkPack/(concat|best_fit)/int32/mask=false\S*\s.*?([0-9.]+) Mtokens/cpu-s`)

func (r *reporter) packing() {
	if r.err != nil {
		return
	}
	const cmd = "go test -run ^$ -bench Pack/.*/int32/mask=false -count 3 ./shard/internal/pack"
	w := strings.Fields(cmd)
	text, err := exec.Command(w[0], w[1:]...).CombinedOutput()
	if err != nil {
		r.err = fmt.Errorf("%s: %w: %s", cmd, err, text)
		return
	}
	got := map[string][]float64{}
	for _, m := range packLine.FindAllStringSubmatch(string(text), -1) {
		v, _ := strconv.ParseFloat(m[2], 64)
		got[m[1]] = append(got[m[1]], v)
	}
	for _, m := range []struct {
		name string
		goal float64
	}{{"concat", 500}, {"best_fit", 150}} {
		v := median(got[m.name])
		r.row("packing int32 lists, "+m.name, fmt.Sprintf("%.0f M tokens per CPU second", v), v >= m.goal, fmt.Sprintf(">= %.0f M/s", m.goal), cmd)
	}
	for _, m := range []string{"concat", "best_fit"} {
		f := r.once("pack " + m)
		r.row("the same through an iterator, from Parquet, with a loss mask, windows of 1,024 documents: padding",
			fmt.Sprintf("%.2f %% (%.0f M tokens per CPU second)", 100*f["padding"], f["tokens"]/f["cpu"]/1e6), f["padding"] <= 0.03, "<= 3 %", "order pack "+m)
	}
}

func (r *reporter) mixing() {
	r.speed("4 sources mixed against one source of the same files", "mix mix", "mix union", 0)
}

func (r *reporter) replays() {
	for _, how := range []string{"metadata", "ledger"} {
		f := r.once("replay " + how)
		r.row("the step at sample 10,000,000, from "+how, fmt.Sprintf("%.2f s with its batch, of which %.2f s to find it (%.2f CPU s)", f["seconds"], f["find_seconds"], f["cpu"]), f["seconds"] <= 2, "<= 2 s", "order replay "+how)
	}
}

func (r *reporter) memory() {
	for _, mib := range []float64{512, 128} {
		cmd := fmt.Sprintf("memory %.0f", mib)
		f := r.once(cmd)
		most := 1.25*mib + 150
		r.row(fmt.Sprintf("two shuffled epochs, default order, budget %.0f MiB: peak memory of the process", mib), fmt.Sprintf("%.0f MiB (of the budget %.0f MiB)", f["peak_rss"]/(1<<20), f["peak_budget"]/(1<<20)),
			f["peak_rss"] <= most*(1<<20), fmt.Sprintf("<= %.0f MiB", most), "order "+cmd)
	}
}
