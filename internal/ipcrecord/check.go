package ipcrecord

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
)

// check refuses a column of which a later look would leave its buffers: lengths, offsets, indices and views. Values may be any, as on the side that sent them. arrow-go's ValidateFull is not for that: it refuses
// text that is not UTF-8, views whose padding is not zero (which its own builder makes), and columns of the null type.
func check(d arrow.ArrayData) error {
	t := d.DataType()
	for {
		x, ok := t.(arrow.ExtensionType)
		if !ok {
			break
		}
		t = x.StorageType()
	}
	if t.ID() == arrow.NULL {
		return nil
	}
	if t.ID() == arrow.SPARSE_UNION || t.ID() == arrow.DENSE_UNION || t.ID() == arrow.RUN_END_ENCODED {
		if d.Len() == 0 && d.Offset() == 0 { // which may have no buffers
			return children(d)
		}
		a := array.MakeFromData(d)
		defer a.Release()
		return array.ValidateFull(a)
	}
	c := column{d, d.Offset() + d.Len()}
	if err := c.bitmap(); err != nil {
		return err
	}
	if err := children(d); err != nil {
		return err
	}
	switch t := t.(type) {
	case *arrow.StructType:
		for _, x := range d.Children() {
			if x.Len() < c.end {
				return fmt.Errorf("a struct of %d rows with %d of a field", c.end, x.Len())
			}
		}
		return nil
	case *arrow.FixedSizeListType:
		if n := d.Children()[0].Len(); t.Len() > 0 && n/int(t.Len()) < c.end {
			return fmt.Errorf("%d lists of %d with %d elements", c.end, t.Len(), n)
		}
		return nil
	case *arrow.ListType, *arrow.MapType:
		return c.offsets(4, d.Children()[0].Len())
	case *arrow.LargeListType:
		return c.offsets(8, d.Children()[0].Len())
	case *arrow.ListViewType:
		return c.spans(4, d.Children()[0].Len())
	case *arrow.LargeListViewType:
		return c.spans(8, d.Children()[0].Len())
	case *arrow.StringType, *arrow.BinaryType:
		return c.offsets(4, len(c.buffer(2)))
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		return c.offsets(8, len(c.buffer(2)))
	case *arrow.StringViewType, *arrow.BinaryViewType:
		return c.views()
	case *arrow.BooleanType:
		return c.fixed(1)
	case *arrow.DictionaryType:
		if err := c.fixed(t.BitWidth()); err != nil {
			return err
		}
		return c.indices(t.IndexType.(arrow.FixedWidthDataType))
	case arrow.FixedWidthDataType:
		return c.fixed(t.BitWidth())
	}
	return fmt.Errorf("a column of type %v", t)
}

func children(d arrow.ArrayData) error {
	for _, x := range d.Children() {
		if err := check(x); err != nil {
			return err
		}
	}
	return nil
}

// column is what of a column is looked at: all rows up to end.
type column struct {
	arrow.ArrayData
	end int
}

func (c *column) buffer(i int) []byte {
	if bs := c.Buffers(); i < len(bs) && bs[i] != nil {
		return bs[i].Bytes()
	}
	return nil
}

func (c *column) bitmap() error {
	if c.Len() < 0 || c.Offset() < 0 || c.end < 0 || c.NullN() > c.Len() {
		return fmt.Errorf("%d rows from %d, %d of them null", c.Len(), c.Offset(), c.NullN())
	}
	if b := c.buffer(0); b != nil && len(b) < int(bitutil.BytesForBits(int64(c.end))) {
		return fmt.Errorf("a bitmap of %d bytes for %d rows", len(b), c.end)
	}
	return nil
}

func (c *column) fixed(bits int) error {
	if n := len(c.buffer(1)); bits < 0 || bits > 0 && n*8/bits < c.end {
		return fmt.Errorf("%d bytes for %d values of %d bits", n, c.end, bits)
	}
	return nil
}

// offsets go up from 0, and none is beyond most.
func (c *column) offsets(width, most int) error {
	b := c.buffer(1)
	if c.end == 0 && len(b) < width {
		return nil
	}
	if len(b)/width < c.end+1 {
		return fmt.Errorf("%d bytes for the offsets of %d rows", len(b), c.end)
	}
	last := int64(0)
	if width == 4 {
		if end := int64(rising(b[:4*(c.end+1)])); end >= 0 && end <= int64(most) {
			return nil
		}
	}
	for i := range c.end + 1 { // which one is it?
		v := number(b, i, width)
		if v < last || v > int64(most) {
			return fmt.Errorf("offset %d is %d, after %d and of %d", i, v, last, most)
		}
		last = v
	}
	return nil
}

// rising is the last of numbers of 4 bytes that go up from 0 or more; negative: they do not. There is no branch on any of them: it takes a fraction of the time.
func rising(b []byte) int32 {
	last, bad := int32(0), int32(0)
	for ; len(b) >= 4; b = b[4:] {
		v := int32(binary.LittleEndian.Uint32(b))
		bad |= v | (v - last) // of two that are not negative the difference fits
		last = v
	}
	return last | bad&math.MinInt32
}

// number is the i-th of so many bytes.
func number(b []byte, i, width int) int64 {
	if width == 4 {
		return int64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return int64(binary.LittleEndian.Uint64(b[8*i:]))
}

// spans are offsets and lengths, each within most.
func (c *column) spans(width, most int) error {
	from, n := c.buffer(1), c.buffer(2)
	if min(len(from), len(n))/width < c.end {
		return fmt.Errorf("%d and %d bytes for the places of %d rows", len(from), len(n), c.end)
	}
	for i := range c.end {
		a, k := number(from, i, width), number(n, i, width)
		if a < 0 || k < 0 || a > int64(most) || k > int64(most)-a {
			return fmt.Errorf("row %d has %d elements from %d, of %d", i, k, a, most)
		}
	}
	return nil
}

// views are short values, or places in buffers.
func (c *column) views() error {
	b := c.buffer(1)
	if len(b)/arrow.ViewHeaderSizeBytes < c.end {
		return fmt.Errorf("%d bytes for %d views", len(b), c.end)
	}
	valid, bufs := c.buffer(0), c.Buffers()
	for i := range c.end {
		if valid != nil && !bitutil.BitIsSet(valid, i) {
			continue
		}
		v := b[i*arrow.ViewHeaderSizeBytes:]
		n := int32(binary.LittleEndian.Uint32(v))
		if n >= 0 && arrow.IsViewInline(int(n)) {
			continue
		}
		at, from := int32(binary.LittleEndian.Uint32(v[8:])), int32(binary.LittleEndian.Uint32(v[12:]))
		if n < 0 || at < 0 || from < 0 || int(at) >= len(bufs)-2 || int(from)+int(n) > len(c.buffer(2+int(at))) {
			return fmt.Errorf("view %d is of %d bytes from %d of buffer %d", i, n, from, at)
		}
	}
	return nil
}

// indices point into the dictionary, where there is no null.
func (c *column) indices(t arrow.FixedWidthDataType) error {
	dict := c.Dictionary()
	// A Data is never nil in the interface, but what it points at may be.
	if d, ok := dict.(*array.Data); !ok || d == nil {
		if c.end == 0 {
			return nil
		}
		return fmt.Errorf("indices without a dictionary")
	}
	if err := check(dict); err != nil {
		return fmt.Errorf("in the dictionary: %w", err)
	}
	n := uint64(dict.Len())
	b, valid, width := c.buffer(1), c.buffer(0), t.BitWidth()/8
	for i := range c.end {
		if valid != nil && !bitutil.BitIsSet(valid, i) {
			continue
		}
		var v uint64 // a negative one is beyond any length
		switch width {
		case 1:
			v = uint64(b[i])
		case 2:
			v = uint64(binary.LittleEndian.Uint16(b[2*i:]))
		case 4:
			v = uint64(binary.LittleEndian.Uint32(b[4*i:]))
		default:
			v = binary.LittleEndian.Uint64(b[8*i:])
		}
		if v >= n {
			return fmt.Errorf("row %d is entry %d of a dictionary of %d", i, v, n)
		}
	}
	return nil
}
