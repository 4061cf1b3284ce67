package local_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
)

var metaSeed = flag.Uint64("meta.seed", 0, "run this seed alone")

// TestMetamorphic: a graph gives the same rows and dead letters in the same order
// however many tasks, memory and batches there are, and whatever fails on the way;
// unordered, the same rows in some order.
func TestMetamorphic(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		if *metaSeed != 0 && seed != *metaSeed {
			continue
		}
		synctest.Test(t, func(t *testing.T) { metamorphic(t, seed) })
	}
}

func metamorphic(t *testing.T, seed uint64) {
	var want []int64
	var wantLetters []string
	first := true
	defer func() {
		if t.Failed() {
			t.Logf("-meta.seed=%d: %s", seed, exectest.Describe(exectest.NewPlan(seed, false).Root()))
		}
	}()
	for _, cpus := range []int{1, 4} {
		for _, memory := range []int64{1 << 10, 64 << 20} {
			for _, batch := range []int{1, 7, 1024} {
				if batch == 1 && cpus == 4 && memory > 1<<20 {
					continue // slow, and tells nothing new
				}
				for _, faults := range []bool{false, true} {
					for _, unordered := range []bool{false, true} {
						p := exectest.NewPlan(seed, faults)
						root := p.Root()
						limited := exectest.HasLimit(root)
						if unordered && limited {
							continue // which rows pass a limit depends on their order
						}
						var letters []string
						o := &exec.Options{
							CPUs: cpus, Memory: memory, BatchRows: batch, Unordered: unordered,
							Retry:   exec.RetryBudget{Unavailable: 30, WorkerLost: 30, Exhausted: 30},
							OnError: exec.OnError{Policy: exec.Skip},
							DeadLetter: func(_ context.Context, s *exec.Skipped) error {
								letters = append(letters, fmt.Sprint(s.Origin.Source, s.Origin.Index, s.Row, fault.PlaceOf(s.Err).Step))
								return nil
							},
						}
						name := fmt.Sprintf("cpus %d memory %d batch %d faults %v unordered %v", cpus, memory, batch, faults, unordered)
						ids, _, err := collect(t, exectest.Graph(root), o)
						if err != nil {
							t.Errorf("%s: %v", name, err)
							return
						}
						if unordered {
							slices.Sort(ids)
							slices.Sort(letters)
							w, wl := slices.Clone(want), slices.Clone(wantLetters)
							slices.Sort(w)
							slices.Sort(wl)
							if !slices.Equal(ids, w) || !slices.Equal(letters, wl) {
								t.Errorf("%s: other rows: %d, want %d; letters %d, want %d", name, len(ids), len(w), len(letters), len(wl))
							}
							continue
						}
						if first {
							first, want, wantLetters = false, ids, letters
						}
						if !slices.Equal(ids, want) {
							t.Errorf("%s: %d rows, want %d", name, len(ids), len(want))
						}
						if !slices.Equal(letters, wantLetters) {
							t.Errorf("%s: letters\n%v\nwant\n%v", name, letters, wantLetters)
						}
						for _, tb := range p.Tables {
							if tb.Readers() != 0 {
								t.Errorf("%s: readers open", name)
							}
						}
						for _, op := range p.Ops {
							if op.Open.Load() != 0 {
								t.Errorf("%s: tasks of %s open", name, op.Label)
							}
						}
					}
				}
			}
		}
	}
}

// TestEarlyClose: wherever a run is left, everything comes back at once.
func TestEarlyClose(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 9))
			p := exectest.NewPlan(seed, true)
			b := exec.NewBudget(int64(1) << (10 + r.IntN(16)))
			defer b.Close()
			s, err := local.New(nil).Run(t.Context(), exectest.Graph(p.Stage(2)), &exec.Options{
				Budget: b, CPUs: 1 + r.IntN(4), BatchRows: 1 + r.IntN(50), Unordered: r.IntN(2) == 0,
				OnError: exec.OnError{Policy: exec.Skip}, Retry: exec.RetryBudget{Unavailable: 30, WorkerLost: 30, Exhausted: 30},
			})
			if err != nil {
				t.Fatal(err)
			}
			var kept []*exec.Block
			for range r.IntN(30) {
				blk, err := s.Next(t.Context())
				if err != nil {
					break
				}
				if r.IntN(3) == 0 {
					kept = append(kept, blk)
				} else {
					blk.Release()
				}
			}
			start := time.Now()
			if err := s.Close(); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			if time.Since(start) > 0 {
				t.Errorf("seed %d: Close waited", seed)
			}
			for _, blk := range kept {
				exectest.Ids(blk.Batch) // still valid
				blk.Release()
			}
			checkEmpty(t, b)
			for _, tb := range p.Tables {
				if tb.Readers() != 0 {
					t.Errorf("seed %d: readers open", seed)
				}
			}
			if _, err := s.Next(t.Context()); err == nil || !strings.Contains(err.Error(), "closed") {
				t.Errorf("seed %d: Next after Close: %v", seed, err)
			}
		})
	}
}

// TestLimits: exactly so many rows, and no split read that could not matter.
func TestLimits(t *testing.T) {
	for _, limit := range []int64{0, 1, 99, 100, 101, 1000, 1234, 10000, 20000} {
		tb := exectest.NewTable(100, 100)
		g := exectest.Graph(exectest.Cut(limit, []*exec.Stage{exectest.ScanStage(0, tb)}))
		ids, _, err := collect(t, g, &exec.Options{CPUs: 4, BatchRows: 64})
		if n := min(limit, 10000); err != nil || !slices.Equal(ids, count(int(n))) {
			t.Fatalf("limit %d: %d rows, %v", limit, len(ids), err)
		}
		opened := 0
		for _, o := range tb.Opens() {
			opened += o
		}
		if need := int(limit+99) / 100; opened > 3*need+8 {
			t.Errorf("limit %d: %d splits read", limit, opened)
		}
		if limit == 0 && opened > 0 || limit == 1 && opened != 1 {
			t.Errorf("limit %d: %d splits read", limit, opened)
		}
	}
}

// TestParallel: operators that wait run in more tasks than there are CPUs.
func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids, _, err := collect(t, exectest.Scan(exectest.NewTable(16, 10), exectest.Barrier(8)), &exec.Options{CPUs: 2, StallTimeout: time.Minute})
		if err != nil || len(ids) != 160 {
			t.Fatalf("%d rows, %v", len(ids), err)
		}
	})
}
