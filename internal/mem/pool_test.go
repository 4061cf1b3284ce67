package mem

import (
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/memtest"
)

func TestClasses(t *testing.T) {
	for c := range 80 {
		n := classSize(c)
		if classOf(n) != c || classOf(n+1) != c+1 {
			t.Fatalf("class %d of %d bytes: classOf = %d, of one more %d", c, n, classOf(n), classOf(n+1))
		}
	}
	for n := 1; n < 1<<20; n += 1 + n/37 {
		s := Size(n)
		if s < n || s%64 != 0 || n > 1024 && float64(s-n) > 0.2001*float64(s) {
			t.Fatalf("Size(%d) = %d", n, s)
		}
	}
	for s := range numSmall {
		if classSize(s+hostOff) != perSlab*classSize(s) {
			t.Fatalf("class %d is not cut from class %d", s, s+hostOff)
		}
	}
}

// TestRandom keeps a shadow of every live block and compares contents.
func TestRandom(t *testing.T) {
	for seed := range uint64(8) {
		p := New(8 << 20)
		var wg sync.WaitGroup
		for w := range uint64(3) {
			wg.Go(func() { churn(t, p, rand.New(rand.NewPCG(seed, w))) })
		}
		wg.Wait()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if p.Live() != 0 {
			t.Fatalf("seed %d: %d bytes live", seed, p.Live())
		}
		if c := p.Cached(); c < 0 || c > p.limit {
			t.Fatalf("seed %d: %d bytes cached", seed, c)
		}
		p.Close()
	}
}

func churn(t *testing.T, p *Pool, r *rand.Rand) {
	type held struct {
		b []byte
		v byte
	}
	var all []held
	fill := func(b []byte, v byte) {
		for i := 0; i < len(b); i += 61 {
			b[i] = v
		}
	}
	check := func(h held) {
		for i := 0; i < len(h.b); i += 61 {
			if h.b[i] != h.v {
				t.Errorf("block of %d bytes changed at %d", len(h.b), i)
				return
			}
		}
	}
	for range 1500 {
		n := int(r.ExpFloat64() * float64(int(64)<<r.IntN(14)))
		switch k := r.IntN(4); {
		case k < 2 || len(all) == 0:
			h := held{p.Allocate(n), byte(r.Uint32())}
			if len(h.b) != n || cap(h.b) != Size(n) || n > 0 && addr(h.b)%64 != 0 {
				t.Errorf("Allocate(%d): len %d cap %d at %x", n, len(h.b), cap(h.b), addr(h.b))
				return
			}
			if n >= minOff && p.OffHeap() && (!p.Owns(h.b) || !p.Owns(h.b[n-1:])) {
				t.Errorf("does not own its block of %d bytes", n)
			}
			fill(h.b, h.v)
			all = append(all, h)
		case k == 2:
			i := r.IntN(len(all))
			check(all[i])
			old := len(all[i].b)
			all[i].b = p.Reallocate(n, all[i].b)
			if m := min(old, n); m > 0 {
				check(held{all[i].b[:m], all[i].v})
			}
			fill(all[i].b, all[i].v)
		default:
			i := r.IntN(len(all))
			check(all[i])
			p.Free(all[i].b)
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
		}
	}
	for _, h := range all {
		check(h)
		p.Free(h.b)
	}
}

func TestOwnsNotForeign(t *testing.T) {
	p := New(1 << 20)
	defer p.Close()
	if p.Owns(make([]byte, 1<<20)) {
		t.Fatal("owns memory of the Go heap")
	}
	q := New(1 << 20)
	defer q.Close()
	b := q.Allocate(1 << 16)
	if q.OffHeap() && p.Owns(b) {
		t.Fatal("owns a block of another pool")
	}
	q.Free(b)
}

func TestDoubleFree(t *testing.T) {
	for _, n := range []int{5000, 100 << 10} {
		p := New(1 << 20)
		if !p.OffHeap() {
			memtest.Skip(t, "no memory outside the Go heap here")
		}
		b, keep := p.Allocate(n), p.Allocate(n)
		p.Free(b)
		func() {
			defer func() {
				if r := recover(); r == nil {
					t.Errorf("freeing %d bytes twice went unnoticed", n)
				}
			}()
			p.Free(b)
		}()
		p.Free(keep)
	}
}

func TestHugeAndClosed(t *testing.T) {
	p := New(1 << 20)
	h := p.Allocate(3 << 20)
	h[len(h)-1] = 1
	if p.OffHeap() && (!p.Owns(h) || !p.Owns(h[1<<20:]) || p.Owns(make([]byte, 10))) {
		t.Error("the pool does not know what it owns")
	}
	small := p.Allocate(20 << 10)
	p.Close()
	late := p.Allocate(20 << 10)
	h[0], small[0], late[0] = 1, 1, 1
	if want := int64(3<<20 + 2*20<<10); p.Live() != want {
		t.Fatalf("live %d, want %d", p.Live(), want)
	}
	p.Free(h)
	p.Free(late)
	p.Free(small)
	if p.Live() != 0 || p.Cached() > 0 && p.Cached() != 20<<10 {
		t.Fatalf("live %d cached %d", p.Live(), p.Cached())
	}
}

// TestResident: what is freed and trimmed leaves the process, and what is
// cached stays within the limit.
func TestResident(t *testing.T) {
	const limit = 16 << 20
	p := New(limit)
	defer p.Close()
	if !p.OffHeap() {
		memtest.Skip(t, "no memory outside the Go heap here")
	}
	before := rss(t)
	for round := range 2 {
		for k := 6 << 10; k < 4<<20; k += k - k/3 { // each size in turn fills the budget
			var all [][]byte
			for held := 0; held+Size(k) <= limit; held += Size(k) {
				b := p.Allocate(k)
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
				all = append(all, b)
			}
			if got := rss(t) - before; got > limit+limit/4+(8<<20) {
				t.Fatalf("round %d, blocks of %d: resident %d MiB with %d live, %d cached", round, k, got>>20, p.Live()>>20, p.Cached()>>20)
			}
			for _, b := range all {
				p.Free(b)
			}
		}
	}
	p.Trim()
	if got := rss(t) - before; got > 8<<20 {
		t.Fatalf("%d MiB resident after Trim", got>>20)
	}
}

func rss(t *testing.T) int64 {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		memtest.Skip(t, "%v", err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); f[0] == "VmRSS:" {
			var n int64
			for _, c := range f[1] {
				n = n*10 + int64(c-'0')
			}
			return n << 10
		}
	}
	memtest.Skip(t, "no VmRSS")
	return 0
}

func BenchmarkAllocate(b *testing.B) {
	for _, n := range []int{1 << 10, 8 << 10, 128 << 10, 4 << 20} {
		for _, a := range []struct {
			name string
			memory.Allocator
		}{{"pool", New(1 << 30)}, {"go", memory.NewGoAllocator()}} {
			b.Run(name(n)+"/"+a.name, func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					x := a.Allocate(n)
					x[0], x[n-1] = 1, 1
					a.Free(x)
				}
			})
		}
	}
}

func name(n int) string {
	return map[int]string{1 << 10: "1KiB", 8 << 10: "8KiB", 128 << 10: "128KiB", 4 << 20: "4MiB"}[n]
}
