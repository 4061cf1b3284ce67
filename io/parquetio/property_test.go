package parquetio

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// propSchema has what predicates can name, and nested columns beside.
var propSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "i32", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "u64", Type: arrow.PrimitiveTypes.Uint64, Nullable: true},
	{Name: "f64", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "f32", Type: arrow.PrimitiveTypes.Float32},
	{Name: "str", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "ok", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	{Name: "day", Type: arrow.FixedWidthTypes.Date32, Nullable: true},
	{Name: "ts", Type: &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}},
	{Name: "list", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
	{Name: "st", Type: arrow.StructOf(
		arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		arrow.Field{Name: "y", Type: arrow.BinaryTypes.String}), Nullable: true},
	{Name: "deep", Type: arrow.ListOf(arrow.StructOf(
		arrow.Field{Name: "k", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "v", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32), Nullable: true})), Nullable: true},
}, nil)

func propRows(rng *rand.Rand, rows int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, propSchema)
	defer b.Release()
	floats := []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), 1.5, -2}
	clustered := rng.IntN(2) == 0
	for r := range rows {
		base := rng.IntN(40)
		if clustered {
			base = r*40/rows + rng.IntN(3)
		}
		null := func() bool { return rng.IntN(6) == 0 || clustered && r%97 < 40 && rng.IntN(3) > 0 }
		for i := range propSchema.NumFields() {
			f := b.Field(i)
			if propSchema.Field(i).Nullable && null() {
				f.AppendNull()
				continue
			}
			switch f := f.(type) {
			case *array.Int64Builder:
				f.Append(int64(r))
			case *array.Int32Builder:
				f.Append(int32(base - 20))
			case *array.Uint64Builder:
				f.Append(uint64(base) + uint64(rng.IntN(2))<<63)
			case *array.Float64Builder:
				if rng.IntN(4) == 0 {
					f.Append(floats[rng.IntN(len(floats))])
				} else {
					f.Append(float64(base) / 4)
				}
			case *array.Float32Builder:
				f.Append(float32(base))
			case *array.StringBuilder:
				f.Append(fmt.Sprintf("%0*d", 1+rng.IntN(2)*100, base))
			case *array.BooleanBuilder:
				f.Append(base > 20)
			case *array.Date32Builder:
				f.Append(arrow.Date32(base * 100))
			case *array.TimestampBuilder:
				f.Append(arrow.Timestamp(base) * 1e9)
			case *array.ListBuilder:
				f.Append(true)
				for range rng.IntN(4) {
					switch v := f.ValueBuilder().(type) {
					case *array.Int32Builder:
						v.Append(int32(base))
					case *array.StructBuilder:
						v.Append(true)
						v.FieldBuilder(0).(*array.StringBuilder).Append(fmt.Sprint(base))
						lb := v.FieldBuilder(1).(*array.ListBuilder)
						if rng.IntN(3) == 0 {
							lb.AppendNull()
							continue
						}
						lb.Append(true)
						for range rng.IntN(3) {
							lb.ValueBuilder().(*array.Float32Builder).Append(float32(r))
						}
					}
				}
			case *array.StructBuilder:
				f.Append(true)
				f.FieldBuilder(0).(*array.Int64Builder).Append(int64(base))
				f.FieldBuilder(1).(*array.StringBuilder).Append(fmt.Sprint("y", base))
			}
		}
	}
	return b.NewRecordBatch()
}

// writeVariant writes with arrow-go alone: page versions and encodings that this
// package reads but does not write.
func writeVariant(t testing.TB, path string, rng *rand.Rand, rec arrow.RecordBatch) string {
	t.Helper()
	what := ""
	pick := func(name string, n int) int {
		v := rng.IntN(n)
		what += fmt.Sprintf("%s=%d ", name, v)
		return v
	}
	props := []parquet.WriterProperty{
		parquet.WithDataPageSize(int64(64 << pick("page", 6))),
		parquet.WithBatchSize(int64(1 + pick("batch", 64))),
		parquet.WithPageIndexEnabled(pick("index", 4) > 0),
		parquet.WithStats(pick("stats", 4) > 0),
		parquet.WithMaxRowGroupLength(int64(100 + pick("group", 600))),
		parquet.WithDictionaryDefault(pick("dict", 2) > 0),
		parquet.WithDictionaryPageSizeLimit(int64(64 << pick("dictsize", 8))),
		parquet.WithCompression([]compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Snappy, compress.Codecs.Zstd,
			compress.Codecs.Gzip, compress.Codecs.Lz4Raw, compress.Codecs.Brotli}[pick("codec", 6)]),
		parquet.WithDataPageVersion(parquet.DataPageV1),
	}
	if pick("v2", 2) > 0 {
		props = append(props, parquet.WithDataPageVersion(parquet.DataPageV2))
	}
	if pick("bloom", 2) > 0 {
		props = append(props, parquet.WithBloomFilterEnabledFor("i32", true), parquet.WithBloomFilterEnabledFor("str", true),
			parquet.WithBloomFilterEnabledFor("u64", true), parquet.WithBloomFilterEnabledFor("f64", true))
	}
	if pick("encodings", 2) > 0 {
		props = append(props, parquet.WithDictionaryDefault(false),
			parquet.WithEncodingFor("id", parquet.Encodings.DeltaBinaryPacked),
			parquet.WithEncodingFor("i32", parquet.Encodings.DeltaBinaryPacked),
			parquet.WithEncodingFor("ts", parquet.Encodings.ByteStreamSplit),
			parquet.WithEncodingFor("f64", parquet.Encodings.ByteStreamSplit),
			parquet.WithEncodingFor("str", parquet.Encodings.DeltaByteArray),
			parquet.WithEncodingFor("st.y", parquet.Encodings.DeltaLengthByteArray))
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pqarrow.NewFileWriter(rec.Schema(), f, parquet.NewWriterProperties(props...), pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteBuffered(rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return what
}

var seedsFlag = flag.Int("seeds", 5, "seeds of TestScansEqualBruteForce")

// holds judges a term as it should be, on row r.
func holds(term *driver.Term, a arrow.Array, r int) bool {
	switch {
	case term.Op == driver.IsNull:
		return a.IsNull(r)
	case a.IsNull(r):
		return false
	case term.Op == driver.NotNull:
		return true
	}
	var less, equal func(v any) bool
	switch a := a.(type) {
	case *array.Int64:
		less, equal = func(v any) bool { return a.Value(r) < v.(int64) }, func(v any) bool { return a.Value(r) == v.(int64) }
	case *array.Int32:
		less, equal = func(v any) bool { return int64(a.Value(r)) < v.(int64) }, func(v any) bool { return int64(a.Value(r)) == v.(int64) }
	case *array.Date32:
		less, equal = func(v any) bool { return int64(a.Value(r)) < v.(int64) }, func(v any) bool { return int64(a.Value(r)) == v.(int64) }
	case *array.Timestamp:
		less, equal = func(v any) bool { return int64(a.Value(r)) < v.(int64) }, func(v any) bool { return int64(a.Value(r)) == v.(int64) }
	case *array.Uint64:
		less, equal = func(v any) bool { return a.Value(r) < v.(uint64) }, func(v any) bool { return a.Value(r) == v.(uint64) }
	case *array.Float64:
		less, equal = func(v any) bool { return a.Value(r) < v.(float64) }, func(v any) bool { return a.Value(r) == v.(float64) }
		if math.IsNaN(a.Value(r)) {
			return term.Op == driver.Ne
		}
	case *array.Float32:
		less, equal = func(v any) bool { return float64(a.Value(r)) < v.(float64) }, func(v any) bool { return float64(a.Value(r)) == v.(float64) }
		if a.Value(r) != a.Value(r) {
			return term.Op == driver.Ne
		}
	case *array.String:
		less, equal = func(v any) bool { return a.Value(r) < v.(string) }, func(v any) bool { return a.Value(r) == v.(string) }
	case *array.Boolean:
		less, equal = func(v any) bool { return !a.Value(r) && v.(bool) }, func(v any) bool { return a.Value(r) == v.(bool) }
	}
	switch v := term.Values; term.Op {
	case driver.Eq:
		return equal(v[0])
	case driver.Ne:
		return !equal(v[0])
	case driver.Lt:
		return less(v[0])
	case driver.Le:
		return less(v[0]) || equal(v[0])
	case driver.Gt:
		return !less(v[0]) && !equal(v[0])
	case driver.Ge:
		return !less(v[0])
	default:
		return slices.ContainsFunc(v, equal)
	}
}

func randomTerm(rng *rand.Rand, rows int) driver.Term {
	f := propSchema.Field(rng.IntN(9))
	term := driver.Term{Column: f.Name, Op: driver.Op(rng.IntN(9))}
	lit := func() any {
		base := rng.IntN(44) - 2
		switch f.Name {
		case "id":
			return int64(rng.IntN(rows+10) - 5)
		case "i32":
			return int64(base - 20)
		case "u64":
			return uint64(max(base, 0)) + uint64(rng.IntN(2))<<63
		case "f64":
			return []float64{float64(base) / 4, 0, math.Copysign(0, -1), math.Inf(1)}[rng.IntN(4)]
		case "f32":
			return float64(base)
		case "str":
			return fmt.Sprintf("%0*d", 1+rng.IntN(2)*100, max(base, 0))
		case "ok":
			return rng.IntN(2) == 0
		case "day":
			return int64(base * 100)
		}
		return int64(base) * 1e9
	}
	switch term.Op {
	case driver.IsNull, driver.NotNull:
	case driver.In:
		for range 1 + rng.IntN(3) {
			term.Values = append(term.Values, lit())
		}
	default:
		term.Values = []any{lit()}
	}
	return term
}

// TestScansEqualBruteForce: whatever columns, predicate, limit, first row and
// batch size are asked for, the rows are those that were written, at the right
// places, and none that matches is missing.
func TestScansEqualBruteForce(t *testing.T) {
	seeds := *seedsFlag
	var pruned, rowsRead int64
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 99))
		rec := propRows(rng, 200+rng.IntN(1500))
		path := filepath.Join(t.TempDir(), "f.parquet")
		what := writeVariant(t, path, rng, rec)
		want := make([][]string, rec.NumCols())
		for c := range want {
			want[c] = text(rec.Column(c))
		}
		dict := Dictionary{All: rng.IntN(2) == 0}
		what += fmt.Sprintf("as dictionaries: %t", dict.All)
		tab := mustOpen(t, &Options{Dictionary: dict}, path)
		for try := range 6 {
			o := driver.ScanOptions{
				BatchRows: 1 + rng.IntN(400), BatchBytes: int64(1 << (8 + rng.IntN(16))), Alloc: memtest.New(t), Stats: new(driver.ScanStats),
				Gaps: rng.IntN(2) == 0,
			}
			for range rng.IntN(3) {
				o.Predicate = append(o.Predicate, randomTerm(rng, int(rec.NumRows())))
			}
			if rng.IntN(2) == 0 {
				o.Columns = []string{}
				for _, i := range rng.Perm(propSchema.NumFields())[:rng.IntN(5)] {
					o.Columns = append(o.Columns, propSchema.Field(i).Name)
				}
			}
			if rng.IntN(3) == 0 {
				o.FromRow = int64(rng.IntN(400))
			}
			if rng.IntN(3) == 0 {
				o.Limit = int64(1 + rng.IntN(300))
			}
			name := fmt.Sprintf("seed %d, try %d: %s, columns %q where %v from %d limit %d, batches of %d rows %d bytes, gaps %t",
				seed, try, what, o.Columns, o.Predicate, o.FromRow, o.Limit, o.BatchRows, o.BatchBytes, o.Gaps)
			keep, err := tab.(driver.Pruner).Keep(t.Context(), o.Predicate)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			first := int64(0)
			for i, s := range tab.Splits() {
				got := make([]bool, s.Rows)
				var cuts []int64
				check := func(b driver.Batch) {
					cuts = append(cuts, b.Row, b.Record.NumRows())
					at := func(r int64) int64 {
						if b.Rows != nil {
							return b.Rows[r]
						}
						return b.Row + r
					}
					if b.Record.NumRows() > int64(o.BatchRows) {
						t.Errorf("%s: a batch of %d rows", name, b.Record.NumRows())
					}
					for c, a := range b.Record.Columns() {
						f := propSchema.FieldIndices(b.Record.ColumnName(c))[0]
						u := undone(t, a)
						defer u.Release()
						for r, v := range text(u) {
							if w := want[f][first+at(int64(r))]; v != w {
								t.Fatalf("%s: split %d, row %d, column %q: %s, want %s", name, i, at(int64(r)), propSchema.Field(f).Name, v, w)
							}
						}
					}
					for r := range b.Record.NumRows() {
						if got[at(r)] {
							t.Fatalf("%s: split %d, row %d twice", name, i, at(r))
						}
						got[at(r)] = true
					}
				}
				if err := readAll(t.Context(), tab, i, &o, check); err != nil {
					t.Fatalf("%s: split %d: %v", name, i, err)
				}
				again := cuts
				cuts = nil
				clear(got)
				if err := readAll(t.Context(), tab, i, &o, check); err != nil || !slices.Equal(cuts, again) {
					t.Fatalf("%s: a second pass has other batches: %v, %v (%v)", name, cuts, again, err)
				}
				var matches int64
				for r := range s.Rows {
					match := r >= o.FromRow
					for k := range o.Predicate {
						c := propSchema.FieldIndices(o.Predicate[k].Column)[0]
						match = match && holds(&o.Predicate[k], rec.Column(c), int(first+r))
					}
					if match {
						if matches++; (o.Limit == 0 || matches <= o.Limit) && !got[r] {
							t.Fatalf("%s: split %d, row %d is missing (kept %v)", name, i, r, keep[i])
						}
					}
				}
				if !keep[i] && (matches > 0 || len(cuts) > 0) {
					t.Fatalf("%s: split %d is pruned, %d rows match, %d are read", name, i, matches, len(cuts)/2)
				}
				first += s.Rows
			}
			pruned += o.Stats.Pruned.Load()
			rowsRead += o.Stats.Rows.Load()
		}
		rec.Release()
	}
	t.Logf("%d rows read, %d pruned", rowsRead, pruned)
	if pruned == 0 {
		t.Error("nothing is pruned: the test does not test")
	}
}
