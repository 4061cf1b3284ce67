package parquetio

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// TestBloomPrunes: a row group whose statistics admit a value that it does not have is left out by its bloom filter, in Keep and in Open, with
// and without a Keep before, and one that has the value never is, whatever the type, and that of the literal.
func TestBloomPrunes(t *testing.T) {
	const rows = 1000 // of a row group: of numbers below 4*rows, the first has 0, 4, 8 ..., the second 2, 6, 10 ...
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	ints := func(v int64) []any {
		if v < 0 {
			return []any{v, float64(v)}
		}
		return []any{v, uint64(v), float64(v)}
	}
	for _, c := range []struct {
		typ arrow.DataType
		add func(b array.Builder, v int64)
		lit func(v int64) []any // of which the first is that of the type
	}{
		{arrow.PrimitiveTypes.Int32, func(b array.Builder, v int64) { b.(*array.Int32Builder).Append(int32(v*1e5 - 2e8)) }, func(v int64) []any { return ints(v*1e5 - 2e8) }},
		{arrow.PrimitiveTypes.Int64, func(b array.Builder, v int64) { b.(*array.Int64Builder).Append(v*1e11 - 2e14) }, func(v int64) []any { return ints(v*1e11 - 2e14) }},
		{arrow.PrimitiveTypes.Uint32, func(b array.Builder, v int64) { b.(*array.Uint32Builder).Append(uint32(v * 1e6)) }, func(v int64) []any { return ints(v * 1e6) }},
		{arrow.PrimitiveTypes.Uint64, func(b array.Builder, v int64) { b.(*array.Uint64Builder).Append(math.MaxUint64 - uint64(v)) }, func(v int64) []any { return []any{math.MaxUint64 - uint64(v)} }},
		{arrow.PrimitiveTypes.Float32, func(b array.Builder, v int64) { b.(*array.Float32Builder).Append(float32(v)/8 - 250) }, func(v int64) []any { return []any{float64(v)/8 - 250} }},
		{arrow.PrimitiveTypes.Float64, func(b array.Builder, v int64) { b.(*array.Float64Builder).Append(float64(v) / 3) }, func(v int64) []any { return []any{float64(v) / 3} }},
		{arrow.BinaryTypes.String, func(b array.Builder, v int64) { b.(*array.StringBuilder).Append(fmt.Sprint("key ", v)) }, func(v int64) []any { return []any{fmt.Sprint("key ", v)} }},
		{arrow.BinaryTypes.Binary, func(b array.Builder, v int64) { b.(*array.BinaryBuilder).Append([]byte{byte(v >> 8), byte(v)}) }, func(v int64) []any { return []any{string([]byte{byte(v >> 8), byte(v)})} }},
		{&arrow.FixedSizeBinaryType{ByteWidth: 6}, func(b array.Builder, v int64) { b.(*array.FixedSizeBinaryBuilder).Append(fmt.Appendf(nil, "%06d", v)) }, func(v int64) []any { return []any{fmt.Sprintf("%06d", v)} }},
	} {
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "k", Type: c.typ, Nullable: true}}, nil))
		for group := range int64(2) {
			for _, i := range rng.Perm(rows) {
				c.add(b.Field(0), 4*int64(i)+2*group)
			}
		}
		rec := b.NewRecordBatch()
		b.Release()
		path := filepath.Join(t.TempDir(), "f.parquet")
		writeFile(t, path, &EncodingOptions{RowGroupRows: rows, Bloom: []string{"k"}}, nil, rec)
		rec.Release()
		tab, fresh := mustOpen(t, nil, path).(*table), mustOpen(t, nil, path).(*table)
		if len(tab.splits) != 2 || tab.footers[0].group(0).chunks[0].bloom == 0 {
			t.Fatalf("%v: %d row groups, or no bloom filter", c.typ, len(tab.splits))
		}
		absent, out := 0, 0
		try := func(p driver.Predicate, exact bool, has [2]bool) {
			keep, err := tab.Keep(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			for i := range has {
				if has[i] && !keep[i] {
					t.Errorf("%v: row group %d is left out by %v, which it has", c.typ, i, p)
				}
				if g := tab.footers[0].group(i); !has[i] && exact && tab.footers[0].schema.keepGroup(g, p) {
					if absent++; !keep[i] {
						out++
					}
				}
				for _, tab := range []*table{tab, fresh} {
					var st driver.ScanStats
					r, err := tab.Open(t.Context(), i, &driver.ScanOptions{Predicate: p, Alloc: memtest.New(t), Stats: &st})
					if err != nil {
						t.Fatal(err)
					}
					left := r.(*reader).ranges
					if err := r.Close(); err != nil {
						t.Fatal(err)
					}
					if opened := len(left) > 0; opened != keep[i] || !opened && st.Pruned.Load() != rows {
						t.Errorf("%v: %v: Keep of row group %d says %t, Open has rows %v and left out %d", c.typ, p, i, keep[i], left, st.Pruned.Load())
					}
				}
			}
		}
		eq := func(v any) driver.Predicate { return driver.Predicate{{Column: "k", Op: driver.Eq, Values: []any{v}}} }
		for range 150 {
			v := rng.Int64N(4*rows-12) + 4
			for i, lit := range c.lit(v) {
				try(eq(lit), i == 0, [2]bool{v%4 == 0, v%4 == 2})
			}
			w := rng.Int64N(4*rows-12) + 4
			try(driver.Predicate{{Column: "k", Op: driver.In, Values: []any{c.lit(v)[0], c.lit(w)[0]}}}, true, [2]bool{v%4 == 0 || w%4 == 0, v%4 == 2 || w%4 == 2})
		}
		if t.Logf("%v: %d of %d are left out", c.typ, out, absent); absent < 100 || out < absent*9/10 {
			t.Errorf("%v: %d of %d row groups without the value are left out", c.typ, out, absent)
		}
	}
}

// TestBloomZero: the filter has one of two zeros, which are equal.
func TestBloomZero(t *testing.T) {
	for _, zero := range []float64{0, math.Copysign(0, -1)} {
		rec := rowsOf([]arrow.Field{{Name: "f", Type: arrow.PrimitiveTypes.Float32}, {Name: "d", Type: arrow.PrimitiveTypes.Float64}}, 3, func(_ *rand.Rand, r int, b *array.RecordBuilder) {
			v := []float64{-1, zero, 1}[r]
			b.Field(0).(*array.Float32Builder).Append(float32(v))
			b.Field(1).(*array.Float64Builder).Append(v)
		})
		defer rec.Release()
		path := filepath.Join(t.TempDir(), "f.parquet")
		writeFile(t, path, &EncodingOptions{Bloom: []string{"f", "d"}}, nil, rec)
		for _, column := range []string{"f", "d"} {
			for _, v := range []float64{0, math.Copysign(0, -1)} {
				keep, err := mustOpen(t, nil, path).(driver.Pruner).Keep(t.Context(), driver.Predicate{{Column: column, Op: driver.Eq, Values: []any{v}}})
				if err != nil || !keep[0] {
					t.Errorf("%s = %v, the file has %v: %v, %v", column, v, zero, keep, err)
				}
			}
		}
	}
}
