package drivertest

import (
	"cmp"
	"math/rand/v2"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/io/driver"
)

// Match evaluates p on row i of rec by the book: the reference for predicates.
func Match(rec arrow.RecordBatch, i int, p driver.Predicate) bool {
	for _, t := range p {
		at := rec.Schema().FieldIndices(t.Column)
		if len(at) == 0 {
			panic("drivertest.Match: no column " + t.Column)
		}
		if !term(rec.Column(at[0]), i, t) {
			return false
		}
	}
	return true
}

func term(col arrow.Array, i int, t driver.Term) bool {
	switch null := col.IsNull(i); {
	case t.Op == driver.IsNull:
		return null
	case null:
		return false
	case t.Op == driver.NotNull:
		return true
	}
	v := Value(col, i)
	for _, w := range t.Values {
		if compare(v, w, t.Op) {
			return true
		}
	}
	return false
}

// Value returns row i of col in the domain of driver.Term.Values; nil where a
// term cannot name the type, or the value is null.
func Value(col arrow.Array, i int) any {
	if col.IsNull(i) {
		return nil
	}
	switch c := col.(type) {
	case *array.Boolean:
		return c.Value(i)
	case *array.Int8:
		return int64(c.Value(i))
	case *array.Int16:
		return int64(c.Value(i))
	case *array.Int32:
		return int64(c.Value(i))
	case *array.Int64:
		return c.Value(i)
	case *array.Uint8:
		return uint64(c.Value(i))
	case *array.Uint16:
		return uint64(c.Value(i))
	case *array.Uint32:
		return uint64(c.Value(i))
	case *array.Uint64:
		return c.Value(i)
	case *array.Float32:
		return float64(c.Value(i))
	case *array.Float64:
		return c.Value(i)
	case *array.String:
		return c.Value(i)
	case *array.LargeString:
		return c.Value(i)
	case *array.Binary:
		return string(c.Value(i))
	case *array.Date32:
		return int64(c.Value(i))
	case *array.Timestamp:
		return int64(c.Value(i))
	}
	return nil
}

func compare(v, w any, op driver.Op) bool {
	switch v := v.(type) {
	case bool:
		b := map[bool]int64{true: 1}
		return order(b[v], b[w.(bool)], op)
	case int64:
		if f, ok := w.(float64); ok {
			return order(float64(v), f, op)
		}
		return order(v, w.(int64), op)
	case uint64:
		if f, ok := w.(float64); ok {
			return order(float64(v), f, op)
		}
		return order(v, w.(uint64), op)
	case float64:
		return order(v, w.(float64), op)
	case string:
		return order(v, w.(string), op)
	}
	return false
}

func order[T cmp.Ordered](a, b T, op driver.Op) bool {
	switch op {
	case driver.Eq, driver.In:
		return a == b
	case driver.Ne:
		return a != b
	case driver.Lt:
		return a < b
	case driver.Le:
		return a <= b
	case driver.Gt:
		return a > b
	}
	return a >= b
}

// Predicate makes a random predicate whose literals occur in rec.
func Predicate(rec arrow.RecordBatch, rng *rand.Rand) driver.Predicate {
	var p driver.Predicate
	for range 1 + rng.IntN(2) {
		c := rng.IntN(int(rec.NumCols()))
		t := driver.Term{Column: rec.ColumnName(c), Op: driver.Op(rng.IntN(int(driver.NotNull) + 1))}
		if t.Op != driver.IsNull && t.Op != driver.NotNull {
			n := 1
			if t.Op == driver.In {
				n = rng.IntN(4)
			}
			for range n {
				v := Value(rec.Column(c), rng.IntN(int(rec.NumRows())))
				if v == nil {
					t.Op, t.Values = driver.NotNull, nil
					break
				}
				t.Values = append(t.Values, v)
			}
		}
		p = append(p, t)
	}
	return p
}
