//go:build unix

package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"
)

func testGather[T Word](e *env) {
	width := e.IntN(14)
	entries := 1 + e.IntN(min(int(limit(width)), []int{16, 33, 1 << 14}[e.IntN(3)]))
	dict := slice[T](e.more, entries)
	e.fillBytes(raw(dict))
	n := e.size(5000)
	idx := e.values(n, uint64(entries))
	var h Hybrid
	h.Reset(e.src.put(e.encodeHybrid(idx, width)), uint(width))
	dst := slice[T](e.dst, n)
	if !Gather(&h, dst, dict) {
		e.Fatal("Gather")
	}
	for i, x := range idx[:n] {
		if dst[i] != dict[x] {
			e.Fatalf("Gather: value %d is %v, not %v", i, dst[i], dict[x])
		}
	}
}

func testExpand[T Word](e *env) {
	at, n := e.IntN(70), e.size(3000)
	valid, is := e.bitmap(at, n)
	set := count(is)
	dense := slice[T](e.more, set)
	e.fillBytes(raw(dense))
	want := make([]T, n)
	for i, k := 0, 0; i < n; i++ {
		if is[i] {
			want[i] = dense[k]
			k++
		}
	}
	dst := slice[T](e.dst, n)
	if !Expand(dst, dense, valid, at) || !slices.Equal(dst, want) || !e.dst.intact() {
		e.Fatalf("Expand of %T differs", dst)
	}
	if set > 0 && Expand(dst, dense[1:], valid, at) {
		e.Fatal("Expand took too few values")
	}
	copy(dst[n-set:], dense)
	if !Expand(dst, dst[n-set:], valid, at) || !slices.Equal(dst, want) || !e.dst.intact() {
		e.Fatalf("Expand of %T in place differs", dst)
	}
}

func TestGather(t *testing.T) {
	each(t, 400, func(e *env) {
		testGather[uint8](e)
		testGather[uint16](e)
		testGather[uint32](e)
		testGather[uint64](e)
		testGather[[2]uint64](e)
		testGather[[4]uint64](e)
	})
}

func TestExpand(t *testing.T) {
	each(t, 1000, func(e *env) {
		testExpand[uint8](e)
		testExpand[uint16](e)
		testExpand[uint32](e)
		testExpand[uint64](e)
		testExpand[[2]uint64](e)
		testExpand[[4]uint64](e)
	})
}

func TestExpandBytes(t *testing.T) {
	each(t, 1000, func(e *env) {
		at, n, width := e.IntN(20), e.size(300), 1+e.IntN(20)
		valid, is := e.bitmap(at, n)
		dense := e.more.tail(count(is) * width)
		e.fillBytes(dense)
		var want []byte
		k := 0
		for _, v := range is {
			if v {
				want = append(want, dense[k*width:][:width]...)
				k++
			} else {
				want = append(want, make([]byte, width)...)
			}
		}
		dst := e.dst.tail(n * width)
		copy(dst[len(dst)-len(dense):], dense)
		if !ExpandBytes(dst, dst[len(dst)-len(dense):], width, valid, at) || !bytes.Equal(dst, want) || !e.dst.intact() {
			e.Fatal("ExpandBytes differs")
		}
		if k > 0 && ExpandBytes(dst, dense[1:], width, valid, at) {
			e.Fatal("too few values were taken")
		}
	})
}

func TestGatherBytes(t *testing.T) {
	each(t, 1000, func(e *env) {
		width, entries := 1+e.IntN(40), 1+e.IntN(100)
		dict := e.more.tail(entries * width)
		e.fillBytes(dict)
		idx := e.values(e.size(3000), uint64(entries))
		var h Hybrid
		h.Reset(e.src.put(e.encodeHybrid(idx, 7)), 7)
		dst := e.dst.tail(len(idx) * width)
		if !GatherBytes(&h, dst, dict, width) || !e.dst.intact() {
			e.Fatal("GatherBytes")
		}
		for i, x := range idx {
			if !bytes.Equal(dst[i*width:][:width], dict[int(x)*width:][:width]) {
				e.Fatalf("value %d differs", i)
			}
		}
	})
}

// testStrings checks what read puts into offsets and dst; slack is room behind.
func testStrings[O int32 | int64](e *env, what string, want [][]byte, read func(offsets []O, dst []byte) bool) {
	size := 0
	for _, s := range want {
		size += len(s)
	}
	first := e.IntN(100)
	offsets := slice[O](e.bits, len(want)+1)
	offsets[0] = O(first)
	dst := e.dst.tail(first + size + []int{0, Slack, e.IntN(Slack)}[e.IntN(3)])
	front := bytes.Clone(dst[:first])
	if !read(offsets, dst) {
		e.Fatalf("%s failed", what)
	}
	if offsets[0] != O(first) || !bytes.Equal(front, dst[:first]) || !e.dst.intact() || !e.bits.intact() {
		e.Fatalf("%s wrote before its destination", what)
	}
	for i, s := range want {
		if got := dst[offsets[i]:offsets[i+1]]; !bytes.Equal(got, s) {
			e.Fatalf("%s: value %d is %q, not %q", what, i, got, s)
		}
	}
}

// tooShort checks that a destination of a byte less is refused.
func tooShort(e *env, what string, want [][]byte, read func(offsets []int32, dst []byte) bool) {
	if size := len(bytes.Join(want, nil)); size > 0 {
		if read(slice[int32](e.bits, len(want)+1)[:len(want)+1:len(want)+1], e.dst.tail(size-1)) {
			e.Fatalf("%s wrote %d bytes into %d", what, size, size-1)
		}
	}
}

func TestPlainBytes(t *testing.T) {
	each(t, 2000, func(e *env) {
		v := e.strings(e.size(300), []int{5, 12, 16, 40, 300}[e.IntN(5)])
		src := e.src.put(append(plainBytes(v), make([]byte, e.IntN(2)*e.IntN(50))...))
		used := len(plainBytes(v))
		if size, u, ok := PlainBytesSize(src, len(v)); !ok || u != used || int(size) != used-4*len(v) {
			e.Fatalf("PlainBytesSize = %d, %d, %v", size, u, ok)
		}
		testStrings(e, "PlainBytes", v, func(offsets []int32, dst []byte) bool {
			u, ok := PlainBytes(offsets, dst, src)
			return ok && u == used
		})
		testStrings(e, "PlainBytes", v, func(offsets []int64, dst []byte) bool {
			u, ok := PlainBytes(offsets, dst, src)
			return ok && u == used
		})
		tooShort(e, "PlainBytes", v, func(offsets []int32, dst []byte) bool {
			offsets[0] = 0
			_, ok := PlainBytes(offsets, dst, src)
			return ok
		})
		if len(v) > 0 {
			if _, _, ok := PlainBytesSize(src[:used-1], len(v)); ok {
				e.Fatal("a cut source was taken")
			}
		}
	})
}

func TestStringDict(t *testing.T) {
	each(t, 2000, func(e *env) {
		v := e.strings(1+e.size(300), []int{5, 16, 17, 32, 300}[e.IntN(5)])
		data := append(bytes.Join(v, nil), make([]byte, Slack)...)
		d := StringDict{Offsets: make([]int32, len(v)+1), Data: data[:len(data)-Slack]}
		long := false
		for i, s := range v {
			d.Offsets[i+1] = d.Offsets[i] + int32(len(s))
			long = long || len(s) > 16
		}
		if d.FillCells(slice[[2]uint64](e.more, len(v))) == long {
			e.Fatal("FillCells")
		}
		idx := e.values(e.size(2000), uint64(len(v)))
		var want [][]byte
		for _, x := range idx {
			want = append(want, v[x])
		}
		if d.Size(idx) != int64(len(bytes.Join(want, nil))) {
			e.Fatal("Size")
		}
		testStrings(e, "StringsAt", want, func(offsets []int32, dst []byte) bool { return StringsAt(&d, offsets, dst, idx) })
		testStrings(e, "StringsAt", want, func(offsets []int64, dst []byte) bool { return StringsAt(&d, offsets, dst, idx) })
		tooShort(e, "StringsAt", want, func(offsets []int32, dst []byte) bool {
			offsets[0] = 0
			return StringsAt(&d, offsets, dst, idx)
		})
	})
}

func TestExpandOffsets(t *testing.T) {
	each(t, 2000, func(e *env) {
		at, n := e.IntN(70), e.size(3000)
		valid, is := e.bitmap(at, n)
		dense := make([]int32, count(is)+1)
		dense[0] = int32(e.IntN(1000))
		for i := 1; i < len(dense); i++ {
			dense[i] = dense[i-1] + int32(e.IntN(10))
		}
		want := []int32{dense[0]}
		wide := []int64{int64(dense[0])}
		k := 0
		for _, v := range is {
			if v {
				k++
			}
			want = append(want, dense[k])
			wide = append(wide, int64(dense[k]))
		}
		dst := slice[int32](e.dst, n+1)
		copy(dst[n-k:], dense)
		if !ExpandOffsets(dst, dst[n-k:], valid, at) || !slices.Equal(dst, want) || !e.dst.intact() {
			e.Fatal("ExpandOffsets in place differs")
		}
		dst64 := slice[int64](e.dst, n+1)
		for i, v := range dense {
			dst64[n-k+i] = int64(v)
		}
		if !ExpandOffsets(dst64, dst64[n-k:], valid, at) || !slices.Equal(dst64, wide) || !e.dst.intact() {
			e.Fatal("ExpandOffsets of 64 bits differs")
		}
		if k > 0 && ExpandOffsets(dst, dense[1:], valid, at) {
			e.Fatal("too few offsets were taken")
		}
	})
}

func TestDelta(t *testing.T) {
	each(t, 3000, func(e *env) {
		is32 := e.IntN(2) == 0
		v := make([]int64, e.size(2000))
		wild := e.IntN(65)
		for i := range v {
			v[i] = int64(e.Uint64() & ones(wild))
			if e.IntN(2) == 0 && i > 0 {
				v[i] = v[i-1]
			}
			if e.IntN(500) == 0 {
				v[i] = []int64{math.MaxInt64, math.MinInt64}[e.IntN(2)]
			}
			if is32 {
				v[i] = int64(int32(v[i]))
			}
		}
		minis := []int{1, 2, 4, 8}[e.IntN(4)]
		block := minis * []int{8, 32, 64, 256}[e.IntN(4)]
		tail := make([]byte, e.IntN(3)*10)
		e.fillBytes(tail)
		src := e.src.put(append(encodeDelta(v, block, minis, is32, len(tail) == 0), tail...))
		var d Delta
		if !d.Reset(src) || d.Left() != len(v) {
			e.Fatal("Reset")
		}
		for len(v) > 0 {
			if rest, ok := d.Rest(); !ok || !bytes.Equal(rest, tail) {
				e.Fatalf("Rest = %x, not %x", rest, tail)
			}
			n := min(e.size(1000), len(v))
			switch {
			case e.IntN(3) == 0:
				if !d.Skip(n) {
					e.Fatal("Skip")
				}
			case is32:
				dst := slice[int32](e.dst, n)
				if !d.Int32(dst) || !e.dst.intact() {
					e.Fatal("Int32")
				}
				for i, x := range dst {
					if int64(x) != v[i] {
						e.Fatalf("value %d is %d, not %d", i, x, v[i])
					}
				}
			default:
				dst := slice[int64](e.dst, n)
				if !d.Int64(dst) || !e.dst.intact() || !slices.Equal(dst, v[:n]) {
					e.Fatal("Int64 differs")
				}
			}
			v = v[n:]
			if d.Left() != len(v) {
				e.Fatalf("Left = %d, not %d", d.Left(), len(v))
			}
		}
		if d.Skip(1) {
			e.Fatal("a value behind the last")
		}
	})
}

func TestDeltaLength(t *testing.T) {
	each(t, 2000, func(e *env) {
		v := e.strings(e.size(600), 40)
		src := e.src.put(encodeDeltaLength(v))
		var d DeltaLength
		if !d.Reset(src) || d.Left() != len(v) {
			e.Fatal("Reset")
		}
		for len(v) > 0 {
			n := min(e.size(300), len(v))
			if size, ok := d.Size(n); !ok || int(size) != len(bytes.Join(v[:n], nil)) {
				e.Fatal("Size")
			}
			tooShort(e, "DeltaLengths", v[:n], func(offsets []int32, dst []byte) bool {
				offsets[0] = 0
				w := d
				return DeltaLengths(&w, offsets, dst)
			})
			if e.IntN(3) == 0 {
				if !d.Skip(n) {
					e.Fatal("Skip")
				}
			} else if e.IntN(2) == 0 {
				testStrings(e, "DeltaLengths", v[:n], func(offsets []int32, dst []byte) bool { return DeltaLengths(&d, offsets, dst) })
			} else {
				testStrings(e, "DeltaLengths", v[:n], func(offsets []int64, dst []byte) bool { return DeltaLengths(&d, offsets, dst) })
			}
			v = v[n:]
		}
	})
}

func TestDeltaBytes(t *testing.T) {
	each(t, 2000, func(e *env) {
		v := e.strings(e.size(600), []int{10, 40, 200}[e.IntN(3)])
		width := 0
		if e.IntN(3) == 0 {
			width = 1 + e.IntN(20)
			for i := range v {
				v[i] = append(v[i], make([]byte, width)...)[:width]
			}
		}
		src := e.src.put(encodeDeltaBytes(v))
		var d DeltaBytes
		if !d.Reset(src) || d.Left() != len(v) {
			e.Fatal("Reset")
		}
		for len(v) > 0 {
			n := min(e.size(300), len(v))
			if size, ok := d.Size(n); !ok || int(size) != len(bytes.Join(v[:n], nil)) {
				e.Fatal("Size")
			}
			tooShort(e, "DeltaByteArrays", v[:n], func(offsets []int32, dst []byte) bool {
				offsets[0] = 0
				w := d
				return DeltaByteArrays(&w, offsets, dst)
			})
			switch k := e.IntN(4); {
			case k == 0:
				if !d.Skip(n) {
					e.Fatal("Skip")
				}
			case width > 0:
				dst := e.dst.tail(n * width)
				if !d.Fixed(dst, width) || !bytes.Equal(dst, bytes.Join(v[:n], nil)) || !e.dst.intact() {
					e.Fatal("Fixed differs")
				}
			case k == 1:
				testStrings(e, "DeltaByteArrays", v[:n], func(offsets []int64, dst []byte) bool { return DeltaByteArrays(&d, offsets, dst) })
			default:
				testStrings(e, "DeltaByteArrays", v[:n], func(offsets []int32, dst []byte) bool { return DeltaByteArrays(&d, offsets, dst) })
			}
			v = v[n:]
		}
	})
}

func TestByteStreamSplit(t *testing.T) {
	each(t, 1000, func(e *env) {
		width, total := 1+e.IntN(17), e.size(2000)
		src := e.src.tail(width * total)
		e.fillBytes(src)
		from := e.IntN(total + 1)
		n := e.IntN(total - from + 1)
		dst := e.dst.tail(n * width)
		if !ByteStreamSplit(dst, src, width, total, from) || !e.dst.intact() {
			e.Fatal("ByteStreamSplit")
		}
		for i := range n {
			for b := range width {
				if dst[i*width+b] != src[b*total+from+i] {
					e.Fatalf("byte %d of value %d differs", b, i)
				}
			}
		}
		if ByteStreamSplit(dst, src, width, total+1, from) || ByteStreamSplit(dst, src, width, total, total-n+1) {
			e.Fatal("values outside the page were taken")
		}
	})
}

func TestInt96(t *testing.T) {
	each(t, 6000, func(e *env) {
		unit := []int64{1, 1000, 1_000_000}[e.IntN(3)]
		most := math.MaxInt64 / (nanosPerDay / unit)
		nanos := e.Uint64N(nanosPerDay)
		day := int64(e.IntN(300_000) - 150_000)
		if e.IntN(2) == 0 {
			day = []int64{-most - 2, -most - 1, -most, most, most + 1, 0, 2932896, -719162}[e.IntN(8)]
		}
		if e.IntN(10) == 0 {
			nanos = nanosPerDay - 2 + e.Uint64N(4)
		}
		day = min(max(day, -julianUnixEpoch), math.MaxUint32-julianUnixEpoch)
		perDay := nanosPerDay / unit
		if top := math.MaxInt64 - most*perDay; e.IntN(4) == 0 { // the last that fits, and its neighbours
			nanos = uint64((top + int64(e.IntN(3)) - 1) * unit)
			if e.IntN(2) == 0 {
				nanos = uint64((perDay - top + int64(e.IntN(3)) - 2) * unit)
			}
		}
		if e.IntN(2) == 0 {
			nanos -= nanos % uint64(unit)
		}
		var v [12]byte
		binary.LittleEndian.PutUint64(v[:], nanos)
		binary.LittleEndian.PutUint32(v[8:], uint32(day+julianUnixEpoch))
		want := new(big.Int).Mul(big.NewInt(day), big.NewInt(nanosPerDay))
		want.Add(want, new(big.Int).SetUint64(nanos))
		var rest big.Int
		want.QuoRem(want, big.NewInt(unit), &rest)
		good := want.IsInt64() && rest.Sign() == 0 && nanos < nanosPerDay
		dst := slice[int64](e.dst, 1)
		if n := Int96(dst, e.src.put(v[:]), unit); (n == 1) != good || n == 1 && dst[0] != want.Int64() {
			e.Fatalf("%d ns of day %d in units of %d: %d, %d, not %v, %v", nanos, day, unit, n, dst[0], want, good)
		}
	})
}

func TestASCII(t *testing.T) {
	each(t, 3000, func(e *env) {
		b := make([]byte, e.IntN(200))
		for i := range b {
			b[i] = byte(e.IntN(128))
		}
		want := true
		if len(b) > 0 && e.IntN(2) == 0 {
			b[e.IntN(len(b))] |= 0x80
			want = false
		}
		if ASCII(e.src.put(b)) != want {
			e.Fatalf("%x: not %v", b, want)
		}
	})
}

func TestDecimals(t *testing.T) {
	each(t, 2000, func(e *env) {
		var b []byte
		var offsets []int32
		n := e.IntN(20)
		wide := e.IntN(2) == 0
		most := 16
		if wide {
			most = 32
		}
		fixed := e.IntN(2) * (1 + e.IntN(most))
		for range n {
			offsets = append(offsets, int32(len(b)))
			k := fixed
			if k == 0 {
				k = 1 + e.IntN(most)
			}
			part := make([]byte, k)
			e.fillBytes(part)
			b = append(b, part...)
		}
		offsets = append(offsets, int32(len(b)))
		src := e.src.put(b)
		words := most / 8
		var ok bool
		var got []byte
		switch {
		case wide && fixed > 0:
			dst := slice[[4]uint64](e.dst, n)
			ok, got = Decimal256Fixed(dst, src, fixed), raw(dst)
		case wide:
			dst := slice[[4]uint64](e.dst, n)
			ok, got = Decimal256Bytes(dst, offsets, src), raw(dst)
		case fixed > 0:
			dst := slice[[2]uint64](e.dst, n)
			ok, got = Decimal128Fixed(dst, src, fixed), raw(dst)
		default:
			dst := slice[[2]uint64](e.dst, n)
			ok, got = Decimal128Bytes(dst, offsets, src), raw(dst)
		}
		if !ok || !e.dst.intact() {
			e.Fatal("failed")
		}
		for i := range n {
			part := b[offsets[i]:offsets[i+1]]
			want := new(big.Int).SetBytes(part)
			if part[0] >= 0x80 {
				want.Sub(want, new(big.Int).Lsh(big.NewInt(1), uint(8*len(part))))
			}
			if v := signed(got[i*words*8:][:words*8]); v.Cmp(want) != 0 {
				e.Fatalf("%x is %v, not %v", part, v, want)
			}
		}
		x := int64(e.Uint64())
		d2, d4 := make([][2]uint64, 1), make([][4]uint64, 1)
		Decimal128Ints(d2, []int64{x})
		Decimal256Ints(d4, []int32{int32(x)})
		if signed(raw(d2)).Cmp(big.NewInt(x)) != 0 || signed(raw(d4)).Cmp(big.NewInt(int64(int32(x)))) != 0 {
			e.Fatalf("%d is %v, %v", x, d2, d4)
		}
	})
	if Decimal128Fixed(nil, nil, 17) || Decimal256Fixed(nil, nil, 0) || Decimal128Bytes(make([][2]uint64, 1), []int32{0, 0}, nil) ||
		Decimal256Bytes(make([][4]uint64, 1), []int32{0, 33}, make([]byte, 33)) {
		t.Error("widths that no decimal has were taken")
	}
}

// signed reads a little-endian number.
func signed(b []byte) *big.Int {
	b = bytes.Clone(b)
	slices.Reverse(b)
	v := new(big.Int).SetBytes(b)
	if b[0] >= 0x80 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	return v
}

func TestNarrow(t *testing.T) {
	src := []int64{-1, 0, 127, 128, 255, 256, 1 << 31, -1 << 63}
	u8, i16, u32 := make([]uint8, len(src)), make([]int16, len(src)), make([]uint32, len(src))
	Narrow(u8, src)
	Narrow(i16, src)
	Narrow(u32, src)
	got := fmt.Sprint(u8, i16, u32)
	if want := "[255 0 127 128 255 0 0 0] [-1 0 127 128 255 256 0 0] [4294967295 0 127 128 255 256 2147483648 0]"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	ms := make([]int64, 2)
	Date64(ms, []int32{-1, math.MaxInt32})
	if ms[0] != -86_400_000 || ms[1] != math.MaxInt32*86_400_000 {
		t.Error(ms)
	}
}

func TestDamagedDeltas(t *testing.T) {
	values := make([]int64, 40)
	for i := range values {
		values[i] = int64(i * i)
	}
	src := encodeDelta(values, 32, 1, false, false)
	var d Delta
	if !d.Reset(src) || !d.Skip(40) {
		t.Fatal("what is right fails")
	}
	at := bytes.IndexByte(src, 6) // bits of the first 32 deltas
	for _, width := range []byte{65, 99, 255} {
		src[at] = width
		if !d.Reset(append(src, make([]byte, 1<<13)...)) || d.Skip(40) {
			t.Errorf("%d bits are read", width)
		}
	}
	for _, head := range [][]byte{{0, 1, 1, 0}, {32, 0, 1, 0}, {32, 33, 1, 0}, {36, 3, 1, 0}, {32, 1, 1}, {32, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0}, {0x80}} {
		if d.Reset(head) {
			t.Errorf("%x is a header", head)
		}
	}
	// One value of no prefix, then one whose prefix is a byte longer than that.
	long := append(encodeDelta([]int64{0, 4}, 32, 1, true, false), encodeDeltaLength([][]byte{[]byte("abc"), []byte("d")})...)
	var b DeltaBytes
	if !b.Reset(long) {
		t.Fatal("Reset")
	}
	if _, ok := b.Size(2); ok {
		t.Error("a prefix of 4 bytes of 3 has a size")
	}
	if DeltaByteArrays(&b, make([]int32, 3), make([]byte, 100)) {
		t.Error("a prefix of 4 bytes of 3 is read")
	}
	for _, v := range [][2][]int64{{{0, -1}, {3, 1}}, {{0, 1}, {3, -1}}, {{0, 1, 1}, {3, 1}}, {{0, 1}, {3, 9}}} {
		damaged := append(encodeDelta(v[0], 32, 1, true, false), append(encodeDelta(v[1], 32, 1, true, false), "abcd"...)...)
		if b.Reset(damaged) && DeltaByteArrays(&b, make([]int32, 3), make([]byte, 100)) {
			t.Errorf("lengths %v are read", v)
		}
	}
}
