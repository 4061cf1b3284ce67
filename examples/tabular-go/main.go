// Command tabular-go trains a small network on the California housing data with GoMLX (its backend in pure Go), on several workers: each reads its shard, gradients are
// summed over the ranks, and every few steps the network and the position in the data are committed together.
//
//	cd examples/tabular-go && go run . -workers 2
//	go run . -workers 2 -crash 30      # worker 1 is killed at step 30 of the second epoch: the run goes on from its last checkpoint, and ends with the same loss
//	go run . -resume -name NAME        # goes on with a run that SIGTERM has stopped, which saves first
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer"
	"github.com/penstock-data/penstock/trainer/collective"
)

var (
	workers = flag.Int("workers", 2, "worker processes")
	epochs  = flag.Int("epochs", 4, "through the data")
	name    = flag.String("name", "", "of the run; default: of the time")
	storage = flag.String("storage", "penstock-runs", "folder or bucket for the run")
	resume  = flag.Bool("resume", false, "go on with the run of this name")
	crash   = flag.Int64("crash", 0, "kill worker 1 at this step of the second epoch, in its first attempt; 0: never")
	path    = flag.String("data", "../data/housing/*.parquet", "the data")
)

// data is what the loop sees of the housing data: 8 numbers of about one as x, the value of houses in 100,000 dollars as y.
func data() map[string]trainer.Data {
	parts := dataset.ReadParquet(*path).
		Filter("median_house_value < 500000").
		WithColumns("lon = (longitude + 119.6) / 2.0", "lat = (latitude - 35.6) / 2.1", "age = (housing_median_age - 28.6) / 12.6", "rooms = log(total_rooms) - 7.6",
			"bedrooms = log1p(total_bedrooms) - 6.1", "people = log(population) - 7.0", "homes = log(households) - 6.0", "income = log(median_income) - 1.2",
			"value = median_house_value / 100000.0").
		Split(dataset.SplitOptions{Fractions: []float64{0.9, 0.1}, Seed: 1})
	options := dataset.ShardOptions{Options: shard.Options{GlobalBatch: 256, Shuffle: &shard.Shuffle{Lanes: 8, WindowRows: 1024}, Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{
		"x": {Stack: []string{"lon", "lat", "age", "rooms", "bedrooms", "people", "homes", "income"}, DType: shard.Float32},
		"y": {Stack: []string{"value"}, DType: shard.Float32},
	}}}}
	options.Seed = 7
	options.Memory = 64 << 20
	return map[string]trainer.Data{
		"train": {Dataset: parts[0], Options: options},
		"val":   {Dataset: parts[1], Options: options, Eval: true},
	}
}

func loop(c *trainer.Context) error {
	net, err := newNetwork(42) // the same in every worker
	if err != nil {
		return err
	}
	if k := c.Checkpoint(); k != nil {
		dir, err := k.Dir(c)
		if err != nil {
			return err
		}
		if err := net.load(filepath.Join(dir, "network.bin")); err != nil {
			return err
		}
	}
	train, err := c.Shard("train")
	if err != nil {
		return err
	}
	files, err := os.MkdirTemp("", "tabular-go-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(files)
	for train.Epoch() < uint64(*epochs) {
		for b, err := range train.All(c) {
			if err != nil {
				return err
			}
			x, _ := b.Tensor("x")
			y, _ := b.Tensor("y")
			loss, grads, err := net.gradients(shard.Values[float32](x), shard.Values[float32](y))
			if err != nil {
				return err
			}
			// The loss is a mean over the rows of this rank. What is summed over all ranks is weighted by them, so that the result is that of one large batch.
			sums := append(grads, loss, 1)
			grads = sums[:len(grads)]
			for i := range sums {
				sums[i] *= float32(b.Rows())
			}
			if err := trainer.AllReduce(c, sums, collective.Sum); err != nil {
				return err
			}
			rows := sums[len(sums)-1]
			for i := range grads {
				grads[i] /= rows
			}
			net.step(grads, 0.01)

			if *crash > 0 && c.Rank() == 1 && c.Attempt() == 1 && train.Epoch() == 1 && train.Step() == *crash {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			if train.Step()%20 == 0 || c.Preempted() {
				if err := save(c, net, files, map[string]float64{"loss": float64(sums[len(grads)] / rows)}); err != nil {
					return err
				}
			}
			if c.Preempted() {
				return nil
			}
		}
		val, err := evaluate(c, net)
		if err != nil {
			return err
		}
		if err := save(c, net, files, map[string]float64{"val_loss": val, "epoch": float64(train.Epoch())}); err != nil {
			return err
		}
	}
	return nil
}

// save reports; rank 0 gives the files of the checkpoint.
func save(c *trainer.Context, net *network, dir string, metrics map[string]float64) error {
	if c.Rank() > 0 {
		return c.Report(metrics, "")
	}
	if err := net.save(filepath.Join(dir, "network.bin")); err != nil {
		return err
	}
	return c.Report(metrics, dir)
}

// evaluate is the loss over every row of the validation set, which no rank sees twice.
func evaluate(c *trainer.Context, net *network) (float64, error) {
	val, err := c.Shard("val")
	if err != nil {
		return 0, err
	}
	sums := make([]float64, 2)
	for b, err := range val.All(c) {
		if err != nil {
			return 0, err
		}
		x, _ := b.Tensor("x")
		y, _ := b.Tensor("y")
		p, err := net.predict(shard.Values[float32](x))
		if err != nil {
			return 0, err
		}
		for i, y := range shard.Values[float32](y)[:b.Real()] { // what follows are pads
			d := float64(p[i] - y)
			sums[0] += d * d
			sums[1]++
		}
	}
	if err := trainer.AllReduce(c, sums, collective.Sum); err != nil {
		return 0, err
	}
	return sums[0] / sums[1], nil
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	notice := trainer.Preemption{Notice: trainer.Signals(ctx)} // SIGTERM: the machine will be taken away
	t := trainer.New(loop, trainer.Config{Name: *name, Storage: *storage, Resume: *resume, Workers: *workers, Processes: true, Data: data(), Preemption: notice, Events: trainer.Events{
		Failed: func(f trainer.Failure) { fmt.Printf("attempt %d: %v\n", f.Attempt, f.Err) },
		Reported: func(n int64, attempt int, m map[string]float64) {
			if v, ok := m["val_loss"]; ok {
				fmt.Printf("epoch %.0f: validation loss %.6f\n", m["epoch"], v)
			}
		},
	}})
	r, err := t.Fit(ctx)
	if errors.Is(err, trainer.ErrPreempted) {
		log.Print(err)
		os.Exit(75) // as penstock train: the run is not done
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("run %s: %d reports in %d attempts, validation loss %v\n", r.Run, r.Reports, r.Attempts, r.Metrics["val_loss"])
}
