package ipcio

import (
	"encoding/binary"
	"sort"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// badText is the error of a value in place of text that is not UTF-8. It shows what is around the first byte that is wrong.
func badText(text []byte) *fault.Error {
	at := 0
	for r, n := utf8.DecodeRune(text); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(text[at:]) {
		at += n
	}
	from, to := max(0, at-20), min(len(text), at+20)
	return driver.Errorf(driver.Corrupt, "text that is not UTF-8: %q; write the column as binary if it is no text, or convert it, where the file is made", text[from:to])
}

// notUTF8 is the first of rows [from, to), none of them hidden by a null, that holds text that is none, and the text; -1 if there
// is none. d is as a loader gives it.
func notUTF8(d arrow.ArrayData, from, to int64) (row int64, text []byte) {
	if from >= to {
		return -1, nil
	}
	switch t := d.DataType().(type) {
	case *arrow.StringType:
		return notUTF8In(d, arrow.GetData[int32](d.Buffers()[1].Bytes())[from:to+1], from)
	case *arrow.LargeStringType:
		return notUTF8In(d, arrow.GetData[int64](d.Buffers()[1].Bytes())[from:to+1], from)
	case *arrow.StringViewType:
		for i, h := range arrow.ViewHeaderTraits.CastFromBytes(d.Buffers()[1].Bytes())[from:to] {
			if isNull(d, from+int64(i)) {
				continue
			}
			if h.IsInline() {
				text = h.InlineBytes()
			} else {
				text = d.Buffers()[2+h.BufferIndex()].Bytes()[h.BufferOffset():][:h.Len()]
			}
			if !utf8.Valid(text) {
				return from + int64(i), text
			}
		}
		return -1, nil
	case *arrow.ListType, *arrow.MapType:
		return notUTF8Under(d, from, to, ends(arrow.GetData[int32](d.Buffers()[1].Bytes())))
	case *arrow.LargeListType:
		return notUTF8Under(d, from, to, ends(arrow.GetData[int64](d.Buffers()[1].Bytes())))
	case *arrow.FixedSizeListType:
		return notUTF8Under(d, from, to, func(i int64) int64 { return i * int64(t.Len()) })
	case *arrow.StructType:
		return notUTF8Under(d, from, to, func(i int64) int64 { return i })
	}
	return -1, nil
}

func ends[T int32 | int64](offsets []T) func(int64) int64 {
	return func(i int64) int64 { return int64(offsets[i]) }
}

// notUTF8Under is notUTF8 of a nested column, the children of row i of which are [at(i), at(i+1)).
func notUTF8Under(d arrow.ArrayData, from, to int64, at func(int64) int64) (row int64, text []byte) {
	row = -1
	for _, c := range d.Children() {
		if !holdsText(c.DataType()) {
			continue
		}
		for first := at(from); ; {
			k, s := notUTF8(c, first, at(to))
			if k < 0 {
				break
			}
			i := from + int64(sort.Search(int(to-from), func(i int) bool { return at(from+int64(i)+1) > k }))
			if isNull(d, i) {
				first = at(i + 1)
				continue
			}
			if row < 0 || i < row {
				row, text = i, s
			}
			break
		}
	}
	return row, text
}

func holdsText(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.STRING, arrow.LARGE_STRING, arrow.STRING_VIEW:
		return true
	case arrow.DICTIONARY:
		return false
	}
	for _, f := range children(t) {
		if holdsText(f.Type) {
			return true
		}
	}
	return false
}

// notUTF8In is notUTF8 of text that lies in one piece: where all of it is ASCII, or UTF-8 of which no value begins within a
// character, so is each value.
func notUTF8In[T int32 | int64](d arrow.ArrayData, offsets []T, from int64) (row int64, text []byte) {
	b := d.Buffers()[2].Bytes()
	last := len(offsets) - 1
	all := b[offsets[0]:offsets[last]]
	rest := all[ascii(all):]
	if len(rest) == 0 {
		return -1, nil
	}
	ok := utf8.Valid(rest)
	for i := 0; ok && i < last; i++ {
		o := int(offsets[i])
		ok = o >= len(b) || utf8.RuneStart(b[o])
	}
	if ok {
		return -1, nil
	}
	for i := range last {
		if s := b[offsets[i]:offsets[i+1]]; !utf8.Valid(s) && !isNull(d, from+int64(i)) {
			return from + int64(i), s
		}
	}
	return -1, nil
}

// ascii is a length of b up to which all of it is ASCII: len(b), if all of it is.
func ascii(b []byte) (n int) {
	const high = 0x8080808080808080
	for len(b)-n >= 64 {
		p := b[n : n+64 : n+64]
		x := binary.LittleEndian.Uint64(p) | binary.LittleEndian.Uint64(p[8:]) | binary.LittleEndian.Uint64(p[16:]) | binary.LittleEndian.Uint64(p[24:])
		y := binary.LittleEndian.Uint64(p[32:]) | binary.LittleEndian.Uint64(p[40:]) | binary.LittleEndian.Uint64(p[48:]) | binary.LittleEndian.Uint64(p[56:])
		if (x|y)&high != 0 {
			return n
		}
		n += 64
	}
	for n < len(b) && b[n] < utf8.RuneSelf {
		n++
	}
	return n
}

func isNull(d arrow.ArrayData, i int64) bool {
	b := d.Buffers()[0]
	return b != nil && b.Len() > 0 && !bitutil.BitIsSet(b.Bytes(), int(i))
}
