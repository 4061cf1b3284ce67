// Package rows keeps rows of fixed width packed: row-major, every field converted to what batches want, so that a
// shuffled batch is copies of whole rows, which one prefetch each brings from memory, in place of a load per value.
//
// A [Layout] says how a row looks. Whole windows are packed by streaming through their columns ([Layout.Pack]);
// batches are taken out of packed rows ([Layout.Take]). All element types and their conversions are here, too.
//
// A Layout is read only once made: any number of goroutines may use it at the same time.
package rows

import (
	"cmp"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/gather"
)

// Type is an element type. Values are little-endian.
type Type uint8

const (
	None Type = iota
	Bool      // one byte per value, 0 or 1
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float16
	BFloat16 // the upper half of a float32, rounded to nearest even
	Float32
	Float64
)

// Size is the bytes of one element.
func (t Type) Size() int { return int(sizes[t]) }

var sizes = [...]uint8{Bool: 1, Int8: 1, Int16: 2, Int32: 4, Int64: 8, Uint8: 1, Uint16: 2, Uint32: 4, Uint64: 8, Float16: 2, BFloat16: 2, Float32: 4, Float64: 8}

// Of maps an Arrow type to the element type of its values; None if it has none.
func Of(t arrow.DataType) Type {
	switch t.ID() {
	case arrow.BOOL:
		return Bool
	case arrow.INT8:
		return Int8
	case arrow.INT16:
		return Int16
	case arrow.INT32, arrow.DATE32, arrow.TIME32:
		return Int32
	case arrow.INT64, arrow.DATE64, arrow.TIME64, arrow.TIMESTAMP, arrow.DURATION:
		return Int64
	case arrow.UINT8:
		return Uint8
	case arrow.UINT16:
		return Uint16
	case arrow.UINT32:
		return Uint32
	case arrow.UINT64:
		return Uint64
	case arrow.FLOAT16:
		return Float16
	case arrow.FLOAT32:
		return Float32
	case arrow.FLOAT64:
		return Float64
	}
	return None
}

// Field is a column whose rows have Width values each, more than one of them as lists of a fixed size, of any
// depth. Values are multiplied by Scale (0 meaning 1) and Offset is added before the cast.
type Field struct {
	Column        int // in the records
	From, To      Type
	Width         int
	Scale, Offset float64
}

// scaled reports whether values change beside their type.
func (f *Field) scaled() bool { return f.Scale != 0 && f.Scale != 1 || f.Offset != 0 }

// total reports whether every value has one of type To: there is nothing that does not fit.
func (f *Field) total() bool {
	switch f.To {
	case Float16, BFloat16, Float32, Float64, Bool:
		return true
	}
	if f.scaled() || f.From >= Float16 {
		return f.From == f.To && !f.scaled()
	}
	signed := func(t Type) bool { return t >= Int8 && t <= Int64 }
	switch {
	case f.From == Bool || f.From == f.To:
		return true
	case signed(f.From) == signed(f.To):
		return f.From.Size() <= f.To.Size()
	}
	return signed(f.To) && f.From.Size() < f.To.Size()
}

// Layout is how a packed row looks.
type Layout struct {
	Size int  // bytes of a row
	Rest bool // batches have columns beside those of the layout: whoever packs rows keeps the records, too

	fields  []field
	tensors []tensor // in the order in which New was given them
	ints    [][2]int // fields of 4 bytes each that lie side by side: first one, and the one after the last
	outs    [][2]int // the same of tensors of 4 bytes that are taken out as they are; numbers of byAt
	byAt    []int32  // numbers of tensors as they lie in the row
	plain   bool     // all fields are what columns hold
	widest  int      // bytes of the largest field, as columns have it
	strip   int      // rows that are worked on at a time: what the fastest cache holds
}

// field is a part of a row.
type field struct {
	Field
	size      int     // bytes of a row's values, as the column has them
	at, bytes int     // where they are in the packed row, and how long
	conv      Convert // on the way into the row; nil where the bytes stay
}

// tensor is the part of a row that one tensor takes its item from.
type tensor struct {
	at, bytes    int
	first, limit int     // its fields
	out          int     // bytes of an item
	conv         Convert // on the way out of the row; nil where the bytes stay
}

// New lays out tensors of one field each, or of several of Width 1 and one type To, whose values stand side by
// side in an item. There must be one at least, and no Width may be 0.
//
// A value whose conversion makes it larger is kept as it comes, if every value can be converted, and converted
// on the way out: rows wait in memory.
func New(tensors [][]Field, rest bool) *Layout {
	l := &Layout{Rest: rest, plain: true, tensors: make([]tensor, len(tensors))}
	order := make([]int32, len(tensors))
	for i, fs := range tensors {
		order[i] = int32(i)
		t := &l.tensors[i]
		t.first = len(l.fields)
		kept := fs[0].To
		if f := &fs[0]; len(fs) == 1 && f.From.Size() < f.To.Size() && f.total() {
			kept = f.From
			t.conv = Converter(f.From, f.To, f.Scale, f.Offset)
		}
		for _, f := range fs {
			x := field{Field: f, size: f.Width * f.From.Size(), bytes: f.Width * kept.Size()}
			if kept == f.To && (f.From != f.To || f.scaled()) {
				x.conv = Converter(f.From, f.To, f.Scale, f.Offset)
			}
			l.plain = l.plain && x.conv == nil && f.From != Bool
			l.widest = max(l.widest, x.size)
			t.bytes += x.bytes
			t.out += f.Width * f.To.Size()
			l.fields = append(l.fields, x)
		}
		t.limit = len(l.fields)
	}
	// Widest elements first, so that all are aligned; tensors of many values last among their like, so that the
	// single ones lie side by side.
	element := func(i int32) int { return l.fields[l.tensors[i].first].kept() }
	slices.SortStableFunc(order, func(a, b int32) int {
		wide := func(i int32) int { return min(l.fields[l.tensors[i].first].Width, 2) }
		return cmp.Or(element(b)-element(a), wide(a)-wide(b))
	})
	l.byAt = order
	for _, i := range order {
		t := &l.tensors[i]
		t.at = l.Size
		for k := t.first; k < t.limit; k++ {
			l.fields[k].at = l.Size
			l.Size += l.fields[k].bytes
		}
	}
	if e := element(order[0]); l.Size%e > 0 {
		l.Size += e - l.Size%e
	}
	l.group()
	if l.strip = min(stripBytes/l.Size, maxStrip) &^ (block - 1); l.strip == 0 {
		l.strip = max(min(stripMost/l.Size, block), 1)
	}
	return l
}

// kept is the bytes of an element in the row.
func (f *field) kept() int { return f.bytes / f.Width }

const (
	stripBytes = 64 << 10  // of the rows of a strip
	stripMost  = 256 << 10 // the same, where it is to have as many rows as are transposed at a time
	maxStrip   = 512
)

// Tensors is the number of tensors.
func (l *Layout) Tensors() int { return len(l.tensors) }

// Bytes is the size of one item of tensor i.
func (l *Layout) Bytes(i int) int { return l.tensors[i].out }

// Whole reports whether the row is the item of the only tensor: packed rows are that tensor.
func (l *Layout) Whole() bool {
	return len(l.tensors) == 1 && l.tensors[0].conv == nil && l.tensors[0].out == l.Size
}

// group finds what lies side by side in units of 4 bytes.
func (l *Layout) group() {
	var fields []int // numbers of fields as they lie in the row
	for _, i := range l.byAt {
		for k := l.tensors[i].first; k < l.tensors[i].limit; k++ {
			fields = append(fields, k)
		}
	}
	sorted := make([]field, len(fields))
	at := make([]int, len(fields))
	for i, k := range fields {
		sorted[i] = l.fields[k]
		at[k] = i
	}
	l.fields = sorted
	for i := range l.tensors {
		t := &l.tensors[i]
		t.first, t.limit = at[t.first], at[t.limit-1]+1
	}
	l.ints = runsOf(len(l.fields), func(i int) bool { return l.fields[i].bytes == 4 })
	l.outs = runsOf(len(l.byAt), func(i int) bool {
		t := &l.tensors[l.byAt[i]]
		return t.bytes == 4 && t.conv == nil
	})
}

// runsOf are the ranges of numbers below n for which is holds.
func runsOf(n int, is func(int) bool) [][2]int {
	var out [][2]int
	for i := 0; i < n; i++ {
		k := i
		for i < n && is(i) {
			i++
		}
		if i > k {
			out = append(out, [2]int{k, i})
		}
	}
	return out
}

// scratch is what one call works in.
type scratch struct {
	leafs []leaf   // by field and used record
	vals  [][]byte // the same: values of row 0 on
	used  []int32  // records
	slot  []int32  // by record: its number in used
	nulls bool     // there are some
	srcs  [][]byte // by field: what goes into the strip
	outs  [][]byte // by tensor: what is still to be written
	dsts  [][]byte // the same, of a group
	sink  [4 * maxStrip]byte
	tile  []byte // rows of a strip, or its converted values, field by field
	temp  []byte // values of one field or tensor of a strip, before they are converted
	rows  []byte // rows of a strip that go to places of their own
	runs  []gather.Run
}

var pool = sync.Pool{New: func() any { return new(scratch) }}

func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
