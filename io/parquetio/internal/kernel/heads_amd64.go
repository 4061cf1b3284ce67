//go:build !purego

package kernel

import (
	"math/bits"
	"unsafe"
)

// The functions below have the assembly do the head of some work, in blocks, and
// return how much that is. The caller does the rest in Go, which may be all of it.

const maskWords = 16 // rows of a block, by 64

// expandHead does the first rows of dst, with the first values of dense.
func expandHead[T any](dst, dense []T, valid []byte, at int) (rows, used int) {
	size := unsafe.Sizeof(*new(T))
	if !avx512() || len(dense) == 0 || size > 16 || size < 4 && !vbmi2() {
		return 0, 0
	}
	var masks [maskWords]uint64
	for len(dst)-rows >= 64 {
		n := min((len(dst)-rows)>>6, maskWords)
		if size == 16 { // two words each
			n = min(n, maskWords/2)
		}
		set := 0
		for i := range masks[:n] {
			m := word(valid, at+rows+i<<6)
			if set += bits.OnesCount64(m); size == 16 {
				masks[2*i], masks[2*i+1] = double(m), double(m>>32)
			} else {
				masks[i] = m
			}
		}
		to, from, have := unsafe.Pointer(&dst[rows]), unsafe.Pointer(&dense[min(used, len(dense)-1)]), len(dense)-used
		switch size {
		case 1:
			expand8((*uint8)(to), (*uint8)(from), &masks[0], n)
		case 2:
			expand16((*uint16)(to), (*uint16)(from), &masks[0], n)
		case 4:
			expand32((*uint32)(to), (*uint32)(from), have, &masks[0], n)
		case 8:
			expand64((*uint64)(to), (*uint64)(from), have, &masks[0], n)
		case 16:
			expand64((*uint64)(to), (*uint64)(from), 2*have, &masks[0], 2*n)
		}
		rows, used = rows+n<<6, used+set
	}
	return rows, used
}

// double makes every one of the 32 low bits two.
func double(v uint64) uint64 {
	v &= 1<<32 - 1
	v = (v | v<<16) & 0x0000ffff0000ffff
	v = (v | v<<8) & 0x00ff00ff00ff00ff
	v = (v | v<<4) & 0x0f0f0f0f0f0f0f0f
	v = (v | v<<2) & 0x3333333333333333
	v = (v | v<<1) & 0x5555555555555555
	return v | v<<1
}

// ranks has, for every byte, the set bits up to each of its bits.
var ranks [256][8]uint8

func init() {
	for m := range ranks {
		for i := range ranks[m] {
			ranks[m][i] = uint8(bits.OnesCount8(uint8(m) << (7 - i)))
		}
	}
}

// offsetsHead does the first rows of dst, whose first offset is set.
func offsetsHead[O int32 | int64](dst, dense []O, valid []byte, at int) (rows, used int) {
	if !avx512() || unsafe.Sizeof(O(0)) != 4 {
		return 0, 0
	}
	var masks [maskWords]uint64
	for {
		n := min((len(dst)-1-rows)>>6, (len(dense)-used-16)>>6, maskWords)
		if n <= 0 {
			return rows, used
		}
		set := 0
		for i := range masks[:n] {
			masks[i] = word(valid, at+rows+i<<6)
			set += bits.OnesCount64(masks[i])
		}
		offsets32((*int32)(unsafe.Pointer(&dst[rows+1])), (*int32)(unsafe.Pointer(&dense[used])), &ranks, &masks[0], n)
		rows, used = rows+n<<6, used+set
	}
}

// gatherHead looks up the first of idx, known to be in range.
func gatherHead[T any](dst, dict []T, idx []uint32) int {
	n := len(idx) &^ 15
	if !asm || n < 32 {
		return 0
	}
	to, from := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(dict))
	switch unsafe.Sizeof(*new(T)) {
	case 4:
		if len(dict) <= 32 && avx512() {
			var table [32]uint32
			copy(table[:], unsafe.Slice((*uint32)(from), len(dict)))
			look32((*uint32)(to), &table, &idx[0], n)
		} else {
			gather32((*uint32)(to), (*uint32)(from), &idx[0], n)
		}
	case 8:
		if len(dict) <= 16 && avx512() {
			var table [16]uint64
			copy(table[:], unsafe.Slice((*uint64)(from), len(dict)))
			look64((*uint64)(to), &table, &idx[0], n)
		} else {
			gather64((*uint64)(to), (*uint64)(from), &idx[0], n)
		}
	case 16:
		gather128((*[2]uint64)(to), (*[2]uint64)(from), &idx[0], n)
	default:
		return 0
	}
	return n
}

// maximumHead returns the largest of the first n values.
func maximumHead(v []uint32) (n int, top uint32) {
	if n = len(v) &^ 31; n == 0 || !avx512() {
		return 0, 0
	}
	return n, max32(&v[0], n)
}

// unpack8Head unpacks the first values.
func unpack8Head(dst, src []byte, width uint) int {
	if !bmi2() || len(src) < 8 {
		return 0
	}
	n := min(len(dst)>>3, (len(src)-8)/int(width)+1) << 3
	if n > 0 {
		unpack8(&dst[0], &src[0], n, width)
	}
	return n
}

// atLeastHead compares the first n levels.
func atLeastHead[L uint8 | uint16](dst []byte, at int, levels []L, least L) (n, set int) {
	if !avx512() || unsafe.Sizeof(least) != 1 {
		return 0, 0
	}
	var masks [maskWords]uint64
	for len(levels)-n >= 64 {
		k := min((len(levels)-n)>>6, maskWords)
		atLeast8(&masks[0], (*uint8)(unsafe.Pointer(&levels[n])), k, uint8(least))
		for _, m := range masks[:k] {
			set += bits.OnesCount64(m)
		}
		CopyBits(dst, at+n, unsafe.Slice((*byte)(unsafe.Pointer(&masks)), 8*k), 0, k<<6)
		n += k << 6
	}
	return n, set
}

// lanes says how packed values get into the lanes of 64 bytes.
type lanes struct {
	from  [64]byte // the byte of the source that every byte takes
	shift [64]byte // how far every lane is shifted to the right
	mask  [64]byte
}

const (
	widest32 = 25 // with up to 7 bits before, a value still fits its lane
	widest64 = 57
)

var (
	lanes32 [widest32 + 1]lanes
	lanes64 [widest64 + 1]lanes
)

func init() {
	if vbmi() {
		for w := range lanes32 {
			lanes32[w].set(w, 4)
		}
		for w := range lanes64 {
			lanes64[w].set(w, 8)
		}
	}
}

// set is for values of width bits in lanes of size bytes.
func (l *lanes) set(width, size int) {
	for i := 0; i < 64; i += size {
		bit := i / size * width
		l.shift[i] = byte(bit & 7)
		for k := range size {
			l.from[i+k] = byte(bit>>3 + k)
			l.mask[i+k] = byte(ones(width) >> (8 * k))
		}
	}
}

// deltasHead reads the first values of the miniblock.
func deltasHead[T int32 | int64](d *Delta, dst []T) int {
	narrow := unsafe.Sizeof(T(0)) == 4
	if !vbmi() || d.pos&7 != 0 || d.width == 0 || d.width > widest64 || narrow && d.width > widest32 {
		return 0
	}
	src := d.mini[:cap(d.mini)] // what follows may be read, too
	from := d.pos >> 3 * int(d.width)
	if len(src)-from < 64 {
		return 0
	}
	if narrow {
		step := 2 * int(d.width)
		n := min(len(dst)>>4, (len(src)-from-64)/step+1) << 4
		if n > 0 {
			to := (*uint32)(unsafe.Pointer(&dst[0]))
			d.last = uint64(deltas32(to, &src[from], n, step, &lanes32[d.width], uint32(d.least), uint32(d.last)))
		}
		return n
	}
	step := int(d.width)
	n := min(len(dst)>>3, (len(src)-from-64)/step+1) << 3
	if n > 0 {
		to := (*uint64)(unsafe.Pointer(&dst[0]))
		d.last = deltas64(to, &src[from], n, step, &lanes64[d.width], d.least, d.last)
	}
	return n
}

// zipHead interleaves the first bytes of width streams, which are stride apart.
func zipHead(dst, src []byte, width, stride int) int {
	n := len(dst) / width &^ 15
	if n == 0 || !avx512() {
		return 0
	}
	switch width {
	case 4:
		zip4(&dst[0], &src[0], stride, n)
	case 8:
		zip8(&dst[0], &src[0], stride, n)
	default:
		return 0
	}
	return n
}
