package kernel

import (
	"encoding/binary"
	"math/bits"
)

// word returns 64 bits of b from bit at on; those behind b are 0.
func word(b []byte, at int) uint64 {
	i, s := at>>3, uint(at&7)
	if i+9 <= len(b) {
		return binary.LittleEndian.Uint64(b[i:])>>s | uint64(b[i+8])<<(64-s)
	}
	var v uint64
	for k := 0; k < 8 && i+k < len(b); k++ {
		v |= uint64(b[i+k]) << (8 * k)
	}
	return v >> s // b ends here: there is no ninth byte
}

// ones returns n low bits, n <= 64.
func ones(n int) uint64 { return 1<<uint(n) - 1 }

// putWord writes the n <= 64 low bits of v to b from bit at on, and no others.
func putWord(b []byte, at int, v uint64, n int) {
	i, s := at>>3, at&7
	if s == 0 && n == 64 {
		binary.LittleEndian.PutUint64(b[i:], v)
		return
	}
	for n > 0 {
		k := min(8-s, n)
		m := byte(ones(k)) << s
		b[i] = b[i]&^m | byte(v<<s)&m
		v >>= uint(k)
		n -= k
		i++
		s = 0
	}
}

// CopyBits copies n bits of src, from bit from on, to dst from bit at on. The two
// must not overlap.
func CopyBits(dst []byte, at int, src []byte, from, n int) {
	if head := min(-at&7, n); head > 0 {
		putWord(dst, at, word(src, from), head)
		at, from, n = at+head, from+head, n-head
	}
	if from&7 == 0 {
		k := n >> 3
		copy(dst[at>>3:][:k], src[from>>3:])
		at, from, n = at+k<<3, from+k<<3, n&7
	}
	s, in, to := uint(from&7), src[min(from>>3, len(src)):], dst[min(at>>3, len(dst)):]
	for n >= 64 && len(in) > 8 && len(to) >= 8 {
		binary.LittleEndian.PutUint64(to, binary.LittleEndian.Uint64(in)>>s|uint64(in[8])<<(64-s))
		in, to = in[8:], to[8:]
		at, from, n = at+64, from+64, n-64
	}
	for ; n >= 64; at, from, n = at+64, from+64, n-64 {
		binary.LittleEndian.PutUint64(dst[at>>3:], word(src, from))
	}
	if n > 0 {
		putWord(dst, at, word(src, from), n)
	}
}

// FillBits sets n bits of dst, from bit at on.
func FillBits(dst []byte, at, n int, set bool) {
	var v uint64
	if set {
		v = ^v
	}
	if head := min(-at&7, n); head > 0 {
		putWord(dst, at, v, head)
		at, n = at+head, n-head
	}
	fill(dst[at>>3:][:n>>3], byte(v))
	if n&7 > 0 {
		putWord(dst, at+n&^7, v, n&7)
	}
}

// CountBits returns how many of the n bits from bit at on are set.
func CountBits(b []byte, at, n int) (set int) {
	if head := -at & 7; head > 0 && n >= 64+head { // the rest begins with a byte
		set = bits.OnesCount64(word(b, at) & ones(head))
		at, n = at+head, n-head
	}
	if at&7 == 0 {
		whole := b[min(at>>3, len(b)):]
		whole = whole[:min(n>>6, len(whole)>>3)<<3]
		at, n = at+len(whole)<<3, n-len(whole)<<3
		for ; len(whole) >= 32; whole = whole[32:] {
			set += bits.OnesCount64(binary.LittleEndian.Uint64(whole)) + bits.OnesCount64(binary.LittleEndian.Uint64(whole[8:])) +
				bits.OnesCount64(binary.LittleEndian.Uint64(whole[16:])) + bits.OnesCount64(binary.LittleEndian.Uint64(whole[24:]))
		}
		for ; len(whole) >= 8; whole = whole[8:] {
			set += bits.OnesCount64(binary.LittleEndian.Uint64(whole))
		}
	}
	for ; n >= 64; at, n = at+64, n-64 {
		set += bits.OnesCount64(word(b, at))
	}
	if n > 0 {
		set += bits.OnesCount64(word(b, at) & ones(n))
	}
	return set
}

// AtLeast sets the bit of every level that is least or more, clears the others, from
// bit at of dst on, and returns how many it set.
func AtLeast[L uint8 | uint16](dst []byte, at int, levels []L, least L) (set int) {
	n, set := atLeastHead(dst, at, levels, least)
	levels, at = levels[n:], at+n
	for len(levels) > 0 {
		n := min(64-at&7, len(levels))
		var v uint64
		for i, l := range levels[:n] {
			// The borrow of l - least is the top bit: 1 if l is less.
			v |= (uint64(l) - uint64(least)) >> 63 << i
		}
		v = ^v & ones(n)
		putWord(dst, at, v, n)
		set += bits.OnesCount64(v)
		levels, at = levels[n:], at+n
	}
	return set
}

// ExpandBits spreads the bits of dense, from bit from on, over the n rows that valid
// has from bit at on: row i goes to bit to+i of dst, and is 0 where not valid.
// dense holds as many bits as rows are valid. dst overlaps with neither.
func ExpandBits(dst []byte, to int, dense []byte, from int, valid []byte, at, n int) {
	for n > 0 {
		k := min(64-to&7, n)
		m := word(valid, at) & ones(k)
		putWord(dst, to, deposit(word(dense, from), m), k)
		from += bits.OnesCount64(m)
		to, at, n = to+k, at+k, n-k
	}
}

// deposit places the low bits of v at the set bits of m, lowest first.
func deposit(v, m uint64) uint64 {
	if m == ^uint64(0) {
		return v
	}
	var r uint64
	for ; m != 0 && v != 0; m, v = m&(m-1), v>>1 {
		r |= m & -m & -(v & 1)
	}
	return r
}
