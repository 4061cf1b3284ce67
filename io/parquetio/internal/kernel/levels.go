package kernel

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// Validity reads n values of width 1 into the bits of dst from bit at on, and
// returns how many are set. Levels of at most 1 are thus an Arrow bitmap.
func (h *Hybrid) Validity(dst []byte, at, n int) (set int, ok bool) {
	if h.width > 1 {
		return 0, h.fail()
	}
	if n == 0 {
		return 0, true
	}
	p, have := at>>3, at&7 // acc holds bits that are to be written from byte p on
	acc := uint64(dst[p]) & ones(have)
	for n > 0 {
		if h.left == 0 && !h.next() {
			return set, false
		}
		k := min(n, h.left)
		if k >= longRun {
			putWord(dst, p<<3, acc, have)
			if at = p<<3 + have; h.packed {
				CopyBits(dst, at, h.run, h.pos, k)
				set += CountBits(h.run, h.pos, k)
			} else {
				FillBits(dst, at, k, h.value != 0)
				set += k * int(h.value)
			}
			h.step(k)
			n -= k
			if p, have, acc = (at+k)>>3, (at+k)&7, 0; have > 0 {
				acc = uint64(dst[p]) & ones(have)
			}
			continue
		}
		k = min(k, 64)
		var v uint64
		if h.packed {
			v = word(h.run, h.pos) & ones(k)
		} else {
			v = -uint64(h.value) & ones(k)
		}
		h.step(k)
		n -= k
		set += bits.OnesCount64(v)
		acc |= v << have
		if have += k; have >= 64 {
			binary.LittleEndian.PutUint64(dst[p:], acc)
			p += 8
			have -= 64
			acc = v >> (k - have)
		}
	}
	putWord(dst, p<<3, acc, have)
	return set, true
}

// Count reads n levels and returns how many equal level.
func (h *Hybrid) Count(n int, level uint32) (count int, ok bool) {
	var block [256]uint32
	for n > 0 {
		if h.left == 0 && !h.next() {
			return count, false
		}
		k := min(n, h.left)
		switch {
		case !h.packed:
			if h.value == level {
				count += k
			}
		case h.width == 1:
			set := CountBits(h.run, h.pos, k)
			switch level {
			case 0:
				count += k - set
			case 1:
				count += set
			}
		default:
			small := unsafe.Slice((*byte)(unsafe.Pointer(&block)), 4*len(block))
			if j := levelsHead(h, small[:min(k, len(small))]); j > 0 {
				if k = j; level <= 0xff {
					count += bytes.Count(small[:k], []byte{byte(level)})
				}
				break
			}
			if k = min(k, len(block)); h.pos&7 != 0 {
				k = min(k, 8-h.pos&7) // whole groups are faster
			}
			unpackFrom(block[:k], h.run, h.pos, h.width)
			for _, v := range block[:k] {
				if v == level {
					count++
				}
			}
		}
		h.step(k)
		n -= k
	}
	return count, true
}

// Rows reads repetition levels, most of them at most, up to the 0 that would begin
// one row too many: begun is the number of zeros that were read. Rows(0, most) reads
// the rest of a row.
func (h *Hybrid) Rows(rows, most int) (levels, begun int, ok bool) {
	var block [256]uint32
	for levels < most {
		if h.left == 0 && !h.next() {
			return levels, begun, false
		}
		k := min(most-levels, h.left)
		full := false
		switch {
		case !h.packed && h.value != 0:
		case !h.packed:
			if k > rows-begun {
				k, full = rows-begun, true
			}
			begun += k
		case h.width == 1:
			k = min(k, 64)
			zeros := ^word(h.run, h.pos) & ones(k)
			if c := bits.OnesCount64(zeros); c <= rows-begun {
				begun += c
				break
			}
			for ; begun < rows; begun++ {
				zeros &= zeros - 1
			}
			k, full = bits.TrailingZeros64(zeros), true
		default:
			k = min(k, len(block))
			unpackFrom(block[:k], h.run, h.pos, h.width)
			for i, v := range block[:k] {
				if v == 0 {
					if begun == rows {
						k, full = i, true
						break
					}
					begun++
				}
			}
		}
		h.step(k)
		levels += k
		if full {
			break
		}
	}
	return levels, begun, true
}

// ListStarts reads n repetition levels of at most 1, which stand for the entries
// from first on, and puts the numbers of those that begin a row, whose level is 0,
// into dst. It returns how many there are; false if dst has no room for them.
func ListStarts[O int32 | int64](h *Hybrid, n int, first O, dst []O) (starts int, ok bool) {
	if h.width > 1 {
		return 0, h.fail()
	}
	for n > 0 {
		if h.left == 0 && !h.next() {
			return starts, false
		}
		k := min(n, h.left)
		switch {
		case !h.packed && h.value != 0:
		case !h.packed:
			if k > len(dst)-starts {
				return starts, h.fail()
			}
			for i := range dst[starts : starts+k] {
				dst[starts+i] = first + O(i)
			}
			starts += k
		default:
			k = min(k, 64)
			zeros := ^word(h.run, h.pos) & ones(k)
			if bits.OnesCount64(zeros) > len(dst)-starts {
				return starts, h.fail()
			}
			for ; zeros != 0; zeros &= zeros - 1 {
				dst[starts] = first + O(bits.TrailingZeros64(zeros))
				starts++
			}
		}
		h.step(k)
		first, n = first+O(k), n-k
	}
	return starts, true
}

// BitPackedSize returns how many bytes n levels have in the deprecated encoding
// BIT_PACKED, and how many as the run that FromBitPacked makes of them.
func BitPackedSize(n int, width uint) (src, dst int) {
	groups := (n + 7) >> 3
	head := (bits.Len64(uint64(groups)<<1|1) + 6) / 7
	return (n*int(width) + 7) >> 3, head + groups*int(width)
}

// FromBitPacked makes of n levels in the deprecated encoding BIT_PACKED, packed from
// the highest bit on, a run for Hybrid. Both slices are as long as BitPackedSize
// says, or longer.
func FromBitPacked(dst, src []byte, n int, width uint) bool {
	if width > 32 {
		return false
	}
	if s, d := BitPackedSize(n, width); len(src) < s || len(dst) < d {
		return false
	}
	i := 0
	head := uint64(n+7)>>3<<1 | 1
	for ; head >= 0x80; head >>= 7 {
		dst[i] = byte(head) | 0x80
		i++
	}
	dst[i] = byte(head)
	dst = dst[i+1:]
	clear(dst[:(n+7)>>3*int(width)])
	for b := range n * int(width) {
		if src[b>>3]>>(7-b&7)&1 != 0 {
			v := b / int(width) // bit b-v*width of the value, from the highest on
			to := v*int(width) + int(width) - 1 - b%int(width)
			dst[to>>3] |= 1 << (to & 7)
		}
	}
	return true
}
