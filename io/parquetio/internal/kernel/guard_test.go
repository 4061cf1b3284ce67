//go:build unix

package kernel

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func TestMain(m *testing.M) {
	debug.SetPanicOnFault(true)
	os.Exit(m.Run())
}

// page is memory behind which nothing may be touched.
type page struct {
	mem  []byte
	head []byte // before what was handed out last, filled with 0xa5
}

func newPage(tb testing.TB, size int) *page {
	tb.Helper()
	step := os.Getpagesize()
	size = (size+step-1)/step*step + step
	m, err := syscall.Mmap(-1, 0, size+step, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { syscall.Munmap(m) })
	if err := syscall.Mprotect(m[size:], syscall.PROT_NONE); err != nil {
		tb.Fatal(err)
	}
	return &page{mem: m[:size:size]}
}

// tail returns the last n bytes, mangled.
func (p *page) tail(n int) []byte {
	at := len(p.mem) - n
	p.head = p.mem[max(at-Slack, 0):at]
	for i := range p.head {
		p.head[i] = 0xa5
	}
	t := p.mem[at:]
	for i := range t {
		t[i] = 0x5a
	}
	return t
}

func (p *page) put(b []byte) []byte {
	t := p.tail(len(b))
	copy(t, b)
	return t
}

// intact says whether nothing was written before the tail.
func (p *page) intact() bool {
	for _, c := range p.head {
		if c != 0xa5 {
			return false
		}
	}
	return true
}

// slice is tail for n values; it may be unaligned to them.
func slice[T any](p *page, n int) []T {
	size := int(unsafe.Sizeof(*new(T)))
	b := p.tail(n * size)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

func raw[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(*new(T))))
}

// env is what a property test needs.
type env struct {
	testing.TB
	*rand.Rand
	src, dst, bits, more *page
}

// each runs f with many seeds, which it prints when f fails, with assembly and without.
func each(t *testing.T, n int, f func(e *env)) {
	t.Helper()
	e := &env{TB: t, src: newPage(t, 1<<19), dst: newPage(t, 1<<21), bits: newPage(t, 1<<16), more: newPage(t, 1<<19)}
	base := uint64(time.Now().UnixNano())
	if testing.Short() {
		n = max(n/10, 1)
	}
	for i := range n {
		seed := base + uint64(i)
		run := func() {
			e.Rand = rand.New(rand.NewPCG(seed, 1))
			defer func() {
				if r := recover(); r != nil {
					t.Fatalf("seed %d: %v\n%s", seed, r, debug.Stack())
				}
			}()
			f(e)
		}
		run()
		pure(run)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// size returns a length, mostly short.
func (e *env) size(most int) int {
	switch e.IntN(4) {
	case 0:
		return e.IntN(10)
	case 1:
		return e.IntN(most + 1)
	}
	return e.IntN(min(most, 300) + 1)
}

// bitmap returns n random bits from bit at on, in runs, with noise around.
func (e *env) bitmap(at, n int) ([]byte, []bool) {
	b := e.bits.tail((at + n + 7) / 8)
	for i := range b {
		b[i] = byte(e.Uint32())
	}
	is := make([]bool, n)
	p := e.Float64()
	for i := 0; i < n; {
		run := 1
		if e.IntN(20) == 0 {
			run = e.IntN(300)
		}
		v := e.Float64() < p
		for ; run > 0 && i < n; run, i = run-1, i+1 {
			is[i] = v
			setBit(b, at+i, v)
		}
	}
	return b, is
}

func setBit(b []byte, i int, v bool) {
	b[i>>3] &^= 1 << (i & 7)
	if v {
		b[i>>3] |= 1 << (i & 7)
	}
}

func getBit(b []byte, i int) bool { return b[i>>3]>>(i&7)&1 != 0 }

func count(is []bool) (n int) {
	for _, v := range is {
		if v {
			n++
		}
	}
	return n
}

// packBits appends values of width bits.
func packBits(to []byte, v []uint64, width int) []byte {
	out := make([]byte, (len(v)*width+7)/8)
	for i, x := range v {
		for b := range width {
			setBit(out, i*width+b, x>>b&1 != 0)
		}
	}
	return append(to, out...)
}

// encodeHybrid cuts values into runs at random; the last packed run may be cut off.
func (e *env) encodeHybrid(v []uint32, width int) []byte {
	var out []byte
	for len(v) > 0 {
		same := 1
		for same < len(v) && v[same] == v[0] {
			same++
		}
		if same >= 8 || e.IntN(8) == 0 {
			n := same
			if e.IntN(2) == 0 {
				n = 1 + e.IntN(same)
			}
			out = binary.AppendUvarint(out, uint64(n)<<1)
			var val [4]byte
			binary.LittleEndian.PutUint32(val[:], v[0])
			out = append(out, val[:(width+7)/8]...)
			v = v[n:]
			continue
		}
		groups := 1 + e.IntN(40)
		if n := groups * 8; n > len(v) {
			groups = (len(v) + 7) / 8
		}
		n := min(groups*8, len(v))
		wide := make([]uint64, n)
		for i := range wide {
			wide[i] = uint64(v[i])
		}
		out = binary.AppendUvarint(out, uint64(groups)<<1|1)
		k := len(out) + groups*width
		out = packBits(out, wide, width)
		if v = v[n:]; len(v) > 0 || e.IntN(2) == 0 {
			for len(out) < k {
				out = append(out, 0)
			}
		}
		if e.IntN(10) == 0 {
			out = binary.AppendUvarint(out, 1) // an empty run
		}
	}
	return out
}

// values returns n values below limit (0: any 32 bits), in runs.
func (e *env) values(n int, limit uint64) []uint32 {
	if limit == 0 {
		limit = 1 << 32
	}
	v := make([]uint32, n)
	p := e.IntN(3)
	for i := 0; i < n; {
		run := 1
		if p > 0 && e.IntN(10) < 3*p {
			run = e.IntN(100)
		}
		x := uint32(e.Uint64N(limit))
		for ; run > 0 && i < n; run, i = run-1, i+1 {
			v[i] = x
		}
	}
	return v
}

// encodeDelta is DELTA_BINARY_PACKED of 64- or (is32) 32-bit values.
func encodeDelta(v []int64, block, minis int, is32, cut bool) []byte {
	var out []byte
	out = binary.AppendUvarint(out, uint64(block))
	out = binary.AppendUvarint(out, uint64(minis))
	out = binary.AppendUvarint(out, uint64(len(v)))
	if len(v) == 0 {
		return binary.AppendVarint(out, 0)
	}
	out = binary.AppendVarint(out, v[0])
	last := v[0]
	v = v[1:]
	per := block / minis
	for len(v) > 0 {
		n := min(block, len(v))
		deltas := make([]int64, n)
		for i := range deltas {
			deltas[i] = v[i] - last
			if is32 {
				deltas[i] = int64(int32(deltas[i]))
			}
			last = v[i]
		}
		v = v[n:]
		least := deltas[0]
		for _, d := range deltas {
			least = min(least, d)
		}
		out = binary.AppendVarint(out, least)
		widths := len(out)
		out = append(out, make([]byte, minis)...)
		for m := 0; m*per < n; m++ {
			part := make([]uint64, per)
			w := 0
			for i, d := range deltas[m*per : min((m+1)*per, n)] {
				part[i] = uint64(d - least)
				if is32 {
					part[i] = uint64(uint32(part[i]))
				}
				w = max(w, bits.Len64(part[i]))
			}
			out[widths+m] = byte(w)
			if cut && len(v) == 0 && (m+1)*per >= n {
				part = part[:n-m*per]
			}
			out = packBits(out, part, w)
		}
	}
	return out
}

func plainBytes(v [][]byte) []byte {
	var out []byte
	for _, s := range v {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(s)))
		out = append(out, s...)
	}
	return out
}

// strings returns byte strings, sorted more or less.
func (e *env) strings(n, most int) [][]byte {
	v := make([][]byte, n)
	least := most * e.IntN(5) / 4
	for i := range v {
		b := make([]byte, min(least, most)+e.IntN(max(most-least, 0)+1))
		for k := range b {
			b[k] = byte(e.Uint32())
		}
		if i > 0 && e.IntN(2) == 0 {
			p := v[i-1][:e.IntN(len(v[i-1])+1)]
			b = append(bytes.Clone(p), b...)
			b = b[:min(len(b), most)]
		}
		v[i] = b
	}
	return v
}

func lengths(v [][]byte) (l []int64) {
	for _, s := range v {
		l = append(l, int64(len(s)))
	}
	return l
}

func encodeDeltaLength(v [][]byte) []byte {
	return append(encodeDelta(lengths(v), 128, 4, true, false), bytes.Join(v, nil)...)
}

func encodeDeltaBytes(v [][]byte) []byte {
	var prefixes []int64
	var suffixes [][]byte
	for i, s := range v {
		p := 0
		if i > 0 {
			for p < min(len(s), len(v[i-1])) && s[p] == v[i-1][p] {
				p++
			}
		}
		prefixes = append(prefixes, int64(p))
		suffixes = append(suffixes, s[p:])
	}
	return append(encodeDelta(prefixes, 128, 4, true, false), encodeDeltaLength(suffixes)...)
}
