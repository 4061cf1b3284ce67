package parquetio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/parquet/compress"
)

// compressed returns raw by a codec, as arrow-go writes it; Hadoop's LZ4 in two blocks.
func compressed(t testing.TB, codec int8, raw []byte) []byte {
	t.Helper()
	hadoop := codec == codecLZ4
	if hadoop {
		codec = codecLZ4Raw
	}
	c, err := compress.GetCodec(compress.Compression(codec))
	if err != nil {
		t.Fatal(err)
	}
	if !hadoop {
		return c.Encode(make([]byte, c.CompressBound(int64(len(raw)))), raw)
	}
	var out []byte
	for _, part := range [][]byte{raw[:len(raw)/3], raw[len(raw)/3:]} {
		b := c.Encode(make([]byte, c.CompressBound(int64(len(part)))), part)
		out = binary.BigEndian.AppendUint32(out, uint32(len(part)))
		out = binary.BigEndian.AppendUint32(out, uint32(len(b)))
		out = append(out, b...)
	}
	return out
}

var allCodecs = []int8{codecSnappy, codecGzip, codecBrotli, codecLZ4, codecZstd, codecLZ4Raw}

// repetitive returns n bytes that compress well.
func repetitive(r *rand.Rand, n int) []byte {
	b := make([]byte, 0, n+16)
	for len(b) < n {
		k := min(r.IntN(30), len(b))
		at := r.IntN(len(b) - k + 1)
		b = append(append(b, b[at:at+k]...), byte(r.IntN(50)))
	}
	return b[:n]
}

func TestDecompress(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, codec := range allCodecs {
		for range 200 {
			raw := repetitive(r, 1+r.IntN(1<<r.IntN(18)))
			src := compressed(t, codec, raw)
			mem := bytes.Repeat([]byte{0xa5}, len(raw)+100)
			dst := mem[20:][:len(raw):len(raw)]
			slack := 0
			if r.IntN(2) == 0 { // more capacity, of which 16 bytes may be used
				dst, slack = mem[20:][:len(raw)], 16
			}
			n, err := decompress(codec, dst, src)
			if err != nil || n != len(raw) || !bytes.Equal(dst, raw) {
				t.Fatalf("codec %d: %d bytes of %d, %v", codec, n, len(raw), err)
			}
			for i, c := range mem {
				if c != 0xa5 && (i < 20 || i >= 20+len(raw)+slack) {
					t.Fatalf("codec %d wrote at %d, outside [0, %d)", codec, i-20, len(raw))
				}
			}
			// Neither a destination of another size nor damage goes unseen or does harm.
			for _, size := range []int{len(raw) - 1, len(raw) + 1, r.IntN(len(raw))} {
				mem := bytes.Repeat([]byte{0xa5}, size+40)
				n, err := decompress(codec, mem[:size:size], src)
				if err == nil && n == size {
					t.Fatalf("codec %d: %d bytes fill %d", codec, len(raw), size)
				}
				if !bytes.Equal(mem[size:], bytes.Repeat([]byte{0xa5}, 40)) {
					t.Fatalf("codec %d wrote behind %d bytes", codec, size)
				}
			}
			if _, err := decompress(codec, dst, append(bytes.Clone(src), "more"...)); err == nil && (codec == codecGzip || codec == codecBrotli) {
				t.Fatalf("codec %d: what follows the stream is passed over", codec)
			}
			src = bytes.Clone(src[:len(src)-r.IntN(2)*r.IntN(len(src))])
			for range r.IntN(4) {
				src[r.IntN(len(src))] ^= 1 << r.IntN(8)
			}
			n, err = decompress(codec, dst, src)
			if err == nil && n > len(dst) {
				t.Fatalf("codec %d: %d bytes in %d", codec, n, len(dst))
			}
		}
	}
}

// A page takes little memory beside its own: readers are used again.
func TestDecompressAllocations(t *testing.T) {
	raw := repetitive(rand.New(rand.NewPCG(1, 1)), 1<<20)
	dst := make([]byte, len(raw)+pageSlack)[:len(raw)]
	for _, codec := range []int8{codecGzip, codecBrotli} {
		src := compressed(t, codec, raw)
		least := uint64(1 << 62) // a collection may empty the pools
		for range 20 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := decompress(codec, dst, src); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		if least > 8<<10 {
			t.Errorf("codec %d: a page allocates %d bytes", codec, least)
		}
	}
}

// TestZstdPool has decoders of which the first is slow.
func TestZstdPool(t *testing.T) {
	raw := repetitive(rand.New(rand.NewPCG(1, 1)), 100<<10)
	src := compressed(t, codecZstd, raw)
	var mu sync.Mutex
	made, slow := 0, 0 // decoders, pages by the slow one
	p := zstdPool{fresh: func() (zstdFunc, error) {
		f, err := newZstd()
		mu.Lock()
		defer mu.Unlock()
		made++
		if made > 1 {
			return f, err
		}
		return func(src, dst []byte) ([]byte, error) {
			mu.Lock()
			slow++
			mu.Unlock()
			for range 5 {
				f(src, dst)
			}
			return f(src, dst)
		}, err
	}}
	dst := make([]byte, len(raw))
	for range 3 * trialFirst {
		clear(dst)
		if out, err := p.decode(src, dst[:0]); err != nil || !bytes.Equal(out, raw) || &out[0] != &dst[0] {
			t.Fatalf("%d bytes, %v", len(out), err)
		}
	}
	if made != 2 || slow >= 2*trialFirst {
		t.Errorf("%d decoders were made, the slow one had %d of %d pages", made, slow, 3*trialFirst)
	}
	if d := p.idle[0]; d.due != 4*trialFirst || d.rival != nil {
		t.Errorf("the next trial is due after %d pages", d.due)
	}
	var wg sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			dst := make([]byte, len(raw))
			for range 20 {
				if out, err := p.decode(src, dst[:0]); err != nil || !bytes.Equal(out, raw) {
					t.Errorf("%d bytes, %v", len(out), err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(p.idle); n == 0 || n > runtime.GOMAXPROCS(0) {
		t.Errorf("%d decoders are kept", n)
	}
	n := len(p.idle)
	if _, err := p.decode(src[:len(src)/2], dst[:0]); err == nil || len(p.idle) != n-1 {
		t.Errorf("half a frame: %v; %d decoders of %d are kept", err, len(p.idle), n)
	}
	p = zstdPool{fresh: func() (zstdFunc, error) { return nil, errors.ErrUnsupported }}
	if _, err := p.decode(src, dst[:0]); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

func BenchmarkDecompress(b *testing.B) {
	raw := repetitive(rand.New(rand.NewPCG(1, 1)), 1<<20)
	for _, codec := range allCodecs {
		b.Run(compress.Compression(codec).String(), func(b *testing.B) {
			src := compressed(b, codec, raw)
			dst := make([]byte, len(raw)+16)[:len(raw)]
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := decompress(codec, dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
