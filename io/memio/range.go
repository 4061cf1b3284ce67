package memio

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/io/driver"
)

// RangeConfig is the configuration of [Range].
type RangeConfig struct {
	N int64 `json:"n"` // how many rows: id = 0 .. n-1
}

// Format rebuilds ranges; other sources of this package live in their process only.
func Format() driver.Format { return rangeFormat }

var rangeFormat = driver.Format{Kind: "range", Open: func(config json.RawMessage) (driver.Source, error) {
	var c RangeConfig
	if err := strict.JSON("range", config, &c); err != nil {
		return nil, err
	}
	return Range(c.N), nil
}}

// Range is a source of n rows with one column, "id" (int64, not null): 0 to n-1.
// A negative n is an Invalid error of Resolve.
func Range(n int64) driver.Source { return rangeSource{RangeConfig{N: n}} }

type rangeSource struct{ c RangeConfig }

func (rangeSource) Kind() string                       { return "range" }
func (s rangeSource) Config() (json.RawMessage, error) { return json.Marshal(s.c) }

func (s rangeSource) Resolve(ctx context.Context, _ *driver.ResolveOptions) (driver.Table, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, driver.Wrap(err, driver.Place{})
	}
	if s.c.N < 0 || s.c.N > 1<<40 {
		return nil, driver.Errorf(driver.Invalid, "range: n is %d; it must be 0 to 2^40", s.c.N)
	}
	t := &rangeTable{table{
		schema:   arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil),
		splits:   slices("range", s.c.N, 8),
		name:     "range",
		identity: fmt.Sprintf("range\x00%d", s.c.N),
	}}
	t.open = t.scan
	return t, nil
}

type rangeTable struct{ table }

func (t *rangeTable) scan(_ context.Context, i int, o *driver.ScanOptions, p projection) (driver.Reader, error) {
	base, rows := t.splits[i].Index*SplitRows, t.splits[i].Rows
	row := o.FromRow
	if !mayMatch(o.Predicate, base, base+rows-1) {
		o.Stats.Pruned.Add(max(0, rows-row))
		row = rows
	}
	// A row takes 8 bytes per column.
	step := int64(o.BatchRows)
	if len(p.idx) > 0 {
		step = max(1, min(step, o.BatchBytes/int64(8*len(p.idx))))
	}
	return newReader(o, func(context.Context) (driver.Batch, error) {
		if row >= rows {
			return driver.Batch{}, io.EOF
		}
		n := min(step, rows-row)
		cols := make([]arrow.Array, len(p.idx))
		for c := range cols {
			cols[c] = ids(base+row, n, o.Alloc)
			defer cols[c].Release()
		}
		b := driver.Batch{Record: array.NewRecordBatch(p.schema, cols, n), Row: row}
		row += n
		return b, nil
	}, nil), nil
}

func ids(from, n int64, alloc memory.Allocator) arrow.Array {
	buf := memory.NewResizableBuffer(alloc)
	defer buf.Release()
	buf.Resize(int(8 * n))
	v := arrow.Int64Traits.CastFromBytes(buf.Bytes())
	for i := range v {
		v[i] = from + int64(i)
	}
	d := array.NewData(arrow.PrimitiveTypes.Int64, int(n), []*memory.Buffer{nil, buf}, nil, 0, 0)
	defer d.Release()
	return array.NewInt64Data(d)
}

// Size implements driver.Sizer.
func (t *rangeTable) Size(i int, columns []string) (fetch, decoded int64) {
	if columns != nil {
		return 0, t.splits[i].Rows * 8 * int64(len(columns))
	}
	return 0, t.splits[i].Rows * 8
}

// Keep implements driver.Pruner: the ids of a split are known.
func (t *rangeTable) Keep(_ context.Context, p driver.Predicate) ([]bool, error) {
	keep := make([]bool, len(t.splits))
	for i, s := range t.splits {
		keep[i] = mayMatch(p, s.Index*SplitRows, s.Index*SplitRows+s.Rows-1)
	}
	return keep, nil
}

// mayMatch reports whether any id in [lo, hi] may satisfy p.
func mayMatch(p driver.Predicate, lo, hi int64) bool {
	for _, t := range p {
		if t.Column != "id" {
			continue
		}
		hit := t.Op == driver.NotNull
		for _, v := range t.Values {
			if hit = hit || mayCompare(t.Op, v, lo, hi); hit {
				break
			}
		}
		if !hit {
			return false
		}
	}
	return true
}

func mayCompare(op driver.Op, v any, lo, hi int64) bool {
	switch v := v.(type) {
	case int64:
		return within(op, lo, hi, v)
	case float64:
		// float64 rounds ints monotonically, so the ends stay the ends.
		return within(op, float64(lo), float64(hi), v)
	}
	return true
}

func within[T int64 | float64](op driver.Op, lo, hi, v T) bool {
	switch op {
	case driver.Eq, driver.In:
		return lo <= v && v <= hi
	case driver.Lt:
		return lo < v
	case driver.Le:
		return lo <= v
	case driver.Gt:
		return hi > v
	case driver.Ge:
		return hi >= v
	}
	return true
}

func hash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}
