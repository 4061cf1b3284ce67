package dataset_test

import (
	"context"
	"fmt"
	"os"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

const flights = "../examples/data/flights"

func Example() {
	ds := dataset.ReadParquet(flights).
		Filter("delay > 60 && month < 3").
		WithColumns("hours = double(delay) / 60").
		Select("origin", "hours")
	n, err := ds.Count(context.Background(), nil)
	fmt.Println(n, err)
	// Output: 706 <nil>
}

func ExampleDataset_IterBatches() {
	ds := dataset.Range(2500).WithColumns("x = double(id) / 2")
	for b, err := range ds.IterBatches(context.Background(), &dataset.BatchOptions{Rows: 1024, Tensors: true, DTypes: map[string]shard.DType{"x": shard.Float32}}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		x, _ := b.Tensor("x")
		fmt.Println(b.Rows(), x.DType, x.Shape, shard.Values[float32](x)[1])
	}
	// Output:
	// 1024 float32 [1024] 0.5
	// 1024 float32 [1024] 512.5
	// 452 float32 [452] 1024.5
}

func ExampleMapRows() {
	type flight struct {
		Origin, Destination string
		Delay               int32
	}
	type route struct {
		Route string
		Late  bool
	}
	ds := dataset.MapRows(dataset.ReadParquet(flights), func(f flight) (route, error) {
		return route{Route: f.Origin + "-" + f.Destination, Late: f.Delay > 15}, nil
	})
	rec, err := ds.Take(context.Background(), 2, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rec.Release()
	_ = dataset.Fprint(os.Stdout, rec)
	// Output:
	// route    late
	// string   bool
	// -------  ----
	// DTW-LAS  true
	// HNL-SFO  true
}

func ExampleDataset_Aggregate() {
	got, err := dataset.ReadParquet(flights).Aggregate(context.Background(), nil, dataset.Max("delay"), dataset.Mean("distance"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d %.2f\n", got["max(delay)"], got["mean(distance)"])
	// Output: 522 723.85
}

func ExampleDataset_Split() {
	parts := dataset.Range(10_000).Split(dataset.SplitOptions{Fractions: []float64{0.9, 0.1}, Seed: 7})
	for _, p := range parts {
		n, _ := p.Count(context.Background(), nil)
		fmt.Println(n > 0)
	}
	// Output:
	// true
	// true
}

func ExampleDataset_Schema() {
	_, err := dataset.Range(5).Filter("idd > 2").Schema(context.Background())
	fmt.Println(err)
	// Output: step 1 (filter): unknown column "idd"; did you mean "id"?; have id
}

// A training loop: two ranks, an evaluation on the side, a state saved after every step, and a
// restart from it on another number of ranks.
func ExampleDataset_Shards() {
	ctx := context.Background()
	ds := dataset.Range(1000).WithColumns("x = double(id) / 1000.0", "label = id % 10")
	train, held := ds.Filter("id % 10 != 0"), ds.Filter("id % 10 == 0")
	options := func(from *shard.State) *dataset.ShardOptions {
		return &dataset.ShardOptions{
			RunOptions: dataset.RunOptions{Seed: 7},
			Options: shard.Options{
				GlobalBatch: 100, State: from,
				Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{"x": {DType: shard.Float32}, "label": {}}},
			},
		}
	}
	its, err := train.Shards(ctx, 2, options(nil))
	if err != nil {
		panic(err)
	}
	var saved shard.State
	for range 4 { // steps; each rank reads its iterator, in a goroutine or process of its own
		for _, it := range its {
			b, err := it.Next(ctx)
			if err != nil { // io.EOF ends an epoch; the next call begins another
				panic(err)
			}
			x, _ := b.Tensor("x")
			_ = shard.Values[float32](x) // train with it
			b.Release()
		}
		saved = its[0].State() // every rank has the same
	}
	for _, it := range its {
		it.Close()
	}

	eval, err := held.Iterator(ctx, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 64, Tail: shard.TailPad}})
	if err != nil {
		panic(err)
	}
	rows := 0
	for b, err := range eval.All(ctx) {
		if err != nil {
			panic(err)
		}
		rows += b.Real()
	}
	eval.Close()

	its, err = train.Shards(ctx, 3, options(&saved))
	if err != nil {
		panic(err)
	}
	for _, it := range its {
		b, err := it.Next(ctx)
		if err != nil {
			panic(err)
		}
		fmt.Printf("epoch %d, step %d, rank %d: %d samples\n", b.Epoch(), b.Step(), b.Rank(), b.Real())
		b.Release()
	}
	for _, it := range its {
		it.Close()
	}
	fmt.Println(rows, "rows evaluated")
	// Output:
	// epoch 0, step 4, rank 0: 34 samples
	// epoch 0, step 4, rank 1: 33 samples
	// epoch 0, step 4, rank 2: 33 samples
	// 100 rows evaluated
}
