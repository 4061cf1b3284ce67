//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/store"
)

// Kinds of jobs.
const (
	scanJob    = "scan"    // Parquet, a filter, a step that skips rows, one in child processes, Parquet
	shardJob   = "shards"  // a training run of the workers of worker_test.go: a filter, windows, 4 workers, 2 epochs of 20 steps, saved after every 5
	torchJob   = "pytorch" // the same of kill.py: DDP over gloo
	chaosRanks = 4
	chaosSteps = 40
	chaosEvery = 5
)

// chaosJob is a job on two nodes of a world.
type chaosJob struct {
	*world
	kind, spec, storage string
	notes               string // folder in which its processes say where they are, and look for what they are told
	holdAt              int
	ref                 *reference
}

// reference is what a job of a kind gives that nobody disturbs, in one process.
type reference struct {
	once   sync.Once
	ok     bool
	data   string            // scan: what is read
	rows   []string          // scan: of the output, in order
	dead   []string          // scan: of the dead letter, in order
	counts map[string]any    // scan: of the line of --json
	steps  map[string]string // shards: epoch, step and digest by number of the step and rank
	ledger map[string]int64  // training runs
	torch  pytorch
	had    map[string]string // pytorch: samples
	losses map[string]string
}

var references = map[string]*reference{scanJob: {}, shardJob: {}, torchJob: {}}

// text is the spec of a job.
func (r *reference) text(t *testing.T, kind, notes, storage string, holdAt int, work time.Duration) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	switch kind {
	case scanJob:
		return fmt.Sprintf(`version: 1
name: scan
source: {parquet: {paths: [%q], path_column: path, row_column: row}}
steps:
  - filter: delay > 15
  - with_columns: {near: 9223372036854775712 + row %% 97}
  - exec: {command: [%q], env: [PENSTOCK_TEST_MAIN=slow, %q, CHAOS_WORK=%v, %s, PENSTOCK_JOB_ATTEMPT], workers: 1, batch_rows: 128}
sink: {parquet: {path: %q, compression: zstd, target_size: 32KiB}}
run: {memory: 64MiB, on_error: {policy: skip, dead_letter: %q}}
`, r.data, self, "CHAOS_DIR="+notes, work, chaosEnv, storage, filepath.Join(notes, "dead"))
	case torchJob:
		return r.torch.text(notes, storage, "sync", chaosRanks, 4, fmt.Sprintf("step: %v, dir: %q, holdat: %d", work.Seconds(), notes, holdAt))
	}
	return fmt.Sprintf(`version: 1
source: {range: {n: 1800}}
steps: [{filter: id %% 3 != 0}]
shards: {global_batch: 60, seed: 3, columns: {id: int64}, shuffle: {lanes: 3, window_rows: 100}}
train:
  command: [%q]
  env: [PENSTOCK_TEST_MAIN=worker]
  workers: %d
  storage: %q
  logs: %q
  config: {every: %d, steps: %d, wait: %d, dir: %q, holdat: %d}
  stop_timeout: 2s
  failures: {worker: 4}
run: {memory: 64MiB}
`, self, chaosRanks, storage, filepath.Join(notes, "logs"), chaosEvery, chaosSteps, work.Milliseconds(), notes, holdAt)
}

// referenceOf runs it, once.
func referenceOf(t *testing.T, kind string) *reference {
	t.Helper()
	r := references[kind]
	r.once.Do(func() {
		switch kind {
		case torchJob:
			r.torch = newPytorch(t)
		case scanJob:
			var err error
			if r.data, err = os.MkdirTemp("", "chaos-data"); err != nil { // for all tests
				t.Fatal(err)
			}
			atEnd = append(atEnd, func() { os.RemoveAll(r.data) })
			for i := range 4 {
				if err := os.CopyFS(filepath.Join(r.data, strconv.Itoa(i)), os.DirFS("../../examples/data/flights")); err != nil {
					t.Fatal(err)
				}
			}
		}
		notes, storage := t.TempDir(), t.TempDir()
		command, args := "train", []string{"--name", "run"}
		if kind == scanJob {
			command, args = "run", []string{"--json"}
		}
		c := startWith(t, []string{chaosEnv + "=none/none", "PENSTOCK_JOB_ATTEMPT="}, append([]string{command, writeSpec(t, r.text(t, kind, notes, storage, 0, 0))}, args...)...)
		if err := c.Wait(); err != nil {
			t.Fatalf("%v: %s%s", err, c.out.String(), c.err.String())
		}
		switch kind {
		case scanJob:
			r.rows, r.dead, r.counts = rowsOf(t, storage), rowsOf(t, filepath.Join(notes, "dead")), countsOf(t, c.out.String())
			r.ok = len(r.rows) > 1000 && len(slices.Compact(slices.Sorted(slices.Values(r.rows)))) == len(r.rows) &&
				len(r.dead) > 10 && r.counts["rows_out"] == float64(len(r.rows)) && r.counts["skipped_rows"] == float64(len(r.dead))
		case shardJob:
			r.steps = map[string]string{}
			for rank := range chaosRanks {
				for i, line := range logOf(t, filepath.Join(notes, fmt.Sprintf("log--1-%d", rank))) {
					n, what, _ := strings.Cut(line, " ")
					if n != strconv.Itoa(i+1) || !strings.HasPrefix(what, fmt.Sprintf("%d/%d ", i/20, i%20)) {
						t.Fatalf("step %d of rank %d is %q", i+1, rank, line)
					}
					r.steps[fmt.Sprintf("%s/%d", n, rank)] = what
				}
			}
			r.ledger = ledgerOf(t, storage)
			r.ok = len(r.steps) == chaosSteps*chaosRanks && total(r.ledger) == 1200
		case torchJob:
			r.had, r.losses = written(t, notes, "ledger", 0), written(t, notes, "loss", chaosRanks)
			r.ledger = ledgerOf(t, storage)
			r.ok = len(r.had) == 1600 && len(r.losses) == chaosSteps*chaosRanks && total(r.ledger) == 800
		}
	})
	if !r.ok {
		t.Fatalf("there is nothing to compare a job with: %d rows, %d skipped, counts %v, %d steps, %d samples, ledger %v", len(r.rows), len(r.dead), r.counts, len(r.steps), len(r.had), r.ledger)
	}
	return r
}

// startWith is startPenstock with more of an environment.
func startWith(t *testing.T, env []string, args ...string) *started {
	t.Helper()
	s := &started{Cmd: command(t, args...)}
	s.Env = append(s.Env, env...)
	s.Stdout, s.Stderr, s.WaitDelay = &s.out, &s.err, 10*time.Second
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// newJob writes a job's spec. Its processes wait in the midst of it, until they are let go, where hold says so.
func newJob(w *world, kind, storage string, hold bool, work time.Duration) *chaosJob {
	w.t.Helper()
	j := &chaosJob{world: w, kind: kind, storage: storage, ref: referenceOf(w.t, kind), notes: w.t.TempDir(), holdAt: 7 + w.rnd.IntN(chaosSteps-10)}
	if j.holdAt%chaosEvery == 0 {
		j.holdAt++ // between two checkpoints
	}
	if hold {
		j.hold()
	}
	j.spec = writeSpec(w.t, j.ref.text(w.t, kind, j.notes, storage, j.holdAt, work))
	return j
}

// submit has a command follow the job.
func (j *chaosJob) submit() {
	j.t.Helper()
	args := []string{"train", j.spec, "--name", "run"}
	if j.kind == scanJob {
		args = []string{"run", j.spec, "--json"}
	}
	j.job = j.start("-job", nil, nil, append(args, "--cluster", filepath.Join(j.dir, "head"), "--working-dir", filepath.Dir(j.spec), "--nodes", "2", "--id", j.submission)...)
}

func (j *chaosJob) note(name, text string) {
	j.t.Helper()
	if err := os.WriteFile(filepath.Join(j.notes, name), []byte(text), 0o644); err != nil {
		j.t.Fatal(err)
	}
}

func (j *chaosJob) hold() { j.note("hold", "") }

func (j *chaosJob) letGo() {
	j.t.Helper()
	if err := os.Remove(filepath.Join(j.notes, "hold")); err != nil {
		j.t.Fatal(err)
	}
}

// midst waits until an attempt of the job is at work on both nodes, and held there.
func (j *chaosJob) midst(attempt int) {
	j.t.Helper()
	j.before(fmt.Sprintf("attempt %d held", attempt), func() bool {
		files, _ := filepath.Glob(filepath.Join(j.notes, fmt.Sprintf("held-%d-*", attempt)))
		if j.kind != scanJob {
			return len(files) == chaosRanks
		}
		nodes := map[string]bool{}
		for _, name := range files {
			nodes[strings.Split(filepath.Base(name), "-")[2]] = true
		}
		return len(nodes) == 2
	})
}

// saved waits for the n-th checkpoint, or the n-th part.
func (j *chaosJob) saved(n int64) {
	j.t.Helper()
	j.before(fmt.Sprintf("checkpoint %d", n), func() bool {
		if j.kind == scanJob {
			parts, _ := filepath.Glob(filepath.Join(filepath.Dir(j.storage), "_penstock-"+filepath.Base(j.storage), "jobs", "*", "part-*.json"))
			return int64(len(parts)) >= n
		}
		r, err := store.Open(j.t.Context(), j.storage, "run")
		if err != nil {
			return false // it is not there yet
		}
		defer r.Close()
		m, err := r.Latest(j.t.Context())
		return err == nil && m.Report >= n
	})
}

// progress is how far it came, of about 40.
func (j *chaosJob) progress() (n int) {
	if j.kind == scanJob {
		st, err := os.Stat(filepath.Join(j.notes, "chunks"))
		if err != nil {
			return 0
		}
		return int(st.Size()) / 4
	}
	files, _ := filepath.Glob(filepath.Join(j.notes, "log-*-0"))
	for _, name := range files {
		b, _ := os.ReadFile(name)
		last := b[bytes.LastIndexByte(b[:max(len(b)-1, 0)], '\n')+1:]
		i, _ := strconv.Atoi(string(last[:max(bytes.IndexByte(last, ' '), 0)]))
		n = max(n, i)
	}
	return n
}

// on is the node of a member, by its name, as of the attempt that runs.
func (j *chaosJob) on(member int) (node string) {
	j.t.Helper()
	j.before("nodes of the job", func() bool {
		s := j.status()
		if len(s.Nodes) != 2 {
			return false
		}
		node = j.name(s.Nodes[member])
		return true
	})
	return node
}

// wants is how a job should end. The zero value: finished, with nothing but its first attempt.
type wants struct {
	again   bool     // it took more than one attempt of the job
	any     bool     // of attempts any number is right
	restart bool     // the run's workers were started more than once
	why     []string // it fails, and says this
}

// finish waits for the end, and checks it.
func (j *chaosJob) finish(want wants) {
	j.t.Helper()
	j.until("the end of the job", j.job.over)
	s, code := j.status(), j.job.cmd.ProcessState.ExitCode()
	j.t.Logf("%v: exit %d, %s after %d attempts, failures %v", time.Since(j.began).Round(10*time.Millisecond), code, s.State, s.Attempts, s.Failures)
	if len(j.faults) == 0 {
		j.t.Error("no fault happened")
	}
	if !want.any && (s.Attempts > 1) != want.again {
		j.t.Errorf("%d attempts: %+v", s.Attempts, s)
	}
	if want.why != nil {
		if code == 0 || s.State != "failed" {
			j.t.Errorf("exit %d, %+v", code, s)
		}
		for _, text := range want.why {
			if !strings.Contains(s.Why+j.job.String(), text) {
				j.t.Errorf("%q is not what it says: %s\n%s", text, s.Why, j.job)
			}
		}
		return
	}
	if code != 0 || s.State != "finished" {
		j.t.Fatalf("exit %d, %+v\n%s", code, s, j.job)
	}
	switch j.kind {
	case scanJob:
		for what, of := range map[string]struct {
			dir  string
			want []string
		}{"rows": {j.storage, j.ref.rows}, "dead letters": {filepath.Join(j.notes, "dead"), j.ref.dead}} {
			if got := rowsOf(j.t, of.dir); !slices.Equal(got, of.want) {
				j.t.Errorf("%d %s, want %d: %s", len(got), what, len(of.want), difference(got, of.want))
			}
		}
		if counts := countsOf(j.t, j.job.String()); !maps.Equal(counts, j.ref.counts) {
			j.t.Errorf("the line of --json has %v, want %v", counts, j.ref.counts)
		}
	case shardJob:
		j.run(want)
		j.committed()
	case torchJob:
		j.run(want)
		if had := written(j.t, j.notes, "ledger", 0); !maps.Equal(had, j.ref.had) {
			j.t.Errorf("%d samples are not those of a run that nobody disturbs", len(had))
		}
		if losses := written(j.t, j.notes, "loss", chaosRanks); !maps.Equal(losses, j.ref.losses) {
			for step, loss := range losses {
				if want := j.ref.losses[step]; loss != want {
					j.t.Logf("step and rank %s: %s, want %s", step, loss, want)
				}
			}
			j.t.Errorf("%d losses are not those of a run that nobody disturbs", len(losses))
		}
	}
}

// run checks what the storage of a training run says.
func (j *chaosJob) run(want wants) {
	j.t.Helper()
	var s runJSON
	r := penstock(j.t, "status", "run", "--storage", j.storage, "--json")
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || s.State != "finished" || j.kind == shardJob && (s.Reports < chaosSteps/chaosEvery || s.Reports > chaosSteps/chaosEvery && !want.any) || // a notice makes one more
		!want.any && (s.Attempt > 1) != (want.again || want.restart) {
		j.t.Errorf("the run: %+v, %v", r, err)
	}
	if got := ledgerOf(j.t, j.storage); !maps.Equal(got, j.ref.ledger) {
		j.t.Errorf("the ledger is another one: %v, want %v", got, j.ref.ledger)
	}
}

// committed checks that of every step every rank had the right batch, and that the attempts, each up to where the next one began, have each step once.
func (j *chaosJob) committed() {
	j.t.Helper()
	type attempt struct{ begin, end [chaosRanks]int } // steps
	runs := map[int]*attempt{}
	files, _ := filepath.Glob(filepath.Join(j.notes, "log-*"))
	for _, name := range files {
		f := strings.Split(filepath.Base(name), "-")
		run, _ := strconv.Atoi(f[2])
		rank, _ := strconv.Atoi(f[3])
		lines := logOf(j.t, name)
		if len(lines) == 0 {
			continue // it did not come so far
		}
		if runs[run] == nil {
			runs[run] = &attempt{}
		}
		for i, line := range lines {
			n, what, _ := strings.Cut(line, " ")
			step, _ := strconv.Atoi(n)
			if i == 0 {
				runs[run].begin[rank] = step
			}
			if want := runs[run].begin[rank] + i; step != want || what != j.ref.steps[fmt.Sprintf("%d/%d", step, rank)] {
				j.t.Errorf("%s: line %d is %q, not step %d %s", filepath.Base(name), i, line, want, j.ref.steps[fmt.Sprintf("%d/%d", want, rank)])
			}
			runs[run].end[rank] = step
		}
	}
	var done [chaosRanks]int // committed, as far as is known
	again, noticed := 0, map[int]bool{}
	for _, n := range slices.Sorted(maps.Keys(runs)) {
		for rank := range chaosRanks {
			begin, end := runs[n].begin[rank], runs[n].end[rank]
			if begin == 0 {
				continue
			}
			if begin > done[rank]+1 {
				j.t.Errorf("attempt %d begins at step %d on rank %d: steps after %d are lost", n, begin, rank, done[rank])
			}
			if last := begin == done[rank]+1; begin%chaosEvery != 1 && !last && !noticed[begin] {
				j.t.Errorf("attempt %d begins at step %d on rank %d, where no checkpoint was to be", n, begin, rank)
			} else if last {
				noticed[begin] = true // a notice has a checkpoint made at once
			}
			again += max(done[rank]+1-begin, 0)
			done[rank] = max(done[rank], end)
		}
	}
	for rank, n := range done {
		if n != chaosSteps {
			j.t.Errorf("rank %d ended at step %d", rank, n)
		}
	}
	j.t.Logf("%d attempts at the run, %d batches were made again", len(runs), again)
}

// logOf are the whole lines of a log: of a process that was killed the last one may be half.
func logOf(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	return lines[:len(lines)-1]
}

// rowsOf are the rows of an output, in order.
func rowsOf(t *testing.T, dir string) (rows []string) {
	t.Helper()
	for rec, err := range dataset.ReadParquet(dir).Records(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range int(rec.NumRows()) {
			var row strings.Builder
			for _, c := range rec.Columns() {
				row.WriteString(c.ValueStr(i))
				row.WriteByte('|')
			}
			rows = append(rows, row.String())
		}
	}
	return rows
}

// countsOf are the numbers of rows in the last line of --json of an output.
func countsOf(t *testing.T, out string) map[string]any {
	t.Helper()
	var all map[string]any
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "{") {
			all = nil
			if err := json.Unmarshal([]byte(line), &all); err != nil {
				t.Errorf("%v: %s", err, line)
			}
		}
	}
	maps.DeleteFunc(all, func(k string, _ any) bool { return k != "rows_in" && k != "rows_out" && k != "skipped_rows" })
	return all
}

// difference is how two lists differ.
func difference(got, want []string) string {
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if slices.Equal(got, want) {
		return "they come in another order"
	}
	var lost, more []string
	for len(got) > 0 || len(want) > 0 {
		switch {
		case len(got) == 0 || len(want) > 0 && want[0] < got[0]:
			lost, want = append(lost, want[0]), want[1:]
		case len(want) == 0 || got[0] < want[0]:
			more, got = append(more, got[0]), got[1:]
		default:
			got, want = got[1:], want[1:]
		}
	}
	return fmt.Sprintf("%d are lost: %.300q, %d are too much: %.300q", len(lost), lost, len(more), more)
}

// ledgerOf is how many samples each window of the last epoch had, by the ledger of the last checkpoint.
func ledgerOf(t *testing.T, storage string) map[string]int64 {
	t.Helper()
	r, err := store.Open(t.Context(), storage, "run")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m, err := r.Latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.Ledger(t.Context(), m, "train")
	if err != nil {
		t.Fatal(err)
	}
	l, err := shard.ReadLedger(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int64{}
	for lane := range 3 {
		for window := range int64(30) {
			if n, ok := l.Samples(1, 0, 0, lane, window); ok {
				all[fmt.Sprintf("lane %d, window %d", lane, window)] = n
			}
		}
	}
	return all
}

func total(ledger map[string]int64) (n int64) {
	for _, samples := range ledger {
		n += samples
	}
	return n
}
