package order

import (
	"crypto/sha256"
	"math/bits"
	"math/rand/v2"
	"strconv"
)

// Splits is the key of the permutation of the source's splits.
func (k Key) Splits() [32]byte { return k.hash("splits", "", "") }

// Rows is the key of the permutation of the units of one window.
func (k Key) Rows(lane int, window int64) [32]byte {
	return k.hash("rows", strconv.Itoa(lane), strconv.FormatInt(window, 10))
}

// hash is SHA-256 of the tuple of order version 1, its fields joined by 0x00. A
// source's name is the only field that is not ours; no other may hold 0x00, so two
// different tuples give different bytes.
func (k Key) hash(purpose, lane, window string) [32]byte {
	var buf [128]byte
	b := append(buf[:0], "penstock/order/"...)
	b = strconv.AppendUint(b, Version, 10)
	for _, n := range [...]uint64{k.Seed, k.Epoch, k.Pass} {
		b = strconv.AppendUint(append(b, 0), n, 10)
	}
	for _, s := range [...]string{k.Source, purpose, lane, window} {
		b = append(append(b, 0), s...)
	}
	return sha256.Sum256(b)
}

// Perm fills p with the permutation of 0..len(p)-1 that belongs to key: Fisher-Yates
// from the last place down over ChaCha8. It needs
// no memory but p and the 300 bytes of the generator.
func Perm(key [32]byte, p []int32) {
	for i := range p {
		p[i] = int32(i)
	}
	var r rand.ChaCha8
	r.Seed(key)
	for i := len(p) - 1; i > 0; i-- {
		j := bounded(&r, uint64(i)+1)
		p[i], p[j] = p[j], p[i]
	}
}

// bounded returns a number below n, each with the same probability: the high half of
// a 64 x 64 bit product, drawn again while the low half is below 2^64 mod n (Lemire,
// "Fast Random Integer Generation in an Interval", ACM TOMACS 29(1), 2019, algorithm
// 5). The remainder is computed only where the low half is below n, which decides
// nothing: it is the same rule. Written here because what the library's own
// reduction draws is no promise.
func bounded(r *rand.ChaCha8, n uint64) uint64 {
	hi, lo := bits.Mul64(r.Uint64(), n)
	if lo < n {
		for t := -n % n; lo < t; {
			hi, lo = bits.Mul64(r.Uint64(), n)
		}
	}
	return hi
}
