package gather

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

// Values returns the rows of a dictionary array as an array of their values, which the caller owns.
// Strings beyond what 32-bit offsets can name are an Exhausted error, indices beyond the dictionary a Corrupt
// one. (compute.Take fails on allocators that give more than they were asked for.)
func Values(alloc memory.Allocator, d *array.Dictionary) (arrow.Array, error) {
	runs := make([]Run, d.Len())
	var ok bool
	switch x := d.Indices().(type) {
	case *array.Int8:
		ok = entries(runs, x.Int8Values(), d)
	case *array.Int16:
		ok = entries(runs, x.Int16Values(), d)
	case *array.Int32:
		ok = entries(runs, x.Int32Values(), d)
	case *array.Int64:
		ok = entries(runs, x.Int64Values(), d)
	case *array.Uint8:
		ok = entries(runs, x.Uint8Values(), d)
	case *array.Uint16:
		ok = entries(runs, x.Uint16Values(), d)
	case *array.Uint32:
		ok = entries(runs, x.Uint32Values(), d)
	case *array.Uint64:
		ok = entries(runs, x.Uint64Values(), d)
	}
	if !ok {
		return nil, fault.New(fault.Corrupt, "an index beyond the %d values of its dictionary", d.Dictionary().Len())
	}
	cols := []arrow.Array{d.Dictionary()}
	if d.NullN() > 0 {
		b := array.NewBuilder(memory.DefaultAllocator, d.Dictionary().DataType())
		b.AppendNull()
		null := b.NewArray()
		b.Release()
		defer null.Release()
		cols = append(cols, null)
	}
	return Column(alloc, cols, runs)
}

// entries makes of each row the run of its entry, or of record 1, which is null.
func entries[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64](runs []Run, idx []T, d *array.Dictionary) bool {
	n, nulls := uint64(d.Dictionary().Len()), d.NullN() > 0
	for i, x := range idx {
		switch {
		case nulls && d.IsNull(i):
			runs[i] = Run{1, 0, 1}
		case uint64(x) >= n:
			return false
		default:
			runs[i] = Run{0, int32(x), 1}
		}
	}
	return true
}
