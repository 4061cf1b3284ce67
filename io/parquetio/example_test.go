package parquetio_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/parquetio"
)

// A file is written, and read back with a predicate that its statistics know.
func Example() {
	dir, err := os.MkdirTemp("", "parquetio")
	check(err)
	defer os.RemoveAll(dir)
	schema := arrow.NewSchema([]arrow.Field{{Name: "city", Type: arrow.BinaryTypes.String}, {Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(`[{"city":"Oslo","n":1},{"city":"Rome","n":2},{"city":"Wien","n":3}]`))
	check(err)
	defer rec.Release()

	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 1})
	check(err)
	f, err := os.Create(filepath.Join(dir, "cities.parquet"))
	check(err)
	w, err := enc.NewEncoder(f, schema, memory.DefaultAllocator)
	check(err)
	check(w.Write(rec))
	check(w.Close())
	check(f.Close())

	ctx := context.Background()
	src := parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{dir}}})
	tab, err := src.Resolve(ctx, nil)
	check(err)
	defer tab.Close()
	p := driver.Predicate{{Column: "n", Op: driver.Ge, Values: []any{int64(2)}}}
	keep, err := tab.(driver.Pruner).Keep(ctx, p)
	check(err)
	fmt.Println(keep)
	for i := range tab.Splits() {
		r, err := tab.Open(ctx, i, &driver.ScanOptions{Columns: []string{"city"}, Predicate: p})
		check(err)
		for {
			b, err := r.Next(ctx)
			if err == io.EOF {
				break
			}
			check(err)
			fmt.Println(b.Record.Column(0))
			b.Record.Release()
		}
		check(r.Close())
	}
	// Output:
	// [false true true]
	// ["Rome"]
	// ["Wien"]
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
