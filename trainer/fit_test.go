package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/store"
)

// The job of most tests: 1,900 samples left of 2,850 rows, 40 in a step, so 47 steps an epoch.
const (
	rows   = 2850
	batch  = 40
	steps  = 47
	epochs = 2
)

func train() Data {
	return Data{Dataset: dataset.Range(rows).Filter("id % 3 != 0").WithColumns("x = id * 2"), Options: dataset.ShardOptions{
		RunOptions: dataset.RunOptions{Seed: 5, Memory: 64 << 20},
		Options:    shard.Options{GlobalBatch: batch, Form: shard.Form{Tensors: true}, Shuffle: &shard.Shuffle{Lanes: 4, WindowRows: 200}},
	}}
}

// configOf is a run in a folder of the test.
func configOf(t testing.TB, name string) Config {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c := Config{Name: name, Storage: t.TempDir(), Workers: 2, Data: map[string]Data{"train": train()}, StopTimeout: 2 * time.Second, Output: io.Discard}
	if testing.Verbose() {
		c.Log = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	return c
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func fitOK(t testing.TB, loop func(*Context) error, c Config) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := New(loop, c).Fit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if res.State != store.Finished {
		t.Fatalf("the run is %s", res.State)
	}
	return res
}

// book keeps what ranks were given, by epoch and step: the last time counts, and an earlier one must be equal.
type book struct {
	mu    sync.Mutex
	steps map[string]string
}

func (b *book) add(t testing.TB, rank int, x *shard.Batch) {
	sum := x.Digest()
	key := fmt.Sprintf("%d/%03d/%d", x.Epoch(), x.Step(), rank)
	text := fmt.Sprintf("%v %x", x.Samples(), sum[:8])
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.steps == nil {
		b.steps = map[string]string{}
	}
	if was, ok := b.steps[key]; ok && was != text {
		t.Errorf("%s was %s, is %s", key, was, text)
	}
	b.steps[key] = text
}

// epochLoop trains for epochs, and saves every so many steps on rank 0.
func epochLoop(t testing.TB, b *book, every int64, at func(c *Context, epoch uint64, step int64) error) func(*Context) error {
	return func(c *Context) error {
		s, err := c.Shard("train")
		if err != nil {
			return err
		}
		if err := checkRestored(c, s); err != nil {
			return err
		}
		for s.Epoch() < epochs {
			for x, err := range s.All(c) {
				if err != nil {
					return err
				}
				b.add(t, c.Rank(), x)
				if at != nil {
					if err := at(c, x.Epoch(), x.Step()); err != nil {
						return err
					}
				}
				if (x.Step()+1)%every != 0 {
					continue
				}
				dir := ""
				if c.Rank() == 0 {
					if dir, err = saveState(s); err != nil {
						return err
					}
				}
				if err := c.Report(map[string]float64{"step": float64(s.Step())}, dir); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// saveState writes a checkpoint that knows its place.
func saveState(s *Shard) (string, error) {
	dir, err := os.MkdirTemp("", "ckpt-")
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(s.State())
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "state.json"), b, 0o600)
}

// checkRestored reports a data set that does not stand where the files of the checkpoint say.
func checkRestored(c *Context, s *Shard) error {
	k := c.Checkpoint()
	if k == nil {
		return nil
	}
	dir, err := k.Dir(c)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil {
		return err
	}
	is, err := json.Marshal(s.State())
	if err != nil {
		return err
	}
	if string(is) != string(b) {
		return fault.New(fault.Internal, "restored files of %s, data at %s", b, is)
	}
	return nil
}

func TestFit(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var b book
	res := fitOK(t, epochLoop(t, &b, 10, nil), configOf(t, "first"))
	if len(b.steps) != 2*steps*epochs {
		t.Errorf("%d batches, want %d", len(b.steps), 2*steps*epochs)
	}
	if res.Reports != 8 || res.Checkpoint == 0 || res.Metrics["step"] != 40 || res.Attempts != 1 || len(res.Failures) != 0 || len(res.Checkpoints) != 3 {
		t.Errorf("%+v", res)
	}
	if best, ok := res.Best("step", "max"); !ok || best.Metrics["step"] != 40 {
		t.Errorf("best: %+v", best)
	}
}

// A loop that fails begins again at the last checkpoint, with the batches that come next.
func TestRestart(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var want, got book
	fitOK(t, epochLoop(t, &want, 10, nil), configOf(t, "want"))
	failed := map[int64]bool{}
	var mu sync.Mutex
	res := fitOK(t, epochLoop(t, &got, 10, func(c *Context, epoch uint64, step int64) error {
		mu.Lock()
		defer mu.Unlock()
		at := int64(epoch)*steps + step
		if c.Rank() == 1 && (at == 3 || at == 34 || at == 60) && !failed[at] {
			failed[at] = true
			return fmt.Errorf("step %d fails", at)
		}
		return nil
	}), configOf(t, "restart"))
	if res.Attempts != 4 || len(res.Failures) != 3 || res.Failures[0].Rank != 1 || fault.CodeOf(res.Failures[0].Err) != fault.UserCode {
		t.Errorf("%d attempts, failures %+v", res.Attempts, res.Failures)
	}
	sameBook(t, &want, &got)
}

// The reports of an attempt that failed are in its files to the last, though no checkpoint came after them; those of the run have epoch and step of each report once.
func TestMetricsOfAttempts(t *testing.T) {
	c := quick(t, "metrics")
	loop := func(k *Context) error {
		s, err := k.Shard("train")
		if err != nil {
			return err
		}
		for n := 1; n <= steps+5; n++ {
			b, err := s.Next(k)
			if err == io.EOF {
				b, err = s.Next(k)
			}
			if err != nil {
				return err
			}
			at := map[string]float64{"epoch": float64(b.Epoch()), "step": float64(b.Step() + 1)}
			b.Release()
			if err := k.Report(at, ""); err != nil {
				return err
			}
			if k.Attempt() == 1 && n == steps+2 {
				if err := k.Barrier(); err != nil {
					return err
				}
				return errors.New("it fails")
			}
		}
		return nil
	}
	if res := fitOK(t, loop, c); res.Attempts != 2 || res.Reports != steps+5 {
		t.Fatalf("%+v", res)
	}
	first, err := filepath.Glob(filepath.Join(c.Storage, c.Name, "metrics", "000001-*.jsonl"))
	if err != nil || len(first) == 0 {
		t.Fatal(first, err)
	}
	lines := 0
	for _, name := range first {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines += strings.Count(string(b), "\n")
	}
	if lines != steps+2 {
		t.Errorf("%d reports of the first attempt are kept, want %d", lines, steps+2)
	}
	run, err := store.Open(t.Context(), c.Storage, c.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	n := 0
	for row, err := range run.History(t.Context()) {
		if n++; err != nil || row.Attempt != 2 || row.Report != int64(n) || float64(row.Epoch) != row.Metrics["epoch"] || float64(row.Step) != row.Metrics["step"] || row.Epoch != uint64((n-1)/steps) {
			t.Fatalf("%+v, %v", row, err)
		}
	}
	if n != steps+5 {
		t.Errorf("%d reports", n)
	}
}

func sameBook(t testing.TB, want, got *book) {
	t.Helper()
	if len(want.steps) != len(got.steps) {
		t.Errorf("%d batches, want %d", len(got.steps), len(want.steps))
	}
	for k, w := range want.steps {
		if g := got.steps[k]; g != w {
			t.Errorf("%s is %s, want %s", k, g, w)
		}
	}
}
