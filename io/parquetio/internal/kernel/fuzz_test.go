//go:build unix

package kernel

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// The target looks for reads and writes outside the slices, which fault or are seen
// in the bytes before, and for answers that depend on how many values a call takes.

const fuzzValues = 3000 // most that a call asks for

type (
	// decoder checks one of bytes b: how wide its values are, how many a call asks for, where it is cut in two, and one number more.
	decoder func(t *testing.T, b []byte, width uint8, values, cut, more uint16)
	seed    func(b []byte, width uint8, values, cut, more uint16)
)

// FuzzDecoders is one target for all, so that they share the time: which is drawn with the rest.
func FuzzDecoders(f *testing.F) {
	// The pages serve all runs.
	e := &env{TB: f, Rand: rand.New(rand.NewPCG(7, 7)), src: newPage(f, 1<<20), dst: newPage(f, 1<<19), bits: newPage(f, 1<<16), more: newPage(f, 1<<19)}
	var all []decoder
	for i, of := range []func(*env, seed) decoder{fuzzHybrid, fuzzBitPacked, fuzzDelta, fuzzPlainBytes, fuzzDeltaLength, fuzzDeltaBytes, fuzzByteStreamSplit} {
		all = append(all, of(e, func(b []byte, width uint8, values, cut, more uint16) { f.Add(b, uint8(i), width, values, cut, more) }))
	}
	f.Fuzz(func(t *testing.T, b []byte, which, width uint8, values, cut, more uint16) {
		all[int(which)%len(all)](t, b[:min(len(b), 1<<16)], width, values, cut, more)
	})
}

// halves reads n values at once, and in two parts without assembly: they must agree.
func halves[T comparable](t *testing.T, e *env, what string, n, cut int, read func() func(dst []T) bool) {
	if cut %= n + 1; cut == 0 {
		cut = n
	}
	dst := slice[T](e.dst, n)
	whole := read()(dst)
	if !e.dst.intact() {
		t.Fatalf("%s wrote before its destination", what)
	}
	want := slices.Clone(dst)
	part := read()
	head := slice[T](e.dst, cut)
	ok := false
	pure(func() { ok = part(head) })
	if whole && !slices.Equal(head, want[:cut]) || !e.dst.intact() {
		t.Fatalf("%s: the first %d of %d differ", what, cut, n)
	}
	tail := slice[T](e.dst, n-cut)
	pure(func() { ok = ok && part(tail) })
	if ok != whole || ok && !slices.Equal(tail, want[cut:]) || !e.dst.intact() {
		t.Fatalf("%s: the last %d of %d differ (%v, %v)", what, n-cut, n, whole, ok)
	}
}

func fuzzHybrid(e *env, add seed) decoder {
	for _, width := range []int{0, 1, 2, 5, 8, 9, 17, 32} {
		v := e.values(200, limit(width))
		add(e.encodeHybrid(v, width), uint8(width), 200, 77, 3)
	}
	return func(t *testing.T, b []byte, width uint8, values, cut, entries uint16) {
		src, n, at := e.src.put(b), int(values)%fuzzValues, int(cut)%9
		var h Hybrid
		if h.Reset(src, uint(width)) != (width <= 32) {
			t.Fatal("Reset")
		} else if width > 32 {
			return
		}
		dict := make([]uint64, entries)
		for i := range dict {
			dict[i] = uint64(i)
		}
		halves(t, e, "Indexes", n, int(cut), func() func([]uint32) bool {
			h := h
			return func(dst []uint32) bool { return h.Indexes(dst, int(entries)) }
		})
		halves(t, e, "Gather", n, int(cut), func() func([]uint64) bool {
			h := h
			return func(dst []uint64) bool { return Gather(&h, dst, dict) }
		})
		halves(t, e, "Levels8", n, int(cut), func() func([]uint8) bool {
			h := h
			return func(dst []uint8) bool { return h.Levels8(dst, uint32(entries)&0xff) }
		})
		// What the others say must agree with the indexes.
		w, idx := h, make([]uint32, n)
		ok := w.Indexes(idx, 1<<32)
		w = h
		if w.Skip(n) != ok {
			t.Fatal("Skip differs")
		}
		w = h
		same, got := 0, 0
		for _, x := range idx {
			if x == uint32(entries) {
				same++
			}
		}
		if c, k := w.Count(n, uint32(entries)); k != ok || ok && c != same {
			t.Fatalf("Count = %d, %v, not %d, %v", c, k, same, ok)
		}
		w = h
		levels, begun, k := w.Rows(int(cut), n)
		if ok && !k || levels > n || begun > int(cut) {
			t.Fatalf("Rows = %d, %d, %v", levels, begun, k)
		}
		if width > 1 {
			return
		}
		w = h
		dst := e.dst.tail((at + n + 7) / 8)
		set, k := w.Validity(dst, at, n)
		if k != ok || ok && set != n-zeros(idx) || ok && CountBits(dst, at, n) != set || !e.dst.intact() {
			t.Fatalf("Validity = %d, %v", set, k)
		}
		w = h
		starts := slice[int32](e.dst, int(entries)%4096)
		got, k = ListStarts(&w, n, 0, starts)
		if k != (ok && zeros(idx) <= len(starts)) || k && got != zeros(idx) || !e.dst.intact() {
			t.Fatalf("ListStarts = %d, %v", got, k)
		}
	}
}

func zeros(idx []uint32) (n int) {
	for _, x := range idx {
		if x == 0 {
			n++
		}
	}
	return n
}

func fuzzBitPacked(e *env, add seed) decoder {
	add([]byte{0x1b, 0x2d, 0x9f}, 3, 8, 0, 0)
	return func(t *testing.T, b []byte, width uint8, values, _, _ uint16) {
		n := int(values) % fuzzValues
		_, d := BitPackedSize(n, uint(width))
		run := e.dst.tail(d)
		ok := FromBitPacked(run, e.src.put(b), n, uint(width))
		if !e.dst.intact() {
			t.Fatal("wrote before its destination")
		}
		var h Hybrid
		if ok && (!h.Reset(run, uint(width)) || !h.Skip(n)) {
			t.Fatal("the run is damaged")
		}
	}
}

func fuzzDelta(e *env, add seed) decoder {
	for _, w := range []int{0, 3, 20, 40, 64} {
		v := make([]int64, 300)
		for i := range v {
			v[i] = int64(e.Uint64() & ones(w))
		}
		add(encodeDelta(v, 128, 4, false, false), 0, 300, 77, 0)
		add(encodeDelta(v, 32, 1, true, true), 0, 300, 32, 0)
	}
	return func(t *testing.T, b []byte, _ uint8, values, cut, _ uint16) {
		src, n := e.src.put(b), int(values)%fuzzValues
		var d Delta
		if !d.Reset(src) {
			return
		}
		halves(t, e, "Int64", n, int(cut), func() func([]int64) bool { d := d; return d.Int64 })
		halves(t, e, "Int32", n, int(cut), func() func([]int32) bool { d := d; return d.Int32 })
		w, x := d, d
		dst := make([]int64, n)
		ok := w.Int64(dst)
		if x.Skip(n) != ok {
			t.Fatal("Skip differs")
		}
		if ok && (w.Left() != x.Left() || w.last != x.last) {
			t.Fatal("Skip leads elsewhere")
		}
		if d.Left() < 1<<16 {
			a, ok := d.Rest()
			if w = d; ok != w.Skip(d.Left()) {
				t.Fatal("Rest differs")
			}
			if b, _ := w.Rest(); ok && len(a) != len(b) {
				t.Fatal("Rest leads elsewhere")
			}
		}
	}
}

// fuzzStrings checks a decoder of byte strings: sized, whole and in two parts.
func fuzzStrings(t *testing.T, e *env, what string, n, cut int, size int64, sized bool, read func() func(offsets []int32, dst []byte) bool) {
	if sized && size > 1<<18 {
		return
	}
	room := int(size)
	if !sized {
		room = 1000
	}
	dst, offsets := e.dst.tail(room), slice[int32](e.more, n+1)
	offsets[0] = 0
	ok := read()(offsets, dst)
	if ok != sized && sized || !e.dst.intact() || !e.more.intact() {
		t.Fatalf("%s: %v, but its size %v", what, ok, sized)
	}
	if !ok {
		return
	}
	want, ends := bytes.Clone(dst[:offsets[n]]), slices.Clone(offsets)
	cut %= n + 1
	part := read()
	dst, offsets = e.dst.tail(room+Slack), slice[int32](e.more, n+1)
	offsets[0] = 0
	pure(func() { ok = part(offsets[:cut+1], dst) && part(offsets[cut:], dst) })
	if !ok {
		t.Fatalf("%s: fails in parts", what)
	}
	if !bytes.Equal(want, dst[:len(want)]) || !slices.Equal(ends, offsets) || !e.dst.intact() || !e.more.intact() {
		t.Fatalf("%s: differs in parts", what)
	}
}

func fuzzPlainBytes(e *env, add seed) decoder {
	add(plainBytes(e.strings(20, 40)), 0, 20, 7, 0)
	return func(t *testing.T, b []byte, _ uint8, values, cut, _ uint16) {
		src, n := e.src.put(b), int(values)%fuzzValues
		size, _, sized := PlainBytesSize(src, n)
		fuzzStrings(t, e, "PlainBytes", n, int(cut), size, sized, func() func([]int32, []byte) bool {
			src := src
			return func(offsets []int32, dst []byte) bool {
				used, ok := PlainBytes(offsets, dst, src)
				src = src[used:]
				return ok
			}
		})
	}
}

func fuzzDeltaLength(e *env, add seed) decoder {
	add(encodeDeltaLength(e.strings(200, 40)), 0, 200, 7, 0)
	return func(t *testing.T, b []byte, _ uint8, values, cut, _ uint16) {
		src, n := e.src.put(b), int(values)%fuzzValues
		var d DeltaLength
		if !d.Reset(src) {
			return
		}
		size, sized := d.Size(n)
		fuzzStrings(t, e, "DeltaLengths", n, int(cut), size, sized, func() func([]int32, []byte) bool {
			d := d
			return func(offsets []int32, dst []byte) bool { return DeltaLengths(&d, offsets, dst) }
		})
		if d.Skip(n) != sized {
			t.Fatal("Skip differs")
		}
	}
}

func fuzzDeltaBytes(e *env, add seed) decoder {
	add(encodeDeltaBytes(e.strings(200, 40)), 3, 200, 7, 0)
	same := e.strings(150, 1)
	for i := range same {
		same[i] = append(same[i], 1, 2, 3)[:3]
	}
	add(encodeDeltaBytes(same), 3, 150, 7, 0)
	return func(t *testing.T, b []byte, width uint8, values, cut, _ uint16) {
		src, n := e.src.put(b), int(values)%fuzzValues
		var d DeltaBytes
		if !d.Reset(src) {
			return
		}
		size, sized := d.Size(n)
		fuzzStrings(t, e, "DeltaByteArrays", n, int(cut), size, sized, func() func([]int32, []byte) bool {
			d := d
			return func(offsets []int32, dst []byte) bool { return DeltaByteArrays(&d, offsets, dst) }
		})
		w := d
		if dst := e.dst.tail(n * (int(width)%16 + 1)); w.Fixed(dst, int(width)%16+1) && (!sized || int(size) != len(dst)) || !e.dst.intact() {
			t.Fatal("Fixed differs")
		}
		if d.Skip(n) != sized {
			t.Fatal("Skip differs")
		}
	}
}

func fuzzByteStreamSplit(e *env, add seed) decoder {
	add(make([]byte, 400), 4, 50, 100, 10)
	add(make([]byte, 800), 8, 100, 100, 0)
	return func(t *testing.T, b []byte, width uint8, values, more, first uint16) {
		src, n, far := e.src.put(b), int(values)%1000, values/1000
		total, from := int(int16(more))<<(far%9*2), int(int16(first))<<(far/9*2) // what a caller may have reckoned from a damaged page
		dst := e.dst.tail(n * int(width))
		ok := ByteStreamSplit(dst, src, int(width), total, from)
		if right := width > 0 && total >= 0 && total*int(width) <= len(src) && from >= 0 && n <= total-from; ok != right || !e.dst.intact() {
			t.Fatalf("%v, not %v", ok, right)
		}
		for i := range n * int(width) {
			if ok && dst[i] != src[i%int(width)*total+from+i/int(width)] {
				t.Fatalf("byte %d differs", i)
			}
		}
	}
}
