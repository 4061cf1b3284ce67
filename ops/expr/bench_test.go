package expr

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

const benchRows = 64 << 10

// recycler hands freed memory out again, as the pooled memory of a run does: what
// is measured is kernels, not page faults.
type recycler map[int][][]byte

func (r recycler) Allocate(n int) []byte {
	if free := r[n]; len(free) > 0 {
		r[n] = free[:len(free)-1]
		return free[len(free)-1]
	}
	return memory.DefaultAllocator.Allocate(n)
}

func (r recycler) Reallocate(n int, b []byte) []byte {
	out := r.Allocate(n)
	copy(out, b)
	r.Free(b)
	return out
}

func (r recycler) Free(b []byte) { r[len(b)] = append(r[len(b)], b) }

// benchBatch has columns a and b of each number type, with or without nulls, and
// a string column s.
func benchBatch(nulls bool) arrow.RecordBatch {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "i64", Type: arrow.PrimitiveTypes.Int64}, {Name: "j64", Type: arrow.PrimitiveTypes.Int64},
		{Name: "i32", Type: arrow.PrimitiveTypes.Int32}, {Name: "f64", Type: arrow.PrimitiveTypes.Float64},
		{Name: "g64", Type: arrow.PrimitiveTypes.Float64}, {Name: "f32", Type: arrow.PrimitiveTypes.Float32}, {Name: "s", Type: arrow.BinaryTypes.String},
		{Name: "ts", Type: &arrow.TimestampType{Unit: arrow.Microsecond}},
	}, nil)
	r := rand.New(rand.NewPCG(1, 2))
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for i, f := range schema.Fields() {
		for range benchRows {
			v := r.IntN(1000) + 1
			switch fb := b.Field(i).(type) {
			case *array.Int64Builder:
				fb.Append(int64(v))
			case *array.Int32Builder:
				fb.Append(int32(v))
			case *array.Float64Builder:
				fb.Append(float64(v))
			case *array.Float32Builder:
				fb.Append(float32(v))
			case *array.StringBuilder:
				fb.Append(fmt.Sprintf("customer number %d", v))
			case *array.TimestampBuilder:
				fb.Append(arrow.Timestamp(int64(v) * 1e12))
			default:
				panic(f.Type)
			}
		}
	}
	rec := b.NewRecordBatch()
	if !nulls {
		return rec
	}
	cols := make([]arrow.Array, rec.NumCols())
	for i, c := range rec.Columns() {
		buf, bits := allocBits(memory.DefaultAllocator, benchRows)
		for k := range bits {
			bits[k] = r.Uint64() | r.Uint64() | r.Uint64()
		}
		bufs := append([]*memory.Buffer{buf}, c.Data().Buffers()[1:]...)
		cols[i] = array.MakeFromData(array.NewData(c.DataType(), benchRows, bufs, nil, array.UnknownNullCount, 0))
	}
	return array.NewRecordBatch(schema, cols, benchRows)
}

// benchEval reports bytes of the columns read.
func benchEval(b *testing.B, rec arrow.RecordBatch, text string) {
	e := MustParse(text)
	p, err := e.Bind(rec.Schema(), 0)
	if err != nil {
		b.Fatal(err)
	}
	size := int64(0)
	for _, c := range e.Columns() {
		for _, buf := range rec.Column(rec.Schema().FieldIndices(c)[0]).Data().Buffers()[1:] {
			size += int64(buf.Len())
		}
	}
	b.SetBytes(size)
	b.ReportAllocs()
	mem := recycler{}
	for b.Loop() {
		arr, err := p.Eval(rec, nil, mem)
		if err != nil {
			b.Fatal(err)
		}
		arr.Release()
	}
}

func benchAll(b *testing.B, texts ...string) {
	for _, nulls := range []bool{false, true} {
		rec := benchBatch(nulls)
		for _, t := range texts {
			b.Run(fmt.Sprintf("nulls=%t/%s", nulls, t), func(b *testing.B) { benchEval(b, rec, t) })
		}
	}
}

func BenchmarkArith(b *testing.B) {
	benchAll(b, "f64 + g64", "f64 * 2.5", "f64 / g64", "f32 * 2.5", "i64 + j64", "i64 * j64", "i32 + 1", "i64 / j64", "sqrt(f64)", "log1p(f64)", "f64 / g64 * 2.0 + f64", "i32 + f64")
}

func BenchmarkCompare(b *testing.B) {
	benchAll(b, "f64 > 500", "f64 < g64", "i64 == j64", "i32 <= 500", "f32 > 500.0", "i64 > f64", `s == "customer number 5"`, `s < "customer number 5"`, "f64 > 0 && g64 < 100", "i64 in [1, 2, 3]", "i64 in [1,2,3,4,5,6,7,8,9,10]")
}

func BenchmarkFunctions(b *testing.B) {
	benchAll(b, `s.contains("77")`, `s.startsWith("customer number 7")`, "upper(s)", "substr(s, 9)", `s + "x"`, "size(s)", "string(i64)", "int(f64)", "year(ts)", "f64 > 500 ? f64 : g64", "coalesce(f64, g64)", "hash(i64)", "hash(s)", "random()", "clip(f64, 10, 20)", "is_null(f64)")
}

// BenchmarkFilter filters a batch of three columns; bytes are those of the input.
func BenchmarkFilter(b *testing.B) {
	for _, nulls := range []bool{false, true} {
		all := benchBatch(nulls)
		for _, cols := range [][]string{{"i64", "f64", "f32"}, {"s"}} {
			var arrs []arrow.Array
			var fields []arrow.Field
			size := int64(0)
			for _, c := range cols {
				i := all.Schema().FieldIndices(c)[0]
				fields = append(fields, all.Schema().Field(i))
				arrs = append(arrs, all.Column(i))
				for _, buf := range all.Column(i).Data().Buffers()[1:] {
					size += int64(buf.Len())
				}
			}
			rec := array.NewRecordBatch(arrow.NewSchema(fields, nil), arrs, benchRows)
			for _, percent := range []int{1, 50, 99} {
				mb := array.NewBooleanBuilder(memory.DefaultAllocator)
				r := rand.New(rand.NewPCG(3, 4))
				for range benchRows {
					mb.Append(r.IntN(100) < percent)
				}
				mask := mb.NewBooleanArray()
				b.Run(fmt.Sprintf("nulls=%t/%s/%d%%", nulls, cols[0], percent), func(b *testing.B) {
					b.SetBytes(size)
					b.ReportAllocs()
					mem := recycler{}
					for b.Loop() {
						out, err := Filter(rec, Select(mask), mem)
						if err != nil {
							b.Fatal(err)
						}
						out.Release()
					}
				})
			}
		}
	}
}

func BenchmarkParseBind(b *testing.B) {
	rec := benchBatch(false)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := MustParse("f64 > 0 && i64 < 100 && s in [\"a\", \"b\"]").Bind(rec.Schema(), 0); err != nil {
			b.Fatal(err)
		}
	}
}
