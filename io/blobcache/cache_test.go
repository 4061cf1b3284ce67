package blobcache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

func open(t testing.TB, dir string, most int64) *Cache {
	t.Helper()
	c, err := New(Options{Dir: dir, Max: most})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// content is the bytes [off, off+n) of an object: every byte is a function of object and offset.
func content(object string, off int64, n int) []byte {
	b := make([]byte, n)
	seed := uint64(len(object))
	for _, c := range []byte(object) {
		seed = seed*131 + uint64(c)
	}
	for i := range b {
		x := (uint64(off) + uint64(i)) / 8 * 0x9E3779B97F4A7C15
		x ^= seed * 0xD6E8FEB86659FD93
		x ^= x >> 32
		b[i] = byte(x >> (8 * ((uint64(off) + uint64(i)) % 8)))
	}
	return b
}

// read reads a range and checks what was found; it returns how much was.
func read(t testing.TB, c *Cache, object string, off int64, n int) int {
	t.Helper()
	dst := make([]byte, n)
	missing := c.Read(t.Context(), MakeID(object), dst, off)
	want := content(object, off, n)
	lost, end := 0, 0
	for _, m := range missing {
		if m.Off < end || m.Len <= 0 || m.Off+m.Len > n {
			t.Fatalf("missing %v of %d bytes", missing, n)
		}
		if !bytes.Equal(dst[end:m.Off], want[end:m.Off]) {
			t.Fatalf("%s: other bytes in [%d, %d)", object, off+int64(end), off+int64(m.Off))
		}
		end = m.Off + m.Len
		lost += m.Len
	}
	if !bytes.Equal(dst[end:], want[end:]) {
		t.Fatalf("%s: other bytes in [%d, %d)", object, off+int64(end), off+int64(n))
	}
	return n - lost
}

func write(c *Cache, object string, off int64, n int) {
	c.Write(MakeID(object), content(object, off, n), off)
}

func path(dir string) string { return filepath.Join(dir, folderName, fileName) }

// onDisk is what the cache takes of the disk, folders apart, by size and by blocks.
func onDisk(t testing.TB, dir string) int64 {
	t.Helper()
	var size, blocks int64
	err := filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if err == nil && !fi.IsDir() {
			size += fi.Size()
			blocks += fi.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return max(size, blocks)
}

// What was written in any pieces, in any order, is found again, also by another cache and in other pieces.
func TestReadsWhatWasWritten(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	c := open(t, dir, 64<<20)
	const size = 3 << 20
	for i, object := range []string{"a", "b", "c"} {
		have := make([]bool, size)
		for range 60 {
			off, n := rnd.IntN(size), 1+rnd.IntN(1<<(4+rnd.IntN(17)))
			n = min(n, size-off)
			write(c, object, int64(off), n)
			for k := off; k < off+n; k++ {
				have[k] = true
			}
		}
		again := c
		if i == 1 {
			again = open(t, dir, 64<<20)
		}
		for range 200 {
			off, n := rnd.IntN(size), 1+rnd.IntN(1<<(4+rnd.IntN(17)))
			n = min(n, size-off)
			whole := true
			for k := off; k < off+n; k++ {
				whole = whole && have[k]
			}
			got := read(t, again, object, int64(off), n)
			if whole != (got == n) || whole != again.Has(MakeID(object), int64(off), int64(n)) {
				t.Fatalf("[%d, +%d) of %s: %d bytes found, all written: %v", off, n, object, got, whole)
			}
		}
	}
	if s := c.Stats(); s.Evicted+s.Refused+s.Skipped+s.Corrupt != 0 || s.Stored == 0 || s.HitBytes == 0 || s.MissBytes == 0 {
		t.Error(s)
	}
	if read(t, c, "another", 0, 1000) != 0 {
		t.Error("an object that was never written is there")
	}
}

// A run of small writes side by side takes no more slots than one large one.
func TestNeighboursShareSlots(t *testing.T) {
	c := open(t, t.TempDir(), MinMax)
	for off := 0; off < blockSize; off += 1000 {
		write(c, "x", int64(off), 1000)
	}
	s := c.take()
	defer c.give(s)
	s.load(c.file.Load(), c.sets.Load(), key{MakeID("x"), 0})
	n := 0
	s.each(func(e entry, _ slot) { n++ })
	if n != 1 {
		t.Errorf("%d slots", n)
	}
}

// The file fills to 90 % before anything has to go, and is never larger than allowed.
func TestFillsAndNeverPasses(t *testing.T) {
	for _, most := range []int64{MinMax, 100e6, 500 << 20} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			dir := t.TempDir()
			c := open(t, dir, most)
			room := setsFor(most) * ways // blocks
			n := int(room * 9 / 10)
			id := MakeID("x")
			data := make([]byte, blockSize)
			for i := range n {
				c.Write(id, data, int64(i)*blockSize)
			}
			if s := c.Stats(); s.Evicted+s.Refused+s.Skipped != 0 || s.Stored != int64(n)*blockSize {
				t.Errorf("after 90 %%: %v", s)
			}
			for i := range n {
				c.Write(id, data, int64(n+i)*blockSize)
			}
			if s := c.Stats(); s.Refused == 0 {
				t.Error(s)
			}
			if got := onDisk(t, dir); got > most || got < room*blockSize*8/10 {
				t.Errorf("%d bytes on disk of %d", got, most)
			}
		})
	}
}

// Data twice the size of the cache, epoch after epoch: about a half is found, and what is there stays. Then a new
// job takes over.
func TestLargerThanTheCache(t *testing.T) {
	dir := t.TempDir()
	const most = 64 << 20
	c := open(t, dir, most)
	n := 2 * most / blockSize
	epoch := func(c *Cache, object string) (share float64) {
		hit := 0
		for i := range n {
			off := int64(i) * blockSize
			if got := read(t, c, object, off, blockSize); got == blockSize {
				hit++
			} else {
				write(c, object, off, blockSize)
			}
		}
		return float64(hit) / float64(n)
	}
	for e := range 4 {
		if share := epoch(c, "old"); e > 0 && (share < 0.4 || share > 0.5) {
			t.Errorf("epoch %d: %.2f of the data were found", e, share)
		}
	}
	next := open(t, dir, most)
	epoch(next, "new")
	if share := epoch(next, "new"); share < 0.4 {
		t.Errorf("the next job finds %.2f of its data", share)
	}
}

// Damage of every kind is a miss, never other bytes, and mends itself.
func TestDamage(t *testing.T) {
	const n = 5 << 20
	for name, damage := range map[string]func(t *testing.T, dir string){
		"flipped bytes": func(t *testing.T, dir string) {
			b, err := os.ReadFile(path(dir))
			if err != nil {
				t.Fatal(err)
			}
			for i := headerBytes; i < len(b); i += 977 {
				b[i] ^= 0x10
			}
			if err := os.WriteFile(path(dir), b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"header": func(t *testing.T, dir string) {
			f, err := os.OpenFile(path(dir), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			f.WriteAt([]byte{0xFF, 0xFF, 0xFF}, int64(len(magic))+1)
		},
		"truncated": func(t *testing.T, dir string) {
			if err := os.Truncate(path(dir), headerBytes+pageBytes+10*blockSize+77); err != nil {
				t.Fatal(err)
			}
		},
		"emptied": func(t *testing.T, dir string) {
			if err := os.Truncate(path(dir), 0); err != nil {
				t.Fatal(err)
			}
		},
		"file deleted": func(t *testing.T, dir string) {
			if err := os.Remove(path(dir)); err != nil {
				t.Fatal(err)
			}
		},
		"folder deleted": func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, running := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, running %v", name, running), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "c")
				c := open(t, dir, MinMax)
				write(c, "x", 100, n)
				damage(t, dir)
				if !running {
					c.Close()
					c = open(t, dir, MinMax)
				}
				got := read(t, c, "x", 100, n)
				write(c, "x", 100, n)
				if again := read(t, c, "x", 100, n); again != n {
					t.Errorf("%d bytes found after the damage, %d of %d after they were put in again", got, again, n)
				}
				other := open(t, dir, MinMax)
				if got := read(t, other, "x", 100, n); got != n {
					t.Errorf("another process finds %d", got)
				}
				if s := c.Stats(); strings.Contains(name, "flipped") && (s.Corrupt == 0 || got > n/2) {
					t.Errorf("%d bytes found; %v", got, s)
				}
				if size := onDisk(t, dir); size > MinMax {
					t.Errorf("%d bytes on disk", size)
				}
			})
		}
	}
}

// An entry whose numbers are out of bounds is none, whatever else it says.
func TestEntriesAreNotTrusted(t *testing.T) {
	c := open(t, t.TempDir(), MinMax)
	write(c, "x", 0, blockSize)
	s := c.take()
	defer c.give(s)
	f := c.file.Load()
	s.load(f, c.sets.Load(), key{MakeID("x"), 0})
	e, at := s.covers(0)
	for _, bad := range []entry{{n: blockSize + 1}, {n: 1 << 31}, {from: 1, n: blockSize}, {from: 1 << 31, n: 5}, {from: -5, n: 5}, {n: -1}} {
		bad.key, bad.sum, bad.used = e.key, e.sum, e.used
		if err := s.put(f, at, bad); err != nil {
			t.Fatal(err)
		}
		s.load(f, c.sets.Load(), e.key)
		if got, _ := s.covers(0); got.n != 0 {
			t.Errorf("%+v is taken for %+v", bad, got)
		}
	}
	// Nor one that is right for other bytes.
	other := e
	other.id = MakeID("y")
	if other.sumOf(content("x", 0, blockSize)) == e.sum {
		t.Error("the checksum does not cover what the bytes are")
	}
}

// warned collects warnings, by line.
func warned() (func(error), *bytes.Buffer) {
	var b bytes.Buffer
	return func(err error) { fmt.Fprintln(&b, err) }, &b
}

// A file of another kind in the cache's place is left as it is, its mode included, and it is said what is there: also if it is put there under a
// cache that is at work.
func TestForeignFile(t *testing.T) {
	for what, b := range map[string][]byte{
		"text": bytes.Repeat([]byte("not a cache "), 1e6), "little": {1}, "zeros": make([]byte, 64<<10), "half of the magic": []byte(magic[:7]),
		"almost": append([]byte(magic[:len(magic)-1]+"2"), make([]byte, 100)...),
	} {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, running %v", what, running), func(t *testing.T) {
				dir := t.TempDir()
				warn, out := warned()
				c, err := New(Options{Dir: dir, Max: MinMax, Warn: warn})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if running {
					write(c, "x", 0, 1000)
				} else {
					os.Mkdir(filepath.Join(dir, folderName), 0o755)
				}
				if c.Err() != nil {
					t.Error(c.Err())
				}
				if err := os.WriteFile(path(dir), b, 0o644); err != nil {
					t.Fatal(err)
				}
				os.Chmod(path(dir), 0o644)
				for range 3 {
					write(c, "y", 0, 3<<20)
					if got := read(t, c, "y", 0, 3<<20); got != 0 {
						t.Errorf("%d bytes found", got)
					}
				}
				fi, err := os.Stat(path(dir))
				if err != nil {
					t.Fatal(err)
				}
				if now, err := os.ReadFile(path(dir)); err != nil || !bytes.Equal(now, b) || fi.Mode().Perm() != 0o644 {
					t.Errorf("%d bytes now, of mode %v: %v", len(now), fi.Mode(), err)
				}
				if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), path(dir)+" holds something else than a cache") || c.Err() == nil {
					t.Errorf("%d warnings:\n%s", n, out)
				}
			})
		}
	}
}

// What is missing is divided between those who ask for it at once.
func TestClaim(t *testing.T) {
	c := open(t, t.TempDir(), MinMax)
	x, y := MakeID("x"), MakeID("y")
	read(t, c, "x", 0, 1) // opens it
	spans := func(s ...Span) []Span { return s }
	check := func(what string, mine []Span, theirs []Wait, want, waits []Span) {
		t.Helper()
		var w []Span
		for _, o := range theirs {
			w = append(w, o.Span)
		}
		if !slices.Equal(mine, want) || !slices.Equal(w, waits) {
			t.Errorf("%s: mine %v, theirs %v; want %v, %v", what, mine, w, want, waits)
		}
	}
	mine, theirs, done1 := c.Claim(x, spans(Span{0, 10}, Span{20, 10}), 100) // [100, 110) and [120, 130)
	check("first", mine, theirs, spans(Span{0, 10}, Span{20, 10}), nil)
	mine, theirs, done2 := c.Claim(x, spans(Span{0, 40}), 95) // [95, 135)
	check("second", mine, theirs, spans(Span{0, 5}, Span{15, 10}, Span{35, 5}), spans(Span{5, 10}, Span{25, 10}))
	mine, other, done3 := c.Claim(y, spans(Span{0, 40}), 95)
	check("another object", mine, other, spans(Span{0, 40}), nil)
	select {
	case <-theirs[0].Done:
		t.Error("done before its time")
	default:
	}
	done1()
	<-theirs[0].Done
	<-theirs[1].Done
	mine, theirs, done4 := c.Claim(x, spans(Span{0, 20}), 100)
	check("after the first", mine, theirs, spans(Span{0, 10}), spans(Span{10, 10}))
	for _, done := range []func(){done2, done3, done4} {
		done()
	}
	if len(c.flights) > 0 {
		t.Errorf("left: %v", c.flights)
	}
	c.Close()
	mine, theirs, _ = c.Claim(x, spans(Span{0, 20}), 100)
	check("closed", mine, theirs, spans(Span{0, 20}), nil)
	mine, theirs, _ = c.Claim(x, spans(Span{0, 20}), 100)
	check("closed, again", mine, theirs, spans(Span{0, 20}), nil)
}

// Where nothing can be cached, nothing fails, and it is said once.
func TestDegrades(t *testing.T) {
	for name, make := range map[string]func(t *testing.T) string{
		"a file where the folder should be": func(t *testing.T) string {
			p := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(p, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return p
		},
		"read only": func(t *testing.T) string { return "/proc" },
		"a link": func(t *testing.T) string {
			d := t.TempDir()
			if err := os.Symlink(t.TempDir(), filepath.Join(d, folderName)); err != nil {
				t.Fatal(err)
			}
			return d
		},
		"a link for the file": func(t *testing.T) string {
			d := t.TempDir()
			os.Mkdir(filepath.Join(d, folderName), 0o700)
			if err := os.Symlink(filepath.Join(t.TempDir(), "x"), path(d)); err != nil {
				t.Fatal(err)
			}
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			warn, out := warned()
			c, err := New(Options{Dir: make(t), Max: MinMax, Warn: warn})
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				write(c, "x", 0, 1000)
				if got := read(t, c, "x", 0, 1000); got != 0 {
					t.Errorf("%d bytes found", got)
				}
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), "make the folder writable") {
				t.Errorf("%d lines of log:\n%s", n, out)
			}
		})
	}
}

// A full disk (here a limit on the size of files) ends the writing; what is there can be read.
func TestDiskFull(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	warn, out := warned()
	dir := t.TempDir()
	c, err := New(Options{Dir: dir, Max: MinMax, Warn: warn})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(c, "x", 0, 4<<20)
	low := old
	low.Cur = 4 << 20
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &low); err != nil {
		t.Fatal(err)
	}
	write(c, "y", 0, 20<<20)
	write(c, "y", 0, 20<<20)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if read(t, c, "x", 0, 4<<20) != 4<<20 || read(t, c, "y", 0, 20<<20) == 20<<20 {
		t.Error(c.Stats())
	}
	if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), "free some space") {
		t.Errorf("log:\n%s", out)
	}
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	check := func() {
		t.Helper()
		for p, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, folderName): 0o700, path(dir): 0o600} {
			if fi, err := os.Stat(p); err != nil || fi.Mode().Perm() != want {
				t.Errorf("%s: %v %v", p, fi.Mode(), err)
			}
		}
	}
	c := open(t, dir, MinMax)
	write(c, "x", 0, 10)
	check()
	// What somebody opened up is closed again.
	os.Chmod(filepath.Join(dir, folderName), 0o777)
	os.Chmod(path(dir), 0o666)
	write(open(t, dir, MinMax), "x", 0, 10)
	check()
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Max: 1 << 30}, {Dir: "x"}, {Dir: "x", Max: MinMax - 1}, {Dir: "x", Max: -1}} {
		if _, err := New(o); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Another limit: most stays when it grows, the file shrinks at once, and caches that are open follow.
func TestResize(t *testing.T) {
	dir := t.TempDir()
	const n = 40 << 20
	a := open(t, dir, 64<<20)
	write(a, "x", 0, n)
	b := open(t, dir, 80<<20)
	if got := read(t, b, "x", 0, n); got < n/2 {
		t.Errorf("%d of %d bytes found in a larger file", got, n)
	}
	write(a, "y", 0, 1)
	if a.sets.Load() != b.sets.Load() {
		t.Errorf("%d and %d sets", a.sets.Load(), b.sets.Load())
	}
	s := open(t, dir, MinMax)
	if got := read(t, s, "x", 0, n); got == 0 {
		t.Error("nothing is found in a smaller file")
	}
	for _, c := range []*Cache{a, b, s} {
		write(c, "z", 0, n)
		if got := read(t, c, "x", 0, n); got == 0 {
			t.Error("nothing is left in a smaller file")
		}
		if size := onDisk(t, dir); size > MinMax {
			t.Errorf("%d bytes on disk", size)
		}
	}
}

// A process that is stopped while it writes holds nobody up for long.
func TestHeldLock(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, MinMax)
	write(c, "x", 0, 1000)
	f, err := os.Open(path(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for i := range 100 {
		write(c, "y", int64(i)*1000, 1000)
	}
	late := open(t, dir, MinMax)
	if read(t, c, "x", 0, 1000) != 1000 || read(t, late, "x", 0, 1000) != 1000 {
		t.Error("what is there is not found")
	}
	if took := time.Since(begin); took > 5*time.Second || c.Stats().Skipped != 100*1000 {
		t.Errorf("took %v; %v", took, c.Stats())
	}
}

// A cache that is opened while the lock is held gets its own limit once it can: before it writes.
func TestHeldLockAtOpen(t *testing.T) {
	dir := t.TempDir()
	write(open(t, dir, 4*MinMax), "x", 0, 1000)
	f, err := os.Open(path(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	late := open(t, dir, MinMax)
	if read(t, late, "x", 0, 1000) != 1000 {
		t.Error("what is there is not found")
	}
	f.Close()
	late.mu.Lock()
	late.busy = time.Time{} // as if it had waited
	late.mu.Unlock()
	write(late, "y", 0, 3*MinMax)
	if size := onDisk(t, dir); size > MinMax {
		t.Errorf("%d bytes on disk", size)
	}
}
