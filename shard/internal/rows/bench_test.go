//go:build linux

package rows

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// threadCPU is the time that this thread has had a core: what a busy machine does not spoil.
func threadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// twins runs a kernel and its Go twin in turns, and reports the medians of their speeds and how often the kernel is
// as fast.
func twins(b *testing.B, bytes int, kernel, plain func()) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const turn = 8
	var speeds [2][]float64
	var ratios []float64
	for b.Loop() {
		var took [2]time.Duration
		for i, f := range []func(){kernel, plain} {
			t := threadCPU()
			for range turn {
				f()
			}
			took[i] = threadCPU() - t
			speeds[i] = append(speeds[i], float64(bytes*turn)/float64(took[i]))
		}
		ratios = append(ratios, float64(took[1])/float64(took[0]))
	}
	median := func(s []float64) float64 {
		slices.Sort(s)
		return s[len(s)/2]
	}
	b.SetBytes(int64(2 * turn * bytes))
	b.ReportMetric(median(speeds[0]), "GB/cpu-s")
	b.ReportMetric(median(speeds[1]), "GB/cpu-s-plain-Go")
	b.ReportMetric(median(ratios), "x-plain-Go")
}

func BenchmarkTranspose(b *testing.B) {
	const n = 96 // rows of a strip
	for _, k := range []int{4, 8, 16, 40} {
		size := 4 * k
		cols := make([][]byte, k)
		for i := range cols {
			cols[i] = make([]byte, 4*n)
		}
		rows := make([]byte, n*size)
		sink := make([]byte, 4*n)
		b.Run(fmt.Sprintf("to_rows/%d", k), func(b *testing.B) {
			twins(b, n*size, func() { interleave4(rows, 0, size, n, cols) }, func() { interleave4Go(rows, 0, size, 0, n, cols) })
		})
		b.Run(fmt.Sprintf("to_columns/%d", k), func(b *testing.B) {
			twins(b, n*size, func() { deinterleave4(cols, rows, 0, size, n, sink) }, func() { deinterleave4Go(cols, rows, 0, size, 0, n) })
		})
	}
}

func BenchmarkConvert(b *testing.B) {
	const n = 1024
	names := map[Type]string{Uint8: "uint8", Int16: "int16", Int32: "int32", Int64: "int64", Float32: "float32", Float64: "float64", Float16: "float16", BFloat16: "bfloat16"}
	for _, c := range []struct {
		from, to Type
		scale    float64
	}{
		{Uint8, Float32, 1}, {Int16, Float32, 1}, {Int32, Float32, 1}, {Int64, Float32, 1}, {Float64, Float32, 1},
		{Uint8, Float32, 2}, {Int32, Float32, 2}, {Float32, Float32, 2}, {Float64, Float32, 2}, {Float64, Float64, 2},
		{Uint8, Float16, 1}, {Float32, Float16, 1}, {Int32, Float16, 1}, {Float64, Float16, 1},
		{Uint8, BFloat16, 1}, {Float32, BFloat16, 1}, {Int32, BFloat16, 1}, {Float64, BFloat16, 1}, {Float32, BFloat16, 2},
	} {
		src, dst := make([]byte, n*c.from.Size()), make([]byte, n*c.to.Size())
		fast, slow := Converter(c.from, c.to, c.scale, 0), converter(c.from, c.to, c.scale, 0)
		name := names[c.from] + "_to_" + names[c.to]
		if c.scale != 1 {
			name += "_scaled"
		}
		b.Run(name, func(b *testing.B) {
			twins(b, len(dst), func() { fast(dst, src) }, func() { slow(dst, src) })
		})
	}
}
