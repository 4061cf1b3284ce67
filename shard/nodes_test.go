package shard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/exchangetest"
)

// division is how a job is divided among nodes.
type division struct {
	nodes        int
	ranks, lanes []int
	room         int
}

func newDivision(rng *rand.Rand, ranks int) division {
	d := division{nodes: 1 + rng.IntN(5), room: rng.IntN(3)}
	used := 1 + rng.IntN(d.nodes) // nodes that may have ranks
	for range ranks {
		d.ranks = append(d.ranks, rng.IntN(used))
	}
	if rng.IntN(2) == 0 {
		for range 1 + rng.IntN(7) {
			d.lanes = append(d.lanes, rng.IntN(d.nodes))
		}
	}
	return d
}

func (d division) String() string {
	return fmt.Sprintf("%d nodes, ranks %v, lanes %v, room %d", d.nodes, d.ranks, d.lanes, d.room)
}

// at is a place in a job.
type at struct {
	epoch  uint64
	sample int
	step   int64
	state  *shard.State
}

// TestNodes: over any nodes a graph gives exactly the reference's samples, to the same ranks, with the same states: with
// nodes without ranks and nodes without lanes, with any budget, concurrency and prefetch, with faults and slow reads, and
// when the job goes on over other nodes, also with another global batch. PENSTOCK_SEED=n runs one graph.
func TestNodes(t *testing.T) {
	n := 120
	if testing.Short() {
		n = 30
	}
	base := rand.Uint64()
	var seeds []uint64
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
	for range runtime.GOMAXPROCS(0) + 1 {
		workers.Go(func() {
			for seed := range work {
				var one tally
				g := newGraph(p, seed)
				err := g.checkNodes(t, &one)
				_ = g.ds.Close()
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
}

func (g *graph) checkNodes(t *testing.T, sum *tally) error {
	for epoch := range uint64(3) {
		if err := g.run(epoch); err != nil {
			return fmt.Errorf("plain run: %w", err)
		}
	}
	for epoch := range uint64(3) {
		if g.epoch(epoch).empty { // where an epoch ends with an error none is looked at
			sum.Empty++
			return nil
		}
	}
	rng := rand.New(rand.NewPCG(g.seed, 6))
	states := map[string]string{}
	from := at{}
	for k := 0; from.epoch < 2 && k < 4; k++ {
		global := g.global
		if g.steps == 0 && k > 0 && rng.IntN(3) == 0 {
			global = 1 + rng.IntN(2*g.global)
			sum.Regrouped++
		}
		r := g.newRun(rng, global)
		r.ranks, r.live = 1+rng.IntN(min(global, 8)), nil
		d := newDivision(rng, r.ranks)
		g.chaos.off()
		if r.faults {
			g.chaos.on(rng.Uint64())
		}
		total := 1 << 30
		if rng.IntN(2) == 0 && k < 3 {
			total = 1 + rng.IntN(20)
		}
		to, err := g.readNodes(t, r, d, from, total, states, sum)
		if sum.Faults += g.chaos.faults; err != nil {
			return fmt.Errorf("run %d from %+v, %v, %v:\n%w", k, from, r, d, err)
		}
		g.chaos.faults = 0
		from = to
		sum.Restores++
	}
	return nil
}

// readNodes reads at most so many steps and ends of epochs, to the end of epoch 1, and says where it came to.
func (g *graph) readNodes(t *testing.T, r run, d division, from at, most int, states map[string]string, sum *tally) (to at, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	type event struct {
		at                   // before it
		batches []modelBatch // by rank; nil: the end of an epoch
		after   at
	}
	var events []event
	to = from
	for to.epoch < 2 && len(events) < most {
		want := g.stepsAt(to.epoch, to.sample, r.global, r.ranks)
		for k := 0; k <= len(want) && len(events) < most; k++ {
			e := event{at: to}
			if k < len(want) {
				e.batches = want[k]
				to.step++
				to.sample = min(to.sample+r.global, len(g.epoch(to.epoch).samples))
			} else {
				to = at{epoch: to.epoch + 1}
			}
			e.after = to
			events = append(events, e)
		}
	}
	net := exchangetest.New(d.nodes, d.room)
	var mu sync.Mutex
	var nodes sync.WaitGroup
	var errs []error
	for node := range d.nodes {
		nodes.Go(func() {
			x := net.Node(node)
			defer x.Close()
			err := func() (err error) {
				o := g.options(r)
				o.State = from.state
				o.Nodes = &shard.Nodes{Exchange: x, Ranks: d.ranks, Lanes: d.lanes}
				its, err := g.ds.Shards(ctx, r.ranks, o)
				if err != nil {
					return err
				}
				defer func() {
					for _, it := range its {
						err = errors.Join(err, it.Close())
					}
				}()
				if its[0].Rank() < 0 {
					return its[0].Feed(ctx)
				}
				for _, e := range events {
					for _, it := range its {
						b, err := it.Next(ctx)
						where := fmt.Sprintf("epoch %d, step %d, rank %d", e.epoch, e.step, it.Rank())
						switch {
						case e.batches == nil && err == io.EOF:
							continue
						case err != nil:
							return fmt.Errorf("%s: %w", where, err)
						case e.batches == nil:
							b.Release()
							return fmt.Errorf("%s: a batch at the end of the epoch", where)
						case b.Step() != e.step || b.Epoch() != e.epoch || b.Rank() != it.Rank():
							err = fmt.Errorf("it is step %d of epoch %d, rank %d", b.Step(), b.Epoch(), b.Rank())
						default:
							err = e.batches[it.Rank()].same(b, g.tail)
						}
						mu.Lock()
						sum.Batches++
						sum.Samples += b.Real()
						mu.Unlock()
						b.Release()
						if err != nil {
							return fmt.Errorf("%s: %w", where, err)
						}
					}
					mu.Lock()
					err := g.states(its, e.after.epoch, e.after.step, e.after.sample, r, states)
					mu.Unlock()
					if err != nil {
						return err
					}
				}
				b, err := json.Marshal(its[0].State())
				if err != nil {
					return err
				}
				s, err := shard.ParseState(b)
				mu.Lock()
				to.state = &s
				mu.Unlock()
				return err
			}()
			if err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("node %d: %w", node, err))
				mu.Unlock()
			}
		})
	}
	nodes.Wait()
	return to, errors.Join(errs...)
}
