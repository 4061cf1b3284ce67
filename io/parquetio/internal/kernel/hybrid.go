package kernel

import (
	"encoding/binary"
	"math"
)

// blockLen is how many indexes are unpacked at a time: they stay in the L1 cache.
const blockLen = 1024

// Hybrid decodes runs of repeated and of bit-packed values: levels, dictionary
// indexes, booleans.
type Hybrid struct {
	src    []byte // behind the run
	run    []byte // packed values
	pos    int    // of the next packed value
	left   int    // values of the run
	value  uint32 // repeated
	width  uint
	packed bool
}

// Reset begins to read values of width bits, 0 to 32. A last packed run may be
// shorter than it claims.
func (h *Hybrid) Reset(src []byte, width uint) bool {
	*h = Hybrid{src: src, width: width}
	if width == 0 {
		h.left = math.MaxInt // zeros without end
	}
	return width <= 32
}

// next enters the next run that has values.
func (h *Hybrid) next() bool {
	for h.left == 0 {
		if len(h.src) == 0 {
			return h.fail()
		}
		head, k := uint64(h.src[0]), 1
		if head >= 0x80 {
			if head, k = binary.Uvarint(h.src); k <= 0 || head > math.MaxUint32 {
				return h.fail()
			}
		}
		src := h.src[k:]
		if h.packed = head&1 != 0; h.packed {
			size, values := head>>1*uint64(h.width), head>>1<<3
			if size > uint64(len(src)) {
				size = uint64(len(src))
				values = size << 3 / uint64(h.width)
			}
			h.run, h.src = src[:size], src[size:]
			h.pos, h.left = 0, int(values)
			continue
		}
		size := int(h.width+7) >> 3
		if size > len(src) {
			return h.fail()
		}
		value := uint32(src[0])
		for i := 1; i < size; i++ {
			value |= uint32(src[i]) << (8 * i)
		}
		if uint64(value)>>h.width != 0 {
			return h.fail()
		}
		h.value, h.src, h.left = value, src[size:], int(head>>1)
	}
	return true
}

func (h *Hybrid) fail() bool {
	h.src, h.left = nil, 0
	return false
}

// step takes n values of the run, n <= left.
func (h *Hybrid) step(n int) {
	h.left -= n
	h.pos += n
}

// Skip passes over n values.
func (h *Hybrid) Skip(n int) bool {
	for n > 0 {
		if h.left == 0 && !h.next() {
			return false
		}
		k := min(n, h.left)
		h.step(k)
		n -= k
	}
	return true
}

// Indexes reads indexes of a dictionary of so many entries; false if one is outside.
func (h *Hybrid) Indexes(dst []uint32, entries int) bool {
	for len(dst) > 0 {
		if h.left == 0 && !h.next() {
			return false
		}
		n := min(len(dst), h.left)
		if h.packed {
			n = min(n, blockLen)
			unpackFrom(dst[:n], h.run, h.pos, h.width)
			if uint64(entries) < 1<<h.width && uint64(maximum(dst[:n])) >= uint64(entries) {
				return h.fail()
			}
		} else {
			if uint64(h.value) >= uint64(entries) {
				return h.fail()
			}
			fill(dst[:n], h.value)
		}
		h.step(n)
		dst = dst[n:]
	}
	return true
}

// Levels8 reads levels of up to 8 bits; false if one is over most.
func (h *Hybrid) Levels8(dst []uint8, most uint32) bool {
	if most > math.MaxUint8 {
		return h.fail()
	}
	var block [256]uint32
	for len(dst) > 0 {
		if h.left == 0 && !h.next() {
			return false
		}
		n := min(len(dst), h.left)
		switch {
		case !h.packed:
			if h.value > most {
				return h.fail()
			}
			fill(dst[:n], uint8(h.value))
		default:
			if k := levelsHead(h, dst[:n]); k > 0 {
				if most < 1<<h.width-1 && over(dst[:k], uint8(most)) {
					return h.fail()
				}
				n = k
				break
			}
			if n = min(n, len(block)); h.pos&7 != 0 {
				n = min(n, 8-h.pos&7) // whole groups are faster
			}
			unpackFrom(block[:n], h.run, h.pos, h.width)
			top := uint32(0)
			for i, v := range block[:n] {
				top = max(top, v)
				dst[i] = uint8(v)
			}
			if top > most {
				return h.fail()
			}
		}
		h.step(n)
		dst = dst[n:]
	}
	return true
}

// levelsHead unpacks the next values of a packed run that the assembly can, all of
// them below 128, and returns how many. They are not passed over.
func levelsHead(h *Hybrid, dst []uint8) int {
	if h.pos&7 != 0 || h.width > 7 {
		return 0
	}
	return unpack8Head(dst, h.run[h.pos>>3*int(h.width):], h.width)
}

// over says whether one of the levels, all below 128, is over most. Their number is
// a multiple of 8.
func over(levels []uint8, most uint8) bool {
	const each = 0x0101010101010101
	var high uint64
	for ; len(levels) >= 8; levels = levels[8:] {
		high |= binary.LittleEndian.Uint64(levels) + uint64(127-most)*each
	}
	return high&(128*each) != 0
}

// maximum returns the largest value, 0 if there is none.
func maximum(v []uint32) uint32 {
	n, a := maximumHead(v)
	v = v[n:]
	var b, c, d uint32
	for ; len(v) >= 4; v = v[4:] {
		a, b, c, d = max(a, v[0]), max(b, v[1]), max(c, v[2]), max(d, v[3])
	}
	for _, x := range v {
		a = max(a, x)
	}
	return max(a, b, c, d)
}
