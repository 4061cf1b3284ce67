package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/collective"
	"github.com/penstock-data/penstock/trainer/store"
)

// A notice reaches all ranks at the same step; they save and end, and the run goes on from there.
func TestPreempt(t *testing.T) {
	var want book
	fitOK(t, epochLoop(t, &want, 10, nil), quick(t, "want"))
	for i := range 5 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			c := quick(t, "preempt")
			notice := make(chan string, 1)
			c.Preemption.Notice = notice
			var got book
			var saved sync.Map
			loop := func(k *Context) error {
				s, err := k.Shard("train")
				if err != nil {
					return err
				}
				if err := checkRestored(k, s); err != nil {
					return err
				}
				for s.Epoch() < epochs {
					for x, err := range s.All(k) {
						if err != nil {
							return err
						}
						got.add(t, k.Rank(), x)
						time.Sleep(2 * time.Millisecond)
						if !k.Preempted() {
							continue
						}
						saved.Store(k.Rank(), s.Step())
						if _, ok := k.PreemptDeadline(); !ok && k.Rank() == 0 {
							t.Error("no deadline") // told before the data is
						}
						dir := ""
						if k.Rank() == 0 {
							if dir, err = saveState(s); err != nil {
								return err
							}
						}
						return k.Report(nil, dir)
					}
				}
				return nil
			}
			time.AfterFunc(time.Duration(r.IntN(150))*time.Millisecond, func() { notice <- "test" })
			res, err := New(loop, c).Fit(t.Context())
			if res == nil || res.State != store.Preempted || fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "(test)") || res.Reports != int64(res.Checkpoint) {
				t.Fatalf("%+v, %v", res, err)
			}
			a, oka := saved.Load(0)
			b, okb := saved.Load(1)
			if oka != okb || a != b {
				t.Errorf("rank 0 saved after step %v, rank 1 after %v", a, b)
			}
			c.Preemption.Notice, c.Resume = nil, true
			fitOK(t, loop, c)
			sameBook(t, &want, &got)
		})
	}
}

// Without data the notice counts from the same report on all ranks.
func TestPreemptReports(t *testing.T) {
	c := quick(t, "reports")
	c.Data, c.Workers = nil, 3
	notice := make(chan string, 1)
	c.Preemption.Notice = notice
	var at [3]atomic.Int64
	res, err := New(func(k *Context) error {
		for !k.Preempted() {
			if k.Rank() == 1 && k.Reports() == 5 {
				notice <- "test"
			}
			time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
			if err := k.Report(nil, ""); err != nil {
				return err
			}
		}
		at[k.Rank()].Store(k.Reports())
		return nil
	}, c).Fit(t.Context())
	if res == nil || res.State != store.Preempted {
		t.Fatal(res, err)
	}
	if at[0].Load() != at[1].Load() || at[0].Load() != at[2].Load() || at[0].Load() < 6 {
		t.Errorf("reports %d, %d, %d", at[0].Load(), at[1].Load(), at[2].Load())
	}
}

// Who does not end in the grace is ended.
func TestPreemptDeaf(t *testing.T) {
	c := quick(t, "grace")
	c.Data = nil
	notice := make(chan string, 2)
	c.Preemption = Preemption{Notice: notice, Grace: 200 * time.Millisecond}
	res, err := New(func(k *Context) error {
		notice <- "test"
		<-k.Done()
		return context.Cause(k)
	}, c).Fit(t.Context())
	if res == nil || res.State != store.Preempted || !slices.Equal(res.Late, []int{0, 1}) || !errors.Is(err, ErrPreempted) || !strings.Contains(fmt.Sprint(err), "ranks 0, 1 did not end within the grace of 200ms") {
		t.Errorf("%+v, %v", res, err)
	}
}

// The end of the context ends the run, soon, and nothing is left.
func TestCancel(t *testing.T) {
	for _, processes := range []bool{false, true} {
		c := newConf(t, fmt.Sprintf("cancel-%v", processes))
		c.StepMS = 20
		cfg := c.config()
		if !processes {
			cfg = inGoroutines(cfg)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		var at time.Time
		cfg.Events.Committed = func(store.Manifest) { at = time.Now(); cancel(errors.New("enough")) }
		res, err := New(c.loop, cfg).Fit(ctx)
		took := time.Since(at)
		if fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "enough") || res == nil || res.State != store.Failed || res.Checkpoint == 0 {
			t.Errorf("%v, %+v", err, res)
		}
		if took > cfg.StopTimeout+time.Second {
			t.Errorf("it took %v", took)
		}
		t.Logf("processes %v: %v", processes, took)
		if processes {
			nothingLeft(t, c)
		}
	}
}

// A run goes on with another number of workers, with the same samples.
func TestResumeElsewhere(t *testing.T) {
	c := newConf(t, "elsewhere")
	c.StepMS = 1
	for i, workers := range []int{4, 3, 1} {
		c.Workers, c.Resume = workers, i > 0
		cfg := c.config()
		ctx, cancel := context.WithCancel(t.Context())
		if n := 0; i < 2 {
			cfg.Events.Committed = func(store.Manifest) {
				if n++; n == 3 {
					cancel()
				}
			}
		}
		res, err := New(c.loop, cfg).Fit(ctx)
		cancel()
		if i < 2 && fault.CodeOf(err) != fault.Canceled || i == 2 && err != nil {
			t.Fatalf("%d workers: %+v, %v", workers, res, err)
		}
	}
	sameLedger(t, c.Out)
}

// A new run begins with the checkpoint of another: its files, and its place in data sets that are the same.
func TestFrom(t *testing.T) {
	first := quick(t, "one")
	first.Data["other"] = Data{Dataset: dataset.Range(1000), Options: train().Options}
	loop := func(from int64) func(*Context) error {
		return func(c *Context) error {
			for _, name := range []string{"train", "other"} {
				s, err := c.Shard(name)
				if err != nil {
					return err
				}
				want := from
				if from > 0 && c.Run() == "two" && name == "other" {
					want = 0 // has another plan there
				}
				if s.Step() != want {
					return fmt.Errorf("%s begins at step %d, want %d", name, s.Step(), want)
				}
				for range 5 {
					b, err := s.Next(c)
					if err != nil {
						return err
					}
					b.Release()
				}
			}
			if k := c.Checkpoint(); (k != nil) != (from > 0) {
				return fmt.Errorf("checkpoint %v", k)
			} else if k != nil {
				dir, err := k.Dir(c)
				if err != nil {
					return err
				}
				if b, err := os.ReadFile(filepath.Join(dir, "model-1.bin")); err != nil || string(b) != "one" {
					return fmt.Errorf("model %q: %w", b, err)
				}
				if k.Metrics["n"] != 0 {
					return fmt.Errorf("metrics %v", k.Metrics)
				}
			}
			return save(c, "one")
		}
	}
	fitOK(t, loop(0), first)
	second := first
	second.Name, second.From = "two", filepath.Join(first.Storage, "one")
	second.Data = map[string]Data{"train": train(), "other": {Dataset: dataset.Range(1001), Options: train().Options}}
	res := fitOK(t, loop(5), second)
	if res.Reports != 1 || res.Checkpoint != 1 {
		t.Errorf("%+v", res)
	}
}

// Programs get what torchrun gives them.
func TestTorchrun(t *testing.T) {
	c := quick(t, "torchrun")
	out := t.TempDir()
	c.Data, c.Workers, c.Env = nil, 3, []string{"MINE=1 2", "OUT=" + out}
	t.Setenv("OMP_NUM_THREADS", "")
	os.Unsetenv("OMP_NUM_THREADS")
	res, err := Command([]string{"sh", "-c", `env > $OUT/$RANK-$TORCHELASTIC_RESTART_COUNT; if [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ]; then sleep 0.3; exit 1; fi; sleep 0.5`}, c).Fit(t.Context())
	if err != nil || res.Attempts != 2 || res.Reports != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	ports := map[string]bool{}
	for rank := range 3 {
		for restart := range 2 {
			b, err := os.ReadFile(filepath.Join(out, fmt.Sprintf("%d-%d", rank, restart)))
			if err != nil {
				t.Fatal(err)
			}
			env := strings.Split(string(b), "\n")
			for _, want := range []string{fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("LOCAL_RANK=%d", rank), "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3", "NODE_RANK=0", "GROUP_RANK=0", fmt.Sprintf("ROLE_RANK=%d", rank),
				"ROLE_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1", fmt.Sprintf("TORCHELASTIC_RESTART_COUNT=%d", restart), "TORCHELASTIC_MAX_RESTARTS=3", "TORCHELASTIC_RUN_ID=torchrun", "OMP_NUM_THREADS=1",
				"MINE=1 2", "PENSTOCK_RUN=torchrun", fmt.Sprintf("PENSTOCK_ATTEMPT=%d", restart+1)} {
				if !slices.Contains(env, want) {
					t.Errorf("rank %d, start %d: no %s in %v", rank, restart, want, env)
				}
			}
			for _, kv := range env {
				if strings.HasPrefix(kv, "MASTER_PORT=") {
					ports[fmt.Sprint(restart, kv)] = true
				}
			}
		}
	}
	if len(ports) != 2 {
		t.Errorf("ports %v: one per start, the same for all ranks", ports)
	}
}

// Ranks compute together, in goroutines and in processes.
func TestCollectives(t *testing.T) {
	c := quick(t, "collectives")
	c.Workers = 3
	fitOK(t, func(c *Context) error {
		if err := c.Barrier(); err != nil {
			return err
		}
		x := []float32{float32(c.Rank()), 1}
		if err := AllReduce(c, x, collective.Sum); err != nil {
			return err
		}
		all, err := c.AllGather([]byte{byte(c.Rank())})
		if err != nil {
			return err
		}
		b, err := c.Broadcast(2, []byte{byte(c.Rank())})
		if err != nil {
			return err
		}
		if got := fmt.Sprint(x, all, b); got != "[3 3] [[0] [1] [2]] [2]" {
			return errors.New(got)
		}
		return nil
	}, c)
}

// What a loop is told of its run.
func TestContext(t *testing.T) {
	c := quick(t, "context")
	c.Settings = map[string]any{"lr": 0.5, "layers": []int{1, 2}}
	c.Data["val"] = Data{Dataset: dataset.Range(70), Eval: true, Options: dataset.ShardOptions{RunOptions: dataset.RunOptions{Memory: 64 << 20}, Options: shard.Options{GlobalBatch: 16, Form: shard.Form{Tensors: true}}}}
	var seen atomic.Int64
	fitOK(t, func(c *Context) error {
		var cfg struct {
			LR     float64
			Layers []int
		}
		if err := c.Decode(&cfg); err != nil {
			return err
		}
		if cfg.LR != 0.5 || len(cfg.Layers) != 2 || c.Config()["lr"] != 0.5 || c.World() != 2 || c.LocalWorld() != 2 || c.LocalRank() != c.Rank() || c.Node() != 0 || c.Nodes() != 1 ||
			c.Run() != "context" || c.Attempt() != 1 || !strings.HasSuffix(c.Storage(), "/context") || len(c.Devices()) != 0 || c.Checkpoint() != nil {
			return fmt.Errorf("%+v %+v", cfg, c.w)
		}
		for range 2 { // each loop over an evaluation set begins at its first row
			s, err := c.Shard("val")
			if err != nil {
				return err
			}
			for range 2 {
				for x, err := range s.All(c) {
					if err != nil {
						return err
					}
					seen.Add(int64(x.Real()))
				}
			}
			if err := s.Close(); err != nil {
				return err
			}
			if err := c.Barrier(); err != nil {
				return err
			}
		}
		return c.Report(nil, "")
	}, c)
	if seen.Load() != 4*70 {
		t.Errorf("%d rows of evaluation, want %d", seen.Load(), 4*70)
	}
}

// Time in Next and Report over the time of a step of 20 ms with a report at its end. The bound is generous, and for the median: the machine has other things to do. See BenchmarkReport.
func TestOverhead(t *testing.T) {
	c := quick(t, "overhead")
	const n, pause = 60, 20 * time.Millisecond
	var mu sync.Mutex
	var took []time.Duration
	fitOK(t, func(c *Context) error {
		s, err := c.Shard("train")
		if err != nil {
			return err
		}
		for i := range n {
			begin := time.Now()
			b, err := s.Next(c)
			if err == io.EOF {
				b, err = s.Next(c)
			}
			if err != nil {
				return err
			}
			inside := time.Since(begin)
			time.Sleep(pause)
			b.Release()
			begin = time.Now()
			if err := c.Report(map[string]float64{"loss": 1}, ""); err != nil {
				return err
			}
			inside += time.Since(begin)
			if i > 0 { // the first opens files
				mu.Lock()
				took = append(took, inside)
				mu.Unlock()
			}
		}
		return nil
	}, c)
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("in Next and Report: %v of a step, median (%.2f %%); nine of ten below %v", median, 100*float64(median)/float64(pause), took[len(took)*9/10])
	if median > pause/20 {
		t.Errorf("%v of a step of %v are spent in Next and Report", median, pause)
	}
}

// With Async the folder is gone when Report returns, and may be made again; each checkpoint has what was given with it.
func TestAsync(t *testing.T) {
	for _, async := range []bool{true, false} {
		c := quick(t, fmt.Sprintf("async-%v", async))
		c.Data, c.Workers = nil, 1
		c.Checkpoint.Async, c.Checkpoint.KeepLast = async, -1
		dir := filepath.Join(t.TempDir(), "model")
		const n = 5
		res := fitOK(t, func(c *Context) error {
			for i := range n {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dir, "f"), []byte{byte('0' + i)}, 0o600); err != nil {
					return err
				}
				if err := c.Report(nil, dir); err != nil {
					return err
				}
				if _, err := os.Stat(dir); (err != nil) != async {
					return fmt.Errorf("after report %d: %v", i, err)
				}
			}
			return nil
		}, c)
		if len(res.Checkpoints) != n {
			t.Fatalf("%d checkpoints", len(res.Checkpoints))
		}
		run, err := store.Open(t.Context(), c.Storage, c.Name)
		if err != nil {
			t.Fatal(err)
		}
		defer run.Close()
		for i := range res.Checkpoints {
			at, err := run.Fetch(t.Context(), &res.Checkpoints[i], t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(at, "f")); err != nil || string(b) != string(rune('0'+i)) {
				t.Errorf("checkpoint %d holds %q, %v", i, b, err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*")); len(left) > 0 {
			t.Errorf("folders that are left: %v", left)
		}
	}
}
