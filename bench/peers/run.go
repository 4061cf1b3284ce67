package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

var nan = math.NaN()

// results are all figures of a data folder; kept as JSON beside the data, so that a workload can be
// measured again and reports made of what is there.
type results struct {
	Machine   machine
	Scale     float64
	Quick     bool
	Workloads []*measured
}

// measured is a workload's figures: of each case, one per round.
type measured struct {
	Name   string
	At     time.Time
	Commit string
	Cases  []*caseResult

	w *workload
}

type caseResult struct {
	Name string
	Runs []figures // NaN is kept as a missing name
	Err  string
}

func (m *measured) get(name string) *caseResult {
	for _, c := range m.Cases {
		if c.Name == name {
			return c
		}
	}
	return &caseResult{Name: name}
}

// options of run and gen.
type options struct {
	only          []string
	rounds        int
	quick         bool
	scale         float64
	out           string
	venv, drivers string
	data          string
}

func parse(name string, args []string) (o options, err error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	only := flags.String("only", "", "workloads, by comma; default: all")
	flags.IntVar(&o.rounds, "rounds", 0, "rounds; 0: 3, quick 2")
	flags.BoolVar(&o.quick, "quick", false, "small files, few rounds")
	flags.Float64Var(&o.scale, "scale", 0, "of the files of the scan; 0: 0.25, quick 0.04")
	flags.StringVar(&o.out, "out", "bench/results", "where the report goes")
	flags.StringVar(&o.venv, "venv", "", "virtual environment of the peers; default: python3 of the path")
	flags.StringVar(&o.drivers, "drivers", "bench/peers/py", "folder of the drivers")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() != 1 {
		return o, fmt.Errorf("usage: peers %s [flags] DATA", name)
	}
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	if o.scale == 0 {
		o.scale = 0.25
		if o.quick {
			o.scale = 0.04
		}
	}
	if o.rounds == 0 {
		o.rounds = 3
		if o.quick {
			o.rounds = 2
		}
	}
	o.data = filepath.Join(flags.Arg(0), fmt.Sprintf("data-%g", o.scale))
	return o, nil
}

func (o options) python() string {
	if o.venv == "" {
		return "python3"
	}
	return filepath.Join(o.venv, "bin", "python")
}

func genFiles(args []string) error {
	o, err := parse("gen", args)
	if err != nil {
		return err
	}
	return generate(o.python(), o.drivers, o.data, o.scale)
}

// runAll measures workloads in turn and writes the report.
func runAll(args []string) error {
	o, err := parse("run", args)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := generate(o.python(), o.drivers, o.data, o.scale); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "peers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	e := env{self: self, python: o.python(), drivers: o.drivers, data: o.data, work: work, quick: o.quick}
	ws := workloads(e)
	names := []string{"scan"}
	for _, w := range ws {
		names = append(names, w.name)
	}
	for _, n := range o.only {
		if !slices.Contains(names, n) {
			return fmt.Errorf("no workload %q; have %s", n, strings.Join(names, ", "))
		}
	}
	file := filepath.Join(o.data, "results.json")
	r := &results{}
	if o.only != nil { // the others stay as they were measured
		if r, err = loadResults(file); errors.Is(err, os.ErrNotExist) {
			r, err = &results{}, nil
		}
		if err != nil {
			return err
		}
	}
	r.Machine, r.Scale, r.Quick = describe(o.python()), o.scale, o.quick
	r.Machine.Rounds = o.rounds
	put := func(m *measured) error {
		m.Commit = r.Machine.Commit
		if i := slices.IndexFunc(r.Workloads, func(x *measured) bool { return x.Name == m.Name }); i >= 0 {
			r.Workloads[i] = m
		} else {
			r.Workloads = append(r.Workloads, m)
		}
		return r.save(file) // what was measured is not lost if a later one fails
	}
	began := time.Now()
	wanted := func(name string) bool { return o.only == nil || slices.Contains(o.only, name) }
	if wanted("scan") {
		m, err := measureScan(e, o.rounds)
		if err != nil {
			return fmt.Errorf("scan: %w", err)
		}
		if err := put(m); err != nil {
			return err
		}
	}
	for i := range ws {
		if !wanted(ws[i].name) {
			continue
		}
		m, err := measure(e, &ws[i], o.rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", ws[i].name, err)
		}
		if err := put(m); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "measured in %.0f s\n", time.Since(began).Seconds())
	if err := r.report(o.out, ws); err != nil {
		return err
	}
	if bad := r.failed(); bad != nil {
		return fmt.Errorf("of our own: %s", strings.Join(bad, "; "))
	}
	return nil
}

// measure runs a workload's cases in turn: A B C A, then in the other direction.
func measure(e env, w *workload, rounds int) (*measured, error) {
	if err := warm(e, w.files); err != nil {
		return nil, err
	}
	m := &measured{Name: w.name, At: time.Now(), w: w}
	for _, c := range w.cases {
		m.Cases = append(m.Cases, &caseResult{Name: c.name})
	}
	if w.rounds > 0 {
		rounds = min(rounds, w.rounds)
	}
	for round := range rounds {
		order := make([]int, len(w.cases))
		for i := range order {
			order[i] = i
			if round%2 == 1 {
				order[i] = len(order) - 1 - i
			}
		}
		for _, i := range order {
			c, got := w.cases[i], m.Cases[i]
			if got.Err != "" || c.once && round > 0 {
				continue
			}
			f, err := supervise(run{args: c.args, cores: c.cores, limit: c.limit})
			switch {
			case errors.Is(err, errMissing):
				got.Err = errMissing.Error()
			case err != nil:
				got.Err = err.Error()
			default:
				got.Runs = append(got.Runs, f)
			}
			fmt.Fprintf(os.Stderr, "%s, round %d, %s: wall %.2f s, CPU %.2f s, first %.3f s, peak %.0f MiB %s\n", w.name, round+1, c.name, f["wall"], f["cpu"], f["first"], f["peak"]/(1<<20), got.Err)
		}
	}
	m.agree()
	return m, nil
}

// agree marks cases that gave other totals than the others.
func (m *measured) agree() {
	if m.w.name == "resume" || m.w.name == "start" || strings.HasPrefix(m.w.name, "handoff") {
		return // layouts differ
	}
	var cases []*caseResult
	for i, c := range m.Cases {
		if !m.w.cases[i].differ {
			cases = append(cases, c)
		}
	}
	for _, k := range []struct {
		name      string
		tolerance float64
	}{{"rows", 0}, {"tokens", 3e-3}, {"sum", 1e-4}} { // datasets and Ray drop what is left of a block of tokens; sums are of float32
		if m.w.name != "tokens" || k.name == "tokens" { // padding differs
			agree(cases, k.name, k.tolerance)
		}
	}
}

// agree marks the cases whose total is another than that of Penstock's first run; or than that of most peers, where they have one:
// then it is Penstock that is wrong. A single peer is most of them, so that a total that nobody confirms is seen.
func agree(cases []*caseResult, key string, tolerance float64) {
	same := func(a, b float64) bool { return math.Abs(a-b) <= tolerance*math.Max(math.Abs(a), math.Abs(b)) }
	var ours, peers []float64 // of each case, its first whole run
	for _, c := range cases {
		i := slices.IndexFunc(c.Runs, func(f figures) bool { return f["cut"] == 0 })
		switch {
		case i < 0 || c.Err != "":
		case !has(c.Runs[i], key): // it does not say
		case c.ours():
			ours = append(ours, c.Runs[i][key])
		default:
			peers = append(peers, c.Runs[i][key])
		}
	}
	if ours == nil {
		return
	}
	want := ours[0]
	most := func(v float64) bool {
		n := 0
		for _, p := range peers {
			if same(v, p) {
				n++
			}
		}
		return 2*n > len(peers)
	}
	if i := slices.IndexFunc(peers, most); i >= 0 && !most(want) {
		want = peers[i]
	}
	for _, c := range cases {
		for _, f := range c.Runs {
			if c.Err == "" && f["cut"] == 0 && has(f, key) && !same(want, f[key]) {
				c.Err = fmt.Sprintf("other %s: %v, not %v", key, f[key], want)
			}
		}
	}
}

func has(f figures, key string) bool {
	_, ok := f[key]
	return ok
}

// agreeByFile does it for the rows of a scan.
func (m *measured) agreeByFile() {
	for _, f := range scanFiles(m) {
		var cases []*caseResult
		for _, c := range m.Cases {
			if strings.HasSuffix(c.Name, "/"+f) {
				cases = append(cases, c)
			}
		}
		agree(cases, "rows", 0)
	}
}

// ours says whether a case is Penstock's.
func (c *caseResult) ours() bool { return strings.HasPrefix(c.Name, "penstock") }

// failed are the cases of Penstock that did not end well.
func (r *results) failed() (names []string) {
	for _, m := range r.Workloads {
		for _, c := range m.Cases {
			if c.Err != "" && c.Err != errMissing.Error() && c.ours() { // missing: numpy, for the client in Python
				names = append(names, m.Name+", "+c.Name+": "+c.Err)
			}
		}
	}
	return names
}

// warm reads files once.
func warm(e env, patterns []string) error {
	for _, p := range patterns {
		names, err := filepath.Glob(e.at(p))
		if err != nil {
			return err
		}
		for _, n := range names {
			f, err := os.Open(n)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, f)
			f.Close()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// scanEngines of the scan workload. Every one is a process that lives through all files, so that
// engines take turns at each file and no start is measured.
var scanEngines = []struct {
	name   string
	ours   string // engine of `peers scan`
	python string // engine of py/scan.py
	cores  int
}{
	{"penstock", "ours", "", 1},
	{"duckdb lazy", "", "duckdb", 1},
	{"duckdb to arrow", "", "duckdb_arrow", 1},
	{"polars sink_ipc", "", "polars", 1},
	{"polars collect_batches", "", "polars_batches", 1},
	{"pyarrow", "", "pyarrow", 1},
	{"arrow-go pqarrow", "pqarrow", "", 1},
	{"decompress + copy", "limit", "", 1},
	{"penstock again", "ours", "", 1},
	{"penstock, 2 cores", "ours", "", 2},
	{"duckdb lazy, 2 cores", "", "duckdb", 2},
}

// measureScan has every engine scan every file; a case is an engine and a file, "engine/file".
func measureScan(e env, rounds int) (*measured, error) {
	files, err := filepath.Glob(e.at("scan", "*.parquet"))
	if err != nil {
		return nil, err
	}
	if err := warm(e, []string{"scan/*.parquet"}); err != nil {
		return nil, err
	}
	m := &measured{Name: "scan", At: time.Now()}
	servers := make([]*server, len(scanEngines))
	defer func() {
		for _, s := range servers {
			if s != nil {
				s.close()
			}
		}
	}()
	for i, en := range scanEngines {
		if en.cores > runtime.NumCPU() {
			continue
		}
		args := []string{e.self, "scan", en.ours, fmt.Sprint(en.cores)}
		if en.ours == "" {
			args = e.py("scan", en.python, fmt.Sprint(en.cores))
		}
		s, err := startServer(en.cores, nil, args...)
		if errors.Is(err, errMissing) {
			m.Cases = append(m.Cases, &caseResult{Name: en.name, Err: errMissing.Error()})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", en.name, err)
		}
		servers[i] = s
	}
	for round := range rounds {
		for _, path := range files {
			name := strings.TrimSuffix(filepath.Base(path), ".parquet")
			for k := range servers {
				i := k
				if round%2 == 1 {
					i = len(servers) - 1 - k
				}
				if servers[i] == nil {
					continue
				}
				id := scanEngines[i].name + "/" + name
				c := m.get(id)
				if len(c.Runs) == 0 && c.Err == "" && round == 0 {
					m.Cases = append(m.Cases, c)
				}
				if c.Err != "" {
					continue
				}
				f, err := servers[i].do(path)
				if err != nil {
					c.Err = err.Error()
					continue
				}
				c.Runs = append(c.Runs, f)
				fmt.Fprintf(os.Stderr, "scan, round %d, %s: CPU %.3f s\n", round+1, id, f["cpu"])
			}
		}
	}
	m.agreeByFile()
	return m, nil
}

func loadResults(file string) (*results, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &results{}
	return r, json.Unmarshal(b, r)
}

func (r *results) save(file string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", " ")
	if err := enc.Encode(r); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// reportAgain makes the report of what was measured.
//
//	report [-out DIR] DATA
func reportAgain(args []string) error {
	o, err := parse("report", args)
	if err != nil {
		return err
	}
	r, err := loadResults(filepath.Join(o.data, "results.json"))
	if err != nil {
		return err
	}
	return r.report(o.out, workloads(env{data: o.data, quick: r.Quick}))
}
