package sink_test

import (
	"context"
	"fmt"
	"os"

	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/io/parquetio"
)

func ExampleFiles() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	enc, err := parquetio.NewEncoding(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	for range 2 { // the second run finds the job finished
		s, err := sink.New(sink.Options{Path: dir, Encoding: enc, Job: "nightly"})
		if err != nil {
			fmt.Println(err)
			return
		}
		graph := exectest.Scan(exectest.NewTable(4, 100)) // 4 splits of 100 rows
		if _, err := local.New(nil).Write(ctx, graph, s, nil); err != nil {
			fmt.Println(err)
			return
		}
		r := s.Result()
		fmt.Println(r.Rows, "rows in", r.Files, "file, there before:", r.Already)
	}
	m, err := sink.ReadManifest(ctx, dir, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("manifest", m.Number, "of job", m.Job, "has", m.Rows, "rows")
	// Output:
	// 400 rows in 1 file, there before: false
	// 400 rows in 1 file, there before: true
	// manifest 1 of job nightly has 400 rows
}
