package parquetio

import (
	"math"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

const (
	dictBytes            = 1 << 20       // of a dictionary; beyond, values are plain
	dictLimit      int64 = dictBytes / 8 // entries of a dictionary of integers
	dictEntryBytes       = 48            // of arrow-go's hash tables, which are half empty
	sampleRows           = 8192
	minSample            = 256
	maxFirst             = 1 << 20 // bytes of rows that wait for more
)

// leafArrays appends the leaves of a, in the order of Parquet's columns.
func leafArrays(to []arrow.Array, a arrow.Array) []arrow.Array {
	switch a := a.(type) {
	case *array.Struct:
		for i := range a.NumField() {
			to = leafArrays(to, a.Field(i))
		}
		return to
	case *array.Map:
		return leafArrays(leafArrays(to, a.Keys()), a.Items())
	case array.ListLike:
		return leafArrays(to, a.ListValues())
	case array.ExtensionArray:
		return leafArrays(to, a.Storage())
	}
	return append(to, a)
}

// averageLength is the average bytes of a value of a leaf, 0 where they have a
// fixed width.
func averageLength(a arrow.Array) int64 {
	switch a := a.(type) {
	case *array.Dictionary:
		return averageLength(a.Dictionary())
	case interface { // text and binary
		Len() int
		ValueBytes() []byte
	}:
		if n := int64(a.Len()); n > 0 {
			return int64(len(a.ValueBytes())) / n
		}
	case *array.FixedSizeBinary:
		return int64(a.DataType().(*arrow.FixedSizeBinaryType).ByteWidth)
	}
	return 0
}

// encodedWidth is about the bytes of a value in a page, as plain encoding has it; text and binary have avg.
func encodedWidth(d *schema.Column, avg int64) float64 {
	switch d.PhysicalType() {
	case parquet.Types.Boolean:
		return 1.0 / 8
	case parquet.Types.Int32, parquet.Types.Float:
		return 4
	case parquet.Types.Int96:
		return 12
	case parquet.Types.FixedLenByteArray:
		return float64(d.TypeLength())
	case parquet.Types.ByteArray:
		return float64(4 + avg)
	}
	return 8
}

// expectedEntries is the most entries that the dictionary of a leaf may be
// expected to have, by its first rows; 0 if hardly a value occurs twice, and a
// dictionary would only cost: its hash table takes several times the values.
func expectedEntries(a arrow.Array) int64 {
	var values, distinct int
	n := min(a.Len(), sampleRows)
	switch a := a.(type) {
	case *array.Dictionary:
		return min(int64(a.Dictionary().Len()), dictLimit)
	case *array.String:
		values, distinct = count(a, n, a.Value)
	case *array.LargeString:
		values, distinct = count(a, n, a.Value)
	default:
		t, ok := a.DataType().(arrow.FixedWidthDataType)
		bufs := a.Data().Buffers()
		if !ok || len(bufs) < 2 || bufs[1] == nil {
			return dictLimit
		}
		off, b := a.Data().Offset(), bufs[1].Bytes()
		switch t.BitWidth() {
		case 32:
			v := arrow.Int32Traits.CastFromBytes(b)
			values, distinct = count(a, n, func(i int) int32 { return v[off+i] })
		case 64:
			v := arrow.Int64Traits.CastFromBytes(b)
			values, distinct = count(a, n, func(i int) int64 { return v[off+i] })
		default:
			return dictLimit
		}
	}
	switch {
	case values < minSample:
		return dictLimit
	case distinct >= values-values/16:
		return 0
	case distinct < values/2:
		return int64(2 * distinct)
	}
	return dictLimit
}

// count returns how many of the first n values of a are valid, and how many of those differ.
func count[T comparable](a arrow.Array, n int, value func(int) T) (values, distinct int) {
	seen := make(map[T]struct{}, n)
	for i := range n {
		if a.IsValid(i) {
			values++
			seen[value(i)] = struct{}{}
		}
	}
	return values, len(seen)
}

// bloomBytes is the size of a filter of n distinct values, of which 1 in 100 is
// wrongly found: 1.2 bytes each, rounded up to a power of two.
func bloomBytes(n int64) int64 {
	bytes := -float64(min(n, 1<<20)) / math.Log(1-math.Pow(0.01, 1.0/8))
	return min(max(int64(1)<<bits.Len64(uint64(bytes)), 1<<10), 1<<20)
}
