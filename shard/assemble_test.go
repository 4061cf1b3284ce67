package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

var testSchema = arrow.NewSchema([]arrow.Field{
	{Name: "i", Type: arrow.PrimitiveTypes.Int32},
	{Name: "f", Type: arrow.PrimitiveTypes.Float64},
	{Name: "b", Type: arrow.FixedWidthTypes.Boolean},
	{Name: "v", Type: arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32)},
}, nil)

// block makes rows from, from+1, ... of a table that is a function of the row; cut
// makes it a slice with an offset.
func block(alloc memory.Allocator, from, n int, cut int) *exec.Block {
	b := array.NewRecordBuilder(alloc, testSchema)
	defer b.Release()
	for i := from - cut; i < from+n; i++ {
		b.Field(0).(*array.Int32Builder).Append(int32(i))
		b.Field(1).(*array.Float64Builder).Append(float64(i) / 3)
		b.Field(2).(*array.BooleanBuilder).Append(i%3 == 0)
		l := b.Field(3).(*array.FixedSizeListBuilder)
		l.Append(true)
		for k := range 3 {
			l.ValueBuilder().(*array.Float32Builder).Append(float32(i*10 + k))
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	return &exec.Block{Batch: rec.NewSlice(int64(cut), int64(cut+n))}
}

// Random blocks give batches of exactly the asked size, with the rows in order
// and the values right, in both forms.
func TestAssemble(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, tensors := range []bool{false, true} {
		for range 200 {
			rows := 1 + rng.IntN(50)
			t.Run(fmt.Sprintf("tensors=%v/rows=%d", tensors, rows), func(t *testing.T) {
				t.Logf("seed %d", seed)
				alloc := memtest.New(t)
				o := AssembleOptions{Rows: rows, Form: Form{Tensors: tensors}}
				if tensors {
					o.Form.Columns = map[string]Column{"i": {DType: Float32}, "f": {DType: Float32}, "b": {DType: Int64}, "v": {DType: Float64}}
				}
				a, err := NewAssembler(testSchema, o, alloc)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				total, seen := 0, 0
				check := func(b *Batch, want int) {
					if b.Rows() != want {
						t.Fatalf("batch of %d rows, want %d", b.Rows(), want)
					}
					for k := range b.Rows() {
						i := seen + k
						if tensors {
							x, _ := b.Tensor("i")
							f, _ := b.Tensor("f")
							y, _ := b.Tensor("b")
							v, _ := b.Tensor("v")
							flag := int64(0)
							if i%3 == 0 {
								flag = 1
							}
							if Values[float32](x)[k] != float32(i) || Values[float32](f)[k] != float32(float64(i)/3) || Values[int64](y)[k] != flag ||
								Values[float64](v)[3*k+2] != float64(i*10+2) || v.Shape[1] != 3 {
								t.Fatalf("row %d is wrong", i)
							}
						} else if got := b.Record().Column(0).(*array.Int32).Value(k); got != int32(i) {
							t.Fatalf("row %d is %d", i, got)
						}
					}
					seen += b.Rows()
					b.Release()
				}
				for range rng.IntN(8) {
					n := rng.IntN(80)
					a.Add(block(alloc, total, n, rng.IntN(9)))
					total += n
					for {
						b, err := a.Next(false)
						if err != nil {
							t.Fatal(err)
						}
						if b == nil {
							break
						}
						check(b, rows)
					}
				}
				if rng.IntN(2) == 0 {
					return // early stop: Close must free the rest
				}
				b, err := a.Next(true)
				if err != nil {
					t.Fatal(err)
				}
				if b != nil {
					check(b, total-seen)
				}
				if seen != total {
					t.Fatalf("%d of %d rows", seen, total)
				}
			})
		}
	}
}

func TestAssembleRefuses(t *testing.T) {
	text := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	for _, c := range []struct {
		schema *arrow.Schema
		o      AssembleOptions
	}{
		{testSchema, AssembleOptions{Rows: 0}},
		{testSchema, AssembleOptions{Rows: 1, Form: Form{Columns: map[string]Column{"i": {DType: Float32}}}}},
		{testSchema, AssembleOptions{Rows: 1, Form: Form{Tensors: true, Columns: map[string]Column{"nix": {DType: Float32}}}}},
		{text, AssembleOptions{Rows: 1, Form: Form{Tensors: true}}},
	} {
		if _, err := NewAssembler(c.schema, c.o, memory.DefaultAllocator); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%v: %v", c.o, err)
		}
	}
}

func TestNullHasNoTensor(t *testing.T) {
	alloc := memtest.New(t)
	s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.PrimitiveTypes.Int32, Nullable: true}}, nil)
	b := array.NewRecordBuilder(alloc, s)
	defer b.Release()
	b.Field(0).AppendNull()
	a, err := NewAssembler(s, AssembleOptions{Rows: 1, Form: Form{Tensors: true}}, alloc)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	a.Add(&exec.Block{Batch: b.NewRecordBatch()})
	if _, err := a.Next(true); fault.CodeOf(err) != fault.RowError || fault.PlaceOf(err).Column != "x" {
		t.Fatalf("error %v", err)
	}
}

// Integers and floats that an integer dtype cannot hold are errors that name the
// value; limits themselves pass.
func TestCastLimits(t *testing.T) {
	alloc := memtest.New(t)
	for _, c := range []struct {
		value any
		to    DType
		want  any // nil: an error
	}{
		{int64(127), Int8, int8(127)}, {int64(128), Int8, nil}, {int64(-128), Int8, int8(-128)}, {int64(-129), Int8, nil},
		{int64(-1), Uint8, nil}, {int64(255), Uint8, uint8(255)}, {int64(-1), Uint64, nil}, {int64(math.MaxInt64), Uint64, uint64(math.MaxInt64)},
		{uint64(math.MaxUint64), Int64, nil}, {uint64(math.MaxInt64), Int64, int64(math.MaxInt64)},
		{math.NaN(), Int32, nil}, {math.Inf(1), Int64, nil}, {1e10, Int32, nil}, {-2147483648.9, Int32, int32(math.MinInt32)}, {2147483648.0, Int32, nil},
		{2147483647.9, Int32, int32(math.MaxInt32)}, {9223372036854775808.0, Int64, nil}, {-9223372036854775808.0, Int64, int64(math.MinInt64)},
		{-0.9, Uint8, uint8(0)}, {-1.0, Uint8, nil}, {255.5, Uint8, uint8(255)}, {256.0, Uint8, nil}, {18446744073709551616.0, Uint64, nil},
		{1e300, Float32, float32(math.Inf(1))},
	} {
		var b array.Builder
		switch v := c.value.(type) {
		case int64:
			b = array.NewInt64Builder(alloc)
			b.(*array.Int64Builder).Append(v)
		case uint64:
			b = array.NewUint64Builder(alloc)
			b.(*array.Uint64Builder).Append(v)
		case float64:
			b = array.NewFloat64Builder(alloc)
			b.(*array.Float64Builder).Append(v)
		}
		col := b.NewArray()
		b.Release()
		s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: col.DataType()}}, nil)
		a, err := NewAssembler(s, AssembleOptions{Rows: 1, Form: Form{Tensors: true, Columns: map[string]Column{"x": {DType: c.to}}}}, alloc)
		if err != nil {
			t.Fatal(err)
		}
		a.Add(&exec.Block{Batch: array.NewRecordBatch(s, []arrow.Array{col}, 1)})
		col.Release()
		batch, err := a.Next(true)
		if c.want == nil {
			if fault.CodeOf(err) != fault.RowError || fault.PlaceOf(err).Column != "x" {
				t.Errorf("%v to %v: %v", c.value, c.to, err)
			}
			a.Close()
			continue
		}
		if err != nil {
			t.Errorf("%v to %v: %v", c.value, c.to, err)
			a.Close()
			continue
		}
		x, _ := batch.Tensor("x")
		var got any
		switch c.to {
		case Int8:
			got = Values[int8](x)[0]
		case Int32:
			got = Values[int32](x)[0]
		case Int64:
			got = Values[int64](x)[0]
		case Uint8:
			got = Values[uint8](x)[0]
		case Uint64:
			got = Values[uint64](x)[0]
		case Float32:
			got = Values[float32](x)[0]
		}
		if got != c.want {
			t.Errorf("%v to %v: %v, want %v", c.value, c.to, got, c.want)
		}
		batch.Release()
		a.Close()
	}
}

func BenchmarkAssembleFloat32(b *testing.B) {
	a, err := NewAssembler(testSchema, AssembleOptions{Rows: 1024, Form: Form{Tensors: true,
		Columns: map[string]Column{"i": {}, "f": {DType: Float32}, "b": {}, "v": {}}}}, memory.DefaultAllocator)
	if err != nil {
		b.Fatal(err)
	}
	src := block(memory.DefaultAllocator, 0, 16384, 0)
	b.ReportAllocs()
	b.SetBytes(16384 * (4 + 8 + 12))
	for b.Loop() {
		src.Batch.Retain()
		a.Add(&exec.Block{Batch: src.Batch})
		for {
			batch, err := a.Next(false)
			if err != nil {
				b.Fatal(err)
			}
			if batch == nil {
				break
			}
			batch.Release()
		}
	}
}
