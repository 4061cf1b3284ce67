// Command scan-go is the smallest Go program that uses Penstock: it reads
// Parquet, filters, computes a column, and iterates over batches.
//
//	go run ./examples/scan-go 'examples/data/flights/**/*.parquet'
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: scan-go PATH...")
	}
	ds := dataset.ReadParquet(os.Args[1:]...).
		Filter("delay > 15 && distance > 0").
		WithColumns("delay_per_mile = double(delay) / distance").
		Select("delay_per_mile", "distance")
	batches, rows, sum := 0, 0, float32(0)
	for b, err := range ds.IterBatches(context.Background(), &dataset.BatchOptions{Rows: 1024, Tensors: true,
		DTypes: map[string]shard.DType{"delay_per_mile": shard.Float32, "distance": shard.Float32}}) {
		if err != nil {
			log.Fatal(err)
		}
		x, _ := b.Tensor("delay_per_mile")
		for _, v := range shard.Values[float32](x) {
			sum += v
		}
		batches++
		rows += b.Rows()
	}
	fmt.Printf("%d batches, %d rows, mean delay per mile %.4f minutes\n", batches, rows, sum/float32(rows))
}
