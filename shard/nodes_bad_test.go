package shard_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/exchangetest"
)

// two is a division in which samples travel both ways: node 0 reads the lanes of node 1's ranks.
var two = division{nodes: 2, ranks: []int{0, 1}, lanes: []int{1, 0}}

// shards opens the iterators of a node.
func shards(ctx context.Context, ds *dataset.Dataset, o *dataset.ShardOptions, n *shard.Nodes) ([]*shard.Iterator, error) {
	x := *o
	x.Nodes = n
	return ds.Shards(ctx, len(n.Ranks), &x)
}

// steps reads so many steps of all of its.
func steps(ctx context.Context, its []*shard.Iterator, n int) error {
	for i := range n {
		for _, it := range its {
			b, err := it.Next(ctx)
			if err == io.EOF {
				continue
			}
			if err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			b.Release()
		}
	}
	return nil
}

func shut(its []*shard.Iterator) error {
	var err error
	for _, it := range its {
		err = errors.Join(err, it.Close())
	}
	return err
}

// Nodes that do not run the same job refuse to, and each says what differs.
func TestNodesDiffer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ds := dataset.Range(1000)
	for what, change := range map[string]func(o *dataset.ShardOptions, n *shard.Nodes, ds **dataset.Dataset){
		"seed":            func(o *dataset.ShardOptions, _ *shard.Nodes, _ **dataset.Dataset) { o.Seed++ },
		"global batch":    func(o *dataset.ShardOptions, _ *shard.Nodes, _ **dataset.Dataset) { o.GlobalBatch++ },
		"tail":            func(o *dataset.ShardOptions, _ *shard.Nodes, _ **dataset.Dataset) { o.Tail = shard.TailPad },
		"steps per epoch": func(o *dataset.ShardOptions, _ *shard.Nodes, _ **dataset.Dataset) { o.StepsPerEpoch = 5 },
		"source data": func(o *dataset.ShardOptions, _ *shard.Nodes, _ **dataset.Dataset) {
			o.Shuffle = &shard.Shuffle{Lanes: 3}
		},
		"nodes of lanes":  func(_ *dataset.ShardOptions, n *shard.Nodes, _ **dataset.Dataset) { n.Lanes = []int{0} },
		"nodes of ranks":  func(_ *dataset.ShardOptions, n *shard.Nodes, _ **dataset.Dataset) { n.Ranks = []int{1, 1} },
		"form of batches": func(o *dataset.ShardOptions, _ *shard.Nodes, _ **dataset.Dataset) { o.Form.Tensors = true },
		"plan":            func(_ *dataset.ShardOptions, _ *shard.Nodes, ds **dataset.Dataset) { *ds = (*ds).Filter("id > 3") },
		"on_error: skip of the run": func(o *dataset.ShardOptions, _ *shard.Nodes, _ **dataset.Dataset) {
			o.OnError = &ops.OnError{Policy: "skip"}
		},
		"place":   func(o *dataset.ShardOptions, _ *shard.Nodes, _ **dataset.Dataset) { o.State = later(t, ds) },
		"lineage": func(o *dataset.ShardOptions, _ *shard.Nodes, _ **dataset.Dataset) { o.Lineage = true },
	} {
		var mu sync.Mutex
		var errs []error
		err := onNodes(two, func(n *shard.Nodes) error {
			o, ds := jobOptions(7), ds
			if n.Exchange.Node() == 1 {
				n = &shard.Nodes{Exchange: n.Exchange, Ranks: n.Ranks, Lanes: n.Lanes}
				change(o, n, &ds)
			}
			its, err := shards(ctx, ds, o, n)
			if err != nil {
				return err
			}
			_, err = its[0].Next(ctx)
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
			return shut(its)
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range errs {
			wantError(t, err, fault.Invalid, "does not run the same job: "+what)
		}
	}
}

// later is the state of a job of jobOptions(7) after a step.
func later(t *testing.T, ds *dataset.Dataset) *shard.State {
	its := open(t, ds, 1, jobOptions(7))
	next(t, its[0])
	s := its[0].State()
	return &s
}

// A node that vanishes ends the job of all others, which name it.
func TestNodeLost(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	net := exchangetest.New(3, 0)
	ds := dataset.Range(1 << 20).Filter("id % 3 != 0")
	var g sync.WaitGroup
	read := make(chan struct{}, 100)
	for node := range 3 {
		g.Go(func() {
			x := net.Node(node)
			defer x.Close()
			its, err := shards(ctx, ds, jobOptions(7), &shard.Nodes{Exchange: x, Ranks: []int{0, 0, 1, 2}, Lanes: []int{1, 2, 0}})
			if err != nil {
				t.Error(err)
				return
			}
			for err == nil {
				if err = steps(ctx, its, 1); node == 0 && err == nil {
					select {
					case read <- struct{}{}:
					default:
					}
				}
			}
			if fault.CodeOf(err) != fault.WorkerLost || node != 1 && !strings.Contains(err.Error(), "node 1 is lost") {
				t.Errorf("node %d: %v", node, err)
			}
			if err := shut(its); err != nil {
				t.Error(err)
			}
		})
	}
	for range 10 {
		<-read
	}
	net.Kill(1)
	g.Wait()
}

// A node that closes its iterators lets the others read as far as it did; then they say who closed.
func TestNodeClosesEarly(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for stop := range 12 {
		o := jobOptions(uint64(stop))
		o.Prefetch = stop%4 - 1
		d := division{nodes: 3, ranks: []int{0, 1, 1, 2}, lanes: []int{2, 0, 1}}
		err := onNodes(d, func(n *shard.Nodes) error {
			its, err := shards(ctx, dataset.Range(5000).Filter("id % 3 != 0"), o, n)
			if err != nil {
				return err
			}
			if err := steps(ctx, its, stop+1); err != nil {
				return err
			}
			if n.Exchange.Node() == 2 {
				return shut(its)
			}
			for err == nil {
				err = steps(ctx, its, 1)
			}
			if fault.CodeOf(err) != fault.WorkerLost || !strings.Contains(err.Error(), "closed its iterators after") {
				return err
			}
			return shut(its)
		})
		if err != nil {
			t.Fatalf("after %d steps: %v", stop+1, err)
		}
	}
}

// What goes wrong with the data at one node is said at all of them, with its code.
func TestNodeFails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cast := dataset.Read(cells{0, []int{60, 60, 60}}).WithColumns("n = int(s)")
	nulls := dataset.Read(cells{0, []int{60, 60, 60}}).Select("v")
	for what, ds := range map[string]*dataset.Dataset{`"n"`: cast, `"v"`: nulls} {
		for _, mode := range []shard.Mode{shard.ModeWindow, shard.ModeBlocks} {
			err := onNodes(two, func(n *shard.Nodes) error {
				o := jobOptions(7)
				o.Form.Tensors, o.Form.Columns = true, map[string]shard.Column{"n": {}}
				if ds == nulls {
					o.Form.Columns = nil
				}
				if o.Shuffle.Mode = mode; mode == shard.ModeBlocks {
					o.Shuffle = &shard.Shuffle{Mode: mode}
				}
				its, err := shards(ctx, ds, o, n)
				if err != nil {
					return err
				}
				for err == nil {
					err = steps(ctx, its, 1)
				}
				if fault.CodeOf(err) != fault.RowError || !strings.Contains(err.Error(), what) {
					return errors.Join(fmt.Errorf("%s, mode %s: %w", what, mode, err), shut(its))
				}
				return shut(its)
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// A node whose ranks nobody reads is named by the watchdogs of the others.
func TestNodeUnread(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for before, want := range []string{"node 1: to begin", "node 1: "} {
		done := make(chan struct{})
		err := onNodes(two, func(n *shard.Nodes) error {
			o := jobOptions(7)
			o.StallTimeout = 200 * time.Millisecond
			its, err := shards(ctx, dataset.Range(100000).Filter("id % 3 != 0"), o, n)
			if err != nil {
				return err
			}
			if n.Exchange.Node() == 1 {
				err = steps(ctx, its, before)
				<-done
				return errors.Join(err, shut(its))
			}
			defer close(done)
			for err == nil {
				err = steps(ctx, its, 1)
			}
			if fault.CodeOf(err) != fault.Stalled || !strings.Contains(err.Error(), want) {
				return errors.Join(err, shut(its))
			}
			return shut(its)
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A node without ranks feeds the others for as long as one of them reads, through epochs without end; a caller that gives up
// ends the job of the others.
func TestFeed(t *testing.T) {
	d := division{nodes: 3, ranks: []int{0, 2, 0}, lanes: []int{1}}
	for _, cut := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := onNodes(d, func(n *shard.Nodes) error {
			o := jobOptions(7)
			o.Endless = n.Exchange.Nodes() == 3 && !cut
			opened, giveUp := context.WithCancelCause(ctx)
			defer giveUp(nil)
			its, err := shards(opened, dataset.Range(300).Filter("id % 3 != 0"), o, n)
			if err != nil {
				return err
			}
			if n.Exchange.Node() == 1 {
				if its[0].Rank() != -1 || len(its) != 1 {
					return fmt.Errorf("%d iterators, rank %d", len(its), its[0].Rank())
				}
				if s := its[0].Explain(); !strings.Contains(s, "node 1 has 0 of 3 ranks and reads 4 of 4 lanes, 4 of them for ranks of other nodes") {
					return errors.New(s)
				}
				err = its[0].Feed(ctx)
				if s := its[0].Stats(); s.Nodes.Sent < 50 || s.Nodes.Received > 0 || s.Windows == 0 {
					err = errors.Join(err, fmt.Errorf("%+v", s.Nodes))
				}
				return errors.Join(err, shut(its))
			}
			if len(its) > 1 { // another is read here
				if err := its[0].Feed(ctx); fault.CodeOf(err) != fault.Invalid {
					return fmt.Errorf("fed: %w", err)
				}
			}
			err = steps(ctx, its, 5)
			if cut && err == nil {
				if n.Exchange.Node() == 2 {
					giveUp(errors.New("enough"))
				}
				for err == nil {
					err = steps(ctx, its, 1)
				}
				if n.Exchange.Node() != 2 && (fault.CodeOf(err) != fault.WorkerLost || !strings.Contains(err.Error(), "node 2 failed: ")) {
					return err
				}
				return shut(its)
			}
			if err == nil {
				err = steps(ctx, its, 60)
			}
			if s := its[0].Stats(); s.Windows != 0 || s.Nodes.Sent != 0 || s.Nodes.ReceivedBytes < s.Nodes.Received {
				err = errors.Join(err, fmt.Errorf("%+v", s.Nodes))
			}
			return errors.Join(err, shut(its))
		})
		if (err == nil) != !cut {
			t.Error(err)
		}
	}
}

// A node whose ranks are through goes on for the others, wherever each stops: also one that stops before it has begun, and one that leaves its ranks one after
// another. All come to an end when the last has.
func TestNodesRest(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	base := rand.Uint64()
	for seed := base; seed < base+60; seed++ {
		rng := rand.New(rand.NewPCG(seed, 0))
		d := newDivision(rng, 1+rng.IntN(6))
		o := jobOptions(seed)
		o.Prefetch, o.Endless, o.Form.Tensors = rng.IntN(4)-1, rng.IntN(2) == 0, rng.IntN(2) == 0
		if o.Epochs = rng.IntN(4); o.Epochs > 0 {
			o.Endless = false
		}
		ds := dataset.Range(100).Filter("id % 3 != 0")
		err := onNodes(d, func(n *shard.Nodes) error {
			w := newWatched()
			o := *o
			o.Runner = w
			its, err := shards(ctx, ds, &o, n)
			if err != nil {
				return err
			}
			rng := rand.New(rand.NewPCG(seed, uint64(n.Exchange.Node())+1))
			for len(its) > 1 {
				err = errors.Join(steps(ctx, its, rng.IntN(30)), its[len(its)-1].Close())
				if its = its[:len(its)-1]; err != nil {
					return errors.Join(err, shut(its))
				}
			}
			if its[0].Rank() >= 0 {
				err = steps(ctx, its, rng.IntN(30))
			}
			if err == nil {
				err = its[0].Feed(ctx)
			}
			if err == nil && n.Exchange.Nodes() > 1 && its[0].Rank() >= 0 {
				if _, next := its[0].Next(ctx); next != io.EOF {
					err = fmt.Errorf("then %v", next)
				}
			}
			if err = errors.Join(err, its[0].Close()); err == nil && w.budget != nil && w.budget.Used() != 0 {
				err = fmt.Errorf("memory is held: %s", w.budget.Holders())
			}
			return err
		})
		if err != nil {
			t.Fatalf("seed %d: %v, prefetch %d: %v", seed, d, o.Prefetch, err)
		}
	}
}

// What makes no sense is refused before anything begins.
func TestNodesRefused(t *testing.T) {
	x := exchangetest.New(2, 0).Node(0)
	for _, c := range []struct {
		n    shard.Nodes
		o    shard.Options
		code fault.Code
		text string
	}{
		{n: shard.Nodes{Ranks: []int{0, 1}}, code: fault.Invalid, text: "no exchange"},
		{n: shard.Nodes{Exchange: x, Ranks: []int{0}}, code: fault.Invalid, text: "the nodes of 1 ranks, the job has 2"},
		{n: shard.Nodes{Exchange: x, Ranks: []int{0, 2}}, code: fault.Invalid, text: "rank 1 is at node 2"},
		{n: shard.Nodes{Exchange: x, Ranks: []int{0, 1}, Lanes: []int{-1}}, code: fault.Invalid, text: "lane 0 is at node -1"},
		{n: shard.Nodes{Exchange: x, Ranks: []int{0, 1}}, o: shard.Options{Ranks: []int{1}}, code: fault.Invalid, text: "rank 1 is read at node 1, not here"},
		{n: shard.Nodes{Exchange: x, Ranks: []int{0, 1}}, o: shard.Options{Ranks: []int{}}, code: fault.Invalid, text: "no rank is read here"},
		{n: shard.Nodes{Exchange: exchangetest.New(1, 0).Node(0), Ranks: []int{0, 0}}, o: shard.Options{Ranks: []int{}}, code: fault.Invalid, text: "no rank is read here"},
	} {
		o := jobOptions(7)
		o.Nodes, o.Ranks = &c.n, c.o.Ranks
		_, err := dataset.Range(100).Shards(t.Context(), 2, o)
		wantError(t, err, c.code, c.text)
	}
	o := jobOptions(7)
	o.Nodes = &shard.Nodes{Exchange: x, Ranks: []int{0, 1}}
	_, err := dataset.Range(100).Filter("id > 1").MapBatches(echoRows, nil).Shards(t.Context(), 2, o)
	wantError(t, err, fault.Unsupported, "cannot know that they run the same plan")
}

// Limits of skipped rows hold for all nodes together, as on one machine: those of the run and those of a step, counts and rates.
func TestNodesSkip(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seeds []uint64
	for range 40 {
		seeds = append(seeds, rand.Uint64(), 13400708718186784082) // the second: nodes without ranks hear that those with ranks have left before they hear why
	}
	failed, through := 0, 0
	for _, seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 0))
		limit := ops.OnError{Policy: "skip", MaxRows: 200 + rng.Int64N(200)}
		if rng.IntN(2) == 0 {
			limit.MaxRows, limit.MaxRate = 0, 0.5+rng.Float64()/2
		}
		ds := dataset.Read(cells{0, []int{60, 10, 60, 90, 30, 40, 20, 1, 70}}).WithColumns("n = int(s)")
		o := jobOptions(seed)
		o.Epochs = 1
		if rng.IntN(2) == 0 {
			ds = ds.OnError(limit)
		} else {
			o.OnError = &limit
		}
		if rng.IntN(2) == 0 {
			ds = ds.Filter("id % 2 == 0")
		}
		_, want := drain(ctx, open(t, ds, 4, o))
		d := newDivision(rng, 4)
		err := onNodes(d, func(n *shard.Nodes) error {
			its, err := shards(ctx, ds, o, n)
			if err != nil {
				return err
			}
			_, err = drain(ctx, its)
			if fault.CodeOf(err) != fault.CodeOf(want) {
				return errors.Join(fmt.Errorf("%w; on one machine: %v", err, want), shut(its))
			}
			return shut(its)
		})
		if err != nil {
			t.Fatalf("seed %d: %+v, %v: %v", seed, limit, d, err)
		}
		if through++; want != nil {
			failed++
		}
	}
	if failed < 5 || through-failed < 5 {
		t.Errorf("%d of %d jobs failed", failed, through)
	}
}

// The nodes of a job go on from a state that all of them restore before they begin, and from none afterwards.
func TestNodesRestore(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ds := dataset.Range(1000).Filter("id % 3 != 0")
	its := open(t, ds, 2, jobOptions(7))
	if err := steps(ctx, its, 7); err != nil {
		t.Fatal(err)
	}
	at := its[0].State()
	err := onNodes(two, func(n *shard.Nodes) error {
		its, err := shards(ctx, ds, jobOptions(7), n)
		if err != nil {
			return err
		}
		for range 2 {
			if err := its[0].Restore(at); err != nil {
				return err
			}
		}
		b, err := its[0].Next(ctx)
		if err != nil {
			return err
		}
		if b.Step() != 7 {
			err = fmt.Errorf("step %d", b.Step())
		}
		b.Release()
		if again := its[0].Restore(at); fault.CodeOf(again) != fault.Unsupported {
			err = errors.Join(err, fmt.Errorf("restored again: %v", again))
		}
		return errors.Join(err, shut(its))
	})
	if err != nil {
		t.Error(err)
	}
}

// A node whose job is cancelled before its first batch tells the others, who may need it, with a rank or only to feed it, and do not wait for ever.
func TestNodesCancelledEarly(t *testing.T) {
	for _, d := range []division{{nodes: 2, ranks: []int{0, 1}, lanes: []int{0, 1}}, {nodes: 2, ranks: []int{0, 0}, lanes: []int{0, 1}}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		job, stop := context.WithCancel(ctx)
		begun := make(chan struct{})
		err := onNodes(d, func(n *shard.Nodes) error {
			of := ctx
			if n.Exchange.Node() == 0 {
				of = job
			}
			its, err := shards(of, dataset.Range(100_000), jobOptions(7), n)
			if err != nil {
				return err
			}
			if n.Exchange.Node() == 0 {
				<-begun
				stop()
				_, err = its[0].Next(ctx)
			} else {
				close(begun)
				_, err = drain(ctx, its)
			}
			if err == nil || ctx.Err() != nil {
				return errors.Join(fmt.Errorf("it ended with %w", err), shut(its))
			}
			return shut(its)
		})
		if err != nil {
			t.Errorf("%v: %v", d, err)
		}
		stop()
		cancel()
	}
}
