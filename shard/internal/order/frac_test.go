package order

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func (a wide) big() *big.Int {
	x := new(big.Int).SetUint64(a.hi)
	return x.Lsh(x, 64).Add(x, new(big.Int).SetUint64(a.lo))
}

// word is a number of 64 bits of which many are all ones or nought, so that carries happen.
func word(r *rand.Rand) uint64 {
	switch r.IntN(4) {
	case 0:
		return math.MaxUint64 - r.Uint64N(2)
	case 1:
		return r.Uint64N(2)
	}
	return r.Uint64() >> r.IntN(64)
}

// The integers of 128 and 256 bits against math/big.
func TestWide(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 100_000 {
		a, b := wide{word(r), word(r)}, wide{word(r), word(r)}
		hi, lo := a.mul(b)
		got := hi.big()
		got.Lsh(got, 128).Add(got, lo.big())
		if want := new(big.Int).Mul(a.big(), b.big()); got.Cmp(want) != 0 {
			t.Fatalf("seed %d: %v * %v is %v, want %v", seed, a, b, got, want)
		}
		if a.cmp(b) != a.big().Cmp(b.big()) {
			t.Fatalf("seed %d: %v and %v compare as %d", seed, a, b, a.cmp(b))
		}
		if a.cmp(b) >= 0 && a.sub(b).big().Cmp(new(big.Int).Sub(a.big(), b.big())) != 0 {
			t.Fatalf("seed %d: %v - %v is %v", seed, a, b, a.sub(b))
		}
	}
}

func (f *frac) rat() *big.Rat {
	x := new(big.Rat).SetFrac(f.rem.big(), f.q.big())
	x.Add(x, new(big.Rat).SetInt(new(big.Int).SetUint64(f.key)))
	return x.Quo(x, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), 64)))
}

// Times are exact, and so are sums and comparisons, for every denominator below 2^126.
func TestFrac(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	below := func(q wide) wide {
		n := new(big.Int).Mod(wide{word(r), word(r)}.big(), q.big())
		lo := new(big.Int).And(n, new(big.Int).SetUint64(math.MaxUint64))
		return wide{n.Rsh(n, 64).Uint64(), lo.Uint64()}
	}
	for range 20_000 {
		q := wide{word(r) >> 2 >> (r.IntN(2) * 62), max(word(r), 1)}
		n, m := below(q), below(q)
		f, d := newFrac(n, q), newFrac(m, q)
		if want := new(big.Rat).SetFrac(n.big(), q.big()); f.rat().Cmp(want) != 0 {
			t.Fatalf("seed %d: %v/%v is %v", seed, n, q, f.rat())
		}
		other := wide{word(r) >> 2, max(word(r), 1)}
		g := newFrac(below(other), other)
		if r.IntN(2) == 0 {
			g.key = f.key // let the rest decide
		}
		if f.cmp(&g) != f.rat().Cmp(g.rat()) {
			t.Fatalf("seed %d: %v and %v compare as %d", seed, f, g, f.cmp(&g))
		}
		if sum := new(big.Rat).Add(f.rat(), d.rat()); sum.Cmp(big.NewRat(1, 1)) < 0 {
			if f.add(d.key, d.rem); f.rat().Cmp(sum) != 0 {
				t.Fatalf("seed %d: the sum is %v, want %v", seed, f.rat(), sum)
			}
		}
	}
}

// Bounded numbers against the rule in big integers, for bounds at which one draw in two is rejected.
func TestBounded(t *testing.T) {
	two64 := new(big.Int).Lsh(big.NewInt(1), 64)
	rejected := 0
	for i := range 2000 {
		n := uint64(1)<<63 + uint64(i)
		a, b := rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}), rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)})
		bound := new(big.Int).SetUint64(n)
		reject := new(big.Int).Mod(two64, bound)
		for range 5 {
			got := bounded(a, n)
			for {
				x := new(big.Int).Mul(new(big.Int).SetUint64(b.Uint64()), bound)
				high, low := new(big.Int).DivMod(x, two64, new(big.Int))
				if low.Cmp(reject) >= 0 {
					if high.Uint64() != got {
						t.Fatalf("below %d: %d, want %v", n, got, high)
					}
					break
				}
				rejected++
			}
		}
	}
	if rejected < 1000 {
		t.Fatalf("only %d draws were rejected", rejected)
	}
}
