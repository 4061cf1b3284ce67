package memio_test

import (
	"context"
	"fmt"

	"github.com/penstock-data/penstock/io/memio"
)

func ExampleRange() {
	ctx := context.Background()
	table, err := memio.Range(100_000).Resolve(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer table.Close()
	for _, s := range table.Splits() {
		fmt.Println(s.ID, s.Rows)
	}
	// Output:
	// range#0 65536
	// range#1 34464
}
