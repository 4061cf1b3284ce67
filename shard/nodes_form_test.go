package shard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/exchangetest"
)

// onNodes runs f for every node at the same time, with an exchange that is closed behind it.
func onNodes(d division, f func(n *shard.Nodes) error) error {
	net := exchangetest.New(d.nodes, d.room)
	errs := make([]error, d.nodes)
	var g sync.WaitGroup
	for node := range d.nodes {
		g.Go(func() {
			x := net.Node(node)
			defer x.Close()
			if err := f(&shard.Nodes{Exchange: x, Ranks: d.ranks, Lanes: d.lanes}); err != nil {
				errs[node] = fmt.Errorf("node %d: %w", node, err)
			}
		})
	}
	g.Wait()
	return errors.Join(errs...)
}

// read is all that an epoch gives, by rank and step.
type read struct {
	mu     sync.Mutex
	steps  map[string]string // by rank and step: digest, samples, lineage, state
	ledger [][]byte
	stats  []shard.Stats
}

// all reads the epoch of its iterators, one step after the other.
func (r *read) all(ctx context.Context, its []*shard.Iterator) error {
	defer func() {
		var b bytes.Buffer
		_, err := its[0].Ledger().WriteTo(&b)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil && its[0].Rank() >= 0 { // the others may be told to end before they come to it
			r.ledger = append(r.ledger, b.Bytes())
		}
		r.stats = append(r.stats, its[0].Stats())
	}()
	if its[0].Rank() < 0 {
		return its[0].Feed(ctx)
	}
	for {
		ends := 0
		for _, it := range its {
			b, err := it.Next(ctx)
			if err == io.EOF {
				ends++
				continue
			}
			if err != nil {
				return err
			}
			state, err := json.Marshal(it.State())
			if err != nil {
				return err
			}
			text := fmt.Sprintf("%x %v %d/%d %+v %s", b.Digest(), b.Samples(), b.Real(), b.Rows(), b.Lineage(), state)
			r.mu.Lock()
			r.steps[fmt.Sprintf("rank %d, step %d", it.Rank(), b.Step())] = text
			r.mu.Unlock()
			b.Release()
		}
		if ends == len(its) {
			return nil
		}
	}
}

// form makes a job of a random form of batches.
func form(rng *rand.Rand) (ds *dataset.Dataset, o *dataset.ShardOptions, text string) {
	var rows []int
	for range 1 + rng.IntN(9) {
		rows = append(rows, rng.IntN(120))
	}
	o = &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: rng.Uint64(), CPUs: 1 + rng.IntN(3)}}
	o.GlobalBatch, o.Epochs, o.Prefetch = 1+rng.IntN(60), 1, rng.IntN(5)-1
	o.Tail = []shard.Tail{shard.TailDrop, shard.TailPad, shard.TailRepeat}[rng.IntN(3)]
	o.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 1 + rng.IntN(8), WindowRows: 1 + rng.Int64N(60)}
	if rng.IntN(3) == 0 {
		o.Shuffle = &shard.Shuffle{Mode: []shard.Mode{shard.ModeNone, shard.ModeBlocks}[rng.IntN(2)], WindowRows: 1 + rng.Int64N(60)}
	}
	ds = dataset.Read(cells{rng.Int64N(1000), rows})
	if rng.IntN(2) == 0 {
		ds = ds.Filter("id % 3 != 0")
		text = "filtered "
	}
	ds = ds.WithColumns("a = id * 3", "b = id * 0.25", "s = coalesce(s, \"\")")
	o.Lineage = rng.IntN(2) == 0
	o.Form = shard.Form{Tensors: true}
	columns := func(c map[string]shard.Column) { o.Form.Columns = c }
	kind := rng.IntN(8)
	switch kind {
	case 0:
		o.Form.Tensors = false
	case 1:
		columns(map[string]shard.Column{"a": {}})
	case 2:
		columns(map[string]shard.Column{"x": {Stack: []string{"id", "a", "b"}, DType: shard.Float64, Scale: 0.5}})
	case 3:
		columns(map[string]shard.Column{"a": {DType: shard.Float64}, "t": {Lists: shard.ListsPadGlobal, Fill: -1}})
	case 4:
		columns(map[string]shard.Column{"a": {}, "t": {Lists: shard.ListsRagged}})
	case 5:
		columns(map[string]shard.Column{"t": {Lists: shard.ListsPad, Multiple: 4}})
	case 6:
		ds = ds.Pack("t", &dataset.PackOptions{Length: 1 + rng.IntN(20), PadID: -1})
	case 7:
		ds = dataset.Mix(dataset.MixSource{Name: "x", Data: ds.Select("a", "b"), Weight: 2}, dataset.MixSource{Name: "y", Data: dataset.Range(1+rng.Int64N(300)).WithColumns("a = id", "b = 0.5").Drop("id"), Weight: 1})
		columns(map[string]shard.Column{"a": {}, "b": {}})
	}
	return ds, o, fmt.Sprintf("%skind %d, %+v, %+v, G=%d, tail %s, lineage %v, prefetch %d", text, kind, rows, *o.Shuffle, o.GlobalBatch, o.Tail, o.Lineage, o.Prefetch)
}

// TestNodesForms: whatever batches look like, over any nodes each rank gets the same bytes, lineage and states as on one
// machine, all nodes end with the same ledger as there, and give back all memory. PENSTOCK_SEED=n runs one job.
func TestNodesForms(t *testing.T) {
	base := rand.Uint64()
	n := uint64(150)
	if testing.Short() {
		n = 40
	}
	if s, err := strconv.ParseUint(os.Getenv("PENSTOCK_SEED"), 10, 64); err == nil {
		base, n = s, 1
	}
	sent := int64(0)
	for seed := base; seed < base+n; seed++ {
		rng := rand.New(rand.NewPCG(seed, 0))
		ds, o, text := form(rng)
		ranks := 1 + rng.IntN(min(8, o.GlobalBatch))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		one := read{steps: map[string]string{}}
		its, err := ds.Shards(ctx, ranks, o)
		if err != nil {
			t.Fatalf("seed %d, %s: %v", seed, text, err)
		}
		if err := one.all(ctx, its); err != nil {
			t.Fatalf("seed %d, %s: %v", seed, text, err)
		}
		closeAll(t, its)
		d := newDivision(rng, ranks)
		many := read{steps: map[string]string{}}
		err = onNodes(d, func(n *shard.Nodes) (err error) {
			w := newWatched()
			o := *o
			o.Nodes, o.Runner = n, w
			if rng := rand.New(rand.NewPCG(seed, uint64(n.Exchange.Node()))); rng.IntN(2) == 0 {
				o.Memory, o.Prefetch = 64<<rng.IntN(10)<<10, rng.IntN(4)
			}
			its, err := ds.Shards(ctx, ranks, &o)
			if err != nil {
				return err
			}
			err = many.all(ctx, its)
			for _, it := range its {
				err = errors.Join(err, it.Close())
			}
			if w.budget != nil && w.budget.Used() != 0 {
				err = errors.Join(err, fmt.Errorf("memory is held: %s", w.budget.Holders()))
			}
			return err
		})
		cancel()
		for _, k := range slices.Sorted(maps.Keys(one.steps)) {
			if err == nil && many.steps[k] != one.steps[k] {
				err = fmt.Errorf("%s is\n%s\nwant\n%s", k, many.steps[k], one.steps[k])
			}
		}
		if err == nil && len(many.steps) != len(one.steps) {
			err = fmt.Errorf("%d batches, want %d", len(many.steps), len(one.steps))
		}
		for _, l := range many.ledger {
			if err == nil && !bytes.Equal(l, one.ledger[0]) {
				err = errors.New("the ledger is another one")
			}
		}
		var out, in int64
		for _, s := range many.stats {
			out, in = out+s.Nodes.Sent, in+s.Nodes.Received
		}
		if sent += out; err == nil && out != in {
			err = fmt.Errorf("%d samples were sent, %d received", out, in)
		}
		if err != nil {
			t.Fatalf("seed %d: %s; %d ranks, %v\n%v", seed, text, ranks, d, err)
		}
	}
	if n > 1 && sent < 500 {
		t.Errorf("only %d samples left their node", sent)
	}
}
