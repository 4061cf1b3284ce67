//go:build unix

package kernel

import (
	"bytes"
	"testing"
)

func TestBits(t *testing.T) {
	each(t, 3000, func(e *env) {
		at, from, n := e.IntN(70), e.IntN(70), e.size(2000)
		src, is := e.bitmap(from, n)
		dst := e.dst.tail((at + n + 7) / 8)
		before := bytes.Clone(dst)
		if c := CountBits(src, from, n); c != count(is) {
			e.Errorf("CountBits = %d, not %d", c, count(is))
		}
		check := func(what string, want func(i int) bool) {
			for i := range len(dst) * 8 {
				w := getBit(before, i)
				if i >= at && i < at+n {
					w = want(i - at)
				}
				if getBit(dst, i) != w {
					e.Fatalf("%s: bit %d of [%d, %d) is wrong", what, i, at, at+n)
				}
			}
			if !e.dst.intact() {
				e.Errorf("%s wrote before its destination", what)
			}
			copy(dst, before)
		}
		CopyBits(dst, at, src, from, n)
		check("CopyBits", func(i int) bool { return is[i] })
		set := e.IntN(2) == 0
		FillBits(dst, at, n, set)
		check("FillBits", func(int) bool { return set })
		levels := slice[uint8](e.more, n)
		want := 0
		for i := range levels {
			levels[i] = uint8(e.IntN(4))
			if levels[i] >= 2 {
				want++
			}
		}
		if got := AtLeast(dst, at, levels, 2); got != want {
			e.Errorf("AtLeast = %d, not %d", got, want)
		}
		check("AtLeast", func(i int) bool { return levels[i] >= 2 })
		wide := slice[uint16](e.more, n)
		for i := range wide {
			wide[i] = uint16(e.Uint32())
		}
		AtLeast(dst, at, wide, 300)
		check("AtLeast", func(i int) bool { return wide[i] >= 300 })
		denseAt := e.IntN(20)
		dense := e.more.tail((denseAt + count(is) + 7) / 8)
		e.fillBytes(dense)
		ExpandBits(dst, at, dense, denseAt, src, from, n)
		k := denseAt
		check("ExpandBits", func(i int) bool {
			if !is[i] {
				return false
			}
			k++
			return getBit(dense, k-1)
		})
	})
}

func (e *env) fillBytes(b []byte) {
	for i := range b {
		b[i] = byte(e.Uint32())
	}
}

// limit returns the number of values that width holds.
func limit(width int) uint64 { return 1 << width }

func TestHybrid(t *testing.T) {
	each(t, 3000, func(e *env) {
		width := e.IntN(33)
		top := 1 + e.Uint64N(limit(width)) // below it
		v := e.values(e.size(5000), top)
		src := e.src.put(e.encodeHybrid(v, width))
		var h Hybrid
		if !h.Reset(src, uint(width)) {
			e.Fatal("Reset")
		}
		entries := int(top)
		for len(v) > 0 {
			n := e.size(len(v))
			n = min(n, len(v))
			switch e.IntN(4) {
			case 0:
				if !h.Skip(n) {
					e.Fatal("Skip")
				}
			case 1:
				level := v[0]
				want := 0
				for _, x := range v[:n] {
					if x == level {
						want++
					}
				}
				if got, ok := h.Count(n, level); !ok || got != want {
					e.Fatalf("Count = %d, %v, not %d", got, ok, want)
				}
			case 2:
				dst := slice[uint32](e.dst, n)
				if !h.Indexes(dst, entries) || !bytes.Equal(raw(dst), raw(v[:n])) || !e.dst.intact() {
					e.Fatal("Indexes differ")
				}
			case 3:
				most := uint32(top - 1)
				ok := true
				if width <= 8 {
					dst := slice[uint8](e.dst, n)
					ok = h.Levels8(dst, most)
					for i, x := range v[:n] {
						ok = ok && uint32(dst[i]) == x
					}
				} else {
					ok = h.Skip(n)
				}
				if !ok || !e.dst.intact() {
					e.Fatal("levels differ")
				}
			}
			v = v[n:]
		}
	})
}

func TestHybridOutside(t *testing.T) {
	each(t, 2000, func(e *env) {
		width := 1 + e.IntN(16)
		v := e.values(1+e.size(3000), max(limit(width)/uint64(1+e.IntN(3)), 1))
		bad := e.IntN(len(v))
		top := uint64(0) // the largest but for bad
		for i, x := range v {
			if i != bad {
				top = max(top, uint64(x))
			}
		}
		v[bad] = uint32(top + 1)
		if top+1 >= limit(width) {
			return
		}
		src := e.src.put(e.encodeHybrid(v, width))
		for what, f := range map[string]func(h *Hybrid, n int) bool{
			"Indexes": func(h *Hybrid, n int) bool { return h.Indexes(slice[uint32](e.dst, n), int(top)+1) },
			"Levels8": func(h *Hybrid, n int) bool { return h.Levels8(slice[uint8](e.dst, n), uint32(top)) },
			"Gather":  func(h *Hybrid, n int) bool { return Gather(h, slice[uint64](e.dst, n), make([]uint64, top+1)) },
			"GatherBytes": func(h *Hybrid, n int) bool {
				return GatherBytes(h, slice[byte](e.dst, n*3), make([]byte, 3*(top+1)), 3)
			},
		} {
			if what == "Levels8" && top > 0xff {
				continue
			}
			var h Hybrid
			h.Reset(src, uint(width))
			first := e.IntN(bad + 1)
			if !f(&h, first) {
				e.Errorf("%s failed before the bad value", what)
			}
			if f(&h, len(v)-first) || f(&h, 1) {
				e.Errorf("%s took %d of %d", what, v[bad], top+1)
			}
		}
	})
}

func TestLevels(t *testing.T) {
	each(t, 3000, func(e *env) {
		v := e.values(e.size(5000), 2)
		src := e.src.put(e.encodeHybrid(v, 1))
		var h Hybrid
		h.Reset(src, 1)
		at := e.IntN(20)
		dst := e.dst.tail((at + len(v) + 7) / 8)
		before := bytes.Clone(dst)
		for i := 0; i < len(v); {
			n := min(e.size(1000), len(v)-i)
			set := 0
			for k := i; k < i+n; k++ {
				setBit(before, at+k, v[k] == 1)
				set += int(v[k])
			}
			if got, ok := h.Validity(dst, at+i, n); !ok || got != set {
				e.Fatalf("Validity = %d, %v, not %d", got, ok, set)
			}
			i += n
		}
		if !bytes.Equal(dst, before) || !e.dst.intact() {
			e.Fatal("Validity differs")
		}
		if _, ok := h.Validity(make([]byte, 2), 0, 9); ok {
			e.Fatal("levels behind the last")
		}
		h.Reset(src, 1)
		var want []int32
		for i, x := range v {
			if x == 0 {
				want = append(want, int32(i)+7)
			}
		}
		for k, i := 0, 0; i < len(v); {
			n := min(e.size(1000), len(v)-i)
			dst := slice[int32](e.dst, min(e.size(1000), len(want)-k))
			probe := h
			got, ok := ListStarts(&probe, n, int32(i)+7, dst)
			real := 0
			for _, x := range v[i : i+n] {
				real += 1 - int(x)
			}
			if ok != (real <= len(dst)) {
				e.Fatalf("ListStarts = %d, %v: there are %d in %d", got, ok, real, len(dst))
			}
			if !ok {
				dst = slice[int32](e.dst, real)
				got, ok = ListStarts(&h, n, int32(i)+7, dst)
			} else {
				h = probe
			}
			if !ok || got != real || !bytes.Equal(raw(dst[:got]), raw(want[k:k+got])) || !e.dst.intact() {
				e.Fatal("ListStarts differ")
			}
			k, i = k+got, i+n
		}
	})
}

func TestRows(t *testing.T) {
	each(t, 3000, func(e *env) {
		width := 1 + e.IntN(3)
		v := e.values(e.size(5000), limit(width))
		var h Hybrid
		h.Reset(e.src.put(e.encodeHybrid(v, width)), uint(width))
		for len(v) > 0 {
			rows, most := e.size(len(v)), e.IntN(len(v)+1)
			levels, begun := 0, 0
			for levels < most && (v[levels] != 0 || begun < rows) {
				if v[levels] == 0 {
					begun++
				}
				levels++
			}
			if l, b, ok := h.Rows(rows, most); !ok || l != levels || b != begun {
				e.Fatalf("Rows(%d, %d) = %d, %d, %v, not %d, %d", rows, most, l, b, ok, levels, begun)
			}
			v = v[levels:]
			if rows+most == 0 || levels == 0 {
				if !h.Skip(1) {
					e.Fatal("Skip")
				}
				v = v[1:]
			}
		}
	})
}

func TestBitPacked(t *testing.T) {
	each(t, 1000, func(e *env) {
		width := e.IntN(17)
		v := e.values(e.size(1000), limit(width))
		from := make([]byte, (len(v)*width+7)/8)
		for i, x := range v {
			for b := range width {
				bit := i*width + b
				from[bit>>3] |= byte(x>>(width-1-b)&1) << (7 - bit&7)
			}
		}
		s, d := BitPackedSize(len(v), uint(width))
		if s != len(from) {
			e.Fatalf("BitPackedSize = %d, not %d", s, len(from))
		}
		run := e.more.tail(d)
		if !FromBitPacked(run, e.src.put(from), len(v), uint(width)) || !e.more.intact() {
			e.Fatal("FromBitPacked")
		}
		var h Hybrid
		h.Reset(run, uint(width))
		dst := slice[uint32](e.dst, len(v))
		if !h.Indexes(dst, 1<<17) || !bytes.Equal(raw(dst), raw(v)) {
			e.Fatal("levels differ")
		}
		if s > 0 && FromBitPacked(run, from[1:], len(v), uint(width)) {
			e.Fatal("too short a source was taken")
		}
	})
}
