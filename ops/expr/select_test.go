package expr

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/memtest"
)

var selectable = func() []arrow.DataType {
	p := arrow.PrimitiveTypes
	flat := []arrow.DataType{boolType, p.Int8, p.Uint16, p.Float32, p.Int64, arrow.BinaryTypes.String, arrow.BinaryTypes.LargeBinary,
		&arrow.Decimal128Type{Precision: 30, Scale: 2}, &arrow.FixedSizeBinaryType{ByteWidth: 3}}
	all := flat
	for _, t := range flat {
		all = append(all, arrow.ListOf(t), arrow.LargeListOf(t), arrow.FixedSizeListOf(3, t))
	}
	deep := arrow.StructOf(arrow.Field{Name: "a", Type: arrow.ListOf(p.Float32), Nullable: true}, arrow.Field{Name: "b", Type: arrow.BinaryTypes.String, Nullable: true})
	return append(all, deep, arrow.ListOf(deep), arrow.ListOf(arrow.ListOf(p.Int64)), arrow.FixedSizeListOf(2, arrow.LargeListOf(arrow.BinaryTypes.String)),
		&arrow.DictionaryType{IndexType: p.Int16, ValueType: arrow.BinaryTypes.String})
}()

// addRandom appends a value, null with probability nulls.
func addRandom(r *rand.Rand, b array.Builder, nulls float64) {
	if r.Float64() < nulls {
		b.AppendNull()
		return
	}
	text := strings.Repeat(fmt.Sprint(r.IntN(9)), r.IntN(40)>>r.IntN(4))
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(r.IntN(2) == 0)
	case *array.Int8Builder:
		b.Append(int8(r.Int64()))
	case *array.Uint16Builder:
		b.Append(uint16(r.Int64()))
	case *array.Float32Builder:
		b.Append(r.Float32())
	case *array.Int64Builder:
		b.Append(r.Int64())
	case *array.StringBuilder:
		b.Append(text)
	case *array.BinaryBuilder:
		b.Append([]byte(text))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(r.Int64()))
	case *array.FixedSizeBinaryBuilder:
		b.Append([]byte(fmt.Sprintf("%03d", r.IntN(1000))))
	case *array.BinaryDictionaryBuilder:
		if err := b.AppendString(text[:min(len(text), 2)]); err != nil {
			panic(err)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			addRandom(r, b.FieldBuilder(i), nulls)
		}
	case array.ListLikeBuilder:
		n := r.IntN(5)
		if f, ok := b.Type().(*arrow.FixedSizeListType); ok {
			n = int(f.Len())
		}
		b.Append(true)
		for range n {
			addRandom(r, b.ValueBuilder(), nulls)
		}
	default:
		panic(b.Type())
	}
}

func randomMask(r *rand.Rand, n int, mem memory.Allocator) *array.Boolean {
	b := array.NewBooleanBuilder(mem)
	defer b.Release()
	p, runs, nulls := r.Float64(), r.IntN(3) == 0, float64(r.IntN(2))*0.1
	if r.IntN(4) == 0 {
		p *= 0.05
	}
	last := false
	for range n + 5 {
		if !runs || r.IntN(20) == 0 {
			last = r.Float64() < p
		}
		if r.Float64() < nulls {
			b.AppendNull()
		} else {
			b.Append(last)
		}
	}
	all := b.NewBooleanArray()
	defer all.Release()
	return array.NewSlice(all, 5, int64(n+5)).(*array.Boolean)
}

// TestFilterAgainstArrow compares every type, cut anywhere, with the filter of Arrow's compute.
func TestFilterAgainstArrow(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	ctx := context.Background()
	for _, typ := range selectable {
		for range 12 {
			mem := memtest.New(t)
			n, skip := r.IntN(400), r.IntN(70)
			b := array.NewBuilder(mem, typ)
			nulls := float64(r.IntN(2)) * 0.2
			for range n + skip + 3 {
				addRandom(r, b, nulls)
			}
			whole := b.NewArray()
			b.Release()
			col := array.NewSlice(whole, int64(skip), int64(skip+n))
			whole.Release()
			mask := randomMask(r, n, mem)
			rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "x", Type: typ, Nullable: true}}, nil), []arrow.Array{col}, int64(n))
			col.Release()
			sel := Select(mask)
			got, err := Filter(rec, sel, mem)
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed, typ, err)
			}
			opts := compute.DefaultFilterOptions()
			want, err := compute.FilterRecordBatch(compute.WithAllocator(ctx, memory.DefaultAllocator), rec, mask, opts)
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed, typ, err)
			}
			if got.NumRows() != int64(sel.Len()) || !array.RecordEqual(got, want) {
				t.Fatalf("seed %d: %s: %v\nwant %v\nrows %v", seed, typ, got, want, sel.Rows())
			}
			checkNulls(t, got.Column(0).Data())
			taken, err := Take(rec, sel.Rows(), mem)
			if err != nil || !array.RecordEqual(taken, want) {
				t.Fatalf("seed %d: %s: by index %v %v\nwant %v", seed, typ, taken, err, want)
			}
			for _, x := range []arrow.RecordBatch{taken, got, want, rec} {
				x.Release()
			}
			mask.Release()
		}
	}
}

// checkNulls counts the nulls that an array claims.
func checkNulls(t *testing.T, d arrow.ArrayData) {
	a := array.MakeFromData(d)
	defer a.Release()
	n := 0
	for i := range a.Len() {
		if a.IsNull(i) {
			n++
		}
	}
	if n != d.NullN() {
		t.Fatalf("%s has %d nulls and says %d", d.DataType(), n, d.NullN())
	}
	for _, c := range d.Children() {
		checkNulls(t, c)
	}
}

// BenchmarkFilterLists: bytes are those of the input.
func BenchmarkFilterLists(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	const rows = 8 << 10
	for _, typ := range []arrow.DataType{arrow.ListOf(arrow.PrimitiveTypes.Int32), arrow.FixedSizeListOf(64, arrow.PrimitiveTypes.Float32)} {
		bl := array.NewBuilder(memory.DefaultAllocator, typ).(array.ListLikeBuilder)
		for range rows {
			bl.Append(true)
			n := 64
			if typ.ID() == arrow.LIST {
				n = r.IntN(128)
			}
			for range n {
				addRandom32(r, bl.ValueBuilder())
			}
		}
		col := bl.NewArray()
		rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "x", Type: typ}}, nil), []arrow.Array{col}, rows)
		mb := array.NewBooleanBuilder(memory.DefaultAllocator)
		for range rows {
			mb.Append(r.IntN(100) < 41)
		}
		mask := mb.NewBooleanArray()
		b.Run(typ.ID().String(), func(b *testing.B) {
			b.SetBytes(int64(col.Data().Children()[0].Len() * 4))
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

func addRandom32(r *rand.Rand, b array.Builder) {
	switch b := b.(type) {
	case *array.Int32Builder:
		b.Append(r.Int32())
	case *array.Float32Builder:
		b.Append(r.Float32())
	}
}
