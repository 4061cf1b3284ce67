package remote_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/fault"
)

var seedFlag = flag.Uint64("seed", 0, "run this seed alone")

// result is what a run gave.
type result struct {
	ids     []int64
	letters []string
	stats   exec.Stats
	err     error
}

// letter is an exec.Options.DeadLetter.
func (res *result) letter(_ context.Context, s *exec.Skipped) error {
	text := "-"
	if s.Record != nil {
		text = fmt.Sprint(s.Record)
	}
	res.letters = append(res.letters, fmt.Sprint(s.Origin, s.Row, fault.CodeOf(s.Err), plain(s.Err), text))
	return nil
}

func run(r exec.Runner, g *exec.Graph, o exec.Options) (res result) {
	o.DeadLetter = res.letter
	s, err := r.Run(context.Background(), g, &o)
	if err != nil {
		res.err = err
		return res
	}
	for {
		b, err := s.Next(context.Background())
		if err == io.EOF {
			break
		}
		if err != nil {
			res.err = err
			break
		}
		res.ids = append(res.ids, exectest.Ids(b.Batch)...)
		b.Release()
	}
	if err := s.Close(); err != nil && res.err == nil {
		res.err = err
	}
	res.stats = s.Stats()
	return res
}

// plain is an error without what depends on where and how often it was tried.
func plain(err error) string {
	p := fault.PlaceOf(err)
	p.Attempt, p.Node = 0, ""
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return fmt.Sprint(e.Code, p, e.Err)
	}
	return err.Error()
}

// TestProperty: random graphs give the same rows, dead letters and errors on any number of nodes as in one process, in the same order unless it is not wanted.
func TestProperty(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		if *seedFlag != 0 && seed != *seedFlag {
			continue
		}
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { property(t, seed) })
	}
}

func property(t *testing.T, seed uint64) {
	d := rand.New(rand.NewPCG(seed*0x9E3779B97F4A7C15, 17))
	faults, limits := d.IntN(2) == 0, d.IntN(4) == 0
	nodes := 2 + d.IntN(2)
	o := exec.Options{CPUs: 1 + d.IntN(3), Memory: []int64{1 << 14, 1 << 20, 64 << 20}[d.IntN(3)], BatchRows: []int{1, 7, 1024}[d.IntN(3)], StallTimeout: 30 * time.Second,
		Retry: exec.RetryBudget{Unavailable: 30, WorkerLost: 30, Exhausted: 30}, OnError: exec.OnError{Policy: exec.Skip}}
	if limits {
		o.OnError.MaxRows = int64(1 + d.IntN(20))
	}
	p := exectest.NewPlan(seed, false)
	root := p.Root()
	o.Unordered = d.IntN(4) == 0 && !exectest.HasLimit(root) && !limits
	t.Logf("seed %d, %d nodes, faults %v, %+v: %s", seed, nodes, faults, o, exectest.Describe(root))
	want := run(local.New(nil), exectest.Graph(root), o)
	var got result
	plans := make([]*exectest.Plan, nodes)
	for i := range plans {
		plans[i] = exectest.NewPlan(seed, faults)
	}
	errs := all(t, gangtest.New(t, nodes), func(node int, r *remote.Runner) error {
		res := run(r, comparable(exectest.Graph(plans[node].Root())), o)
		if node == 0 {
			got = res
		}
		return res.err
	})
	if o.Unordered {
		for _, r := range []*result{&want, &got} {
			slices.Sort(r.ids)
			slices.Sort(r.letters)
		}
	}
	if (want.err == nil) != (got.err == nil) || want.err != nil && (fault.CodeOf(want.err) != fault.CodeOf(got.err) || plain(want.err) != plain(got.err)) {
		t.Fatalf("error %v, want %v", got.err, want.err)
	}
	if want.err == nil {
		served(t, errs)
	}
	if !slices.Equal(want.ids, got.ids) {
		t.Errorf("%d rows, want %d", len(got.ids), len(want.ids))
	}
	if !slices.Equal(want.letters, got.letters) {
		t.Errorf("letters\n%v\nwant\n%v", got.letters, want.letters)
	}
	if w, g := want.stats, got.stats; want.err == nil && !exectest.HasLimit(root) && !faults && (w.RowsIn != g.RowsIn || w.RowsOut != g.RowsOut || w.Splits != g.Splits || w.SplitsDone != g.SplitsDone || w.Skipped != g.Skipped) {
		t.Errorf("statistics\n%+v\nwant\n%+v", g, w)
	}
	for i, p := range plans {
		for _, tb := range p.Tables {
			if tb.Readers() != 0 {
				t.Errorf("node %d: %d readers are open", i, tb.Readers())
			}
		}
		for _, op := range p.Ops {
			if n := op.Open.Load(); n != 0 {
				t.Errorf("node %d: %d tasks of %s are open", i, n, op.Label)
			}
		}
	}
}

// TestEarlyClose: wherever a run is left, everything comes back on all nodes.
func TestEarlyClose(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		d := rand.New(rand.NewPCG(seed*0x9E3779B97F4A7C15, 23))
		budgets := []*exec.Budget{exec.NewBudget(int64(1) << (14 + d.IntN(12))), exec.NewBudget(int64(1) << (14 + d.IntN(12)))}
		take := d.IntN(20)
		errs := all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
			g, _ := graph(60, 500)
			s, err := r.Run(t.Context(), g, &exec.Options{Budget: budgets[node], BatchRows: 64})
			if err != nil {
				return err
			}
			var kept []*exec.Block
			for range take {
				b, err := s.Next(t.Context())
				if err != nil {
					return err
				}
				kept = append(kept, b)
			}
			start := time.Now()
			if err := s.Close(); err != nil {
				return err
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("seed %d: Close took %v", seed, took)
			}
			for _, b := range kept {
				exectest.Ids(b.Batch) // still valid
				b.Release()
			}
			return nil
		})
		served(t, errs)
		for i, b := range budgets {
			if b.Used() != 0 || b.Leased() != 0 || b.Allocated() != 0 {
				t.Errorf("seed %d: node %d holds %s", seed, i, b.Holders())
			}
			b.Close()
		}
	}
}

// notEOF is err, but for the end of a stream.
func notEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}
