// Filereader reads files as a source does and writes their rows as Arrow IPC, for tests that compare many small files with what
// other readers make of them. A line of its input is a request, a line of its output the answer.
//
//	{"kind": "csv", "config": {"paths": ["a.csv"]}, "filter": "x > 1", "out": "a.arrow"}
//	{"rows": 3} or {"error": "...", "code": "invalid"}
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

type request struct {
	Kind   string          `json:"kind"`
	Config json.RawMessage `json:"config"`
	Filter string          `json:"filter"`
	Out    string          `json:"out"`
}

type answer struct {
	Rows  int64  `json:"rows"`
	Error string `json:"error,omitempty"`
	Code  string `json:"code,omitempty"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var q request
		var a answer
		err := json.Unmarshal(in.Bytes(), &q)
		if err == nil {
			a.Rows, err = read(context.Background(), q)
		}
		if err != nil {
			a = answer{Error: err.Error(), Code: fault.CodeOf(err).String()}
		}
		if err := out.Encode(a); err != nil {
			fmt.Fprintln(os.Stderr, "filereader:", err)
			os.Exit(1)
		}
	}
}

func read(ctx context.Context, q request) (rows int64, err error) {
	formats := dataset.Formats()
	i := slices.IndexFunc(formats, func(f driver.Format) bool { return f.Kind == q.Kind })
	if i < 0 {
		return 0, fault.New(fault.Invalid, "no format %q", q.Kind)
	}
	src, err := formats[i].Open(q.Config)
	if err != nil {
		return 0, err
	}
	d := dataset.Read(src)
	defer d.Close()
	if q.Filter != "" {
		d = d.Filter(q.Filter)
	}
	schema, err := d.Schema(ctx)
	if err != nil {
		return 0, err
	}
	f, err := os.Create(q.Out)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	w := ipc.NewWriter(f, ipc.WithSchema(schema))
	for rec, err := range d.Records(ctx, nil) {
		if err != nil {
			return 0, err
		}
		rows += rec.NumRows()
		if err := w.Write(rec); err != nil {
			return 0, err
		}
	}
	return rows, w.Close()
}
