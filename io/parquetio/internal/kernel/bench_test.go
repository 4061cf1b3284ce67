//go:build unix

package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

// Every benchmark runs with what the machine has and with pure Go; bytes are those of
// the output. best-GB/s is that of the fastest call, which a busy machine does not change.
const benchRows = 8192

func benchEnv(b *testing.B) *env {
	return &env{TB: b, Rand: rand.New(rand.NewPCG(7, 7)), src: newPage(b, 1<<22), dst: newPage(b, 1<<20), bits: newPage(b, 1<<16), more: newPage(b, 1<<20)}
}

// bench runs f, which fills bytes, with assembly and without.
func bench(b *testing.B, name string, bytes int, f func() bool) {
	run := func(b *testing.B) {
		b.SetBytes(int64(bytes))
		best := time.Hour
		for b.Loop() {
			begin := time.Now()
			if !f() {
				b.Fatal("failed")
			}
			best = min(best, time.Since(begin))
		}
		b.ReportMetric(float64(bytes)/float64(best), "best-GB/s")
		b.ReportMetric(float64(best), "best-ns")
	}
	if asm {
		b.Run(name+"/asm", run)
	}
	pure(func() { b.Run(name+"/go", run) })
}

func BenchmarkExpand(b *testing.B) {
	e := benchEnv(b)
	valid := make([]byte, benchRows/8+16)
	for i := range benchRows + 100 {
		setBit(valid, i, e.IntN(10) > 0)
	}
	benchExpand[uint8](b, valid)
	benchExpand[uint16](b, valid)
	benchExpand[uint32](b, valid)
	benchExpand[uint64](b, valid)
	benchExpand[[2]uint64](b, valid)
	offsets := make([]int32, benchRows+1)
	dense := make([]int32, benchRows+1)
	bench(b, "offsets", 4*benchRows, func() bool { return ExpandOffsets(offsets, dense, valid, 3) })
	src, dst := make([]byte, benchRows/8), make([]byte, benchRows/8)
	bench(b, "bits", benchRows/8, func() bool { ExpandBits(dst, 0, src, 0, valid, 3, benchRows); return true })
}

func benchExpand[T Word](b *testing.B, valid []byte) {
	dst, dense := make([]T, benchRows), make([]T, benchRows)
	bench(b, fmt.Sprint(unsafe.Sizeof(dst[0])), len(raw(dst)), func() bool { return Expand(dst, dense, valid, 3) })
}

func BenchmarkGather(b *testing.B) {
	for _, entries := range []int{6, 16, 30, 300, 2000, 30000} {
		benchGather[uint32](b, entries)
		benchGather[uint64](b, entries)
		benchGather[[2]uint64](b, entries)
	}
}

func benchGather[T Word](b *testing.B, entries int) {
	e := benchEnv(b)
	dict := make([]T, entries)
	width := 1
	for limit(width) < uint64(entries) {
		width++
	}
	src := packed(e, width, entries)
	dst := make([]T, benchRows)
	bench(b, fmt.Sprintf("%d/%d", unsafe.Sizeof(dst[0]), entries), len(raw(dst)), func() bool {
		var h Hybrid
		h.Reset(src, uint(width))
		return Gather(&h, dst, dict)
	})
}

// packed returns one packed run of random indexes.
func packed(e *env, width, entries int) []byte {
	v := make([]uint64, benchRows)
	for i := range v {
		v[i] = e.Uint64N(uint64(entries))
	}
	return packBits([]byte{benchRows>>3<<1&0x7f | 0x81, benchRows >> 3 << 1 >> 7}, v, width)
}

func BenchmarkHybrid(b *testing.B) {
	e := benchEnv(b)
	idx, l8 := make([]uint32, benchRows), make([]uint8, benchRows)
	bits := make([]byte, benchRows/8)
	for _, width := range []int{1, 2, 3, 8, 12, 17} {
		src := packed(e, width, int(limit(width)))
		short := e.encodeHybrid(e.values(benchRows, limit(width)), width)
		read := func(src []byte, f func(h *Hybrid) bool) func() bool {
			return func() bool {
				var h Hybrid
				h.Reset(src, uint(width))
				return f(&h)
			}
		}
		bench(b, fmt.Sprintf("indexes/%d", width), 4*benchRows, read(src, func(h *Hybrid) bool { return h.Indexes(idx, 1<<30) }))
		bench(b, fmt.Sprintf("checked/%d", width), 4*benchRows, read(src, func(h *Hybrid) bool { return h.Indexes(idx, 1<<width-1) || true }))
		bench(b, fmt.Sprintf("runs/%d", width), 4*benchRows, read(short, func(h *Hybrid) bool { return h.Indexes(idx, 1<<30) }))
		if width <= 3 {
			bench(b, fmt.Sprintf("levels/%d", width), benchRows, read(src, func(h *Hybrid) bool { return h.Levels8(l8, 7) }))
			bench(b, fmt.Sprintf("levelruns/%d", width), benchRows, read(short, func(h *Hybrid) bool { return h.Levels8(l8, 7) }))
			bench(b, fmt.Sprintf("count/%d", width), benchRows, read(src, func(h *Hybrid) bool { _, ok := h.Count(benchRows, 1); return ok }))
		}
		if width == 1 {
			bench(b, "validity", benchRows/8, read(src, func(h *Hybrid) bool { _, ok := h.Validity(bits, 0, benchRows); return ok }))
			bench(b, "validity5", benchRows/8, read(src, func(h *Hybrid) bool { _, ok := h.Validity(bits, 5, benchRows-8); return ok }))
			bench(b, "validityruns", benchRows/8, read(short, func(h *Hybrid) bool { _, ok := h.Validity(bits, 3, benchRows-8); return ok }))
		}
	}
	for i := range l8 {
		l8[i] = uint8(e.IntN(4))
	}
	bench(b, "atleast", benchRows, func() bool { AtLeast(bits, 0, l8, 2); return true })
}

func BenchmarkDelta(b *testing.B) {
	e := benchEnv(b)
	for _, width := range []int{1, 5, 10, 16, 20, 33, 50} {
		for _, per := range []int{32, 256} {
			v := make([]int64, benchRows)
			for i := range v {
				v[i] = int64(e.Uint64N(limit(width)))
			}
			src := encodeDelta(v, 4*per, 4, false, false)
			d64, d32 := make([]int64, benchRows), make([]int32, benchRows)
			bench(b, fmt.Sprintf("64/%d/%d", per, width), 8*benchRows, func() bool {
				var d Delta
				return d.Reset(src) && d.Int64(d64)
			})
			if width < 32 {
				bench(b, fmt.Sprintf("32/%d/%d", per, width), 4*benchRows, func() bool {
					var d Delta
					return d.Reset(src) && d.Int32(d32)
				})
			}
		}
	}
}

func BenchmarkStrings(b *testing.B) {
	e := benchEnv(b)
	offsets := make([]int32, benchRows+1)
	for _, most := range []int{10, 16, 30, 100, 1000} {
		v := e.strings(benchRows, most)
		plain, lengths, deltas := plainBytes(v), encodeDeltaLength(v), encodeDeltaBytes(v)
		size, _, _ := PlainBytesSize(plain, benchRows)
		dst := make([]byte, size+Slack)
		bench(b, fmt.Sprintf("plain/%d", most), int(size), func() bool { _, ok := PlainBytes(offsets, dst, plain); return ok })
		bench(b, fmt.Sprintf("size/%d", most), int(size), func() bool { _, _, ok := PlainBytesSize(plain, benchRows); return ok })
		bench(b, fmt.Sprintf("length/%d", most), int(size), func() bool {
			var d DeltaLength
			return d.Reset(lengths) && DeltaLengths(&d, offsets, dst)
		})
		bench(b, fmt.Sprintf("delta/%d", most), int(size), func() bool {
			var d DeltaBytes
			return d.Reset(deltas) && DeltaByteArrays(&d, offsets, dst)
		})
		d := StringDict{Offsets: make([]int32, 101), Data: make([]byte, 100*most, 100*most+Slack)}
		for i := range 100 {
			d.Offsets[i+1] = d.Offsets[i] + int32(len(v[i]))
		}
		d.FillCells(make([][2]uint64, 100))
		idx := e.values(benchRows, 100)
		n := d.Size(idx)
		dst = make([]byte, n+Slack)
		bench(b, fmt.Sprintf("dict/%d", most), int(n), func() bool { return StringsAt(&d, offsets, dst, idx) })
		bench(b, fmt.Sprintf("dictsize/%d", most), int(n), func() bool { return d.Size(idx) == n })
	}
}

func BenchmarkSplit(b *testing.B) {
	for _, width := range []int{2, 4, 8, 12} {
		const total = benchRows + 1000 // streams a power of two apart would share cache lines
		src, dst := make([]byte, width*total), make([]byte, width*benchRows)
		bench(b, fmt.Sprint(width), len(dst), func() bool { return ByteStreamSplit(dst, src, width, total, 0) })
	}
}

func BenchmarkConvert(b *testing.B) {
	src, days := make([]byte, 16*benchRows), make([]int32, benchRows)
	out := make([]int64, benchRows)
	i8, d128 := make([]int8, benchRows), make([][2]uint64, benchRows)
	bench(b, "int8", benchRows, func() bool { Narrow(i8, days); return true })
	bench(b, "date64", 8*benchRows, func() bool { Date64(out, days); return true })
	bench(b, "decimal128/16", 16*benchRows, func() bool { return Decimal128Fixed(d128, src, 16) })
	bench(b, "decimal128/5", 16*benchRows, func() bool { return Decimal128Fixed(d128, src, 5) })
	for i := range benchRows {
		src[12*i+9], src[12*i+10] = 0x3d, 0x25
	}
	bench(b, "int96", 8*benchRows, func() bool { return Int96(out, src, 1000) == benchRows })
}
