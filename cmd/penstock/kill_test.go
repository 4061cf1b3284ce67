//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/killtest"
)

// pytorch are the runs of testdata/kill.py: 2 epochs of 20 steps of 40 samples, saved every 5 steps.
type pytorch struct {
	python, script, library string
}

func newPytorch(t *testing.T) pytorch {
	t.Helper()
	p := pytorch{python: datatest.Python(t, "numpy", "torch")}
	for name, to := range map[string]*string{"../../python": &p.library, "testdata/kill.py": &p.script} {
		var err error
		if *to, err = filepath.Abs(name); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// text is the spec of a run whose workers write to out, and may fail so often. config is more of what they are told.
func (p pytorch) text(out, storage, upload string, workers, failures int, config string) string {
	return fmt.Sprintf(`version: 1
source: {range: {n: 1200}}
steps:
  - filter: id %% 3 != 0
  - with_columns: {x: double(id %% 97) / 97.0, y: double(id %% 7)}
shards: {global_batch: 40, seed: 5, columns: {id: int64, x: float32, y: float32}, shuffle: {lanes: 3, window_rows: 100}}
train:
  command: [%q, %q]
  env: [%q, OMP_NUM_THREADS=1]
  workers: %d
  storage: %q
  logs: %q
  config: {out: %q, %s}
  stop_timeout: 2s
  failures: {worker: %d}
  checkpoints: {upload: %s}
run: {memory: 64MiB}
`, p.python, p.script, "PYTHONPATH="+p.library, workers, storage, filepath.Join(out, "logs"), out, config, failures, upload)
}

// spec of a run that is disturbed.
func (p pytorch) spec(t *testing.T, out, storage, upload string, workers int) string {
	t.Helper()
	return writeSpec(t, p.text(out, storage, upload, workers, 10, "step: 0.005"))
}

// whole is what a run gives that nobody disturbs: its samples and losses, and what it takes.
func (p pytorch) whole(t *testing.T, workers int) (ledger, losses map[string]string, took time.Duration) {
	t.Helper()
	out, begin := t.TempDir(), time.Now()
	if r := penstock(t, "train", p.spec(t, out, t.TempDir(), "sync", workers), "--name", "whole"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	took = time.Since(begin)
	ledger, losses = written(t, out, "ledger", 0), written(t, out, "loss", workers)
	if len(ledger) != 1600 || len(losses) != 40*workers {
		t.Fatalf("%d samples, %d losses: the test is wrong", len(ledger), len(losses))
	}
	return ledger, losses, took
}

// written is what workers wrote into files of a kind: the rest of each line by its first word. What was written twice must be the same; by is the number of workers, 0: any.
func written(t *testing.T, out, kind string, by int) map[string]string {
	t.Helper()
	pattern := kind + "-*"
	if by > 0 {
		pattern = fmt.Sprintf("%s-%d-*", kind, by)
	}
	files, err := filepath.Glob(filepath.Join(out, pattern))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rank := ""
		if kind == "loss" { // of a rank's share of the batch
			rank = name[strings.LastIndexByte(name, '-'):]
		}
		for line := range strings.Lines(string(b[:strings.LastIndexByte(string(b), '\n')+1])) { // a worker that was killed did not finish its line
			key, val, _ := strings.Cut(strings.TrimSpace(line), " ")
			if was, ok := all[key+rank]; ok && was != val {
				t.Fatalf("%s: %s was %s, then %s", filepath.Base(name), key, was, val)
			}
			all[key+rank] = val
		}
	}
	return all
}

// Runs of PyTorch with DDP under penstock train: whatever is killed, and whenever, they finish with the samples of a run that nobody disturbs, and on the same number of workers
// with its losses, bit by bit.
func TestKilledPyTorch(t *testing.T) {
	const workers = 2
	p := newPytorch(t)
	ledger, losses, took := p.whole(t, workers)
	runs, soak := 3, os.Getenv("PENSTOCK_SOAK") != ""
	if soak {
		runs = 20
	}
	storage, hits, ran := killtest.NewStorage(t), killtest.Tally{}, 0
	for i := 0; i < runs || soak && i < 5*runs; i++ {
		if i >= runs && (ran < runs || hits.Hit(killtest.CaseOf(i, 0))) { // what comes after them is for cases whose moment was missed
			continue
		}
		seed := uint64(i)
		if s := os.Getenv("PENSTOCK_SEED"); s != "" {
			var err error
			if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
				t.Fatal(err)
			}
		} else if soak {
			seed = rand.Uint64()
		}
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			ran++
			k := killtest.CaseOf(i, seed)
			r := k.Rand()
			then := []int{workers, workers, 1, 3}[r.IntN(4)] // of a controller that resumes
			upload := []string{"sync", "async"}[r.IntN(2)]
			t.Logf("%v: %d workers, later %d, %s (PENSTOCK_SEED=%d repeats these)", k, workers, then, upload, seed)
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			t.Setenv("TMPDIR", t.TempDir())
			t.Setenv("XDG_RUNTIME_DIR", "")
			out := t.TempDir()
			url, _, dir := storage.Of(t, k)
			spec := p.spec(t, out, url, upload, workers)
			now := workers
			run := killtest.Run{Case: k, Dir: filepath.Join(dir, "run"), Steps: 40, Every: 5, StepTime: 5 * time.Millisecond, Takes: took, Limit: 4 * time.Minute,
				Start: func(resume bool) (*exec.Cmd, int) {
					if resume {
						now = then
						return command(t, "resume", "run", "--storage", url, "--workers", strconv.Itoa(then)), then
					}
					return command(t, "train", spec, "--name", "run"), workers
				}}
			hits.Add(run.Finish(t))
			if got := written(t, out, "ledger", 0); !maps.Equal(got, ledger) {
				t.Errorf("samples are not those of a run that nobody disturbs: %d, want %d", len(got), len(ledger))
			}
			if got := written(t, out, "loss", workers); now == workers && !maps.Equal(got, losses) {
				t.Errorf("losses are not those of a run that nobody disturbs:\n%v\n%v", got, losses)
			}
			var status struct {
				State   string
				Reports int
			}
			if s := penstock(t, "status", "run", "--storage", url, "--json"); json.Unmarshal([]byte(s.out), &status) != nil || status.State != "finished" || status.Reports != 40 {
				t.Errorf("status: %+v", s)
			}
			if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "penstock-*")); len(left) > 0 {
				t.Errorf("folders that are left: %v", left)
			}
		})
	}
	if ran >= runs && soak {
		storage.Check(t)
		hits.Check(t, true)
	}
}
