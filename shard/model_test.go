package shard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Inputs of the graphs below: rows are functions of their id, and no two rows of a graph have the
// same id, so that a sample names the source row that it comes from.

var rowSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "v", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
	{Name: "t", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
}, nil)

func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// word is the text of a row; it is a number in one of four.
func word(id int64) string {
	if h := mix64(uint64(id)); h%4 != 0 {
		return strings.Repeat("xyz"[h%3:][:1], int(h>>8%6)+1)
	}
	return fmt.Sprint(id % 100)
}

// rowsFrom makes the rows id from to from+n-1.
func rowsFrom(from int64, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, rowSchema)
	defer b.Release()
	for id := from; id < from+int64(n); id++ {
		h := mix64(uint64(id) + 77)
		b.Field(0).(*array.Int64Builder).Append(id)
		if h%7 == 0 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.Float64Builder).Append(float64(h%1000) / 4)
		}
		b.Field(2).(*array.StringBuilder).Append(word(id))
		l := b.Field(3).(*array.ListBuilder)
		if h%5 == 0 {
			l.AppendNull()
		} else {
			l.Append(true)
			for k := range h >> 16 % 4 {
				l.ValueBuilder().(*array.Int64Builder).Append(id*10 + int64(k))
			}
		}
		t := b.Field(4).(*array.ListBuilder)
		t.Append(true)
		for k := range h >> 24 % 13 {
			t.ValueBuilder().(*array.Int32Builder).Append(int32(id%1000*16 + int64(k)))
		}
	}
	return b.NewRecordBatch()
}

// cells is a source of rows in memory in splits of any size.
type cells struct {
	first int64
	rows  []int
}

func (c cells) Kind() string { return "cells" }

func (c cells) Config() (json.RawMessage, error) {
	return json.Marshal(map[string]any{"first": c.first, "rows": c.rows})
}

func (c cells) Resolve(context.Context, *driver.ResolveOptions) (driver.Table, error) {
	return &cellsTable{c}, nil
}

type cellsTable struct{ c cells }

func (t *cellsTable) Schema() *arrow.Schema { return rowSchema }
func (t *cellsTable) Close() error          { return nil }
func (t *cellsTable) Fingerprint(context.Context) (string, error) {
	return fmt.Sprint(t.c.first, t.c.rows), nil
}

func (t *cellsTable) Splits() (s []driver.Split) {
	for i, n := range t.c.rows {
		s = append(s, driver.Split{ID: fmt.Sprintf("cells%d#%d", t.c.first, i), Index: int64(i), Rows: int64(n), Bytes: int64(n) * 11})
	}
	return s
}

func (t *cellsTable) Open(_ context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	first := t.c.first
	for _, n := range t.c.rows[:i] {
		first += int64(n)
	}
	so := o.WithDefaults()
	return &cellsReader{o: so, first: first, n: int64(t.c.rows[i]), at: so.FromRow}, nil
}

type cellsReader struct {
	o            driver.ScanOptions
	first, n, at int64
}

func (r *cellsReader) Close() error { return nil }

func (r *cellsReader) Next(ctx context.Context) (driver.Batch, error) {
	if r.at >= r.n {
		return driver.Batch{}, io.EOF
	}
	if err := context.Cause(ctx); err != nil {
		return driver.Batch{}, fault.WithCode(fault.Canceled, err)
	}
	k := min(r.n-r.at, int64(r.o.BatchRows), max(r.o.BatchBytes/64, 1))
	rec := rowsFrom(r.first+r.at, int(k))
	b := driver.Batch{Record: rec, Row: r.at}
	r.at += k
	if r.o.Columns == nil {
		return b, nil
	}
	var fields []arrow.Field
	var cols []arrow.Array
	for _, c := range r.o.Columns {
		j := rowSchema.FieldIndices(c)[0]
		fields, cols = append(fields, rowSchema.Field(j)), append(cols, rec.Column(j))
	}
	b.Record = array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, k)
	rec.Release()
	return b, nil
}

// keyColumns name the source row that a row comes from; steps may rename them.
var keyColumns = []string{"id", "text", "key", "words"}

// keyOf names the source row that a row comes from.
func keyOf(rec arrow.RecordBatch, row int) string {
	for _, c := range keyColumns {
		if is := rec.Schema().FieldIndices(c); len(is) == 1 && rec.Column(is[0]).IsValid(row) {
			return strings.Clone(rec.Column(is[0]).ValueStr(row)) // it lies in the column
		}
	}
	return ""
}

// textOf renders the columns of a row, but for the mask, lineage, and those that are hidden.
func textOf(rec arrow.RecordBatch, row int, hidden ...string) string {
	var parts []string
	for c, f := range rec.Schema().Fields() {
		if f.Name != "mask" && f.Name[0] != '_' && !slices.Contains(hidden, f.Name) {
			parts = append(parts, f.Name+"="+rec.Column(c).ValueStr(row))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
