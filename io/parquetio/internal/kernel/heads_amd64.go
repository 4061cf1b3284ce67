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
	if !asm || size != 4 && size != 8 || len(dense) == 0 {
		return 0, 0
	}
	var masks [maskWords]uint64
	for len(dst)-rows >= 64 {
		n := min((len(dst)-rows)>>6, maskWords)
		set := 0
		for i := range masks[:n] {
			masks[i] = word(valid, at+rows+i<<6)
			set += bits.OnesCount64(masks[i])
		}
		to, from := unsafe.Pointer(&dst[rows]), unsafe.Pointer(&dense[min(used, len(dense)-1)])
		if size == 4 {
			expand32((*uint32)(to), (*uint32)(from), len(dense)-used, &masks[0], n)
		} else {
			expand64((*uint64)(to), (*uint64)(from), len(dense)-used, &masks[0], n)
		}
		rows, used = rows+n<<6, used+set
	}
	return rows, used
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
		if len(dict) <= 32 {
			var table [32]uint32
			copy(table[:], unsafe.Slice((*uint32)(from), len(dict)))
			look32((*uint32)(to), &table, &idx[0], n)
		} else {
			gather32((*uint32)(to), (*uint32)(from), &idx[0], n)
		}
	case 8:
		if len(dict) <= 16 {
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
	if n = len(v) &^ 31; !asm || n == 0 {
		return 0, 0
	}
	return n, max32(&v[0], n)
}

// unpack8Head unpacks the first values.
func unpack8Head(dst, src []byte, width uint) int {
	if !asm || len(src) < 8 {
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
	if !asm || unsafe.Sizeof(least) != 1 {
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

// deltasHead reads the first values of the miniblock.
func deltasHead[T int32 | int64](d *Delta, dst []T) int {
	lanes, widest := 8, uint(57)
	if unsafe.Sizeof(T(0)) == 4 {
		lanes, widest = 16, 25
	}
	if !vbmi() || d.width == 0 || d.width > widest || d.pos&7 != 0 {
		return 0
	}
	src := d.mini[:cap(d.mini)] // what follows may be read, too
	from := d.pos >> 3 * int(d.width)
	step := lanes >> 3 * int(d.width) // bytes
	n := min(len(dst)/lanes, (len(src)-from-64+step)/step) * lanes
	if len(src)-from < 64 || n <= 0 {
		return 0
	}
	if to := unsafe.Pointer(&dst[0]); lanes == 16 {
		d.last = uint64(deltas32((*uint32)(to), &src[from], n, d.width, uint32(d.least), uint32(d.last)))
	} else {
		d.last = deltas64((*uint64)(to), &src[from], n, d.width, d.least, d.last)
	}
	return n
}

// zipHead interleaves the first bytes of width streams, which are stride apart.
func zipHead(dst, src []byte, width, stride int) int {
	n := len(dst) / width &^ 15
	if !asm || n == 0 {
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
