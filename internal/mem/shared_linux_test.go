package mem

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

func newTestShared(t *testing.T, size int64, held func(int64)) *Shared {
	t.Helper()
	s, err := NewShared(size, held)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// pages is how much memory the file takes, as the system counts it.
func (s *Shared) pages(t *testing.T) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// check compares what s knows with what follows from its blocks; it needs no lock.
func (s *Shared) check() error {
	at := 0
	var all []extent
	for o, n := range s.blocks {
		all = append(all, extent{o, o + n})
	}
	live := 0
	for _, x := range all {
		live += x.end - x.at
	}
	for i, x := range s.free {
		if i > 0 && s.free[i-1].end >= x.at {
			return fmt.Errorf("free %v and %v touch", s.free[i-1], x)
		}
	}
	all = append(all, s.free...)
	slices.SortFunc(all, func(a, b extent) int { return a.at - b.at })
	for _, x := range all {
		if x.at != at || x.end <= x.at {
			return fmt.Errorf("%v follows %d", x, at)
		}
		at = x.end
	}
	touched := 0
	for _, v := range s.touched {
		if v {
			touched += chunk
		}
	}
	switch {
	case at != s.size:
		return fmt.Errorf("all ends at %d of %d", at, s.size)
	case live != s.live || touched != s.resident || live > touched:
		return fmt.Errorf("%d live, %d touched; counted %d and %d", live, touched, s.live, s.resident)
	}
	return nil
}

// Blocks are apart from each other, keep their contents where somebody else looks, and are counted, by size and by pages; the
// lowest room is taken.
func TestSharedModel(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		paid := int64(0)
		s := newTestShared(t, 256<<20, func(n int64) { paid += n })
		view, err := MapShared(s.File(), s.Size())
		if err != nil {
			t.Fatal(err)
		}
		top := 1 << (6 + rng.IntN(16))
		type block struct {
			b []byte
			v byte
		}
		var all []block
		look := func(x block, n int) {
			at, ok := s.Offset(x.b)
			if !ok || at%align != 0 || len(x.b) >= page && at%page != 0 {
				t.Fatalf("seed %d: %d bytes at %d, %v", seed, len(x.b), at, ok)
			}
			for i, v := range view[at : at+int64(n)] {
				if v != x.v {
					t.Fatalf("seed %d: byte %d of the block at %d is %d, not %d", seed, i, at, v, x.v)
				}
			}
		}
		fill := func(x block) {
			for i := range x.b {
				x.b[i] = x.v
			}
		}
		many := 1 + rng.IntN(20)
		for i := range 600 {
			if i == 300 {
				many = 2 // a consumer gives back what it kept
			}
			switch k := rng.IntN(8); {
			case len(all) > many || k < 2 && len(all) > 0:
				k := rng.IntN(len(all))
				look(all[k], len(all[k].b))
				s.Free(all[k].b[:0])
				all = slices.Delete(all, k, k+1)
			case k == 2 && len(all) > 0:
				x := &all[rng.IntN(len(all))]
				had, n := len(x.b), 1+rng.IntN(top)
				was, _ := s.Offset(x.b)
				x.b = s.Reallocate(n, x.b)
				if at, _ := s.Offset(x.b); n <= had && at != was {
					t.Fatalf("seed %d: a smaller block moved from %d to %d", seed, was, at)
				}
				look(*x, min(n, had))
				fill(*x)
			default:
				lowest := -1
				n := 1 + rng.IntN(top)
				size, to := sharedSize(n)
				for _, f := range s.free {
					if at := (f.at + to - 1) / to * to; at+size <= f.end {
						lowest = at
						break
					}
				}
				x := block{s.Allocate(n), byte(rng.Uint32())}
				if at, _ := s.Offset(x.b); int(at) != lowest || len(x.b) != n {
					t.Fatalf("seed %d: %d bytes at %d, not at %d", seed, len(x.b), at, lowest)
				}
				fill(x)
				all = append(all, x)
			}
			if err := s.check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if most := int64(s.peak + s.peak/2 + s.peak/32 + 1<<20 + chunk*(len(all)+1)); s.Resident() > most || paid != s.Resident() {
				t.Fatalf("seed %d: %d bytes resident, %d paid, at most %d of a peak of %d", seed, s.Resident(), paid, most, s.peak)
			}
		}
		if n := s.pages(t); n > s.Resident() {
			t.Fatalf("seed %d: the system counts %d bytes, we %d", seed, n, s.Resident())
		}
		for _, x := range all {
			look(x, len(x.b))
			s.Free(x.b)
		}
		if s.Live() != 0 {
			t.Fatalf("seed %d: %d live", seed, s.Live())
		}
		s.Close()
		if paid != 0 {
			t.Fatalf("seed %d: %d bytes are still paid for", seed, paid)
		}
		UnmapShared(view)
	}
}

// Pages of what is free go back, the highest first, but where somebody knows where they are.
func TestSharedGivesBack(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		s := newTestShared(t, 1<<30, nil)
		if pinned {
			s.Pin()
		}
		var all [][]byte
		for range 64 {
			all = append(all, s.Allocate(1<<20))
			clear(all[len(all)-1])
		}
		for _, b := range all {
			s.Free(b)
		}
		for range 500 { // the peak is forgotten
			b := s.Allocate(1 << 20)
			if at, _ := s.Offset(b); at != 0 {
				t.Fatalf("a block at %d", at)
			}
			s.Free(b)
		}
		n, want := s.pages(t), int64(64<<20)
		if !pinned {
			want = 4 << 20
		}
		if n > want || pinned && n < want || s.Resident() < n {
			t.Errorf("pinned %v: %d bytes of memory, counted %d", pinned, n, s.Resident())
		}
	}
}

// A steady stream of batches keeps its pages; where their size varies, nearly.
func TestSharedStaysWarm(t *testing.T) {
	for vary, most := range []int{0, 1} { // hundredths
		gone, sum := 0, 0
		s := newTestShared(t, 1<<30, func(n int64) { gone -= int(min(n, 0)) })
		rng := rand.New(rand.NewPCG(1, 1))
		var queue [][]byte
		for range 500 {
			n := 1<<20 + vary*rng.IntN(1<<18)
			sum += n
			queue = append(queue, s.Allocate(n))
			for len(queue) > 3+rng.IntN(3) {
				s.Free(queue[0])
				queue = queue[1:]
			}
		}
		if gone > sum/100*most {
			t.Errorf("%d bytes of %d were given back and taken again", gone, sum)
		}
	}
}

// What another process maps cannot be taken from under it, and a file that could be is refused.
func TestSharedSealed(t *testing.T) {
	s := newTestShared(t, 1<<20, nil)
	for _, n := range []int64{0, 4096, 2 << 20} {
		if err := unix.Ftruncate(int(s.File().Fd()), n); err != unix.EPERM {
			t.Errorf("the size can be made %d: %v", n, err)
		}
	}
	for _, n := range []int64{0, -1, 1<<20 + 1, 1 << 62} {
		if _, err := MapShared(s.File(), n); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%d bytes of 1 MiB: %v", n, err)
		}
	}
	fd, err := unix.MemfdCreate("open", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "open")
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, f := range []*os.File{f, null} {
		if _, err := MapShared(f, 4096); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("a file that is not sealed: %v", err)
		}
	}
}

// What does not fit is a panic that says so; what was there is as before.
func TestSharedFull(t *testing.T) {
	s := newTestShared(t, 1<<20, nil)
	a := s.Allocate(600 << 10)
	for _, n := range []int{500 << 10, 2 << 20, 1 << 62, 1<<63 - 1} {
		func() {
			defer func() {
				if err, ok := recover().(*fault.Error); !ok || fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "give batches back sooner") {
					t.Errorf("%d bytes: %v", n, err)
				}
			}()
			s.Allocate(n)
		}()
	}
	if err := s.check(); err != nil {
		t.Error(err)
	}
	s.Free(a)
	s.Free(s.Allocate(1 << 20))
}

func TestSharedMisuse(t *testing.T) {
	s := newTestShared(t, 1<<20, nil)
	a, b := s.Allocate(100), s.Allocate(1000)
	s.Free(a)
	for name, f := range map[string]func(){"twice": func() { s.Free(a) }, "in the middle": func() { s.Free(b[64:]) }, "negative": func() { s.Allocate(-1) }} {
		func() {
			defer func() {
				if err, ok := recover().(*fault.Error); !ok || fault.CodeOf(err) != fault.Internal {
					t.Errorf("%s: %v", name, err)
				}
			}()
			f()
		}()
	}
	if b := s.Allocate(0); b == nil || len(b) > 0 {
		t.Error(b)
	}
	s.Free(nil)
}

// After Close blocks and views stay as they are, also when blocks are freed; the mapping goes with the last one.
func TestSharedClose(t *testing.T) {
	paid := int64(0)
	s := newTestShared(t, 1<<30, func(n int64) { paid += n })
	view, err := MapShared(s.File(), s.Size())
	if err != nil {
		t.Fatal(err)
	}
	defer UnmapShared(view)
	a, b := s.Allocate(8<<20), s.Allocate(8<<20)
	a[0], a[8<<20-1], b[0] = 1, 2, 3
	base := s.base
	s.Close()
	s.Close()
	c := s.Allocate(5000)
	if _, ok := s.Offset(c); ok || paid != 0 {
		t.Errorf("shared memory after Close, %d bytes paid", paid)
	}
	c = s.Reallocate(6000, c)
	s.Free(c)
	if b[0] != 3 || s.base == 0 {
		t.Error("a block is gone")
	}
	s.Free(a)
	s.Free(b)
	if view[0] != 1 || view[8<<20-1] != 2 || view[8<<20] != 3 {
		t.Error("somebody else's view was written to")
	}
	if mincore(base) {
		t.Error("still mapped")
	}
}

// mincore reports whether a page is mapped.
func mincore(at uintptr) bool {
	_, err := unix.MmapPtr(-1, 0, pointer(at), page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err == nil {
		unmap(at, page)
	}
	return err == unix.EEXIST
}

// Goroutines share it; contents are theirs.
func TestSharedConcurrent(t *testing.T) {
	s := newTestShared(t, 64<<20, nil)
	var all sync.WaitGroup
	for w := range uint64(4) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(w, 2))
			for range 300 {
				b := s.Allocate(1 + rng.IntN(200_000))
				for i := range b {
					b[i] = byte(w)
				}
				b = s.Reallocate(1+rng.IntN(len(b)), b)
				for i, v := range b {
					if v != byte(w) {
						t.Errorf("byte %d is %d, not %d", i, v, w)
						return
					}
				}
				s.Free(b)
			}
		})
	}
	all.Wait()
	if err := s.check(); err != nil || s.Live() != 0 {
		t.Error(err)
	}
}

// Limits of the process make it smaller, and no signal ends the process.
func TestSharedLimits(t *testing.T) {
	if limit := os.Getenv("PENSTOCK_SHARED_LIMIT"); limit != "" {
		var n uint64
		res := unix.RLIMIT_FSIZE
		if _, err := fmt.Sscan(limit, &n); err != nil {
			t.Fatal(err)
		}
		if n > 1<<30 {
			res = unix.RLIMIT_AS
		}
		if err := unix.Setrlimit(res, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			t.Fatal(err)
		}
		s := newTestShared(t, 1<<40, nil)
		b := s.Allocate(32 << 20)
		clear(b)
		if s.Size() > int64(n) || s.Size() < 64<<20 {
			t.Errorf("%d bytes under a limit of %d", s.Size(), n)
		}
		return
	}
	for _, n := range []int64{100 << 20, 64 << 30} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSharedLimits$", "-test.v")
		cmd.Env = append(os.Environ(), fmt.Sprint("PENSTOCK_SHARED_LIMIT=", n))
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Errorf("limit of %d: %v: %s", n, err, out)
		}
	}
}

func BenchmarkShared(b *testing.B) {
	s, err := NewShared(1<<30, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		s.Free(s.Allocate(64 << 10))
	}
}
