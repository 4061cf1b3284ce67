package pack

import (
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
)

// Columns of [Schema], by number.
const (
	IDs = iota
	Segments
	Positions
	Mask // with Options.LossMask
)

// Column writes a column of the bins [from, to) to dst: Options.Length values each, in native byte order. It overwrites
// all of them, whatever dst held before.
func (p *Packed) Column(dst []byte, column, from, to int) {
	switch column {
	case IDs:
		switch p.token.(arrow.FixedWidthDataType).BitWidth() {
		case 8:
			ids[uint8](p, dst, from, to)
		case 16:
			ids[uint16](p, dst, from, to)
		case 32:
			ids[uint32](p, dst, from, to)
		default:
			ids[uint64](p, dst, from, to)
		}
	case Segments:
		rows(p, view[int32](dst), from, to, func(seg []int32, k, _ int) { repeat(seg, int32(k)+1) })
	case Positions:
		rows(p, view[int32](dst), from, to, func(pos []int32, _, _ int) { positions(pos) })
	case Mask:
		if p.masks != nil {
			settled(p, dst, p.masks, from, to, 0)
		} else {
			rows(p, dst, from, to, func(mask []byte, _, i int) { p.fillMask(mask, i) })
		}
	}
}

// view reads bytes as numbers; processors that Penstock runs on do so at any address.
func view[T any](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(z)))
}

// rows calls fill with the place of every piece, the k-th of its bin and the i-th of all, and clears what is behind the last one.
func rows[T any](p *Packed, dst []T, from, to int, fill func(dst []T, k, i int)) {
	for b := from; b < to; b++ {
		row := dst[(b-from)*p.o.Length:][:p.o.Length]
		at := int(p.bins[b])
		for k, n := range p.n[at:p.bins[b+1]] {
			n = max(n, -n)
			fill(row[:n], k, at+k)
			row = row[n:]
		}
		clear(row)
	}
}

// ids copies tokens; their sign does not matter.
func ids[T uint8 | uint16 | uint32 | uint64](p *Packed, dst []byte, from, to int) {
	all := view[T](dst)
	if p.first != nil {
		settled(p, all, view[T](p.ids), from, to, T(p.o.Pad))
		return
	}
	for b := from; b < to; b++ {
		row := all[(b-from)*p.o.Length:][:p.o.Length]
		repeat(pieces(p, row, int(p.bins[b]), int(p.bins[b+1])), T(p.o.Pad))
	}
}

// pieces copies the tokens of pieces to dst, one behind the other, and returns what is behind them.
func pieces[T uint8 | uint16 | uint32 | uint64](p *Packed, dst []T, from, to int) []T {
	for i := from; i < to; i++ {
		n := int(p.n[i])
		own := n
		if n < 0 {
			n = -n
			own = n - 1
			dst[own] = T(*p.o.EOS)
		}
		copy(dst[:own], view[T](p.src.raw[p.rec[i]])[p.from[i]:])
		dst = dst[n:]
	}
	return dst
}

// collect copies the tokens of all pieces.
func collect[T uint8 | uint16 | uint32 | uint64](p *Packed, dst []byte) {
	pieces(p, view[T](dst), 0, len(p.n))
}

// settled copies what src has for every token of the bins [from, to), and pads them.
func settled[T any](p *Packed, dst, src []T, from, to int, pad T) {
	for b := from; b < to; b++ {
		row := dst[(b-from)*p.o.Length:][:p.o.Length]
		n := copy(row, src[p.first[b]:p.first[b+1]])
		repeat(row[n:], pad)
	}
}

// fillMask writes the mask of piece i, which is not settled with a mask.
func (p *Packed) fillMask(dst []byte, i int) {
	if p.maskFrom == nil {
		n := copy(dst, ones[:])
		repeat(dst[n:], 1)
		return
	}
	own := len(dst)
	if p.n[i] < 0 {
		own--
		dst[own] = 1
	}
	raw := p.mask.raw[p.rec[i]]
	at := int(p.maskFrom[i])
	if p.maskBits {
		for k := range own {
			dst[k] = 0
			if bitutil.BitIsSet(raw, at+k) {
				dst[k] = 1
			}
		}
	} else {
		copy(dst[:own], raw[at:])
	}
}

// counts is 0, 1, 2, ...
var counts = func() (c [4096]int32) {
	for i := range c {
		c[i] = int32(i)
	}
	return c
}()

var ones = func() (c [4096]uint8) {
	repeat(c[:], 1)
	return c
}()

// positions sets dst to 0, 1, 2, ...
func positions(dst []int32) {
	for i := copy(dst, counts[:]); i < len(dst); i++ {
		dst[i] = int32(i)
	}
}

// repeat sets all of dst to v: a few by hand, then by copying what is there.
func repeat[T any](dst []T, v T) {
	n := min(len(dst), 16)
	for i := range dst[:n] {
		dst[i] = v
	}
	for n < len(dst) {
		n += copy(dst[n:], dst[:min(n, 1024)])
	}
}
