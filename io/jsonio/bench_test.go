package jsonio_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/jsonio"
)

func benchmarkRead(b *testing.B, o jsonio.Options, size int) {
	b.Helper()
	tab, err := jsonio.New(o).Resolve(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tab.Close()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for i := range tab.Splits() {
			r, err := tab.Open(b.Context(), i, nil)
			if err != nil {
				b.Fatal(err)
			}
			for {
				x, err := r.Next(b.Context())
				if err == io.EOF {
					break
				}
				if err != nil {
					b.Fatal(err)
				}
				x.Record.Release()
			}
			r.Close()
		}
	}
}

func flights(b *testing.B) (path string, lines []byte) {
	path = datatest.Dir(b, "flights", "flights-20k.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	var rows []json.RawMessage
	if err := json.Unmarshal(raw, &rows); err != nil {
		b.Fatal(err)
	}
	return path, bytes.Join(func() (out [][]byte) {
		for _, r := range rows {
			out = append(out, r)
		}
		return out
	}(), []byte("\n"))
}

func BenchmarkReadArray(b *testing.B) {
	path, _ := flights(b)
	st, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	benchmarkRead(b, paths(path), int(st.Size()))
}

func BenchmarkReadLines(b *testing.B) {
	_, lines := flights(b)
	benchmarkRead(b, paths(save(b, "flights.jsonl", lines)), len(lines))
}

// All types, a third of it nested.
func BenchmarkReadTyped(b *testing.B) {
	rec := drivertest.Records(drivertest.Schema(), 1, 0, 10_000)
	defer rec.Release()
	lines := encode(b, nil, rec)
	o := jsonio.Options{Options: fileset.Options{Paths: []string{save(b, "x.jsonl", lines)}, Types: typesOf(rec.Schema())}}
	benchmarkRead(b, o, len(lines))
}

// The library's own decoder into a map, for comparison.
func BenchmarkEncodingJSON(b *testing.B) {
	_, lines := flights(b)
	b.SetBytes(int64(len(lines)))
	b.ReportAllocs()
	for b.Loop() {
		d := json.NewDecoder(bytes.NewReader(lines))
		for {
			var row struct {
				Date                string
				Delay, Distance     int64
				Origin, Destination string
			}
			if err := d.Decode(&row); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	rec := drivertest.Records(drivertest.Schema(), 1, 0, 10_000)
	defer rec.Release()
	e, err := jsonio.NewEncoding(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(encode(b, nil, rec))))
	b.ReportAllocs()
	for b.Loop() {
		enc, err := e.NewEncoder(io.Discard, rec.Schema(), memory.DefaultAllocator)
		if err != nil {
			b.Fatal(err)
		}
		if err := enc.Write(rec); err != nil {
			b.Fatal(err)
		}
		if err := enc.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
