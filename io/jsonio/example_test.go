package jsonio_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/jsonio"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "x.jsonl")
	text := `{"id": 1, "at": "2024-05-01T12:00:00Z", "tags": ["a", "b"]}
{"id": 2, "tags": [}
{"id": 3, "at": "2024-05-01T12:00:01Z"}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		panic(err)
	}
	table, err := jsonio.New(jsonio.Options{
		Options: fileset.Options{Paths: []string{path}, Types: map[string]string{"at": "timestamp[s, UTC]"}},
	}).Resolve(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer table.Close()
	r, err := table.Open(ctx, 0, &driver.ScanOptions{OnBadRow: func(err error) error {
		fmt.Println("left out a bad row")
		return nil
	}})
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
		fmt.Println(b.Row, b.Record.Columns())
		b.Record.Release()
	}
	// Output:
	// 0 [[1] [1714564800] [["a" "b"]]]
	// left out a bad row
	// 2 [[3] [1714564801] [(null)]]
}
