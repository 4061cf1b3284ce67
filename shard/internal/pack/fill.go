package pack

import (
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
)

// Out is where Fill writes to: one value per token of every bin, in native byte order.
type Out struct {
	IDs                 []byte // of the tokens' type
	Segments, Positions []byte // int32
	Mask                []byte // uint8; nil without Options.LossMask
}

// Fill writes the bins [from, to), Options.Length tokens each. It overwrites all of
// them, whatever out held before.
func (p *Packed) Fill(out Out, from, to int) {
	if from == to {
		return
	}
	switch p.token.(arrow.FixedWidthDataType).BitWidth() {
	case 8:
		fill[uint8](p, out, from, to)
	case 16:
		fill[uint16](p, out, from, to)
	case 32:
		fill[uint32](p, out, from, to)
	default:
		fill[uint64](p, out, from, to)
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

// fill copies tokens; their sign does not matter.
func fill[T uint8 | uint16 | uint32 | uint64](p *Packed, out Out, from, to int) {
	src := make([][]T, len(p.src.raw))
	for i, b := range p.src.raw {
		src[i] = view[T](b)
	}
	ids, segs, poss := view[T](out.IDs), view[int32](out.Segments), view[int32](out.Positions)
	length := p.o.Length
	for b := from; b < to; b++ {
		at := (b - from) * length
		ids, seg, pos := ids[at:at+length], segs[at:at+length], poss[at:at+length]
		var mask []byte
		if p.o.LossMask {
			mask = out.Mask[at : at+length]
		}
		o := 0
		for k, x := range p.plan.Pieces[p.plan.Bins[b]:p.plan.Bins[b+1]] {
			n := int(x.N)
			d := p.docs[x.Doc]
			own := min(n, int(d.n-x.From)) // without EOS
			i := int(d.from) + int(x.From)
			copy(ids[o:], src[d.rec][i:i+own])
			if own < n {
				ids[o+own] = T(*p.o.EOS)
			}
			repeat(seg[o:o+n], int32(k)+1)
			copy(pos[o:], p.count[:n])
			if mask != nil {
				p.fillMask(mask[o:o+n], x, own)
			}
			o += n
		}
		if o < length {
			repeat(ids[o:], T(p.o.Pad))
			clear(seg[o:])
			clear(pos[o:])
			if mask != nil {
				clear(mask[o:])
			}
		}
	}
}

// fillMask writes the mask of a piece, of which own tokens are the document's own.
func (p *Packed) fillMask(dst []byte, x Piece, own int) {
	if p.masks == nil {
		copy(dst, p.ones)
		return
	}
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
