package expr

import (
	"math"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/internal/memtest"
)

// TestHashGolden freezes hash(): samples and splits of data depend on it.
func TestHashGolden(t *testing.T) {
	// The first output of SplitMix64 from seed 0, as its author publishes it.
	if got := hashInt(int64(0)); got != 0xe220a8397b1dcdaf {
		t.Errorf("hash of 0: %#x", got)
	}
	mem := memtest.New(t)
	rec := table(t, mem)
	defer rec.Release()
	for text, want := range map[string]string{
		"hash(0)":                      "12035550249420947055, 12035550249420947055, 12035550249420947055: uint64",
		"hash(id)":                     "6791897765849424158, 7235116703822611636, 756517608410894910: uint64",
		"hash(cast(id, \"uint8\"))":    "6791897765849424158, 7235116703822611636, 756517608410894910: uint64",
		"hash(name)":                   "17860926637565860484, 4848698369285848200, 756517608410894910: uint64",
		"hash(cast(name, \"binary\"))": "17860926637565860484, 4848698369285848200, 756517608410894910: uint64",
		"hash(fare)":                   "10088018399617406833, 8304426954397450370, 756517608410894910: uint64",
		"hash(cast(fare, \"float\"))":  "10088018399617406833, 8304426954397450370, 756517608410894910: uint64",
		"hash(price, ok, day)":         "17262172196029230302, 9097683578955343539, 12135996617131421743: uint64",
		"hash(0.0)":                    "12035550249420947055, 12035550249420947055, 12035550249420947055: uint64",
		"hash(-0.0)":                   "12035550249420947055, 12035550249420947055, 12035550249420947055: uint64",
	} {
		if got, err := eval(t, rec, mem, text); got != want || err != nil {
			t.Errorf("%s: %s (%v), want %s", text, got, err, want)
		}
	}
	if hashFloat(math.NaN()) != hashFloat(-math.NaN()) {
		t.Error("NaNs differ")
	}
}

func TestPhilox(t *testing.T) {
	// Known answers of the Random123 library for philox2x64-10.
	for _, c := range [][4]uint64{
		{0, 0, 0, 0xca00a0459843d731},
		{math.MaxUint64, math.MaxUint64, math.MaxUint64, 0x65b021d60cd8310f},
		{0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x0a5e742c2997341c},
	} {
		if got := philox(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("philox(%#x, %#x, %#x) = %#x, want %#x", c[0], c[1], c[2], got, c[3])
		}
	}
}

// TestRandomGolden freezes random(): a retry and a resume must repeat it.
func TestRandomGolden(t *testing.T) {
	mem := memtest.New(t)
	rec := table(t, mem)
	defer rec.Release()
	run := func(text string, site int, rows *Rows) []float64 {
		t.Helper()
		p, err := MustParse(text).Bind(rec.Schema(), site)
		if err != nil {
			t.Fatal(err)
		}
		arr, err := p.Eval(rec, rows, mem)
		if err != nil {
			t.Fatal(err)
		}
		defer arr.Release()
		return append([]float64(nil), arr.(*array.Float64).Float64Values()...)
	}
	base := Rows{Seed: 7, Epoch: 1, Source: 2, Split: "a.parquet#3", Row: 100}
	want := []float64{0.7777166009331952, 0.6805210716322394, 0.26874525188028764}
	got := run("random()", 5, &base)
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("row %d: %v, want %v", i, got[i], want[i])
		}
	}
	at := base
	at.Row, at.At = 0, []int64{102, 100, 101}
	if r := run("random()", 5, &at); r[0] != got[2] || r[1] != got[0] || r[2] != got[1] {
		t.Errorf("positions given one by one: %v, want a permutation of %v", r, got)
	}
	seen := map[float64]string{}
	note := func(name string, vs []float64) {
		for _, v := range vs {
			if v < 0 || v >= 1 {
				t.Errorf("%s: %v", name, v)
			}
			if old, ok := seen[v]; ok {
				t.Errorf("%s and %s give the same %v", name, old, v)
			}
			seen[v] = name
		}
	}
	note("base", got)
	note("site", run("random()", 6, &base))
	for name, change := range map[string]func(*Rows){
		"seed": func(r *Rows) { r.Seed++ }, "epoch": func(r *Rows) { r.Epoch++ }, "source": func(r *Rows) { r.Source++ },
		"split": func(r *Rows) { r.Split = "b" }, "row": func(r *Rows) { r.Row += 3 }, "ord": func(r *Rows) { r.Ords = []uint64{1, 1, 1} },
	} {
		r := base
		change(&r)
		note(name, run("random()", 5, &r))
	}
	if d := run("random() - random()", 5, &base); d[0] == 0 {
		t.Error("two calls of one expression are the same")
	}
	// Uniform: mean and spread of many.
	n := 1 << 16
	p, err := MustParse("random()").Bind(arrow.NewSchema(nil, nil), 0)
	if err != nil {
		t.Fatal(err)
	}
	empty := array.NewRecordBatch(arrow.NewSchema(nil, nil), nil, int64(n))
	arr, err := p.Eval(empty, &base, mem)
	if err != nil {
		t.Fatal(err)
	}
	defer arr.Release()
	var sum, squares float64
	for _, v := range arr.(*array.Float64).Float64Values() {
		sum += v
		squares += v * v
	}
	if mean, sq := sum/float64(n), squares/float64(n); math.Abs(mean-0.5) > 0.005 || math.Abs(sq-1.0/3) > 0.005 {
		t.Errorf("mean %v, mean of squares %v", mean, sq)
	}
}
