package trainer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer"
	"github.com/penstock-data/penstock/trainer/collective"
)

// loop fits y = w x by gradient descent.
func loop(c *trainer.Context) error {
	w := 0.0
	if k := c.Checkpoint(); k != nil {
		dir, err := k.Dir(c)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, "w.json"))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(b, &w); err != nil {
			return err
		}
	}
	train, err := c.Shard("train") // goes on from the checkpoint
	if err != nil {
		return err
	}
	for train.Epoch() < 3 {
		loss := 0.0
		for b, err := range train.All(c) {
			if err != nil {
				return err
			}
			x, _ := b.Tensor("x")
			y, _ := b.Tensor("y")
			grad := []float64{0}
			for i, x := range shard.Values[float64](x) {
				d := w*x - shard.Values[float64](y)[i]
				grad[0] += d * x
				loss = d * d
			}
			if err := trainer.AllReduce(c, grad, collective.Sum); err != nil {
				return err
			}
			w -= 0.02 * grad[0]
		}
		dir := ""
		if c.Rank() == 0 {
			if dir, err = os.MkdirTemp("", "checkpoint-"); err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			b, err := json.Marshal(w)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, "w.json"), b, 0o666); err != nil {
				return err
			}
		}
		if err := c.Report(map[string]float64{"loss": loss, "w": w}, dir); err != nil {
			return err
		}
	}
	return nil
}

func Example() {
	storage, err := os.MkdirTemp("", "runs-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(storage)
	data := dataset.Range(1000).WithColumns("x = double(id % 7) / 7.0", "y = 3.0 * double(id % 7) / 7.0").Select("x", "y")
	res, err := trainer.New(loop, trainer.Config{
		Name:    "line",
		Storage: storage,
		Workers: 2,
		Data: map[string]trainer.Data{"train": {Dataset: data, Options: dataset.ShardOptions{
			RunOptions: dataset.RunOptions{Seed: 1},
			Options:    shard.Options{GlobalBatch: 20, Form: shard.Form{Tensors: true}},
		}}},
	}).Fit(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s after %d reports: w = %.3f\n", res.State, res.Reports, res.Metrics["w"])
	if best, ok := res.Best("loss", "min"); ok {
		fmt.Println("of", len(res.Checkpoints), "checkpoints the best has a loss below 0.001:", best.Metrics["loss"] < 0.001)
	}
	// Output:
	// finished after 3 reports: w = 3.000
	// of 3 checkpoints the best has a loss below 0.001: true
}
