package feed_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
)

// The data process and its two consumers are goroutines here; each could be a process.
func Example() {
	dir, err := os.MkdirTemp("", "feed")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "batches")

	// The data process.
	ctx := context.Background()
	its, err := dataset.Range(10).Shards(ctx, 2, &dataset.ShardOptions{Options: shard.Options{
		GlobalBatch: 4, Form: shard.Form{Tensors: true}, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}})
	if err != nil {
		panic(err)
	}
	l, err := feed.Listen(path)
	if err != nil {
		panic(err)
	}
	defer l.Close()
	served := make(chan error)
	go func() { served <- feed.Serve(ctx, l, its, nil) }()

	// The consumers.
	lines := make([]string, 2)
	var all sync.WaitGroup
	for rank := range 2 {
		all.Go(func() {
			c, err := feed.Dial(ctx, path, rank, nil)
			if err != nil {
				panic(err)
			}
			defer c.Close() // an end without it counts as a loss
			for b, err := range c.All(ctx) {
				if err != nil {
					panic(err)
				}
				id, _ := b.Tensor("id")
				lines[rank] += fmt.Sprintln("rank", rank, "step", b.Step(), "ids", shard.Values[int64](id))
			}
			lines[rank] += fmt.Sprintln("rank", rank, "goes on with epoch", c.State().Epoch)
		})
	}
	all.Wait()
	fmt.Print(lines[0], lines[1])
	fmt.Println("served:", <-served)
	// Output:
	// rank 0 step 0 ids [0 1]
	// rank 0 step 1 ids [4 5]
	// rank 0 goes on with epoch 1
	// rank 1 step 0 ids [2 3]
	// rank 1 step 1 ids [6 7]
	// rank 1 goes on with epoch 1
	// served: <nil>
}
