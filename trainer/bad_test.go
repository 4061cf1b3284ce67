package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/store"
)

// refused runs what must fail, and checks what the error says.
func refused(t *testing.T, tr *Trainer, code fault.Code, want ...string) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := tr.Fit(ctx)
	if fault.CodeOf(err) != code {
		t.Errorf("%v (%v), want %v", err, fault.CodeOf(err), code)
	}
	for _, w := range want {
		if !strings.Contains(fmt.Sprint(err), w) {
			t.Errorf("%v: want %q", err, w)
		}
	}
	if res != nil && (res.State != store.Failed || res.Err != err) {
		t.Errorf("%s, %v", res.State, res.Err)
	}
	return res
}

func quick(t *testing.T, name string) Config {
	c := configOf(t, name)
	t.Setenv("TMPDIR", t.TempDir())
	c.Failures.Delay = time.Millisecond
	return c
}

func nothing(*Context) error { return nil }

// Data sets have a StallTimeout that is longer than the run's HangTimeout, but for those that have one; the caller's are left alone.
func TestStallTimeout(t *testing.T) {
	c := quick(t, "stall")
	c.HangTimeout = 8 * time.Second
	own := train()
	own.Options.StallTimeout = time.Second
	c.Data["own"] = own
	d, err := c.or()
	if err != nil {
		t.Fatal(err)
	}
	if got, own := d.Data["train"].Options.StallTimeout, d.Data["own"].Options.StallTimeout; got <= c.HangTimeout || own != time.Second || c.Data["train"].Options.StallTimeout != 0 {
		t.Errorf("%v and %v, of the caller's %v", got, own, c.Data["train"].Options.StallTimeout)
	}
	c.HangTimeout = -1
	if d, err = c.or(); err != nil || d.Data["train"].Options.StallTimeout >= 0 {
		t.Errorf("without a HangTimeout: %v, %v", d.Data["train"].Options.StallTimeout, err)
	}
}

func TestBadConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		code   fault.Code
		want   string
	}{
		"name":       {func(c *Config) { c.Name = "a/b" }, fault.Invalid, "cannot be the name of a run"},
		"no name":    {func(c *Config) { c.Name, c.Resume = "", true }, fault.Invalid, "has a name"},
		"no run":     {func(c *Config) { c.Resume = true }, fault.NotFound, `no run "bad"`},
		"both":       {func(c *Config) { c.Resume, c.From = true, "x/y" }, fault.Invalid, "not both"},
		"workers":    {func(c *Config) { c.Workers = -1 }, fault.Invalid, "at least one"},
		"env":        {func(c *Config) { c.Env = []string{"X"} }, fault.Invalid, "NAME=value"},
		"settings":   {func(c *Config) { c.Settings = map[string]any{"f": func() {}} }, fault.Invalid, "JSON"},
		"policy":     {func(c *Config) { c.Checkpoint.KeepBest = 2 }, fault.Invalid, "Name a metric"},
		"data":       {func(c *Config) { c.Data["val"] = Data{} }, fault.Invalid, `data set "val" is nil`},
		"data name":  {func(c *Config) { c.Data["a/b"] = train() }, fault.Invalid, "cannot have the name"},
		"memory":     {func(c *Config) { c.Resources.Memory = 1 }, fault.Unsupported, "set Processes"},
		"gpus":       {func(c *Config) { c.Resources.GPUs = 1 }, fault.Unsupported, "set Processes"},
		"cpus":       {func(c *Config) { c.Resources.CPUs = 1 }, fault.Unsupported, "set Processes"},
		"own env":    {func(c *Config) { c.Env = []string{"A=1"} }, fault.Unsupported, "set Processes"},
		"dir":        {func(c *Config) { c.Dir = "/" }, fault.Unsupported, "set Processes"},
		"from":       {func(c *Config) { c.From = filepath.Join(c.Storage, "none") }, fault.NotFound, `no run "none"`},
		"time":       {func(c *Config) { c.StopTimeout = -1 }, fault.Invalid, "negative"},
		"two of it":  {func(c *Config) { c.DataProcess = &DataProcess{} }, fault.Invalid, "not both"},
		"no program": {func(c *Config) { c.DataProcess, c.Data = &DataProcess{}, nil }, fault.Invalid, "needs a program"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := quick(t, "bad")
			c.change(&cfg)
			if res := refused(t, New(nothing, cfg), c.code, c.want); res != nil {
				t.Errorf("there is a result: %+v", res)
			}
		})
	}
	if _, err := New(nil, Config{}).Fit(t.Context()); fault.CodeOf(err) != fault.Invalid {
		t.Error(err)
	}
}

// A training set whose epochs have no step ends no run silently: it is refused, and the name stays free.
func TestNoStep(t *testing.T) {
	c := quick(t, "short")
	d := Data{Dataset: dataset.Range(1000), Options: train().Options}
	d.Options.GlobalBatch, d.Options.Tail = 1<<20, ""
	c.Data["train"] = d
	if res := refused(t, New(nothing, c), fault.Invalid, `data set "train"`, "an epoch has no step: 1000 samples are fewer than a global batch of 1048576, and tail drop leaves them out"); res != nil {
		t.Errorf("%+v", res)
	}
	if left, _ := filepath.Glob(filepath.Join(c.Storage, "*")); len(left) > 0 {
		t.Errorf("the name is taken: %v", left)
	}
}

func TestMoreWorkersThanGPUs(t *testing.T) {
	c := quick(t, "gpus")
	c.Resources.GPUs, c.Workers = 64, 64
	refused(t, Command([]string{"true"}, c), fault.Invalid, "asked for 4096 GPUs (64 workers x 64), this machine has ")
}

func TestPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		argv []string
		code fault.Code
		want []string
	}{
		"not found":     {[]string{"no-such-program"}, fault.NotFound, []string{"no-such-program"}},
		"script":        {[]string{"sh", "no-such-script.sh"}, fault.UserCode, []string{"rank ", "exit code", "no-such-script.sh", "twice"}},
		"exits at once": {[]string{"sh", "-c", "echo it is broken; exit 3"}, fault.UserCode, []string{"exit code 3, and printed last: it is broken (log: ", "rank-", "twice"}},
		"silent":        {[]string{"sh", "-c", "exit 4"}, fault.UserCode, []string{"exit code 4", "printed nothing"}},
		"killed":        {[]string{"sh", "-c", "kill -9 $$"}, fault.WorkerLost, []string{"SIGKILL"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := quick(t, "program")
			cfg.Data = nil
			refused(t, Command(c.argv, cfg), c.code, c.want...)
		})
	}
}

// What a worker has started is ended with it.
func TestForks(t *testing.T) {
	c := newConf(t, "forks")
	c.Fail = "fork"
	if res := c.fit(t); res.Reports != 0 {
		t.Errorf("%+v", res)
	}
	nothingLeft(t, c)
}

// onRank runs a loop on one rank; others make reports until they are told to end.
func onRank(rank int, loop func(*Context) error) func(*Context) error {
	return func(c *Context) error {
		if c.Rank() == rank {
			return loop(c)
		}
		<-c.Done()
		return context.Cause(c)
	}
}

func TestBadLoops(t *testing.T) {
	step := func(c *Context) error {
		s, err := c.Shard("train")
		if err != nil {
			return err
		}
		b, err := s.Next(c)
		if err != nil {
			return err
		}
		b.Release()
		return nil
	}
	for name, c := range map[string]struct {
		loop   func(*Context) error
		change func(*Config)
		code   fault.Code
		want   []string
	}{
		"unknown data set": {loop: func(c *Context) error { _, err := c.Shard("tain"); return err }, code: fault.NotFound, want: []string{`no data set "tain"`, `is it "train"`}},
		"no data sets":     {loop: func(c *Context) error { _, err := c.Shard("x"); return err }, change: func(c *Config) { c.Data = nil }, code: fault.NotFound, want: []string{"the run has none"}},
		"panic":            {loop: onRank(1, func(*Context) error { panic("all is lost") }), code: fault.UserCode, want: []string{"rank 1: panic: all is lost", "bad_test.go", "twice"}},
		"error":            {loop: onRank(1, func(*Context) error { return errors.New("wrong shape") }), code: fault.UserCode, want: []string{"rank 1: wrong shape", "twice"}},
		"late error": {loop: func(c *Context) error {
			if err := step(c); err != nil {
				return err
			}
			if c.Rank() == 1 {
				return errors.New("wrong shape")
			}
			<-c.Done()
			return context.Cause(c)
		}, code: fault.UserCode, want: []string{"rank 1: wrong shape", "failure 4"}},
		"one rank reports": {loop: func(c *Context) error {
			if c.Rank() > 0 {
				return nil
			}
			return c.Report(map[string]float64{"loss": 1}, "")
		}, code: fault.Invalid, want: []string{"rank 1 ended after report 0, rank 0 made report 1", "equally often"}},
		"one rank saves, others work": {loop: func(c *Context) error {
			if c.Rank() > 0 {
				<-c.Done()
				return context.Cause(c)
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "x"), []byte("x"), 0o600); err != nil {
				return err
			}
			return c.Report(nil, dir)
		}, change: func(c *Config) { c.ReportTimeout = 200 * time.Millisecond }, code: fault.Invalid, want: []string{"rank 0 waits", "rank 1 did not make", "on every rank"}},
		"different steps": {loop: func(c *Context) error {
			for range 3 + c.Rank() {
				if err := step(c); err != nil {
					return err
				}
			}
			if err := c.Report(nil, ""); err != nil {
				return err
			}
			<-c.Done()
			return context.Cause(c)
		}, code: fault.Invalid, want: []string{`different steps of data set "train"`, "rank 0 after step 3", "rank 1 after step 4"}},
		"hang": {loop: func(c *Context) error {
			if err := step(c); err != nil {
				return err
			}
			<-c.Done()
			return context.Cause(c)
		}, change: func(c *Config) { c.HangTimeout, c.Failures.Hang = 300*time.Millisecond, -1 }, code: fault.Stalled, want: []string{"gave no sign", "step 1"}},
		"refused plan": {loop: nothing, change: func(c *Config) {
			c.Data["train"] = Data{Dataset: dataset.Range(10).Filter("nothing > 1"), Options: train().Options}
		}, code: fault.Invalid, want: []string{`data set "train"`, `unknown column "nothing"`}},
		"too many ranks": {loop: nothing, change: func(c *Config) { d := train(); d.Options.GlobalBatch = 1; c.Data["train"] = d }, code: fault.Invalid, want: []string{`data set "train"`, "rank"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := quick(t, "loop")
			if c.change != nil {
				c.change(&cfg)
			}
			res := refused(t, New(c.loop, cfg), c.code, c.want...)
			run, err := store.Open(t.Context(), cfg.Storage, cfg.Name)
			if name == "refused plan" || name == "too many ranks" { // before anything starts
				if res != nil || fault.CodeOf(err) != fault.NotFound {
					t.Errorf("%+v, %v", res, err)
				}
				return
			}
			if res == nil || err != nil {
				t.Fatal(err)
			}
			defer run.Close()
			if st, err := run.Status(t.Context()); err != nil || st.State != store.Failed || st.Error == nil || !strings.Contains(st.Error.Text, c.want[0]) {
				t.Errorf("status %+v, %v", st, err)
			}
			if name == "hang" {
				stacks, err := filepath.Glob(filepath.Join(cfg.Storage, cfg.Name, "logs", "attempt-1", "rank-*.stacks"))
				if err != nil || len(stacks) == 0 {
					t.Errorf("stacks: %v, %v", stacks, err)
				}
			}
		})
	}
}

// A controller that was away (stopped, or held up by a callback as here) hears what was said meanwhile before it takes silence for a hang.
func TestControllerAway(t *testing.T) {
	c := quick(t, "away")
	c.Data, c.Workers = nil, 1
	c.HangTimeout = 300 * time.Millisecond
	back := make(chan struct{})
	c.Events.Reported = func(n int64, _ int, _ map[string]float64) {
		if n == 1 {
			time.Sleep(1500 * time.Millisecond)
			close(back)
		}
	}
	res := fitOK(t, func(k *Context) error {
		if err := k.Report(nil, ""); err != nil {
			return err
		}
		select {
		case <-back:
		case <-k.Done():
			return context.Cause(k)
		}
		return k.Report(nil, "")
	}, c)
	if res.Attempts != 1 || len(res.Failures) > 0 {
		t.Errorf("%d attempts, failures %v", res.Attempts, res.Failures)
	}
}

// A loop that does not watch its context is named, and no other attempt is made beside it.
func TestDeafLoop(t *testing.T) {
	c := quick(t, "deaf")
	c.StopTimeout = 100 * time.Millisecond
	end, there := make(chan struct{}), make(chan struct{})
	var deaf sync.WaitGroup
	deaf.Add(1)
	res := refused(t, New(func(c *Context) error {
		if c.Rank() == 0 {
			<-there
			return errors.New("the cause")
		}
		close(there)
		defer deaf.Done()
		<-end
		return nil
	}, c), fault.UserCode, "rank 0: the cause", "rank 1", "watch its context")
	if res == nil || res.Attempts != 1 {
		t.Errorf("%+v", res)
	}
	close(end)
	deaf.Wait()
}

// A storage that takes no more ends the run, and says so. With Async the files of the report that is no checkpoint are kept: nobody else has them.
func TestStorageFails(t *testing.T) {
	for _, async := range []bool{false, true} {
		c := quick(t, fmt.Sprintf("storage-%v", async))
		c.Checkpoint.Async = async
		res := refused(t, New(func(k *Context) error {
			if err := save(k, "one"); err != nil {
				return err
			}
			if k.Rank() == 0 {
				dir := filepath.Join(c.Storage, c.Name, "checkpoints")
				for range 100 { // until what Async writes is there
					if m, _ := filepath.Glob(filepath.Join(dir, "*.json")); len(m) == 2 {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				if err := errors.Join(os.Rename(dir, dir+"-away"), os.WriteFile(dir, nil, 0o600)); err != nil {
					return err
				}
			}
			if err := k.Barrier(); err != nil {
				return err
			}
			for {
				if err := save(k, "two"); err != nil {
					return err
				}
			}
		}, c), fault.Exists, "checkpoints")
		if res == nil || res.Attempts != 1 || res.Checkpoint == 0 {
			t.Fatalf("%+v", res)
		}
		kept, err := filepath.Glob(filepath.Join(os.TempDir(), keptPrefix+"*"))
		if err != nil || len(kept) > 1 || (len(kept) == 1) != async {
			t.Fatalf("kept: %q, %v", kept, err)
		}
		if async {
			if !strings.Contains(res.Err.Error(), "its files are kept in "+kept[0]) {
				t.Error(res.Err)
			}
			for rank := range 2 {
				if b, err := os.ReadFile(filepath.Join(kept[0], fmt.Sprintf("rank-%d", rank), fmt.Sprintf("model-%d.bin", rank))); err != nil || string(b) != "two" {
					t.Errorf("rank %d: %q, %v", rank, b, err)
				}
			}
		}
	}
	c := quick(t, "file")
	if err := os.WriteFile(filepath.Join(c.Storage, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Storage = filepath.Join(c.Storage, "f")
	refused(t, New(nothing, c), fault.Invalid, "is a file")
}

// A checkpoint with a part that is missing, or altered, is no checkpoint to go on from.
func TestDamagedCheckpoint(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"missing": os.Remove,
		"altered": func(path string) error {
			return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("oNe"), 0o600))
		},
		"cut": func(path string) error { return os.Truncate(path, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			c := quick(t, "damaged")
			fitOK(t, func(c *Context) error { return save(c, "one") }, c)
			hit := 0
			err := filepath.WalkDir(filepath.Join(c.Storage, c.Name), func(path string, d fs.DirEntry, err error) error {
				if err == nil && strings.HasSuffix(path, "model-1.bin") {
					hit++
					return damage(path)
				}
				return err
			})
			if err != nil || hit != 1 {
				t.Fatal(err, hit)
			}
			load := func(c *Context) error { _, err := c.Checkpoint().Dir(c); return err }
			next := c
			next.Name, next.From = "next", filepath.Join(c.Storage, c.Name)
			refused(t, New(load, next), fault.Corrupt, "model-1.bin", "there is no earlier checkpoint")
		})
	}
}

// A run whose newest checkpoint is damaged does not go on, and says from which it can: on request it does.
func TestDamagedNewest(t *testing.T) {
	c := quick(t, "newest")
	c.Failures.Worker = -1
	refused(t, New(func(c *Context) error {
		if err := errors.Join(save(c, "one"), save(c, "two")); err != nil {
			return err
		}
		return errors.New("enough")
	}, c), fault.UserCode, "enough")
	var names []string
	err := filepath.WalkDir(filepath.Join(c.Storage, c.Name), func(path string, d fs.DirEntry, err error) error {
		if strings.HasSuffix(path, "model-1.bin") {
			names = append(names, path)
		}
		return err
	})
	if err != nil || len(names) != 2 {
		t.Fatal(names, err)
	}
	newest := 0
	for i, name := range names {
		if b, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		} else if string(b) == "two" {
			newest = i
		}
	}
	if err := os.Remove(names[newest]); err != nil {
		t.Fatal(err)
	}
	c.Resume = true
	load := func(c *Context) error {
		dir, err := c.Checkpoint().Dir(c)
		if err != nil {
			return err
		}
		if b, err := os.ReadFile(filepath.Join(dir, "model-1.bin")); err != nil || string(b) != "one" {
			return fmt.Errorf("%s, %w", b, err)
		}
		return nil
	}
	res := refused(t, New(load, c), fault.Corrupt, "model-1.bin", "is missing", "of report 1", "has all of its files")
	if res == nil || len(res.Checkpoints) != 2 {
		t.Fatalf("%+v", res)
	}
	c.ResumeAt = res.Checkpoints[0].Number
	fitOK(t, load, c)
}

// A name is taken once, and a run has one controller.
func TestNames(t *testing.T) {
	c := quick(t, "taken")
	fitOK(t, func(k *Context) error {
		if k.Rank() > 0 {
			return nil
		}
		again := c
		_, err := New(nothing, again).Fit(k)
		if fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), "penstock resume taken --storage ") {
			return fmt.Errorf("again: %w", err)
		}
		again.Resume = true
		_, err = New(nothing, again).Fit(k)
		if fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), "is at work") {
			return fmt.Errorf("resume: %w", err)
		}
		return nil
	}, c)
	refused(t, New(nothing, c), fault.Exists, "taken")
}

// A run that is finished is not made again.
func TestFinishedBefore(t *testing.T) {
	c := quick(t, "done")
	first := fitOK(t, func(c *Context) error { return save(c, "one") }, c)
	c.Resume = true
	res := fitOK(t, func(*Context) error { t.Error("it runs again"); return nil }, c)
	if res.Attempts != 0 || res.Attempt != 1 || res.Reports != 1 || res.Checkpoint != first.Checkpoint || len(res.Checkpoints) != 1 || res.Storage != first.Storage {
		t.Errorf("%+v", res)
	}
	run, err := store.Open(t.Context(), c.Storage, c.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	if st, err := run.Status(t.Context()); err != nil || st.Attempt != 1 || st.State != store.Finished {
		t.Errorf("%+v, %v", st, err)
	}
}

// A run none of whose workers was started leaves nothing behind, not even its name.
func TestNothingStarted(t *testing.T) {
	c := quick(t, "free")
	c.Data = nil
	if res := refused(t, Command([]string{"no-such-program"}, c), fault.NotFound, "no-such-program"); res != nil {
		t.Errorf("%+v", res)
	}
	if left, err := os.ReadDir(c.Storage); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	c.Dir = filepath.Join(c.Storage, "none")
	refused(t, Command([]string{"true"}, c), fault.NotFound, "working directory")
	c.Dir = ""
	if res, err := Command([]string{"true"}, c).Fit(t.Context()); err != nil || res.Attempt != 1 {
		t.Errorf("%+v, %v", res, err)
	}
}

// A checkpoint of many files, and of large ones.
func TestHugeCheckpoint(t *testing.T) {
	c := quick(t, "huge")
	c.Workers = 2
	const files, large = 200, 48 << 20
	loop := func(c *Context) error {
		if k := c.Checkpoint(); k != nil {
			dir, err := k.Dir(c)
			if err != nil {
				return err
			}
			st, err := os.Stat(filepath.Join(dir, "large"))
			if err != nil || st.Size() != large {
				return fmt.Errorf("large: %w", err)
			}
			_, err = os.Stat(filepath.Join(dir, "r1", "199"))
			return err
		}
		dir, err := os.MkdirTemp("", "ckpt-")
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			f, err := os.Create(filepath.Join(dir, "large"))
			if err != nil {
				return err
			}
			if err := errors.Join(f.Truncate(large), f.Close()); err != nil {
				return err
			}
		}
		sub := filepath.Join(dir, fmt.Sprintf("r%d", c.Rank()))
		if err := os.Mkdir(sub, 0o700); err != nil {
			return err
		}
		for i := range files {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), []byte("x"), 0o600); err != nil {
				return err
			}
		}
		return c.Report(nil, dir)
	}
	res := fitOK(t, loop, c)
	if m := res.Checkpoints[0]; len(m.Files) != 2*files+1 || m.Bytes != large+2*files {
		t.Errorf("%d files, %d bytes", len(m.Files), m.Bytes)
	}
	c.Name, c.From = "next", filepath.Join(c.Storage, c.Name)
	fitOK(t, loop, c)
}

// A run that is not gone on with, as what is asked for does not fit it, stands where it stood: its state, and the checkpoints after the one to go back to.
func TestRefusedResume(t *testing.T) {
	c := quick(t, "stays")
	loop := func(k *Context) error {
		s, err := k.Shard("train")
		if err != nil {
			return err
		}
		for range 3 {
			b, err := s.Next(k)
			if err != nil {
				return err
			}
			b.Release()
			if err := save(k, "x"); err != nil {
				return err
			}
		}
		<-k.Done()
		return context.Cause(k)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first := c
	first.Events.Committed = func(m store.Manifest) {
		if m.Report == 3 {
			cancel()
		}
	}
	if res, err := New(loop, first).Fit(ctx); fault.CodeOf(err) != fault.Canceled || len(res.Checkpoints) != 3 {
		t.Fatal(res, err)
	}
	stands := func() (store.Status, []store.Manifest) {
		t.Helper()
		run, err := store.Open(t.Context(), c.Storage, c.Name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := run.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list, err := run.Checkpoints(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.Attempt, s.Updated = 0, time.Time{}
		return s, list
	}
	before, list := stands()
	again := c
	again.Resume = true
	other := train()
	other.Dataset = other.Dataset.Filter("id > 7")
	again.Data = map[string]Data{"train": other}
	for _, at := range []int{list[0].Number, 0} {
		again.ResumeAt = at
		gpus := again
		gpus.Data, gpus.Resources.GPUs, gpus.Processes = c.Data, 1000, true
		same := again
		same.Data = c.Data
		for _, x := range []struct {
			tr   *Trainer
			code fault.Code
			want string
		}{{New(loop, again), fault.Invalid, "another plan"}, {Command([]string{"/no/such/program"}, same), fault.NotFound, "/no/such/program"}, {New(loop, gpus), fault.Invalid, "GPU"}} {
			if res := refused(t, x.tr, x.code, x.want); res != nil {
				t.Errorf("something was started: %+v", res)
			}
			if now, have := stands(); !reflect.DeepEqual(now, before) || len(have) != 3 {
				t.Errorf("from checkpoint %d, %s: %+v with %d checkpoints, it was %+v", at, x.want, now, len(have), before)
			}
		}
	}
	again.Data, again.ResumeAt = c.Data, list[0].Number
	res := fitOK(t, func(k *Context) error {
		s, err := k.Shard("train")
		if err == nil && s.Step() != 1 {
			err = fmt.Errorf("it goes on at step %d", s.Step())
		}
		return err
	}, again)
	if len(res.Checkpoints) != 1 {
		t.Errorf("%d checkpoints", len(res.Checkpoints))
	}
}
