package rows

import (
	"math"
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
