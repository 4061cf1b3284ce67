package kernel

import "github.com/parquet-go/bitpack"

// unpack fills dst with values of width bits (1 to the bits of T), packed from the
// lowest bit of src on. Bits behind src are 0.
func unpack[T uint32 | uint64](dst []T, src []byte, width uint) {
	const pad = bitpack.PaddingInt64 // what Unpack reads beyond; less for 32 bits
	need := (len(dst)*int(width) + 7) >> 3
	if need+pad <= len(src) {
		bitpack.Unpack(dst, src, width)
		return
	}
	src = src[:min(need, len(src))]
	if len(src) > pad {
		n := min((len(src)-pad)<<3/int(width)&^7, len(dst))
		bitpack.Unpack(dst[:n], src, width)
		dst, src = dst[n:], src[n>>3*int(width):]
	}
	for len(dst) > 0 { // twice at most, unless src is short
		var tail [3 * pad]byte
		n := min((len(tail)-pad)<<3/int(width)&^7, len(dst))
		copy(tail[:len(tail)-pad], src)
		bitpack.Unpack(dst[:n], tail[:], width)
		dst, src = dst[n:], src[min(n>>3*int(width), len(src)):]
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
