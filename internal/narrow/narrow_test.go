package narrow

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/penstock-data/penstock/internal/fault"
)

// columns are buffers of so many words, by what is in them.
func columns(rng *rand.Rand, n int) map[string][]byte {
	words := func(f func(i int) uint64) []byte {
		var b []byte
		for i := range n {
			b = binary.LittleEndian.AppendUint64(b, f(i))
		}
		return b
	}
	halves := func(f func(i int) uint32) []byte {
		var b []byte
		for i := range 2 * n {
			b = binary.LittleEndian.AppendUint32(b, f(i))
		}
		return b
	}
	at := uint32(0)
	from := rng.Uint64N(1 << 40)
	return map[string][]byte{
		"ids":       words(func(i int) uint64 { return from + uint64(2*i) }),
		"codes":     words(func(i int) uint64 { return rng.Uint64N(1000) }),
		"negative":  words(func(i int) uint64 { return uint64(rng.Int64N(100) - 50) }),
		"quarters":  words(func(i int) uint64 { return math.Float64bits(float64(from+uint64(i)) * 0.25) }),
		"floats":    words(func(i int) uint64 { return math.Float64bits(rng.Float64()) }),
		"noise":     words(func(i int) uint64 { return rng.Uint64() }),
		"zeros":     words(func(i int) uint64 { return 0 }),
		"equal":     words(func(i int) uint64 { return from }),
		"offsets":   halves(func(i int) uint32 { at += 8 + rng.Uint32N(2); return at }),
		"small":     halves(func(i int) uint32 { return rng.Uint32N(200) }),
		"times":     words(func(i int) uint64 { return (from + uint64(i)) * 1e9 }),
		"bytes 3":   words(func(i int) uint64 { return rng.Uint64N(1 << 24) }),
		"half full": words(func(i int) uint64 { return rng.Uint64N(1<<(8+uint(i)*48/uint(max(n, 1)))) << 8 }),
	}
}

func written(t testing.TB, parts ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, p := range parts {
		if n, err := w.Write(p); n != len(p) || err != nil {
			t.Fatalf("%d of %d bytes: %v", n, len(p), err)
		}
	}
	return b.Bytes()
}

// What is read is what was written, of any length and however it comes, and takes what it takes.
func TestNarrow(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, n := range []int{0, 1, 2, 7, 8, 9, 31, 100, 2047, 2048, 2049, 10_000} {
		for what, c := range columns(rng, n) {
			for _, cut := range []int{0, 1, 3, 4, 8, 13} {
				p := c[min(cut, len(c)):]
				tail := p[:min(len(p), 5)]
				b := written(t, p, nil, tail)
				want := slices.Concat(p, tail)
				for _, r := range []io.Reader{bytes.NewReader(b), iotest.OneByteReader(bytes.NewReader(b)), iotest.HalfReader(bytes.NewReader(b))} {
					got := make([]byte, len(want))
					br := bufio.NewReaderSize(r, Buffer)
					if err := Read(br, got); err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%d words of %s without %d bytes: %v", n, what, cut, err)
					}
					if _, err := br.ReadByte(); err != io.EOF {
						t.Errorf("%d words of %s without %d bytes: something is left: %v", n, what, cut, err)
					}
				}
				br := bufio.NewReaderSize(bytes.NewReader(b), Buffer)
				if err := Skip(br, int64(len(want))); err != nil {
					t.Error(err)
				}
				if _, err := br.ReadByte(); err != io.EOF {
					t.Errorf("%d words of %s without %d bytes: something is left after Skip: %v", n, what, cut, err)
				}
			}
		}
	}
}

// What columns take, in parts of what they are.
func TestTakes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	most := map[string]float64{"ids": 0.27, "codes": 0.27, "negative": 1.001, "quarters": 0.4, "floats": 1.001, "noise": 1.001, "zeros": 0.002, "equal": 0.002, "offsets": 0.7, "small": 0.27, "times": 1.001, "bytes 3": 0.39, "half full": 0.85}
	for what, c := range columns(rng, 100_000) {
		if got := float64(len(written(t, c))) / float64(len(c)); got > most[what] || got < most[what]/2 {
			t.Errorf("%s take %.3f, at most %.3f", what, got, most[what])
		}
	}
}

// The format is what the comment of the package says.
func TestSegments(t *testing.T) {
	var b []byte
	for i := range 8 {
		b = binary.LittleEndian.AppendUint64(b, 0x1000+uint64(i)<<4)
	}
	text := []byte("seven b")
	want := slices.Concat([]byte{8, 1, 4, 8, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7}, []byte{0, 7, 0, 0, 0}, text)
	if got := written(t, append(b, text...)); !bytes.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// What ends early says so, and what is no segment is corrupt.
func TestDamaged(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for what, c := range columns(rng, 3000) {
		b := written(t, c)
		for cut := 0; cut < len(b); cut += 1 + cut/7 {
			got := make([]byte, len(c))
			for _, err := range []error{Read(bufio.NewReaderSize(bytes.NewReader(b[:cut]), Buffer), got), Skip(bufio.NewReaderSize(bytes.NewReader(b[:cut]), Buffer), int64(len(c)))} {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("%s, %d of %d bytes: %v", what, cut, len(b), err)
				}
			}
		}
	}
	for _, h := range [][]byte{
		{0, 0, 0, 0, 0}, {0, 101, 0, 0, 0}, {1, 1, 0, 1, 0}, {8, 8, 0, 1, 0}, {4, 4, 0, 1, 0}, {4, 1, 32, 1, 0}, {8, 1, 64, 1, 0}, {8, 1, 0, 0, 0}, {8, 1, 0, 13, 0}, {8, 0, 0, 0xff, 0xff}, {0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		b := append(h, make([]byte, 200)...)
		for _, err := range []error{Read(bufio.NewReaderSize(bytes.NewReader(b), Buffer), make([]byte, 100)), Skip(bufio.NewReaderSize(bytes.NewReader(b), Buffer), 100)} {
			if fault.CodeOf(err) != fault.Corrupt {
				t.Errorf("%v: %v", h, err)
			}
		}
	}
}

// A writer that fails is heard.
func TestWriterFails(t *testing.T) {
	for what, c := range columns(rand.New(rand.NewPCG(3, 1)), 5000) {
		all := len(written(t, c))
		for room := 0; room < all; room += 1 + all/9 {
			w := NewWriter(&full{room})
			if n, err := w.Write(c); err != io.ErrShortWrite || n >= len(c) {
				t.Errorf("%s, after %d of %d bytes: %d, %v", what, room, all, n, err)
			}
		}
	}
}

type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// FuzzRead: whatever comes, Read and Skip agree, take no more than there is, and what a Writer makes of the result comes back.
func FuzzRead(f *testing.F) {
	for _, c := range columns(rand.New(rand.NewPCG(4, 1)), 40) {
		f.Add(written(f, c), uint16(len(c)))
	}
	f.Add([]byte{8, 7, 63, 0, 8, 1, 1, 1, 1, 1, 1, 1, 1}, uint16(chunk))
	f.Fuzz(func(t *testing.T, b []byte, n uint16) {
		to := make([]byte, n)
		r, s := bufio.NewReaderSize(bytes.NewReader(b), Buffer), bufio.NewReaderSize(bytes.NewReader(b), Buffer)
		err, serr := Read(r, to), Skip(s, int64(n))
		if fmt.Sprint(err) != fmt.Sprint(serr) || err == nil && r.Buffered() != s.Buffered() {
			t.Fatalf("read: %v, skipped: %v", err, serr)
		}
		if err != nil {
			return
		}
		again := make([]byte, n)
		if err := Read(bufio.NewReaderSize(bytes.NewReader(written(t, to)), Buffer), again); err != nil || !bytes.Equal(to, again) {
			t.Fatalf("there and back: %v", err)
		}
	})
}

func BenchmarkNarrow(b *testing.B) {
	cs := columns(rand.New(rand.NewPCG(1, 1)), 128<<10)
	for _, what := range []string{"ids", "quarters", "codes", "offsets", "small", "bytes 3", "half full", "zeros", "noise", "floats"} {
		c := cs[what]
		text := written(b, c)
		b.Run("write/"+what, func(b *testing.B) {
			b.SetBytes(int64(len(c)))
			w := NewWriter(bufio.NewWriterSize(io.Discard, 16<<10))
			for b.Loop() {
				w.Write(c)
			}
		})
		b.Run("read/"+what, func(b *testing.B) {
			b.SetBytes(int64(len(c)))
			to := make([]byte, len(c))
			src := bytes.NewReader(nil)
			r := bufio.NewReaderSize(src, Buffer)
			for b.Loop() {
				src.Reset(text)
				r.Reset(src)
				if err := Read(r, to); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
