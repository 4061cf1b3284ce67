package plan_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
)

// source is a table of random rows made from a seed, whose splits take every hint they are given:
// rows that a predicate excludes are left out exactly in even splits, split by split in odd ones; limits
// end a split early.
type source struct {
	name   string
	seed   uint64
	splits []int // rows
}

var schema = arrow.NewSchema([]arrow.Field{
	{Name: "a", Type: arrow.PrimitiveTypes.Int64},
	{Name: "b", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "c", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
	{Name: "i", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
}, nil)

func (s source) Kind() string                     { return "test" }
func (s source) Config() (json.RawMessage, error) { return json.Marshal(s.name) }
func (s source) Resolve(context.Context, *driver.ResolveOptions) (driver.Table, error) {
	return s, nil
}
func (s source) Schema() *arrow.Schema                       { return schema }
func (s source) Fingerprint(context.Context) (string, error) { return s.name, nil }
func (s source) Close() error                                { return nil }
func (s source) Splits() []driver.Split {
	out := make([]driver.Split, len(s.splits))
	for i, n := range s.splits {
		out[i] = driver.Split{ID: s.name + "#" + strconv.Itoa(i), File: s.name, Index: int64(i), Rows: int64(n), Bytes: int64(n * 10)}
	}
	return out
}

// record makes split i.
func (s source) record(i int, alloc memory.Allocator) arrow.RecordBatch {
	rng := rand.New(rand.NewPCG(s.seed, uint64(i)))
	b := array.NewRecordBuilder(alloc, schema)
	defer b.Release()
	for range s.splits[i] {
		b.Field(0).(*array.Int64Builder).Append(int64(rng.IntN(20)))
		if rng.IntN(5) == 0 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.Float64Builder).Append(float64(rng.IntN(20)) / 2)
		}
		switch rng.IntN(8) {
		case 0:
			b.Field(2).AppendNull()
		case 1:
			b.Field(2).(*array.StringBuilder).Append("x")
		default:
			b.Field(2).(*array.StringBuilder).Append(strconv.Itoa(rng.IntN(12)))
		}
		l := b.Field(3).(*array.ListBuilder)
		if rng.IntN(5) == 0 {
			l.AppendNull()
		} else {
			l.Append(true)
			for k := range rng.IntN(4) {
				l.ValueBuilder().(*array.Int64Builder).Append(int64(k))
			}
		}
		if rng.IntN(5) == 0 {
			b.Field(4).AppendNull()
		} else {
			b.Field(4).(*array.Int32Builder).Append(int32(rng.IntN(9)))
		}
	}
	return b.NewRecordBatch()
}

// matches evaluates a predicate on a row, in plain Go.
func matches(p driver.Predicate, rec arrow.RecordBatch, row int) bool {
	for _, t := range p {
		col := rec.Column(rec.Schema().FieldIndices(t.Column)[0])
		if t.Op == driver.IsNull || t.Op == driver.NotNull {
			if col.IsNull(row) != (t.Op == driver.IsNull) {
				return false
			}
			continue
		}
		ok := false
		for _, v := range t.Values {
			ok = ok || col.IsValid(row) && holds(t.Op, col, row, v)
		}
		if !ok {
			return false
		}
	}
	return true
}

func holds(op driver.Op, col arrow.Array, row int, v any) bool {
	cmp := 0
	order := func(x, y float64) int {
		if x < y {
			return -1
		}
		if x > y {
			return 1
		}
		return 0
	}
	num := func(v any) float64 {
		switch v := v.(type) {
		case int64:
			return float64(v)
		case float64:
			return v
		}
		panic(fmt.Sprintf("literal %T", v))
	}
	switch c := col.(type) {
	case *array.Int64:
		cmp = order(float64(c.Value(row)), num(v))
	case *array.Int32:
		cmp = order(float64(c.Value(row)), num(v))
	case *array.Float64:
		cmp = order(c.Value(row), num(v))
	case *array.String:
		switch s, w := c.Value(row), v.(string); {
		case s < w:
			cmp = -1
		case s > w:
			cmp = 1
		}
	default:
		panic(fmt.Sprintf("a predicate over %T", col))
	}
	switch op {
	case driver.Eq, driver.In:
		return cmp == 0
	case driver.Ne:
		return cmp != 0
	case driver.Lt:
		return cmp < 0
	case driver.Le:
		return cmp <= 0
	case driver.Gt:
		return cmp > 0
	}
	return cmp >= 0
}

func (s source) Keep(_ context.Context, p driver.Predicate) ([]bool, error) {
	keep := make([]bool, len(s.splits))
	for i := range keep {
		rec := s.record(i, memory.DefaultAllocator)
		for r := range int(rec.NumRows()) {
			keep[i] = keep[i] || matches(p, rec, r)
		}
		rec.Release()
	}
	return keep, nil
}

func (s source) Size(i int, columns []string) (int64, int64) {
	n := int64(len(columns))
	if columns == nil {
		n = int64(schema.NumFields())
	}
	return n * int64(s.splits[i]), n * int64(s.splits[i]) * 8
}

func (s source) Open(_ context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	so := o.WithDefaults()
	rec := s.record(i, so.Alloc)
	r := &reader{rec: rec, keep: make([]bool, rec.NumRows()), most: so.BatchRows}
	left := so.Limit
	for k := range r.keep {
		r.keep[k] = i%2 == 1 || matches(so.Predicate, rec, k)
		if so.Limit > 0 && matches(so.Predicate, rec, k) {
			if left == 0 {
				r.keep[k] = false
			} else {
				left--
			}
		}
	}
	r.cols = so.Columns
	if r.cols == nil {
		for _, f := range schema.Fields() {
			r.cols = append(r.cols, f.Name)
		}
	}
	return r, nil
}

type reader struct {
	rec  arrow.RecordBatch
	cols []string
	keep []bool
	at   int
	most int
}

func (r *reader) Next(context.Context) (driver.Batch, error) {
	for r.at < len(r.keep) && !r.keep[r.at] {
		r.at++
	}
	lo := r.at
	for r.at < len(r.keep) && r.keep[r.at] && r.at-lo < r.most {
		r.at++
	}
	if r.at == lo {
		return driver.Batch{}, io.EOF
	}
	var fields []arrow.Field
	var arrs []arrow.Array
	for _, c := range r.cols {
		k := schema.FieldIndices(c)[0]
		fields = append(fields, schema.Field(k))
		arrs = append(arrs, r.rec.Column(k))
	}
	rec := array.NewRecordBatch(arrow.NewSchema(fields, nil), arrs, r.rec.NumRows())
	defer rec.Release()
	return driver.Batch{Record: rec.NewSlice(int64(lo), int64(r.at)), Row: int64(lo)}, nil
}

func (r *reader) Close() error {
	if r.rec != nil {
		r.rec.Release()
		r.rec = nil
	}
	return nil
}

func read(name string, seed uint64, splits ...int) ops.Node {
	s := source{name, seed, splits}
	n, err := ops.NewRead(s, s, 0, ops.Meta{})
	if err != nil {
		panic(err)
	}
	return n
}
