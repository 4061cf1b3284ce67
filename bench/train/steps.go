package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/bench/internal/kit"
)

func next(k block) float64   { return k.Next }
func report(k block) float64 { return k.Report }
func asked(k block) float64  { return k.Next + k.Report }
func wall(k block) float64   { return k.Wall }
func slept(k block) float64  { return k.Sleep }
func cpu(k block) float64    { return k.CPU }

// engines that run the loop here.
func (b *bench) engines() map[string]string {
	all := map[string]string{"go": "Go loop"}
	if b.python != "" {
		all["pytorch"] = "PyTorch script"
	}
	return all
}

// overhead is the time in Next and Report over wall time, steps of 20 ms that sleep, a report after each. Each engine runs twice, in turns.
func overhead(b *bench) error {
	o := settings{Blocks: [][2]int{{20, 400}}, Warm: 30, Report: true}
	if b.Quick {
		o.Blocks[0][1] = 60
	}
	runs := map[string][]*run{}
	for range 2 {
		for _, e := range []string{"go", "pytorch"} {
			if b.engines()[e] == "" {
				continue
			}
			r, err := b.train(e, o)
			if err != nil {
				return err
			}
			runs[e] = append(runs[e], r)
		}
	}
	for _, e := range []string{"go", "pytorch"} {
		what := fmt.Sprintf("overhead, %s, 2 workers, 20 ms steps: time in Next and Report / wall time", cmp.Or(b.engines()[e], "PyTorch script"))
		if runs[e] == nil {
			b.absent(what)
			continue
		}
		first, second := runs[e][0], runs[e][1]
		a, z := first.share(0, asked, wall), second.share(0, asked, wall)
		b.Add(what, "<= 1 %", "%.2f %% (A/A: %.2f and %.2f %%); a step: Next %.0f us, Report %.0f us, CPU of the worker %.0f us", 50*(a+z), 100*a, 100*z,
			(first.micros(next)+second.micros(next))/2, (first.micros(report)+second.micros(report))/2, (first.micros(cpu)+second.micros(cpu))/2)
	}
	if b.python != "" {
		b.ray()
	}
	return nil
}

// Ray Train's workers import for half a minute, and each report waits for the controller's next look, every 2 s as it
// comes: so it makes raySteps, after rayWarm, in up to rayTime.
const (
	rayTime  = 4 * time.Minute
	raySteps = 25
	rayWarm  = 3
)

// ray adds Ray Train's report beside ours, where it is installed.
func (b *bench) ray() {
	const what = "beside it: Ray Train, 2 workers, 20 ms steps, no data: time in report / wall time"
	folder := filepath.Join(b.Dir, "ray")
	if err := os.MkdirAll(folder, 0o777); err != nil {
		log.Print(err)
		return
	}
	ctx, cancel := context.WithTimeout(b.Ctx, rayTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.python, filepath.Join(b.Dir, "ray_report.py"), fmt.Sprint(raySteps), fmt.Sprint(rayWarm), folder)
	cmd.Env = b.environment()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its own processes
	cmd.WaitDelay = 15 * time.Second
	text, err := cmd.Output()
	var got struct {
		Share, Micros float64
		Version       string
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if err == nil {
		err = json.Unmarshal([]byte(lines[len(lines)-1]), &got)
	}
	if err != nil {
		log.Printf("Ray Train: %v", err)
		b.Add(what, "", "not measured: Ray Train (ray[train]) is not installed, or does not run here within %s", rayTime)
		return
	}
	b.Add(what, "", "%.2f %%; %.0f us a report (ray %s)", 100*got.Share, got.Micros, got.Version)
}

// paced is the time waited for data over the time of the steps, in blocks of 10, 20 and 40 ms, with a filter, two columns, and batches of 1024 x 64 float32 for each of two ranks. Each engine runs twice,
// in turns.
func paced(b *bench) error {
	n := 150
	if b.Quick {
		n = 20
	}
	paces := []int{10, 20, 40}
	o := settings{Warm: 30}
	for _, ms := range append(paces, paces...) {
		o.Blocks = append(o.Blocks, [2]int{ms, n * 20 / (10 + ms)})
	}
	type engine struct {
		name, label, goal string
		run               func() (*run, error)
	}
	all := []engine{{"go", "Go loop", "<= 2 %", func() (*run, error) { return b.train("go", o) }}}
	if b.python != "" {
		all = append(all, engine{"pytorch", "PyTorch script", "<= 2 %", func() (*run, error) { return b.train("pytorch", o) }},
			engine{"loader", "beside it: torch DataLoader over pyarrow, 2 loader workers per rank, not shuffled", "", func() (*run, error) { return b.loader(o) }})
	}
	runs := map[string][]*run{}
	for range 2 {
		for _, e := range all {
			r, err := e.run()
			if err != nil {
				return fmt.Errorf("%s: %w", e.name, err)
			}
			runs[e.name] = append(runs[e.name], r)
		}
	}
	for _, e := range all {
		for _, ms := range paces {
			first, second := runs[e.name][0], runs[e.name][1]
			a, z := first.share(ms, next, slept), second.share(ms, next, slept)
			b.Add(fmt.Sprintf("paced, %s, %d ms steps: waiting for data / step time", e.label, ms), e.goal,
				"%.2f %% (A/A: %.2f and %.2f %%); longest wait %.1f ms", 50*(a+z), 100*a, 100*z, max(first.worst(ms), second.worst(ms)))
		}
	}
	if b.python == "" {
		b.absent("paced, PyTorch script, and torch DataLoader over pyarrow")
	}
	return nil
}

// loader runs the same steps over torch's DataLoader, one process per rank.
func (b *bench) loader(o settings) (*run, error) {
	out, err := os.MkdirTemp(b.Dir, "loader-")
	if err != nil {
		return nil, err
	}
	blocks, err := json.Marshal(append([][2]int{{o.Blocks[0][0], o.Warm}}, o.Blocks...))
	if err != nil {
		return nil, err
	}
	r := &run{out: out}
	var ranks []*exec.Cmd
	for i := range workers {
		cmd := b.script("loader.py", b.data, out, fmt.Sprint(i), string(blocks))
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		ranks = append(ranks, cmd)
	}
	for i, cmd := range ranks {
		err = errors.Join(err, cmd.Wait())
		if err == nil {
			err = readJSON(filepath.Join(out, fmt.Sprintf("rank-%d.json", i)), &r.blocks[i])
		}
	}
	return r, err
}

// restart is from the SIGKILL of a worker to the first batch of the next attempt. Rank 1 kills itself in the first attempts of a run that makes a checkpoint each 10 steps of 20 ms; engines take turns.
func restart(b *bench) error {
	kills, rounds := 3, 2
	if b.Quick {
		kills, rounds = 1, 1
	}
	o := settings{Blocks: [][2]int{{20, 40}}, Report: true, Save: 10, Kill: kills}
	type times struct{ detected, again, framework, rest []float64 }
	all := map[string]*times{}
	for range rounds {
		for e := range b.engines() {
			r, err := b.train(e, o)
			if err != nil {
				return err
			}
			failed, err := r.failures(e)
			if err != nil {
				return err
			}
			if len(failed) != kills {
				return fmt.Errorf("%s: %d failures were seen, not %d: %s", e, len(failed), kills, strings.Join(r.log.text, "\n"))
			}
			t := all[e]
			if t == nil {
				t = &times{}
				all[e] = t
			}
			for k := range kills {
				var killed int64
				if err := readJSON(filepath.Join(r.out, fmt.Sprintf("killed-%d.json", k+1)), &killed); err != nil {
					return err
				}
				// Of the ranks of the next attempt the one that has its first batch last.
				var last marks
				for rank := range workers {
					var m marks
					if err := readJSON(filepath.Join(r.out, fmt.Sprintf("marks-%d-%d.json", k+2, rank)), &m); err != nil {
						return err
					}
					if m.First > last.First {
						last = m
					}
				}
				framework := seconds(last.Loaded - last.Started)
				t.detected = append(t.detected, seconds(failed[k]-killed))
				t.again = append(t.again, seconds(last.First-failed[k]))
				t.framework = append(t.framework, framework)
				t.rest = append(t.rest, seconds(last.First-failed[k])-framework)
			}
		}
	}
	for _, e := range []string{"go", "pytorch"} {
		t := all[e]
		what := fmt.Sprintf("restart, %s, 2 workers: from SIGKILL of one to ", cmp.Or(b.engines()[e], "PyTorch script"))
		if t == nil {
			b.absent(what + "the first batch of the next attempt")
			continue
		}
		b.Add(what+"the failure as the controller says it", "", "%.3f s (most %.3f)", kit.Median(t.detected), slices.Max(t.detected))
		b.Add(what+"the first batch on all ranks of the next attempt, after that and without the framework's own start", "<= 2 s", "%.3f s (most %.3f of %d kills); the worker's own start beside it: %.3f s; together %.3f s",
			kit.Median(t.rest), slices.Max(t.rest), len(t.rest), kit.Median(t.framework), kit.Median(t.again))
	}
	return nil
}

func seconds(ns int64) float64 { return time.Duration(ns).Seconds() }

// failures are the moments at which the controller knew of each.
func (r *run) failures(engine string) (at []int64, err error) {
	if engine == "go" {
		return at, readJSON(filepath.Join(r.out, "failed.json"), &at)
	}
	for i, text := range r.log.text {
		if strings.Contains(text, "penstock: warning: attempt ") {
			at = append(at, r.log.at[i])
		}
	}
	return at, nil
}
