package ipcio_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
)

func Example() {
	ctx := context.Background()
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, bytes.NewReader([]byte(`[{"n": 1, "s": "one"}, {"n": 2, "s": "two"}]`)))
	if err != nil {
		panic(err)
	}
	defer rec.Release()

	f, err := os.CreateTemp("", "*.arrow")
	if err != nil {
		panic(err)
	}
	defer os.Remove(f.Name())
	encoding, err := ipcio.NewEncoding(&ipcio.EncodingOptions{Compression: "zstd"})
	if err != nil {
		panic(err)
	}
	enc, err := encoding.NewEncoder(f, schema, memory.DefaultAllocator)
	if err != nil {
		panic(err)
	}
	for _, err := range []error{enc.Write(rec), enc.Close(), f.Close()} {
		if err != nil {
			panic(err)
		}
	}

	table, err := ipcio.New(ipcio.Options{Options: fileset.Options{Paths: []string{f.Name()}}}).Resolve(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer table.Close()
	r, err := table.Open(ctx, 0, &driver.ScanOptions{Columns: []string{"s"}})
	if err != nil {
		panic(err)
	}
	defer r.Close()
	for {
		b, err := r.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			panic(err)
		}
		fmt.Println(b.Row, b.Record.Column(0))
		b.Record.Release()
	}
	// Output: 0 ["one" "two"]
}
