package parquetio

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/io/driver"
)

// BenchmarkLate reads 5 of 19 columns: with a filter, and the same rows and columns, that of the filter
// among them, without.
func BenchmarkLate(b *testing.B) {
	const rows = 500_000
	trips := taxi(rows)
	defer trips.Release()
	add := make([]arrow.Array, 3)
	for i, f := range []func(r int64) int64{
		func(r int64) int64 { return r },
		func(r int64) int64 { return int64(uint64(r)*0x9e3779b97f4a7c15>>32) % 1000 },
		func(r int64) int64 { return r % 7 },
	} {
		kb := array.NewInt64Builder(memory.DefaultAllocator)
		for r := range int64(rows) {
			kb.Append(f(r))
		}
		add[i] = kb.NewArray()
	}
	fields := trips.Schema().Fields()
	for _, n := range []string{"k", "s", "m"} {
		fields = append(fields, arrow.Field{Name: n, Type: arrow.PrimitiveTypes.Int64})
	}
	rec := array.NewRecordBatch(arrow.NewSchema(fields, nil), append(trips.Columns()[:16:16], add...), rows)
	lt := func(c string, v int64) driver.Predicate {
		return driver.Predicate{{Column: c, Op: driver.Lt, Values: []any{v}}}
	}
	for _, codec := range []compress.Compression{compress.Codecs.Snappy, compress.Codecs.Zstd} {
		path := filepath.Join(b.TempDir(), fmt.Sprint(codec))
		f, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		fileLayout{codec: codec, page: 128 << 10}.write(b, f, rec)
		f.Close()
		tab := mustOpen(b, nil, path)
		for _, by := range []struct {
			name, column string
			p            driver.Predicate
		}{
			{"clustered 1%", "k", lt("k", rows/100)}, {"scattered 1%", "s", lt("s", 10)}, {"scattered 0.1%", "s", lt("s", 1)},
			{"scattered 50%", "s", lt("s", 500)}, {"all but one", "k", lt("k", rows-1)}, {"none", "fare_amount", driver.Predicate{{Column: "fare_amount", Op: driver.Eq, Values: []any{0.005}}}},
		} {
			columns := []string{"fare_amount", "tip_amount", "flag", "pickup", by.column}
			var spent [2]int64
			b.Run(fmt.Sprintf("%v/%s", codec, by.name), func(b *testing.B) {
				clear(spent[:])
				for b.Loop() {
					for i, p := range []driver.Predicate{nil, by.p} {
						before := cpu()
						if err := readAll(b.Context(), tab, 0, &driver.ScanOptions{Columns: columns, Predicate: p}, nil); err != nil {
							b.Fatal(err)
						}
						spent[i] += cpu() - before
					}
				}
				b.ReportMetric(float64(spent[0])/float64(b.N)/1e6, "ms-without")
				b.ReportMetric(float64(spent[1])/float64(b.N)/1e6, "ms-with")
				b.ReportMetric(float64(spent[1])/float64(spent[0]), "ratio")
			})
		}
	}
}

// BenchmarkLateCost is what conditions cost where they cut nothing: every row is left, or every other, at random. The same columns
// are read without a condition in turn, and once more for how far that differs from itself.
func BenchmarkLateCost(b *testing.B) {
	const rows = 500_000
	fields := []arrow.Field{
		{Name: "int", Type: arrow.PrimitiveTypes.Int64}, {Name: "small", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, {Name: "float", Type: arrow.PrimitiveTypes.Float64},
		{Name: "text", Type: arrow.BinaryTypes.String}, {Name: "flag", Type: arrow.FixedWidthTypes.Boolean}, {Name: "day", Type: arrow.FixedWidthTypes.Date32},
	}
	rec := rowsOf(fields, rows, func(rng *rand.Rand, _ int, b *array.RecordBuilder) {
		v := rng.Int64N(1000)
		b.Field(0).(*array.Int64Builder).Append(v)
		if v%10 == 3 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.Int32Builder).Append(int32(v))
		}
		b.Field(2).(*array.Float64Builder).Append(float64(v))
		b.Field(3).(*array.StringBuilder).Append(fmt.Sprintf("%03d and more", v))
		b.Field(4).(*array.BooleanBuilder).Append(v%2 == 0)
		b.Field(5).(*array.Date32Builder).Append(arrow.Date32(v))
	})
	defer rec.Release()
	path := filepath.Join(b.TempDir(), "f.parquet")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	fileLayout{codec: compress.Codecs.Snappy, page: 128 << 10}.write(b, f, rec)
	f.Close()
	tab := mustOpen(b, nil, path)
	for _, c := range []struct {
		column    string
		all, half driver.Term
	}{
		{"int", driver.Term{Op: driver.Ge, Values: []any{int64(0)}}, driver.Term{Op: driver.Lt, Values: []any{int64(500)}}},
		{"small", driver.Term{Op: driver.Ne, Values: []any{int64(-1)}}, driver.Term{Op: driver.Lt, Values: []any{int64(500)}}},
		{"float", driver.Term{Op: driver.Ge, Values: []any{0.0}}, driver.Term{Op: driver.Lt, Values: []any{500.0}}},
		{"text", driver.Term{Op: driver.Ge, Values: []any{"0"}}, driver.Term{Op: driver.Lt, Values: []any{"5"}}},
		{"flag", driver.Term{Op: driver.In, Values: []any{true, false}}, driver.Term{Op: driver.Eq, Values: []any{true}}},
		{"day", driver.Term{Op: driver.NotNull}, driver.Term{Op: driver.Lt, Values: []any{int64(500)}}},
	} {
		for k, term := range []driver.Term{c.all, c.half} {
			b.Run(c.column+[]string{"/all", "/half"}[k], func(b *testing.B) {
				term.Column = c.column
				ps := [3]driver.Predicate{nil, {term}, nil}
				var ratio, same []float64
				for n := 0; b.Loop(); n++ {
					var spent [3]float64
					for i := range ps {
						i = (i + n) % len(ps)
						before := cpu()
						if err := readAll(b.Context(), tab, 0, &driver.ScanOptions{Predicate: ps[i]}, nil); err != nil {
							b.Fatal(err)
						}
						spent[i] = float64(cpu() - before)
					}
					ratio, same = append(ratio, spent[1]*2/(spent[0]+spent[2])), append(same, spent[2]/spent[0])
				}
				slices.Sort(ratio)
				slices.Sort(same)
				b.ReportMetric(100*(ratio[len(ratio)/2]-1), "%-more")
				b.ReportMetric(100*(same[len(same)/2]-1), "%-control")
			})
		}
	}
}
