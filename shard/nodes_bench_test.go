package shard_test

import (
	"context"
	"sync"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/exchangetest"
)

// BenchmarkNodes reads steps of 1024 samples of three numbers by 4 ranks: on one machine, over two nodes that read the
// lanes of their own ranks, and over two of which each reads the lanes of the other's, so that every sample travels.
// The nodes are in this process: CPU time is that of both.
func BenchmarkNodes(b *testing.B) {
	ds := dataset.Range(1<<22).WithColumns("x = id * 3", "y = id * 0.5")
	options := func() *dataset.ShardOptions {
		o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1024, Endless: true, Form: shard.Form{Tensors: true}}}
		o.Seed, o.Shuffle = 7, &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 16, WindowRows: 1 << 14}
		return o
	}
	read := func(b *testing.B, o *dataset.ShardOptions) {
		its, err := ds.Shards(context.Background(), 4, o)
		if err != nil {
			b.Error(err)
			return
		}
		if err := steps(context.Background(), its, b.N); err != nil {
			b.Error(err)
		}
		if err := shut(its); err != nil {
			b.Error(err)
		}
	}
	b.Run("one", func(b *testing.B) {
		read(b, options())
		b.ReportMetric(float64(b.N)*1024/b.Elapsed().Seconds()/1e6, "Msamples/s")
	})
	for name, lanes := range map[string][]int{"own": {0, 0, 1, 1}, "others": {1, 1, 0, 0}} {
		b.Run(name, func(b *testing.B) {
			net := exchangetest.New(2, 4)
			var g sync.WaitGroup
			for node := range 2 {
				g.Go(func() {
					o := options()
					o.Nodes = &shard.Nodes{Exchange: net.Node(node), Ranks: []int{0, 0, 1, 1}, Lanes: lanes}
					read(b, o)
				})
			}
			g.Wait()
			b.ReportMetric(float64(b.N)*1024/b.Elapsed().Seconds()/1e6, "Msamples/s")
		})
	}
}
