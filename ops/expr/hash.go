package expr

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/zeebo/xxh3"
)

// The algorithms of this file are frozen: golden tests hold them, and
// docs/expressions.md describes them. Samples and splits of data depend on both.

const (
	golden   = 0x9e3779b97f4a7c15 // 2^64 / golden ratio
	nullHash = 0x6e756c6c6e756c6c // "nullnull"
)

// mix is the finalizer of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// hashKernel combines the hashes of its arguments: h = mix((h ^ hash of value) +
// golden) from h = 0. The hash of an integer, bool, date or time is mix of its 64
// bits plus golden, of a float mix of the bits as double (one zero, one NaN) plus
// golden, of a text or bytes XXH3-64, of a decimal XXH3-64 of its 16 bytes, of
// null a constant.
func hashKernel(x *exec, a []vec) vec {
	n := x.n
	buf, h := allocOf[uint64](x.mem, n)
	clear(h)
	for _, v := range a {
		one := hashOf(v)
		ok := v.valid()
		for i := range h {
			c := uint64(nullHash)
			if ok.bit(i) {
				c = one(i)
			}
			h[i] = mix((h[i] ^ c) + golden)
		}
	}
	return x.array(arrow.PrimitiveTypes.Uint64, n, nil, buf)
}

func hashOf(v vec) func(i int) uint64 {
	if v.lit != nil {
		if !v.lit.valid {
			return func(int) uint64 { return nullHash }
		}
		var c uint64
		switch physOf(v.typ) {
		case pF32, pF64:
			c = hashFloat(v.lit.f)
		case pString, pLarge, pFixed:
			c = xxh3.HashString(v.lit.s)
		case pDec:
			c = hashDecimal(v.lit.d)
		default:
			c = hashInt(v.lit.i)
		}
		return func(int) uint64 { return c }
	}
	switch p := physOf(v.typ); p {
	case pBool:
		b := v.bools()
		return func(i int) uint64 { return hashInt(b2u(b.bit(i))) }
	case pString, pLarge, pFixed:
		t := textsOf(v)
		return func(i int) uint64 { return xxh3.Hash(t.at(i)) }
	case pDec:
		d := fixed[decimal128.Num](v)
		return func(i int) uint64 { return hashDecimal(d[i]) }
	case pOther:
		return func(int) uint64 { return nullHash }
	default:
		return hashNum[p](v)
	}
}

var hashNum = perNum(hashInts[int8], hashInts[int16], hashInts[int32], hashInts[int64], hashInts[uint8], hashInts[uint16], hashInts[uint32], hashInts[uint64],
	hashFloats[float32], hashFloats[float64])

func hashInts[T integer](v vec) func(i int) uint64 {
	p := fixed[T](v)
	return func(i int) uint64 { return hashInt(p[i]) }
}

func hashFloats[T float](v vec) func(i int) uint64 {
	p := fixed[T](v)
	return func(i int) uint64 { return hashFloat(float64(p[i])) }
}

func hashInt[T integer](v T) uint64 { return mix(uint64(v) + golden) }

func hashFloat(f float64) uint64 {
	switch {
	case f == 0:
		f = 0 // -0 too
	case f != f:
		f = math.NaN()
	}
	return hashInt(math.Float64bits(f))
}

func hashDecimal(d decimal128.Num) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], d.LowBits())
	binary.LittleEndian.PutUint64(b[8:], uint64(d.HighBits()))
	return xxh3.Hash(b[:])
}

// randomKey keys one call of random() for one split: the first 8 bytes, little
// endian, of SHA-256 of the texts below joined by 0 bytes.
func randomKey(r *Rows, site, nth int) uint64 {
	h := sha256.Sum256([]byte(strings.Join([]string{"penstock/random/1", strconv.FormatUint(r.Seed, 10), strconv.FormatUint(r.Epoch, 10),
		strconv.Itoa(r.Source), r.Split, strconv.Itoa(site), strconv.Itoa(nth)}, "\x00")))
	return binary.LittleEndian.Uint64(h[:])
}

// philox is the first word of Philox2x64-10 of counter (c0, c1).
func philox(c0, c1, key uint64) uint64 {
	for range 10 {
		hi, lo := bits.Mul64(0xd2b74407b1ce6e93, c0)
		c0, c1 = hi^key^c1, lo
		key += golden
	}
	return c0
}

// evalRandom gives doubles in [0, 1): the 53 high bits of philox(row, ord).
func evalRandom(x *exec, site, nth int) vec {
	key := randomKey(x.rows, site, nth)
	buf, out := allocOf[float64](x.mem, x.n)
	for i := range out {
		row, ord := x.rows.Row+int64(i), uint64(0)
		if x.rows.At != nil {
			row = x.rows.At[i]
		}
		if x.rows.Ords != nil {
			ord = x.rows.Ords[i]
		}
		out[i] = float64(philox(uint64(row), ord, key)>>11) * 0x1p-53
	}
	return x.array(arrow.PrimitiveTypes.Float64, x.n, nil, buf)
}
