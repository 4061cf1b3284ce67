package rows

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

func TestBFloat16(t *testing.T) {
	for _, c := range []struct {
		in   float32
		want uint16
	}{{0, 0}, {1, 0x3f80}, {-2, 0xc000}, {1.00390625, 0x3f80}, {1.01171875, 0x3f82}, {float32(math.Inf(1)), 0x7f80}, {math.MaxFloat32, 0x7f80}} {
		if got := bfloat16(c.in); got != c.want {
			t.Errorf("%v: %#x, want %#x", c.in, got, c.want)
		}
	}
	if got := bfloat16(float32(math.NaN())); got&0x7f80 != 0x7f80 || got&0x7f == 0 {
		t.Errorf("NaN: %#x", got)
	}
}

// Every half is itself; what lies between two goes to the nearer, in the middle to
// the even one, seen from float64 too, where a float32 in between would hide the difference.
func TestFloat16(t *testing.T) {
	for h := range uint16(0x7c00) {
		lo := float64(halfToFloat(h))
		hi := float64(halfToFloat(h + 1))
		if h == 0x7bff {
			hi = 65536 // as if there were one more
		}
		mid := (lo + hi) / 2
		even := h + h&1
		for _, c := range []struct {
			v    float64
			want uint16
		}{{lo, h}, {mid, even}, {math.Nextafter(mid, 0), h}, {math.Nextafter(mid, 1e9), h + 1}} {
			if got := half(narrow(c.v)); got != c.want {
				t.Fatalf("%v: %#x, want %#x", c.v, got, c.want)
			}
			if got := half(narrow(-c.v)); got != c.want|0x8000 && c.v != 0 {
				t.Fatalf("-%v: %#x, want %#x", c.v, got, c.want|0x8000)
			}
		}
	}
	for _, c := range []struct {
		v    float64
		want uint16
	}{{math.Inf(1), 0x7c00}, {math.Inf(-1), 0xfc00}, {1e300, 0x7c00}, {65519.9, 0x7bff}, {5.9604644775390625e-08, 1}, {math.Copysign(0, -1), 0x8000}} {
		if got := half(narrow(c.v)); got != c.want {
			t.Errorf("%v: %#x, want %#x", c.v, got, c.want)
		}
	}
	if got := half(float32(math.NaN())); got&0x7c00 != 0x7c00 || got&0x3ff == 0 {
		t.Errorf("NaN: %#x", got)
	}
	if v := halfToFloat(0xfc00); !math.IsInf(float64(v), -1) {
		t.Errorf("-Inf: %v", v)
	}
	if got := bfloat16(narrow(1 + 1.0/256 + 1e-12)); got != 0x3f81 {
		t.Errorf("just above the middle: %#x", got)
	}
}

// Kernels do what plain Go does, bit by bit: for random bits, for numbers at the edges of types, for NaN of all kinds, and whatever
// the number of values.
func TestConverter(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	edges := []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 65504, 65520, 65519.9, 1e-8, 5.9604644775390625e-08, 1e300, -1e300, math.MaxFloat32, math.SmallestNonzeroFloat32,
		math.Inf(1), math.Inf(-1), math.NaN(), math.Float64frombits(0x7ff0000000000001), math.Float64frombits(0xfff8000000012345), math.MaxInt32, math.MinInt32,
		math.MaxInt64, math.MinInt64, 1 << 24, 1<<24 + 1, 1<<53 + 2, 1 + 1.0/256 + 1e-12, 1 + 1.0/2048 + 1e-12, 3e38, 3.4028235677973366e38}
	for _, from := range sources {
		for to := Bool; to <= Float64; to++ {
			for _, by := range [][2]float64{{1, 0}, {0, 0}, {1. / 255, 0}, {-3, 0.125}, {1, 7}} {
				scale := by[0]
				if scale == 0 {
					scale = 1
				}
				fast, slow := Converter(from, to, by[0], by[1]), converter(from, to, scale, by[1])
				for range 8 {
					n := 1 + rng.IntN(600)
					src := make([]byte, n*from.Size())
					for i := range src {
						src[i] = byte(rng.Uint32())
					}
					for i := range n {
						at := src[i*from.Size() : (i+1)*from.Size()]
						switch e := edges[rng.IntN(len(edges))]; {
						case from == Bool:
							at[0] &= 1
						case rng.IntN(4) > 0:
						case from == Float64:
							binary.LittleEndian.PutUint64(at, math.Float64bits(e))
						case from == Float32:
							binary.LittleEndian.PutUint32(at, math.Float32bits(float32(e)))
						default:
							clear(at)
							at[rng.IntN(len(at))] = 0x80 >> rng.IntN(8)
						}
					}
					got, want := make([]byte, n*to.Size()), make([]byte, n*to.Size())
					g, w := fast(got, src), slow(want, src)
					if g != w {
						t.Fatalf("%d to %d, %v: value %d does not fit, want %d", from, to, by, g, w)
					}
					if w >= 0 {
						n = w
					}
					if size := to.Size(); !bytes.Equal(got[:n*size], want[:n*size]) {
						for i := range n {
							if !bytes.Equal(got[i*size:(i+1)*size], want[i*size:(i+1)*size]) {
								t.Fatalf("%d to %d, %v: % x becomes % x, want % x", from, to, by, src[i*from.Size():(i+1)*from.Size()], got[i*size:(i+1)*size], want[i*size:(i+1)*size])
							}
						}
					}
				}
			}
		}
	}
}
