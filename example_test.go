package penstock_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock-data/penstock"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer"
)

// The same program alone, and on the nodes of a job: examples/cluster-go is one to build.
func Example() {
	p, err := penstock.Init()
	if err == nil {
		err = odd(p)
	}
	if code := p.Exit(err); code != 0 {
		os.Exit(code)
	}
	// Output: node 0 of 1: 50 rows
}

func odd(p *penstock.Process) error {
	n, err := dataset.Range(100).Filter("id % 2 == 1").Count(context.Background(), p.Run(nil))
	if err != nil { // exec.ErrServed on all nodes but the first, which Exit knows
		return err
	}
	fmt.Printf("node %d of %d: %d rows\n", p.Node(), p.Nodes(), n)
	return nil
}

// A training run of a job: a later attempt goes on where an earlier one was ended.
func ExampleProcess_Train() {
	train := func(p *penstock.Process) error {
		ctx := context.Background()
		storage, err := os.MkdirTemp("", "runs-") // of a job: a bucket
		if err != nil {
			return err
		}
		defer os.RemoveAll(storage)
		cfg := trainer.Config{Storage: filepath.ToSlash(storage), Data: map[string]trainer.Data{"train": {
			Dataset: dataset.Range(100), Options: dataset.ShardOptions{Options: shard.Options{GlobalBatch: 10}},
		}}}
		if err := p.Train(ctx, &cfg); err != nil {
			return err
		}
		_, err = trainer.New(func(c *trainer.Context) error {
			data, err := c.Shard("train")
			if err != nil {
				return err
			}
			rows := 0
			for b, err := range data.All(c) {
				if err != nil {
					return err
				}
				rows += b.Rows()
			}
			fmt.Println(rows, "rows")
			return nil
		}, cfg).Fit(ctx)
		return err
	}
	p, err := penstock.Init()
	if err == nil {
		err = train(p)
	}
	if code := p.Exit(err); code != 0 {
		os.Exit(code)
	}
	// Output: 100 rows
}
