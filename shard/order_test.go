package shard_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// Seeds that failed once stay here.
var keptGraphs = []uint64{1, 2, 3}

// Any graph gives exactly the reference's samples, in its steps, to its ranks, with its states: on any
// number of ranks, with any budget, concurrency and prefetch, with faults and slow reads, however often
// it is stopped and goes on, and after a change of the global batch. PENSTOCK_SEED=n runs one
// graph, PENSTOCK_SOAK=1 100,000.
func TestOrder(t *testing.T) {
	seeds := append([]uint64(nil), keptGraphs...)
	n := 1000
	switch {
	case os.Getenv("PENSTOCK_SOAK") == "1":
		n = 100_000
	case testing.Short():
		n = 100
	}
	base := rand.Uint64()
	for i := range n {
		seeds = append(seeds, base+uint64(i))
	}
	if s := os.Getenv("PENSTOCK_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	p := newPool(t)
	var mu sync.Mutex
	var sum tally
	failures := 0
	begin := time.Now()
	work := make(chan uint64)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) + 1 { // a run may wait before it tries again
		workers.Go(func() {
			for seed := range work {
				var one tally
				g := newGraph(p, seed)
				err := g.check(t, &one)
				_ = g.close()
				mu.Lock()
				sum.add(one)
				if err != nil {
					if failures++; failures <= 5 {
						t.Errorf("PENSTOCK_SEED=%d: mode %s, %d lanes, window %d, G=%d, tail %s, %d steps\n%s\n%v", seed, g.mode, g.lanes, g.window, g.global, g.tail, g.steps, g.text, err)
					}
				}
				mu.Unlock()
			}
		})
	}
	for _, seed := range seeds {
		work <- seed
	}
	close(work)
	workers.Wait()
	t.Logf("%d graphs in %v, %d failed: %+v", len(seeds), time.Since(begin).Round(time.Millisecond), failures, sum)
	if len(seeds) > 500 && !t.Failed() && (sum.Batches < 20*len(seeds) || sum.Restores < len(seeds)/2 || sum.Faults < 10 || sum.Regrouped < len(seeds)/20 || sum.Empty > len(seeds)/4) {
		t.Errorf("the test sees too little: %+v", sum)
	}
}

// tally is what the graphs were.
type tally struct{ Batches, Samples, Restores, Regrouped, Faults, Empty int }

func (t *tally) add(o tally) {
	t.Batches += o.Batches
	t.Samples += o.Samples
	t.Restores += o.Restores
	t.Regrouped += o.Regrouped
	t.Faults += o.Faults
	t.Empty += o.Empty
}

// run is a way to read a graph.
type run struct {
	ranks, global int
	live          []int
	o             dataset.RunOptions
	prefetch      int
	faults        bool
	tensors       bool // of packed samples: another way into batches
}

func (g *graph) newRun(rng *rand.Rand, global int) run {
	r := run{ranks: 1 + rng.IntN(min(global, 1+rng.IntN(64))), global: global, prefetch: rng.IntN(6) - 1, faults: rng.IntN(12) == 0}
	r.o = dataset.RunOptions{CPUs: 1 + rng.IntN(4), Seed: g.seed, StallTimeout: 20 * time.Second}
	if rng.IntN(2) == 0 {
		r.o.Memory = 64 << rng.IntN(20) << 10
	}
	if rng.IntN(2) == 0 {
		r.o.BatchRows = 1 + rng.IntN(30)
	}
	if rng.IntN(4) == 0 {
		r.o.NoRules = ops.RuleNames()
	}
	if g.skip {
		r.o.OnError = &ops.OnError{Policy: "skip"}
	}
	r.tensors = g.pack != nil && rng.IntN(3) > 0
	if rng.IntN(3) == 0 { // only some of the ranks are read here
		for k := range r.ranks {
			if rng.IntN(2) == 0 {
				r.live = append(r.live, k)
			}
		}
		rng.Shuffle(len(r.live), func(i, j int) { r.live[i], r.live[j] = r.live[j], r.live[i] })
	}
	return r
}

func (r run) String() string {
	return fmt.Sprintf("%d ranks (%v), G=%d, %d CPUs, memory %d, batches of %d, prefetch %d, rules off %v, faults %v, tensors %v",
		r.ranks, r.live, r.global, r.o.CPUs, r.o.Memory, r.o.BatchRows, r.prefetch, len(r.o.NoRules) > 0, r.faults, r.tensors)
}

func (g *graph) options(r run) *dataset.ShardOptions {
	o := &dataset.ShardOptions{RunOptions: r.o, Options: shard.Options{Ranks: r.live, GlobalBatch: r.global, Tail: g.tail, Prefetch: r.prefetch,
		StepsPerEpoch: g.steps, Shuffle: &shard.Shuffle{Mode: g.mode}, Form: shard.Form{Tensors: r.tensors}}}
	if g.mode == shard.ModeWindow {
		o.Shuffle.Lanes = g.lanes
	}
	rows, bytes := false, false
	for _, s := range g.sources {
		rows, bytes = rows || !s.bytes, bytes || s.bytes
	}
	if rows || len(g.sources) > 1 {
		o.Shuffle.WindowRows = g.window
	}
	if bytes || len(g.sources) > 1 {
		o.Shuffle.WindowBytes = g.window
	}
	return o
}

// check runs the graph in several ways.
func (g *graph) check(t *testing.T, sum *tally) error {
	for epoch := range uint64(3) {
		if err := g.run(epoch); err != nil {
			return fmt.Errorf("plain run: %w", err)
		}
	}
	first := g.epoch(0)
	for epoch := range uint64(3) {
		first.empty = first.empty || g.epoch(epoch).empty // where an epoch ends with an error none is looked at
	}
	rng := rand.New(rand.NewPCG(g.seed, 5))
	states := map[string]string{} // of uninterrupted runs, by place
	if first.empty {
		sum.Empty++
		return g.refused(t, g.newRun(rng, g.global))
	}
	if len(first.samples) == 0 {
		sum.Empty++
	}
	for k := range 2 + rng.IntN(3)/2 {
		r := g.newRun(rng, g.global)
		stops := 0
		if k > 0 {
			stops = 1 + rng.IntN(4)
		}
		g.chaos.off()
		if r.faults {
			g.chaos.on(rng.Uint64())
		}
		err := g.read(t, r, rng, stops, states, sum)
		if sum.Faults += g.chaos.faults; err != nil {
			return fmt.Errorf("run %d, %v:\n%w", k, r, err)
		}
		g.chaos.faults = 0
	}
	return nil
}

// refused runs a graph that must fail, as a source that has to be repeated has no sample.
func (g *graph) refused(t *testing.T, r run) error {
	g.chaos.off()
	r.live = nil
	its, err := g.ds.Shards(t.Context(), r.ranks, g.options(r))
	if err != nil {
		return err
	}
	defer closeAll(t, its)
	for range 5000 {
		for _, it := range its {
			b, err := it.Next(t.Context())
			if err == nil {
				b.Release()
				continue
			}
			if err != io.EOF {
				if fault.CodeOf(err) == fault.Invalid && strings.Contains(err.Error(), "gave no sample") {
					return nil
				}
				return err
			}
			if it == its[len(its)-1] && it.Epoch() == 3 {
				return errors.New("a source without samples is repeated, and nothing is said about it")
			}
		}
	}
	return errors.New("a source without samples is repeated for ever")
}

func closeAll(t *testing.T, its []*shard.Iterator) {
	t.Helper()
	for _, it := range its {
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	}
}

// read reads two epochs, stopping at some steps and going on elsewhere, in the end with another
// global batch, and compares all with the reference.
func (g *graph) read(t *testing.T, r run, rng *rand.Rand, stops int, states map[string]string, sum *tally) error {
	its, err := g.ds.Shards(t.Context(), r.ranks, g.options(r))
	if err != nil {
		return err
	}
	defer func() { closeAll(t, its) }()
	epoch, sample, step := uint64(0), 0, int64(0)
	total := 0
	for e := range uint64(2) {
		total += len(g.stepsAt(e, 0, g.global, 1)) + 1
	}
	state := func(i int) (string, error) {
		b, err := json.Marshal(its[i].State())
		return string(b), err
	}
	for epoch < 2 {
		want := g.stepsAt(epoch, sample, r.global, r.ranks)
		for k := 0; k <= len(want); k++ {
			// Stop here?
			if stops > 0 && rng.IntN(total) < 2 {
				stops--
				sum.Restores++
				s, err := state(rng.IntN(max(len(its), 1)))
				if len(its) == 0 {
					break
				}
				if err != nil {
					return err
				}
				parsed, err := shard.ParseState([]byte(s))
				if err != nil {
					return err
				}
				old := r
				how := rng.IntN(3)
				if how != 0 {
					global := r.global
					if stops == 0 && rng.IntN(2) == 0 {
						global = 1 + rng.IntN(2*r.global)
						sum.Regrouped++
					}
					// The length of an epoch is fixed at its start.
					r = g.newRun(rng, global)
					r.faults = old.faults
					for len(r.live) == 0 && r.live != nil {
						r.live = nil
					}
				}
				o := g.options(r)
				if how != 0 {
					closeAll(t, its)
					if how == 1 {
						o.State = &parsed
					}
					if its, err = g.ds.Shards(t.Context(), r.ranks, o); err != nil {
						return fmt.Errorf("restored to %s as %v: %w", s, r, err)
					}
				}
				if how != 1 {
					for _, it := range its {
						if err := it.Restore(parsed); err != nil {
							return fmt.Errorf("restore %s: %w", s, err)
						}
					}
				}
				for i := range its {
					if again, err := state(i); err != nil || again != s {
						return fmt.Errorf("restored to\n%s\nit is at\n%s", s, again)
					}
				}
				if how != 0 {
					want, k = g.stepsAt(epoch, sample, r.global, r.ranks), 0
				}
			}
			for _, it := range its {
				b, err := it.Next(t.Context())
				if k == len(want) {
					if err == nil {
						defer b.Release()
						return fmt.Errorf("epoch %d has a step %d (samples %v), want %d steps", epoch, step, b.Samples(), len(want))
					}
					if err != io.EOF {
						return fmt.Errorf("epoch %d, at its end: %w", epoch, err)
					}
					continue
				}
				if err != nil {
					return fmt.Errorf("epoch %d, step %d, rank %d: %w", epoch, step, it.Rank(), err)
				}
				if b.Step() != step || b.Epoch() != epoch || b.Rank() != it.Rank() {
					err = fmt.Errorf("it is step %d of epoch %d, rank %d", b.Step(), b.Epoch(), b.Rank())
				} else {
					err = want[k][it.Rank()].same(b, g.tail)
				}
				sum.Batches++
				sum.Samples += b.Real()
				b.Release()
				if err != nil {
					return fmt.Errorf("epoch %d, step %d, rank %d: %w", epoch, step, it.Rank(), err)
				}
			}
			if regrouped := r.global != g.global; regrouped && k == len(want) && g.steps > 0 {
				return nil // the next epoch has another length
			}
			if k < len(want) {
				step++
				sample = min(sample+r.global, len(g.epoch(epoch).samples))
			} else {
				epoch, step, sample = epoch+1, 0, 0
			}
			if err := g.states(its, epoch, step, sample, r, states); err != nil {
				return err
			}
		}
	}
	return nil
}

// states compares the states of all iterators with the reference's, and with those of other runs.
func (g *graph) states(its []*shard.Iterator, epoch uint64, step int64, sample int, r run, states map[string]string) error {
	for _, it := range its {
		s := it.State()
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		at := fmt.Sprint(epoch, step, sample, r.global)
		if states[at] == "" {
			states[at] = string(b)
			if s.Epoch != epoch || s.Step != step || s.Sample != int64(sample) || s.GlobalBatch != int64(r.global) {
				return fmt.Errorf("after epoch %d, step %d, sample %d the state is %s", epoch, step, sample, b)
			}
			if epoch < 3 {
				if d := cmp.Diff(g.positions(epoch, sample), s.Sources); d != "" {
					return fmt.Errorf("state of rank %d after epoch %d, step %d, sample %d (- want): %s", it.Rank(), epoch, step, sample, d)
				}
			}
		} else if states[at] != string(b) {
			return fmt.Errorf("rank %d, epoch %d, step %d, sample %d: the state is\n%s\nin another run it was\n%s", it.Rank(), epoch, step, sample, b, states[at])
		}
	}
	return nil
}
