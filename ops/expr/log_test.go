package expr

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Against package math: special values alike, no result further away than a
// neighbour, and nearly all equal.
func TestLog32(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	inf := float32(math.Inf(1))
	values := []float32{0, float32(math.Copysign(0, -1)), 1, -1, -2, inf, -inf, float32(math.NaN()), math.MaxFloat32, -math.MaxFloat32,
		math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-28, -0x1p-28, 0x1p-126, math.Sqrt2, math.Sqrt2 / 2,
		math.Nextafter32(1, 2), math.Nextafter32(1, 0), math.Nextafter32(-1, 0), math.Sqrt2 - 1, math.Sqrt2/2 - 1}
	for range 2_000_000 {
		switch r.IntN(3) {
		case 0:
			values = append(values, math.Float32frombits(r.Uint32()))
		case 1:
			values = append(values, 4*r.Float32()-2)
		default:
			values = append(values, 100*r.Float32())
		}
	}
	for name, f := range map[string]struct {
		fast  func(float32) float32
		exact func(float64) float64
	}{"log": {log32, math.Log}, "log1p": {log1p32, math.Log1p}} {
		other := 0
		for _, v := range values {
			got, want := f.fast(v), float32(f.exact(float64(v)))
			if math.Float32bits(got) == math.Float32bits(want) || got != got && want != want {
				continue
			}
			other++
			if math.Nextafter32(got, want) != want {
				t.Fatalf("seed %d: %s(%v) is %v, want %v", seed, name, v, got, want)
			}
		}
		if other > len(values)/10000 {
			t.Errorf("seed %d: %d of %d %s differ", seed, other, len(values), name)
		}
		t.Logf("%s: %d of %d differ", name, other, len(values))
	}
}

func BenchmarkLog1p(b *testing.B) {
	x := make([]float32, 1024)
	for i := range x {
		x[i] = rand.Float32()
	}
	b.Run("own", func(b *testing.B) {
		for range b.N {
			for i, v := range x {
				x[i] = log1p32(v) * 1.4
			}
		}
	})
	b.Run("math", func(b *testing.B) {
		for range b.N {
			for i, v := range x {
				x[i] = float32(math.Log1p(float64(v))) * 1.4
			}
		}
	})
}
