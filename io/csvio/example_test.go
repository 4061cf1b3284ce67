package csvio_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

func ExampleNew() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "trips.csv")
	if err := os.WriteFile(path, []byte("id;fare\n1;12.5\n2;NA\n"), 0o600); err != nil {
		log.Fatal(err)
	}
	src := csvio.New(csvio.Options{Options: fileset.Options{Paths: []string{path}}, Delimiter: ";"})
	ctx := context.Background()
	table, err := src.Resolve(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer table.Close()
	for i := range table.Splits() {
		r, err := table.Open(ctx, i, &driver.ScanOptions{Columns: []string{"fare"}})
		if err != nil {
			log.Fatal(err)
		}
		for {
			b, err := r.Next(ctx)
			if err == io.EOF {
				break
			}
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(b.Record.Schema().Field(0).Type, b.Record.Column(0))
			b.Record.Release()
		}
		r.Close()
	}
	// Output: float64 [12.5 (null)]
}
