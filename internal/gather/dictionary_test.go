package gather

import (
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

var indexTypes = []arrow.DataType{
	arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
	arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64,
}

// index makes indices into a dictionary; -1 is null.
func index(t arrow.DataType, at []int64) arrow.Array {
	b := array.NewBuilder(memory.DefaultAllocator, t)
	defer b.Release()
	for _, x := range at {
		if x < 0 {
			b.AppendNull()
			continue
		}
		switch b := b.(type) {
		case *array.Int8Builder:
			b.Append(int8(x))
		case *array.Int16Builder:
			b.Append(int16(x))
		case *array.Int32Builder:
			b.Append(int32(x))
		case *array.Int64Builder:
			b.Append(x)
		case *array.Uint8Builder:
			b.Append(uint8(x))
		case *array.Uint16Builder:
			b.Append(uint16(x))
		case *array.Uint32Builder:
			b.Append(uint32(x))
		case *array.Uint64Builder:
			b.Append(uint64(x))
		}
	}
	return b.NewArray()
}

// TestValues: a row has the value of its entry, whatever the types, in slices, with nulls among
// indices and entries, of dictionaries without entries.
func TestValues(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 3))
		vt := randomType(rng, 2)
		if vt.ID() == arrow.DICTIONARY {
			continue
		}
		it := indexTypes[rng.IntN(len(indexTypes))]
		dict := randomArray(rng, memory.DefaultAllocator, vt, rng.IntN(2)*rng.IntN(60))
		nulls := rng.IntN(3)
		at := make([]int64, rng.IntN(100))
		for i := range at {
			at[i] = -1
			if dict.Len() > 0 && rng.IntN(3) >= nulls {
				at[i] = rng.Int64N(int64(dict.Len()))
			}
		}
		idx := index(it, at)
		d := array.NewDictionaryArray(&arrow.DictionaryType{IndexType: it, ValueType: vt}, idx, dict)
		from := rng.IntN(len(at) + 1)
		s := array.NewSlice(d, int64(from), int64(len(at))).(*array.Dictionary)
		alloc := memtest.New(t)
		got, err := Values(alloc, s)
		if err != nil {
			t.Fatalf("seed %d, %v of %v: %v", seed, it, vt, err)
		}
		if got.Len() != len(at)-from || !arrow.TypeEqual(got.DataType(), vt) {
			t.Fatalf("seed %d: %d rows of %v, want %d of %v", seed, got.Len(), got.DataType(), len(at)-from, vt)
		}
		for i, x := range at[from:] {
			if x < 0 {
				if vt.ID() != arrow.NULL && got.IsValid(i) {
					t.Fatalf("seed %d, %v: row %d is not null", seed, vt, i)
				}
			} else if !array.SliceEqual(got, int64(i), int64(i+1), dict, x, x+1) {
				t.Fatalf("seed %d, %v: row %d is %s, want %s", seed, vt, i, got.ValueStr(i), dict.ValueStr(int(x)))
			}
		}
		got.Release()
		alloc.AssertSize(t, 0)
	}
}

// TestValuesRefuses indices that have no entry.
func TestValuesRefuses(t *testing.T) {
	dict := index(arrow.PrimitiveTypes.Int64, []int64{5, 6})
	for _, at := range [][]int64{{0, 1, 2}, {-1, 2}} {
		d := array.NewDictionaryArray(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.PrimitiveTypes.Int64}, index(arrow.PrimitiveTypes.Int8, at), dict)
		if a, err := Values(memory.DefaultAllocator, d); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%v: %v, %v", at, a, err)
		}
	}
}
