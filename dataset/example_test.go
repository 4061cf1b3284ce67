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
