package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/hosttest"
)

// childConfig is what a child process does: one run, which kills itself at step
// DieAt (counted from 1; 0: never).
type childConfig struct {
	O     Options
	Spec  runSpec
	Slow  time.Duration
	DieAt int64
}

func (c childConfig) run(ctx context.Context, hook func(step, rel string)) error {
	c.O.Encoding = joinEncoding{ipcEncoding{c.Slow}}
	s, err := New(c.O)
	if err != nil {
		return err
	}
	s.hook = hook
	return c.Spec.run(ctx, s)
}

func child(cfg string) {
	var c childConfig
	if err := json.Unmarshal([]byte(cfg), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var n atomic.Int64
	err := c.run(context.Background(), func(step, rel string) {
		if n.Add(1) == c.DieAt {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// start runs c in a child process. wait tells whether it finished; it fails the
// test if the child failed in any other way than by being killed.
func (c childConfig) start(t *testing.T) (kill func(), wait func() bool) {
	t.Helper()
	c.O.Encoding = nil
	cfg, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PENSTOCK_SINK_CHILD="+string(cfg), "GOMAXPROCS=2")
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() { cmd.Process.Kill() }, func() bool {
		err := cmd.Wait()
		var ee *exec.ExitError
		if errors.As(err, &ee) && ee.Sys().(syscall.WaitStatus).Signaled() {
			return false
		}
		if err != nil {
			t.Fatalf("child: %v\n%s", err, out.Bytes())
		}
		return true
	}
}

// deadIDs reads a dead letter folder: the ids of the rows left out, in file order.
func deadIDs(t *testing.T, dir string) (ids []int64) {
	t.Helper()
	for _, name := range visible(t, dir) {
		r, err := openRoot(t.Context(), dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := r.b.ReadAll(t.Context(), r.prefix+name, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		pf, err := file.NewParquetReader(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		pr, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: 1000}, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		tab, err := pr.ReadTable(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tr := array.NewTableReader(tab, 0)
		for tr.Next() {
			rec := tr.RecordBatch()
			for i := range int(rec.NumRows()) {
				var row struct{ ID *int64 }
				text := rec.Column(9).(*array.String).Value(i)
				if err := json.Unmarshal([]byte(text), &row); err != nil || row.ID == nil {
					t.Fatalf("record %q: %v", text, err)
				}
				str := func(c int) string { return rec.Column(c).(*array.String).Value(i) }
				num := func(c int) int64 { return rec.Column(c).(*array.Int64).Value(i) }
				split := fmt.Sprintf("data#%d", num(5))
				if str(0) != "row_error" || str(1) != fmt.Sprintf("bad id %d", *row.ID) || num(2) != 0 || str(3) != split ||
					str(4) != "data" || str(7) != "step 1 (test)" || str(8) != "id" {
					t.Fatalf("dead letter row: %v", rec)
				}
				ids = append(ids, *row.ID)
			}
		}
		tr.Release()
		tab.Release()
		pf.Close()
		r.b.Close()
	}
	return ids
}

func exactDead(t *testing.T, dir string, d data) {
	t.Helper()
	var want []int64
	for id := range int64(d.Splits * d.Rows) {
		if id%100 == int64(d.Bad) {
			want = append(want, id)
		}
	}
	if got := deadIDs(t, dir); !slices.Equal(got, want) {
		t.Fatalf("dead letter has rows %v, want %v", got, want)
	}
}

type killCase struct {
	name string
	o    Options
	dead bool
	old  bool // another job's output is there before
}

var killCases = []killCase{
	{name: "plain"},
	{name: "rolls and dead letter", o: Options{TargetBytes: 5000}, dead: true},
	{name: "partitions", o: Options{TargetBytes: 4 << 20, PartitionBy: []string{"p"}, BufferBytes: 1000}},
	{name: "append", o: Options{TargetBytes: 3 << 20, Mode: ModeAppend}, old: true, dead: true},
	{name: "overwrite", o: Options{TargetBytes: 3 << 20, Mode: ModeOverwrite}, old: true},
}

// prepare makes the folder of a case; old is what its readers see before.
func (k killCase) prepare(t *testing.T) (c childConfig, before, after []data) {
	dir := t.TempDir()
	c = childConfig{O: k.o, Spec: runSpec{Data: data{Splits: 6, Rows: 200, Bad: -1}, Workers: 2, Batch: 64}}
	c.O.Path, c.O.Job = filepath.Join(dir, "out"), "killed"
	if c.O.TargetBytes == 0 {
		c.O.TargetBytes = 2 << 20
	}
	if k.dead {
		c.O.DeadLetter, c.Spec.Data.Bad = filepath.Join(dir, "bad"), 42
	}
	after = []data{c.Spec.Data}
	if k.old {
		old := childConfig{O: c.O, Spec: runSpec{Data: data{Splits: 3, Rows: 100, Bad: -1}, Workers: 1, Batch: 100}}
		old.O.Job, old.O.DeadLetter, old.O.Mode = "old", "", ""
		if err := old.run(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		before = []data{old.Spec.Data}
		if k.o.Mode == ModeAppend {
			after = append(after, old.Spec.Data)
		}
	}
	return c, before, after
}

func count(ds []data) (n int) {
	for _, d := range ds {
		n += d.Splits * d.Rows
		if d.Bad >= 0 {
			n -= d.Splits * d.Rows / 100
		}
	}
	return n
}

// midway checks what readers see after a kill: manifest readers all or nothing.
func midway(t *testing.T, c childConfig, before, after []data) {
	t.Helper()
	if n := len(rows(t, c.O.Path, false)); n != count(before) && n != count(after) {
		t.Fatalf("the manifest has %d rows, want %d or %d", n, count(before), count(after))
	}
}

// finish runs c to its end, with options that differ, and checks everything.
func (c childConfig) finish(t *testing.T, rnd *rand.Rand, after []data) {
	t.Helper()
	c.Spec.Workers, c.Spec.Batch, c.Slow = 1+rnd.IntN(4), 1+rnd.IntN(300), 0
	c.O.BufferBytes = int64(100 + rnd.IntN(10000))
	c.O.TargetBytes *= int64(1 + rnd.IntN(2))
	if err := c.run(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	exact(t, c.O.Path, after...)
	leftovers(t, c.O.Path)
	if c.O.DeadLetter != "" {
		exactDead(t, c.O.DeadLetter, c.Spec.Data)
		leftovers(t, c.O.DeadLetter)
	}
}

// Every step that changes something is a point to die at.
func TestKillAtEveryStep(t *testing.T) {
	for _, k := range killCases {
		t.Run(k.name, func(t *testing.T) {
			c, _, _ := k.prepare(t)
			var mu sync.Mutex
			var steps []string
			if err := c.run(t.Context(), func(step, rel string) {
				mu.Lock()
				steps = append(steps, step)
				mu.Unlock()
			}); err != nil {
				t.Fatal(err)
			}
			if joins := slices.Contains(steps, "join"); joins == (k.name == "rolls and dead letter") {
				t.Errorf("files are joined: %v", joins)
			}
			var killed, all atomic.Int64
			t.Cleanup(func() { // when the parallel ones are over
				if killed.Load() < all.Load()/2 {
					t.Errorf("of %d processes that were to kill themselves %d did", all.Load(), killed.Load())
				}
			})
			stride, first := 4, 1+rand.IntN(4) // another quarter of them every time
			if os.Getenv("PENSTOCK_SOAK") == "1" {
				stride, first = 1, 1
			}
			for at := first; at <= len(steps); at += stride {
				// Many files are staged and published alike: a few of them will do.
				if s := steps[at-1]; stride == 1 && (s == "stage" || s == "publish") && at > 3 && steps[at-2] == s && at%7 != 0 {
					continue
				}
				t.Run(fmt.Sprintf("%d %s", at, steps[at-1]), func(t *testing.T) {
					t.Parallel()
					rnd := rand.New(rand.NewPCG(uint64(at), 1))
					c, before, after := k.prepare(t)
					c.DieAt = int64(at)
					all.Add(1)
					if _, wait := c.start(t); wait() {
						return // the order of steps differs from run to run, their number a little
					}
					killed.Add(1)
					midway(t, c, before, after)
					if rnd.IntN(2) == 0 { // and once more
						c.DieAt = 1 + rnd.Int64N(20)
						if _, wait := c.start(t); !wait() {
							midway(t, c, before, after)
						}
					}
					c.finish(t, rnd, after)
				})
			}
		})
	}
}

// Killed from outside at random moments, again and again until it is through.
func TestKillAtRandom(t *testing.T) {
	hosttest.Alone(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	n := 50
	if testing.Short() {
		n = 10
	}
	var killed atomic.Int64
	t.Cleanup(func() { // when the parallel ones are over
		if t.Logf("%d kills", killed.Load()); int(killed.Load()) < n && !t.Failed() {
			t.Errorf("%d kills, want %d", killed.Load(), n)
		}
	})
	for i := range n {
		k := killCases[i%len(killCases)]
		t.Run(fmt.Sprintf("%d %s", i, k.name), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			for most := 250; ; most /= 2 { // until one was killed
				c, before, after := k.prepare(t)
				c.Slow = 2 * time.Millisecond
				kills := int64(0)
				for {
					c.Spec.Workers, c.Spec.Batch = 1+rnd.IntN(3), 20+rnd.IntN(100)
					kill, wait := c.start(t)
					timer := time.AfterFunc(time.Duration(20+rnd.IntN(most+1))*time.Millisecond, kill)
					finished := wait()
					timer.Stop()
					if !finished {
						kills++
					}
					midway(t, c, before, after)
					if finished || rnd.IntN(3) == 0 {
						break
					}
				}
				if c.finish(t, rnd, after); kills > 0 || t.Failed() {
					killed.Add(kills)
					return
				}
			}
		})
	}
}

// Two processes at the same job: both succeed, the rows are there once.
func TestSameJobTwice(t *testing.T) {
	for i := range 6 {
		k := killCases[i%len(killCases)]
		t.Run(fmt.Sprintf("%d %s", i, k.name), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(uint64(i), 2))
			c, _, after := k.prepare(t)
			c.Slow = time.Millisecond
			d := c
			d.Spec.Batch, d.Spec.Workers = 37, 1
			_, wait1 := c.start(t)
			kill, wait2 := d.start(t)
			if i%2 == 1 {
				timer := time.AfterFunc(time.Duration(50+rnd.IntN(100))*time.Millisecond, kill)
				defer timer.Stop()
			} else if !wait2() {
				t.Error("the second was killed")
			}
			if !wait1() {
				t.Error("the first was killed")
			}
			if i%2 == 1 {
				wait2()
			}
			exact(t, c.O.Path, after...)
			c.finish(t, rnd, after)
		})
	}
}

// The same in one process, many times, on a bucket.
func TestSameJobTogether(t *testing.T) {
	for i := range 10 {
		c := childConfig{O: Options{Path: fmt.Sprintf("mem://same%d/out", i), Job: "x", TargetBytes: 1 << 20, PartitionBy: []string{"p"}},
			Spec: runSpec{Data: data{Splits: 5, Rows: 100, Bad: 3}, Batch: 100}}
		c.O.DeadLetter = fmt.Sprintf("mem://same%d/bad", i)
		var wg sync.WaitGroup
		for w := range 3 {
			c := c
			c.Spec.Workers, c.Spec.Batch = 1+w, 30*w+11
			wg.Go(func() {
				if err := c.run(t.Context(), nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		exact(t, c.O.Path, c.Spec.Data)
		exactDead(t, c.O.DeadLetter, c.Spec.Data)
		leftovers(t, c.O.Path)
	}
}

// Jobs that append at once all get in; of jobs that must find nothing, one does.
func TestRaceOfJobs(t *testing.T) {
	for _, mode := range []string{ModeAppend, ModeOverwrite, ModeError} {
		for _, place := range []string{"local", "mem"} {
			t.Run(mode+"/"+place, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "out")
				if place == "mem" {
					path = fmt.Sprintf("mem://race-%s-%x/x", mode, rand.Uint64()) // of this run: the jobs of one before are done
				}
				const n = 5
				errs := make([]error, n)
				var begun, wg sync.WaitGroup
				begun.Add(n)
				for i := range n {
					c := childConfig{O: Options{Path: path, Job: fmt.Sprint("job", i), Mode: mode, TargetBytes: 1 << 20},
						Spec: runSpec{Data: data{Splits: 3, Rows: 50, Bad: -1}, Workers: 1, Batch: 50}}
					var once sync.Once
					wg.Go(func() {
						errs[i] = c.run(t.Context(), func(step, rel string) {
							// All have begun before any commits. (In mode error some see the
							// others' records, and do not begin.)
							if step == "stage" && mode != ModeError {
								once.Do(begun.Done)
								begun.Wait()
							}
						})
						once.Do(begun.Done) // one that failed before
					})
				}
				wg.Wait()
				won := 0
				for i, err := range errs {
					if err == nil {
						won++
					} else if mode != ModeError || fault.CodeOf(err) != fault.Exists {
						t.Errorf("job %d: %v", i, err)
					}
				}
				switch {
				case mode == ModeError && won > 1:
					t.Errorf("%d jobs won", won)
				case mode == ModeAppend:
					exact(t, path, slices.Repeat([]data{{Splits: 3, Rows: 50, Bad: -1}}, n)...)
				case won > 0:
					exact(t, path, data{Splits: 3, Rows: 50, Bad: -1})
				}
			})
		}
	}
}
