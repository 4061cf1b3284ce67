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
		rows(p, view[int32](dst), from, to, func(seg []int32, k int, _ Piece) { repeat(seg, int32(k)+1) })
	case Positions:
		rows(p, view[int32](dst), from, to, func(pos []int32, _ int, _ Piece) { copy(pos, p.count) })
	case Mask:
		rows(p, dst, from, to, func(mask []byte, _ int, x Piece) { p.fillMask(mask, x) })
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

// rows calls fill with the place of every piece, the k-th of its bin, and clears what is behind the last one.
func rows[T any](p *Packed, dst []T, from, to int, fill func(dst []T, k int, x Piece)) {
	for b := from; b < to; b++ {
		row := dst[(b-from)*p.o.Length:][:p.o.Length]
		for k, x := range p.plan.Pieces[p.plan.Bins[b]:p.plan.Bins[b+1]] {
			fill(row[:x.N], k, x)
			row = row[x.N:]
		}
		clear(row)
	}
}

// ids copies tokens; their sign does not matter.
func ids[T uint8 | uint16 | uint32 | uint64](p *Packed, dst []byte, from, to int) {
	all := view[T](dst)
	for b := from; b < to; b++ {
		row := all[(b-from)*p.o.Length:][:p.o.Length]
		for _, x := range p.plan.Pieces[p.plan.Bins[b]:p.plan.Bins[b+1]] {
			d := p.docs[x.Doc]
			own := p.own(x)
			copy(row, view[T](p.src.raw[d.rec])[int(d.from)+int(x.From):][:own])
			if own < int(x.N) {
				row[own] = T(*p.o.EOS)
			}
			row = row[x.N:]
		}
		repeat(row, T(p.o.Pad))
	}
}

// own is how many tokens of a piece are the document's own: all but EOS.
func (p *Packed) own(x Piece) int { return min(int(x.N), int(p.docs[x.Doc].n-x.From)) }

// fillMask writes the mask of a piece.
func (p *Packed) fillMask(dst []byte, x Piece) {
	if p.masks == nil {
		copy(dst, p.ones)
		return
	}
	own := p.own(x)
	m := p.masks[x.Doc]
	i := int(m.from) + int(x.From)
	raw := p.mask.raw[m.rec]
	if p.maskBits {
		for k := range own {
			dst[k] = 0
			if bitutil.BitIsSet(raw, i+k) {
				dst[k] = 1
			}
		}
	} else {
		copy(dst, raw[i:i+own])
	}
	if own < len(dst) {
		dst[own] = 1
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
