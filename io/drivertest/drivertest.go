// Package drivertest is the conformance suite of drivers: every format runs it,
// those outside this module too. A [Harness] says how to make a source over given
// records; [Run] checks everything that package driver promises.
package drivertest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/driver"
)

// Harness describes a driver. Either Make is set (no files) or Ext, Write and
// Source (files).
type Harness struct {
	// Make returns a source over all rows of files in order.
	Make func(t testing.TB, files [][]arrow.RecordBatch) driver.Source

	Ext string // of files, with the dot
	// Write writes one file.
	Write func(t testing.TB, path string, recs []arrow.RecordBatch)
	// Source returns a source of these files; with options that give several splits
	// per file where the format has them.
	Source func(paths ...string) driver.Source

	// Open is driver.Format.Open; nil means Config must be Unsupported.
	Open func(config json.RawMessage) (driver.Source, error)

	// Schema of the rows that the suite makes: what the format can hold. nil means
	// Schema(). A column "id" (int64) holds the number of the row.
	Schema *arrow.Schema
	// Gen replaces Records for formats that cannot hold all its values.
	Gen func(schema *arrow.Schema, seed uint64, first, rows int64) arrow.RecordBatch
	// Want gives what must be read where it differs from what was written (a
	// reference); nil means the same.
	Want func(path string, rec arrow.RecordBatch) arrow.RecordBatch
	// FileRows are the rows of the files; nil means 400, 1, 900.
	FileRows []int64

	KnownRows     bool // Split.Rows is never -1
	NoFingerprint bool // Fingerprint is Unsupported
	Prunes        bool // statistics of "id" exclude splits: some of Keep are false
	Shortens      bool // a file cut short may be a valid file of fewer rows: text, streams
	EmptyFile     bool // a file of no bytes is a file of no rows
	Shares        bool // columns may be memory of the source, beside that of ScanOptions.Alloc
	Maps          bool // columns may be memory of a file that is mapped, without ScanOptions.Own
	Dictionaries  bool // columns may be dictionaries of what Schema says; values are compared
	// Damage writes rec to one file, one split, so that the rows bad do not parse.
	// nil: the format has no bad rows.
	Damage func(t testing.TB, path string, rec arrow.RecordBatch, bad []int64)
}

// Run runs the suite. seed replays a failure; 0 means a fixed one.
func Run(t *testing.T, h Harness, seed uint64) {
	if seed == 0 {
		seed = 1
	}
	if h.Schema == nil {
		h.Schema = Schema()
	}
	if h.Gen == nil {
		h.Gen = Records
	}
	if h.FileRows == nil {
		h.FileRows = []int64{400, 1, 900}
	}
	s := &suite{Harness: h, seed: seed}
	for _, c := range []struct {
		name string
		run  func(*testing.T)
		skip bool
	}{
		{"config", s.config, false},
		{"resolve", s.resolve, false},
		{"rows", s.rows, false},
		{"projection", s.projection, false},
		{"batches", s.batches, false},
		{"from_row", s.fromRow, false},
		{"offsets", s.offsets, false},
		{"limit", s.limit, false},
		{"predicate", s.predicate, false},
		{"alloc", s.alloc, false},
		{"parallel", s.parallel, false},
		{"cancel", s.cancel, false},
		{"contexts", s.contexts, false},
		{"close", s.close, false},
		{"missing", s.missing, h.Make != nil},
		{"changed", s.changed, h.Make != nil},
		{"truncated", s.truncated, h.Make != nil},
		{"flipped", s.flipped, h.Make != nil},
		{"bad_rows", s.badRows, h.Damage == nil},
	} {
		if !c.skip {
			t.Run(c.name, c.run)
		}
	}
}

type suite struct {
	Harness
	seed uint64
}

// data is a source and what it must give.
type data struct {
	src   driver.Source
	paths []string
	want  arrow.RecordBatch // all rows
}

// make builds the standard data. Everything is released when t ends.
func (s *suite) make(t *testing.T) data { return s.build(t, s.FileRows) }

func (s *suite) build(t *testing.T, fileRows []int64) data {
	t.Helper()
	t.Logf("seed %d", s.seed)
	var d data
	dir := t.TempDir()
	files := make([][]arrow.RecordBatch, len(fileRows))
	var want []arrow.RecordBatch
	var first int64
	for i, rows := range fileRows {
		path := filepath.Join(dir, fmt.Sprintf("part-%05d%s", i, s.Ext))
		d.paths = append(d.paths, path)
		for rows > 0 {
			n := min(rows, 1000)
			rec := s.Gen(s.Schema, s.seed, first, n)
			t.Cleanup(rec.Release)
			files[i] = append(files[i], rec)
			if s.Want != nil {
				rec = s.Want(path, rec)
				t.Cleanup(rec.Release)
			}
			want = append(want, rec)
			rows, first = rows-n, first+n
		}
	}
	d.want = concat(t, want)
	if s.Make != nil {
		d.src = s.Make(t, files)
		return d
	}
	for i, f := range files {
		s.Write(t, d.paths[i], f)
	}
	d.src = s.Source(d.paths...)
	return d
}

func concat(t testing.TB, recs []arrow.RecordBatch) arrow.RecordBatch {
	t.Helper()
	schema := recs[0].Schema()
	cols := make([]arrow.Array, schema.NumFields())
	var rows int64
	for _, r := range recs {
		rows += r.NumRows()
	}
	for c := range cols {
		parts := make([]arrow.Array, len(recs))
		for i, r := range recs {
			parts[i] = r.Column(c)
		}
		col, err := array.Concatenate(parts, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		defer col.Release()
		cols[c] = col
	}
	rec := array.NewRecordBatch(schema, cols, rows)
	t.Cleanup(rec.Release)
	return rec
}

// resolved opens the source; the table is closed when t ends.
func resolved(t testing.TB, src driver.Source) driver.Table {
	t.Helper()
	tab, err := src.Resolve(t.Context(), nil)
	if err != nil {
		t.Fatalf("resolve: %v", err)
	}
	t.Cleanup(func() {
		if err := tab.Close(); err != nil {
			t.Errorf("close table: %v", err)
		}
		if err := tab.Close(); err != nil {
			t.Errorf("close table again: %v", err)
		}
	})
	return tab
}

func (s *suite) rng(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(s.seed, purpose)) }

// Schema is the default: most types, plain and nested.
func Schema() *arrow.Schema {
	col := func(name string, t arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: t, Nullable: true}
	}
	return arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		col("bool", arrow.FixedWidthTypes.Boolean),
		col("i8", arrow.PrimitiveTypes.Int8),
		col("i16", arrow.PrimitiveTypes.Int16),
		col("i32", arrow.PrimitiveTypes.Int32),
		col("u8", arrow.PrimitiveTypes.Uint8),
		col("u64", arrow.PrimitiveTypes.Uint64),
		col("f32", arrow.PrimitiveTypes.Float32),
		col("f64", arrow.PrimitiveTypes.Float64),
		col("str", arrow.BinaryTypes.String),
		col("bin", arrow.BinaryTypes.Binary),
		col("day", arrow.FixedWidthTypes.Date32),
		col("ts", &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}),
		col("dec", &arrow.Decimal128Type{Precision: 20, Scale: 4}),
		col("ints", arrow.ListOf(arrow.PrimitiveTypes.Int32)),
		col("pair", arrow.StructOf(col("a", arrow.PrimitiveTypes.Float64), col("b", arrow.ListOf(arrow.BinaryTypes.String)))),
	}, nil)
}

// IDs is the schema of the column "id" alone.
func IDs() *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
}

func writeFile(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
