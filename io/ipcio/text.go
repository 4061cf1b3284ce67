package ipcio

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/internal/badvalue"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// badText is the error of a value in place of text that is not UTF-8. It shows what is around the
// first byte that is wrong.
func badText(text []byte) *fault.Error {
	at := 0
	for r, n := utf8.DecodeRune(text); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRune(text[at:]) {
		at += n
	}
	from, to := max(0, at-20), min(len(text), at+20)
	return driver.Errorf(driver.Corrupt, "text that is not UTF-8: %q; convert it where the file is made, "+
		"or read the column as bytes: types: {COLUMN: binary}", text[from:to])
}

// texts is a check of strings: they are UTF-8.
var texts = badvalue.Check{Of: isText, In: textIn}

// textIn is In of texts.
func textIn(d arrow.ArrayData, from, to int64, bad badvalue.Found) {
	report := func(slot int64, text []byte) { bad(slot, func() error { return badText(text) }) }
	switch d.DataType().ID() {
	case arrow.STRING:
		notUTF8(d, arrow.GetData[int32](d.Buffers()[1].Bytes())[from:to+1], from, report)
	case arrow.LARGE_STRING:
		notUTF8(d, arrow.GetData[int64](d.Buffers()[1].Bytes())[from:to+1], from, report)
	case arrow.STRING_VIEW:
		notUTF8View(d, from, to, report)
	}
}

func isText(t arrow.DataType) bool {
	return t.ID() == arrow.STRING || t.ID() == arrow.LARGE_STRING || t.ID() == arrow.STRING_VIEW
}

// notUTF8 finds values of text that lies in one piece which are none. Where all of it is ASCII, or
// UTF-8 of which no value begins within a character, so is each value.
func notUTF8[T int32 | int64](d arrow.ArrayData, offsets []T, from int64, bad func(slot int64, text []byte)) {
	last := len(offsets) - 1
	if offsets[0] == offsets[last] {
		return
	}
	b := d.Buffers()[2].Bytes()
	all := b[offsets[0]:offsets[last]]
	rest := all[ascii(all):]
	if len(rest) == 0 {
		return
	}
	ok := validUTF8(rest)
	for i := 0; ok && i < last; i++ {
		o := int(offsets[i])
		ok = o >= len(b) || utf8.RuneStart(b[o])
	}
	if ok {
		return
	}
	for i := range last {
		if s := b[offsets[i]:offsets[i+1]]; !utf8.Valid(s) && !badvalue.IsNull(d, from+int64(i)) {
			bad(from+int64(i), s)
		}
	}
}

func notUTF8View(d arrow.ArrayData, from, to int64, bad func(slot int64, text []byte)) {
	for i, h := range arrow.ViewHeaderTraits.CastFromBytes(d.Buffers()[1].Bytes())[from:to] {
		if badvalue.IsNull(d, from+int64(i)) {
			continue
		}
		var text []byte
		if h.IsInline() {
			text = h.InlineBytes()
		} else {
			text = d.Buffers()[2+h.BufferIndex()].Bytes()[h.BufferOffset():][:h.Len()]
		}
		if !utf8.Valid(text) {
			bad(from+int64(i), text)
		}
	}
}

// validUTF8 is utf8.Valid for text that is ASCII but for a character here and there.
func validUTF8(b []byte) bool {
	for {
		for len(b) >= 8 && binary.LittleEndian.Uint64(b)&highBits == 0 {
			b = b[8:]
		}
		switch {
		case len(b) == 0:
			return true
		case b[0] < utf8.RuneSelf:
			b = b[1:]
		case b[0] >= 0xc2 && b[0] < 0xe0 && len(b) > 1 && b[1]&0xc0 == 0x80:
			b = b[2:]
		default:
			r, n := utf8.DecodeRune(b)
			if r == utf8.RuneError && n == 1 {
				return false
			}
			b = b[n:]
		}
	}
}

const highBits = 0x8080808080808080 // of eight bytes

// ascii is a length of b up to which all of it is ASCII: len(b), if all of it is.
func ascii(b []byte) (n int) {
	for len(b)-n >= 64 {
		p := b[n : n+64 : n+64]
		w := binary.LittleEndian.Uint64
		x, y := w(p)|w(p[8:])|w(p[16:])|w(p[24:]), w(p[32:])|w(p[40:])|w(p[48:])|w(p[56:])
		if (x|y)&highBits != 0 {
			return n
		}
		n += 64
	}
	for n < len(b) && b[n] < utf8.RuneSelf {
		n++
	}
	return n
}
