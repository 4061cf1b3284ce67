package fileset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fileOf makes a set of one file.
func fileOf(t testing.TB, name string, data []byte) *Set {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, data, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := list(t, &Options{Paths: []string{p}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// open reads lines of the first file of s: of a part of it that is known to be text, or of the whole.
func open(ctx context.Context, s *Set, r blobio.Range, chunk int) *Chunks {
	return openCounted(ctx, s, r, chunk, nil)
}

func openCounted(ctx context.Context, s *Set, r blobio.Range, chunk int, st *driver.ScanStats) *Chunks {
	p := Part{Range: r, encoding: utf8Name}
	if r.Len < s.Files[0].Info.Size {
		p.form = &form{}
	}
	return s.OpenChunks(ctx, p, chunk, &driver.ScanOptions{Alloc: memory.DefaultAllocator, Stats: st})
}

// readRange returns the lines of a range, having checked offsets and wholeness.
func readRange(s *Set, r blobio.Range, chunk, maxLine int, data []byte) ([]byte, error) {
	ctx := context.Background()
	c := open(ctx, s, r, chunk)
	defer c.Close()
	c.maxLine = maxLine
	var out []byte
	for {
		b, off, err := c.Next(ctx)
		if err != nil {
			if _, _, again := c.Next(ctx); again != err {
				return nil, fmt.Errorf("%v is not sticky: %v", err, again)
			}
			if err == io.EOF {
				return out, nil
			}
			return out, err
		}
		if len(b) == 0 || !bytes.Equal(data[off:off+int64(len(b))], b) {
			return nil, fmt.Errorf("%d bytes at %d are not the file's", len(b), off)
		}
		if off > 0 && data[off-1] != '\n' || b[len(b)-1] != '\n' && off+int64(len(b)) < int64(len(data)) {
			return nil, fmt.Errorf("%q at %d are no whole lines", b, off)
		}
		for i := 0; i < len(b); { // every line begins in the range
			if at := off + int64(i); at < r.Off || at >= r.Off+r.Len {
				return nil, fmt.Errorf("the line at %d is not in [%d, %d)", at, r.Off, r.Off+r.Len)
			}
			n := bytes.IndexByte(b[i:], '\n')
			if n < 0 {
				break
			}
			i += n + 1
		}
		out = append(out, b...)
	}
}

func text(rng *rand.Rand) []byte {
	n := rng.IntN(400)
	b := make([]byte, n)
	for i := range b {
		b[i] = "ab\r\n\n"[rng.IntN(2+rng.IntN(4))]
	}
	return b
}

func checkRanges(t *testing.T, s *Set, data []byte, split int64, chunk int) {
	t.Helper()
	var all []byte
	for _, r := range Ranges(int64(len(data)), split) {
		b, err := readRange(s, r, chunk, 1<<20, data)
		if err != nil {
			t.Fatalf("split %d, chunk %d, range %v of %q: %v", split, chunk, r, data, err)
		}
		all = append(all, b...)
	}
	if !bytes.Equal(all, data) {
		t.Fatalf("split %d, chunk %d: %q became %q", split, chunk, data, all)
	}
}

func TestChunks(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 0))
		data := text(rng)
		s := fileOf(t, "x.txt", data)
		t.Logf("seed %d", seed)
		for range 6 {
			checkRanges(t, s, data, 1+rng.Int64N(int64(len(data))+2), 1+rng.IntN(50))
		}
	}
}

func TestChunksCompressed(t *testing.T) {
	data := bytes.Repeat([]byte("line of text\nanother\n"), 100_000)
	for _, kind := range []string{"gzip", "zstd"} {
		var b bytes.Buffer
		for part := range 3 { // members and frames follow each other
			w, err := Compress(kind, 0, &b)
			if err != nil {
				t.Fatal(err)
			}
			n := len(data) / 3
			if _, err := w.Write(data[part*n : (part+1)*n]); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		s := fileOf(t, "x"+CompressionExtension(kind), b.Bytes())
		whole := blobio.Range{Len: int64(b.Len())}
		_, err := readRange(s, blobio.Range{Len: whole.Len}, 0, 1<<20, data)
		if err == nil || !strings.Contains(err.Error(), "not in") { // offsets are of the text, not of the file
			t.Fatalf("%s: %v", kind, err)
		}
		c := open(t.Context(), s, whole, 0)
		var got []byte
		for {
			lines, off, err := c.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil || off != int64(len(got)) {
				t.Fatalf("%s: offset %d of %d, %v", kind, off, len(got), err)
			}
			got = append(got, lines...)
		}
		c.Close()
		if !bytes.Equal(got, data[:len(data)/3*3]) {
			t.Errorf("%s: %d bytes, want %d", kind, len(got), len(data))
		}
		for _, cut := range []int{0, 1, 5, b.Len() / 2, b.Len() - 1} {
			s := fileOf(t, "x"+CompressionExtension(kind), b.Bytes()[:cut])
			if err := drain(t, s); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), s.Files[0].Path) {
				t.Errorf("%s cut at %d: %v", kind, cut, err)
			}
		}
		bad := bytes.Clone(b.Bytes())
		for i := 20; i < 60; i++ {
			bad[i] ^= 0x55
		}
		if err := drain(t, fileOf(t, "x"+CompressionExtension(kind), bad)); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%s flipped: %v", kind, err)
		}
		if err := drain(t, fileOf(t, "x"+CompressionExtension(kind), append(bytes.Clone(b.Bytes()), "garbage"...))); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%s with garbage behind: %v", kind, err)
		}
	}
}

func drain(t *testing.T, s *Set) error {
	c := open(t.Context(), s, blobio.Range{Len: s.Files[0].Info.Size}, 0)
	defer c.Close()
	for {
		if _, _, err := c.Next(t.Context()); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestChunksErrors(t *testing.T) {
	data := append(bytes.Repeat([]byte("x\n"), 100), bytes.Repeat([]byte("y"), 300)...)
	s := fileOf(t, "x", data)
	for _, r := range []blobio.Range{{Len: int64(len(data))}, {Len: 210}} {
		if _, err := readRange(s, r, 16, 128, data); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "line at byte 200 is longer than 128") {
			t.Errorf("%v: a long line gives %v", r, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	c := open(ctx, s, blobio.Range{Len: 100}, 16)
	defer c.Close()
	why := errors.New("why")
	cancel(why)
	if _, _, err := c.Next(t.Context()); err != nil {
		t.Errorf("the context of OpenChunks ended: %v", err)
	}
	if _, _, err := c.Next(ctx); fault.CodeOf(err) != fault.Canceled || !errors.Is(err, why) {
		t.Errorf("after cancel: %v", err)
	}
}

func TestChunksCount(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789\n"), 100_000)
	s := fileOf(t, "x", data)
	var st driver.ScanStats
	c := openCounted(t.Context(), s, blobio.Range{Off: 500_000, Len: 500_000}, 0, &st)
	defer c.Close()
	for {
		if _, _, err := c.Next(t.Context()); err != nil {
			break
		}
	}
	if n := st.BytesRead.Load(); n < 500_000 || n > 600_000 {
		t.Errorf("read %d bytes for a range of 500000", n)
	}
}

// A bomb costs what is read of it, not what it would become.
func TestBomb(t *testing.T) {
	var b bytes.Buffer
	w, _ := Compress("zstd", 0, &b)
	zero := make([]byte, 1<<20)
	for range 256 {
		w.Write(zero)
	}
	w.Close()
	r, err := Decompress("zstd", bytes.NewReader(b.Bytes()), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if n, err := io.CopyN(io.Discard, r, 1<<20); n != 1<<20 || err != nil {
		t.Fatal(n, err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 {
		t.Errorf("1 MiB of a bomb of 256 MiB took %d bytes", n)
	}
	if _, err := Decompress("lz4", nil, 0); fault.CodeOf(err) != fault.Unsupported {
		t.Errorf("lz4: %v", err)
	}
}

func TestCompressLevels(t *testing.T) {
	for _, c := range []struct {
		kind  string
		level int
		ok    bool
	}{{"", 0, true}, {"", 1, false}, {"gzip", 9, true}, {"gzip", 10, false}, {"zstd", 22, true}, {"zstd", -1, false}, {"xz", 0, false}} {
		w, err := Compress(c.kind, c.level, io.Discard)
		if (err == nil) != c.ok {
			t.Errorf("%s %d: %v", c.kind, c.level, err)
		}
		if err == nil {
			w.Close()
		}
	}
}

func FuzzChunks(f *testing.F) {
	f.Add([]byte("a\nb\r\n\nccc"), int64(3), 2)
	f.Add([]byte("\n\n\n"), int64(1), 1)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, split int64, chunk int) {
		if split <= 0 || chunk <= 0 || chunk > 1<<16 || len(data) > 1<<12 || int64(len(data))/split > 200 {
			return
		}
		p := filepath.Join(dir, "x")
		if err := os.WriteFile(p, data, 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := list(t, &Options{Paths: []string{p}}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkRanges(t, s, data, split, chunk)
	})
}

func BenchmarkChunks(b *testing.B) {
	data := bytes.Repeat([]byte("0123456789012345678901234567890123456789\n"), 400_000)
	s := fileOf(b, "x", data)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		c := open(context.Background(), s, blobio.Range{Len: int64(len(data))}, 0)
		var err error
		for err == nil {
			_, _, err = c.Next(context.Background())
		}
		c.Close()
	}
}

// ending ends a context while it reads.
type ending struct {
	io.ReadCloser
	cancel context.CancelFunc
	begun  chan struct{} // closed once the stream is told
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	e.cancel()
	<-e.begun
	return n, err
}

// TestChunksContexts: contexts of Open and of calls that are over mean nothing to later calls;
// one that ends during a call ends the stream, and that call says so even if it has its lines.
func TestChunksContexts(t *testing.T) {
	data := bytes.Repeat([]byte("some line\n"), 1000)
	s := fileOf(t, "f.txt", data)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	c := open(ctx, s, blobio.Range{Len: int64(len(data))}, 256)
	cancel()
	defer c.Close()
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		if _, _, err := c.Next(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	ctx, cancel = context.WithCancel(t.Context())
	begun := make(chan struct{})
	end := c.cancel
	c.cancel = func() { end(); close(begun) }
	in := c.in
	c.in = &ending{in, cancel, begun}
	if _, _, err := c.Next(ctx); fault.CodeOf(err) != fault.Canceled {
		t.Errorf("a call whose context ended gives %v", err)
	}
	c.cancel, c.in = end, in
	if _, _, err := c.Next(t.Context()); fault.CodeOf(err) != fault.Canceled {
		t.Errorf("the call after it gives %v", err)
	}
}
