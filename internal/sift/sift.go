// Package sift keeps the rows that a bitmap says: kernels over fixed-width values
// and over bits, the inner loops of a filter.
//
// A bitmap is words of 64 rows, row i at bit i&63 of word i>>6; bits beyond the
// last row are zero. The caller counts its bits: dst is exactly as long as rows
// are kept. On amd64 with AVX-512 the kernels are assembly (sift_amd64.s); the
// build tag purego leaves that out.
package sift

import "math/bits"

// Width are the values that Keep moves: 1, 2, 4, 8 and 16 bytes.
type Width interface {
	uint8 | uint16 | uint32 | uint64 | [2]uint64
}

// Count returns how many bits are set.
func Count(rows []uint64) int {
	n := 0
	for _, w := range rows {
		n += bits.OnesCount64(w)
	}
	return n
}

// Keep copies the values of src whose bit in rows is set to dst, in order. src
// holds a value for every row; it panics where dst or src is too short.
func Keep[T Width](dst, src []T, rows []uint64) {
	k, p := head(dst, src, rows)
	for ; k < len(rows); k++ {
		w := rows[k]
		if w == 0 {
			continue
		}
		s := src[k*64:]
		if w == ^uint64(0) {
			copy(dst[p:p+64], s[:64])
			p += 64
			continue
		}
		d := dst[p : p+bits.OnesCount64(w)]
		for i := range d {
			d[i] = s[bits.TrailingZeros64(w)]
			w &= w - 1
		}
		p += len(d)
	}
}

// Index writes the numbers, counted from first, of the rows whose bit is set.
func Index[T int32 | int64](dst []T, rows []uint64, first T) {
	p := 0
	for k, w := range rows {
		base := first + T(k*64)
		if w == ^uint64(0) {
			d := dst[p : p+64]
			for j := range d {
				d[j] = base + T(j)
			}
			p += 64
			continue
		}
		for ; w != 0; w &= w - 1 {
			dst[p] = base + T(bits.TrailingZeros64(w))
			p++
		}
	}
}

// Bits packs the bits of src whose bit in rows is set into dst, which has a whole
// word for every 64 of them; what is left of the last word is zero. src(k) gives
// the bits of rows 64k to 64k+63. It returns how many of them are set.
func Bits(dst []uint64, src func(k int) uint64, rows []uint64) (set int) {
	var acc uint64
	var have uint
	p := 0
	for k, w := range rows {
		if w == 0 {
			continue
		}
		v, n := extract(src(k), w), uint(bits.OnesCount64(w))
		set += bits.OnesCount64(v)
		acc |= v << have
		if have+n >= 64 {
			dst[p] = acc
			p++
			acc = v >> (64 - have) // a shift by 64 gives 0
			have = have + n - 64
		} else {
			have += n
		}
	}
	if have > 0 {
		dst[p] = acc
	}
	return set
}

// extractGo moves the bits of v below the set bits of mask together, those of
// all ones and all zeros at once.
func extractGo(v, mask uint64) uint64 {
	if mask == ^uint64(0) {
		return v
	}
	if v &= mask; v == 0 {
		return 0
	}
	// Runs of set bits: from the lowest on, each is moved down to what is there.
	var out uint64
	at := 0
	for mask != 0 {
		skip := bits.TrailingZeros64(mask)
		mask >>= skip
		v >>= skip
		run := bits.TrailingZeros64(^mask) // 64 cannot be: not all are ones
		out |= v & (1<<run - 1) << at
		mask >>= run
		v >>= run
		at += run
	}
	return out
}
