package kernel

import (
	"runtime"
	"unsafe"

	"github.com/parquet-go/bitpack"
)

// unpack fills dst with values of width bits (1 to the bits of T), packed from the
// lowest bit of src on. Bits behind src are 0.
func unpack[T uint32 | uint64](dst []T, src []byte, width uint) {
	const pad = bitpack.PaddingInt64 // what Unpack reads beyond; less for 32 bits
	need := (len(dst)*int(width) + 7) >> 3
	if need+pad <= len(src) {
		unpackAll(dst, src, width)
		return
	}
	src = src[:min(need, len(src))]
	if len(src) > pad {
		n := min((len(src)-pad)<<3/int(width)&^7, len(dst))
		unpackAll(dst[:n], src, width)
		dst, src = dst[n:], src[n>>3*int(width):]
	}
	for len(dst) > 0 { // twice at most, unless src is short
		var tail [3 * pad]byte
		n := min((len(tail)-pad)<<3/int(width)&^7, len(dst))
		copy(tail[:len(tail)-pad], src)
		unpackAll(dst[:n], tail[:], width)
		dst, src = dst[n:], src[min(n>>3*int(width), len(src)):]
	}
}

// unpackAll is unpack where src goes on for bitpack.PaddingInt64 behind the values. bitpack has assembly for amd64 and arm64; its Go puts each value together from two words.
func unpackAll[T uint32 | uint64](dst []T, src []byte, width uint) {
	if asm || runtime.GOARCH == "arm64" || width > 64-7 {
		bitpack.Unpack(dst, src, width)
		return
	}
	_ = src[:uint(len(dst))*width>>3+8] // the last load
	from := unsafe.Pointer(unsafe.SliceData(src))
	mask := ones(int(width))
	var bit uint
	if s := width & 63; s <= (64-7)/4 { // four to a load
		for ; len(dst) >= 4; dst = dst[4:] {
			w := *(*uint64)(unsafe.Add(from, bit>>3)) >> (bit & 7)
			dst[0], dst[1], dst[2], dst[3] = T(w&mask), T(w>>s&mask), T(w>>(2*s)&mask), T(w>>(3*s)&mask)
			bit += 4 * width
		}
	}
	for i := range dst {
		dst[i] = T(*(*uint64)(unsafe.Add(from, bit>>3)) >> (bit & 7) & mask)
		bit += width
	}
}

// unpackFrom is unpack from value pos on.
func unpackFrom[T uint32 | uint64](dst []T, src []byte, pos int, width uint) {
	if k := pos & 7; k > 0 && len(dst) > 0 {
		var group [8]T
		unpack(group[:], src[min(pos>>3*int(width), len(src)):], width)
		n := copy(dst, group[k:])
		dst, pos = dst[n:], pos+n
	}
	if len(dst) > 0 {
		unpack(dst, src[min(pos>>3*int(width), len(src)):], width)
	}
}
