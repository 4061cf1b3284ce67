package shard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	overGraphs(t, n, (*graph).checkNodes)
}

func (g *graph) checkNodes(t *testing.T, sum *tally) error {
	if err := g.prepare(); err != nil {
		return err
	}
	for k := range uint64(modelEpochs) {
		if g.epoch(g.first + k).empty { // where an epoch ends with an error none is looked at
			sum.Empty++
			return nil
		}
	}
	rng := rand.New(rand.NewPCG(g.seed, 6))
	states := map[string]string{}
	from := at{epoch: g.first}
	for k := 0; from.epoch < g.first+2 && k < 4; k++ {
		global := g.global
		if g.steps == 0 && k > 0 && rng.IntN(3) == 0 {
			global = 1 + rng.IntN(2*g.global)
			sum.Regrouped++
		}
		r := g.newRun(rng, global)
		r.ranks, r.live, r.each = 1+rng.IntN(min(global, 8)), nil, false
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

// readNodes reads at most so many steps and ends of epochs, to the end of its second epoch, and says where it came to.
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
	for to.epoch < g.first+2 && len(events) < most {
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
							err = g.same(b, r, &e.batches[it.Rank()])
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
