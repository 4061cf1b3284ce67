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
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// drain reads an epoch of one node, one step after the other, and returns the real rows of its ranks.
func drain(ctx context.Context, its []*shard.Iterator) (rows int64, err error) {
	if its[0].Rank() < 0 {
		return 0, its[0].Feed(ctx)
	}
	for {
		for _, it := range its {
			b, err := it.Next(ctx)
			if err == io.EOF {
				if it == its[len(its)-1] {
					return rows, nil
				}
				continue
			}
			if err != nil {
				return rows, err
			}
			rows += int64(b.Real())
			b.Release()
		}
	}
}

// Guarantee 7 over nodes: together they fetch what an epoch's columns need, at most 5 % more.
func TestNodesFetchOnce(t *testing.T) {
	base := rand.Uint64()
	for i := range uint64(8) {
		seed := base + i
		r := rand.New(rand.NewPCG(seed, 0))
		dir := t.TempDir()
		rows, need := groups(t, r, dir, 1+r.IntN(4), 15_000)
		ds := dataset.ReadParquet(dir+"/*/*.parquet").Select("a", "c")
		if r.IntN(2) == 0 {
			ds = ds.Filter("a >= 0.0") // all rows, but who knows
		}
		ranks := 1 + r.IntN(8)
		d := newDivision(r, ranks)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var mu sync.Mutex
		var got, fetched int64
		err := onNodes(d, func(n *shard.Nodes) error {
			o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: seed, CPUs: 2}}
			o.GlobalBatch, o.Tail, o.Epochs, o.Form = ranks+int(seed%500), shard.TailPad, 1, shard.Form{Tensors: true}
			o.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 1 + int(seed%8), WindowRows: 1 + int64(seed%2000)}
			its, err := shards(ctx, ds, o, n)
			if err != nil {
				return err
			}
			k, err := drain(ctx, its)
			mu.Lock()
			got += k
			fetched += its[0].Stats().Engine.BytesRead
			mu.Unlock()
			return errors.Join(err, shut(its))
		})
		cancel()
		if err == nil && (got != rows || fetched < need || float64(fetched) > 1.05*float64(need)) {
			err = fmt.Errorf("%d of %d rows, %d bytes fetched, %d needed", got, rows, fetched, need)
		}
		if err != nil {
			t.Errorf("seed %d: %v: %v", seed, d, err)
		}
	}
}

// A node that only feeds is never further ahead than its prefetch and one step, however long nobody reads; the watchdog of the
// one that waits does not call that a stall, and its Stats say what it waits for.
func TestNodesStayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := division{nodes: 2, ranks: []int{0, 0}, lanes: []int{1}}
		stop := make(chan struct{})
		fed := make(chan *shard.Iterator, 1)
		err := onNodes(d, func(n *shard.Nodes) error {
			o := jobOptions(7)
			o.Prefetch, o.StallTimeout = 3, time.Minute
			its, err := shards(t.Context(), dataset.Range(100_000).Filter("id % 3 != 0"), o, n)
			if err != nil {
				return err
			}
			if n.Exchange.Node() == 1 {
				fed <- its[0]
				err = its[0].Feed(t.Context())
				return errors.Join(err, shut(its))
			}
			feeder := <-fed
			defer close(stop)
			for step := range 20 {
				if err := steps(t.Context(), its, 1); err != nil {
					return err
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				mine, its := its[0].Stats(), feeder.Stats()
				if mine.Steps != int64(step+1+3) || its.Steps > mine.Steps+3+1 || its.Steps < mine.Steps {
					return fmt.Errorf("after step %d the reader has made %d steps, the feeder %d", step, mine.Steps, its.Steps)
				}
				if want := fmt.Sprintf("node 0: it is behind (it has made %d steps", mine.Steps); !strings.HasPrefix(its.Nodes.Waits, want) {
					return fmt.Errorf("the feeder waits for %q", its.Nodes.Waits)
				}
			}
			return shut(its)
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// In a small budget a node holds what a job on one machine holds, and the parcels of prefetch + 1 steps that came and as many that go, though all that it
// gives comes from elsewhere and all that it reads goes away.
func TestNodesMemory(t *testing.T) {
	const budget, global, row = 4 << 20, 4096, 32
	ds := dataset.Range(400_000).Filter("id % 5 != 2").WithColumns("a = id * 2", "b = id * 3", "c = id * 4")
	options := func() *dataset.ShardOptions {
		o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, CPUs: 2, Memory: budget}}
		o.GlobalBatch, o.Epochs, o.Form, o.Prefetch = global, 1, shard.Form{Tensors: true}, 2
		o.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 4, WindowRows: 4096}
		return o
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	its := open(t, ds, 2, options())
	rows, err := drain(ctx, its)
	if err != nil {
		t.Fatal(err)
	}
	one := its[0].Stats().Engine.PeakBytes
	var mu sync.Mutex
	peaks, got := make([]int64, 2), int64(0)
	err = onNodes(two, func(n *shard.Nodes) error {
		its, err := shards(ctx, ds, options(), n)
		if err != nil {
			return err
		}
		k, err := drain(ctx, its)
		mu.Lock()
		got += k
		peaks[n.Exchange.Node()] = its[0].Stats().Engine.PeakBytes
		mu.Unlock()
		return errors.Join(err, shut(its))
	})
	if err != nil || got != rows {
		t.Fatalf("%d of %d rows, %v", got, rows, err)
	}
	for node, peak := range peaks {
		// The budget, and what may pass it, as a step cannot be made without: of prefetch + 1 steps the batches, the parcels that came and those that go.
		if most := int64(budget + 3*(2+1)*global/2*row); peak > most {
			t.Errorf("node %d held %d bytes, at most %d are due; one machine held %d", node, peak, most, one)
		}
	}
	t.Logf("one machine %d, nodes %d", one, peaks)
}
