package expr

import "math"

// log32 and log1p32 are the logarithms of float columns: in double, by a series that is exact to
// 2^-44 of the result, then rounded to float32; so almost always what the correctly rounded result is, and never
// more than the neighbour of it. Several times as fast as those of package math.

func log32(x float32) float32 {
	if !(x > 0) || x > math.MaxFloat32 {
		return float32(math.Log(float64(x)))
	}
	return float32(logSeries(float64(x)))
}

func log1p32(x float32) float32 {
	v := float64(x)
	switch {
	case !(x > -1) || x > math.MaxFloat32:
		return float32(math.Log1p(v))
	case x < 0x1p-28 && x > -0x1p-28: // 1 + x would not be exact
		return float32(v - float64(v*v)/2)
	}
	return float32(logSeries(1 + v))
}

// logSeries is the logarithm of a normal number above 0: of 2^k m, with m next to 1, it
// is k log 2 + 2 artanh((m-1)/(m+1)).
func logSeries(v float64) float64 {
	const sqrt2 = 0x3ff6a09e667f3bcd
	b := math.Float64bits(v)
	k := int64(b+(0x3ff0000000000000-(sqrt2-0x0010000000000000)))>>52 - 0x3ff // so that m lies within sqrt(1/2) and sqrt(2)
	f := math.Float64frombits(b-uint64(k)<<52) - 1
	s := f / (2 + f)
	z := s * s
	// The conversions keep products from being fused with sums: the same bits on every machine.
	p := float64(z*(1.0/15)) + 1.0/13
	p = float64(z*p) + 1.0/11
	p = float64(z*p) + 1.0/9
	p = float64(z*p) + 1.0/7
	p = float64(z*p) + 1.0/5
	p = float64(z*p) + 1.0/3
	p = float64(z*p) + 1
	return float64(float64(k)*math.Ln2) + float64(2*s*p)
}
