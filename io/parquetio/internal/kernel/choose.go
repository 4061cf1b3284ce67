package kernel

import (
	"math/bits"
	"unsafe"

	"github.com/penstock-data/penstock/internal/sift"
)

// Rows are chosen by words of 64 bits, row i by bit i&63 of word i>>6, as in package sift; bits behind the last row
// are 0.

// WordsOf is how many words n rows take.
func WordsOf(n int) int { return (n + 63) >> 6 }

// BytesOf is the memory of words: the bitmap of the same rows.
func BytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
}

// PartBits writes the n bits of rows from bit at on to dst, whose words are as many as they take.
func PartBits(dst, rows []uint64, at, n int) {
	src, s := rows[at>>6:], uint(at&63)
	for i := range dst {
		v := src[i] >> s
		if s > 0 && i+1 < len(src) {
			v |= src[i+1] << (64 - s)
		}
		dst[i] = v
	}
	if left := uint(n & 63); left > 0 {
		dst[len(dst)-1] &= 1<<left - 1
	}
}

// GatherChosen reads n indexes and looks up those of the rows that are chosen, as many as dst is long; false if one is
// outside the dictionary.
func GatherChosen[T Word](h *Hybrid, dst, dict []T, n int, rows []uint64) bool {
	var block [blockLen]uint32
	for n > 0 {
		if h.left == 0 && !h.next() {
			return false
		}
		run := !h.packed && h.left >= longRun
		k := min(n, blockLen)
		if run {
			if k = min(n, h.left); k < n {
				k &^= 63
			}
		}
		words := rows[:WordsOf(k)]
		m := sift.Count(words)
		switch {
		case run:
			if uint64(h.value) >= uint64(len(dict)) {
				return h.fail()
			}
			fill(dst[:m], dict[h.value])
			h.step(k)
		case m == 0:
			if !h.Skip(k) {
				return false
			}
		default:
			if !h.Indexes(block[:k], len(dict)) {
				return false
			}
			if m < k {
				sift.Keep(block[:], block[:k], words)
			}
			gather(dst[:m:m], dict, block[:m])
		}
		dst, rows, n = dst[m:], rows[len(words):], n-k
	}
	return true
}

// GatherBytesChosen is GatherChosen for values of width bytes each.
func GatherBytesChosen(h *Hybrid, dst, dict []byte, width, n int, rows []uint64) bool {
	if width <= 0 || len(dst)%width != 0 {
		return false
	}
	entries := len(dict) / width
	var block [blockLen]uint32
	for n > 0 {
		k := min(n, blockLen)
		if !h.Indexes(block[:k], entries) {
			return false
		}
		words := rows[:WordsOf(k)]
		for i, w := range words {
			for ; w != 0; w &= w - 1 {
				x := int(block[i<<6+bits.TrailingZeros64(w)])
				dst = dst[copy(dst[:width], dict[x*width:]):]
			}
		}
		rows, n = rows[len(words):], n-k
	}
	return true
}

// KeepBytes copies the values of width bytes of the rows that are chosen, as many as fill dst, from src, which has all.
func KeepBytes(dst, src []byte, width int, rows []uint64) {
	switch width {
	case 1:
		sift.Keep(dst, src, rows)
	case 2:
		sift.Keep(Cast[uint16](dst), Cast[uint16](src), rows)
	case 4:
		sift.Keep(Cast[uint32](dst), Cast[uint32](src), rows)
	case 8:
		sift.Keep(Cast[uint64](dst), Cast[uint64](src), rows)
	case 16:
		sift.Keep(Cast[[2]uint64](dst), Cast[[2]uint64](src), rows)
	default:
		for k, w := range rows {
			for ; w != 0; w &= w - 1 {
				at := (k<<6 + bits.TrailingZeros64(w)) * width
				dst = dst[copy(dst[:width], src[at:]):]
			}
		}
	}
}
