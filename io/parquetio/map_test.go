package parquetio

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// mapFrom sets minMap for a test, and minBeside as far as it is not more.
func mapFrom(t *testing.T, n int64) {
	m, b := minMap, minBeside
	minMap, minBeside = n, min(n, 256<<10)
	t.Cleanup(func() { minMap, minBeside = m, b })
}

// mapCases are what of local files is mapped: all, large pieces, nothing.
var mapCases = []int64{1, 256 << 10, math.MaxInt64}

// mapFile writes rows of floats, integers and text, some MiB of them, with small pages.
func mapFile(t *testing.T, codec compress.Compression, props ...parquet.WriterProperty) (path string, rows int64) {
	fs := []arrow.Field{
		{Name: "f", Type: arrow.PrimitiveTypes.Float64}, {Name: "i", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.BinaryTypes.String},
	}
	rows = 20_000
	rec := rowsOf(fs, int(rows), func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		b.Field(0).(*array.Float64Builder).Append(rng.Float64())
		b.Field(1).(*array.Int64Builder).Append(int64(r) * rng.Int64N(1000))
		b.Field(2).(*array.StringBuilder).Append(strings.Repeat("abc", rng.IntN(9)) + fmt.Sprint(rng.Uint32()))
	})
	defer rec.Release()
	path = filepath.Join(t.TempDir(), "f.parquet")
	writeWith(t, path, rec, append(props, parquet.WithCompression(codec), parquet.WithDictionaryDefault(false), parquet.WithDataPageSize(60_000))...)
	return path, rows
}

// largePages writes 8 MB of random bytes in pages of 3 MB.
func largePages(t *testing.T, codec compress.Compression) (path string, rows int64) {
	rec := rowsOf([]arrow.Field{{Name: "b", Type: arrow.BinaryTypes.Binary}}, 200, func(rng *rand.Rand, _ int, b *array.RecordBuilder) {
		v := make([]byte, 40_000)
		for i := range v[:20_000] {
			v[i] = byte(rng.Uint32())
		}
		b.Field(0).(*array.BinaryBuilder).Append(v)
	})
	defer rec.Release()
	path = filepath.Join(t.TempDir(), "f.parquet")
	writeWith(t, path, rec, parquet.WithCompression(codec), parquet.WithDictionaryDefault(false), parquet.WithDataPageSize(3<<20), parquet.WithBatchSize(20))
	return path, rec.NumRows()
}

// hooked calls at on its n-th allocation.
type hooked struct {
	memory.Allocator
	n  int
	at func()
}

func (h *hooked) Allocate(n int) []byte {
	if h.n--; h.n == 0 {
		h.at()
	}
	return h.Allocator.Allocate(n)
}

// TestTruncated: a file that is truncated while it is read, whether between two calls of Next or at any moment
// inside one, gives the error of a file that changed, or nothing if all was read by then. In every codec, so that the fault comes out of
// decompressors, kernels and copies; while the collector looks through all stacks, which it must be able to.
func TestTruncated(t *testing.T) {
	stop := make(chan struct{})
	var collector sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	defer collector.Wait()
	defer close(stop)
	files := map[string]func(t *testing.T) (string, int64){
		"split": func(t *testing.T) (string, int64) {
			return mapFile(t, compress.Codecs.Uncompressed, parquet.WithEncodingFor("f", parquet.Encodings.ByteStreamSplit),
				parquet.WithEncodingFor("i", parquet.Encodings.DeltaBinaryPacked), parquet.WithEncodingFor("s", parquet.Encodings.DeltaLengthByteArray))
		},
	}
	for _, c := range []compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Snappy, compress.Codecs.Zstd, compress.Codecs.Gzip,
		compress.Codecs.Lz4Raw, compress.Codecs.Brotli} {
		files[c.String()] = func(t *testing.T) (string, int64) { return mapFile(t, c) }
	}
	for _, c := range []compress.Compression{compress.Codecs.Snappy, compress.Codecs.Lz4Raw} { // pages that are not staged for their size
		files["large "+c.String()] = func(t *testing.T) (string, int64) { return largePages(t, c) }
	}
	for name, write := range files {
		for _, least := range mapCases {
			t.Run(fmt.Sprint(name, "/", least), func(t *testing.T) {
				mapFrom(t, least)
				path, rows := write(t)
				whole, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				fi, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				tab := mustOpen(t, nil, path)
				errs := 0
				for n := range 16 {
					if err := os.WriteFile(path, whole, 0o600); err != nil {
						t.Fatal(err)
					}
					if err := os.Chtimes(path, time.Time{}, fi.ModTime()); err != nil {
						t.Fatal(err)
					}
					truncate := func() {
						if err := os.Truncate(path, int64(n%3)*50_000); err != nil {
							t.Error(err)
						}
					}
					err := func() error {
						r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{Alloc: &hooked{memtest.New(t), n, truncate}, BatchRows: 4500})
						if err != nil {
							return err
						}
						defer r.Close()
						for read := int64(0); ; {
							b, err := r.Next(t.Context())
							if err == io.EOF && read == rows {
								return nil
							}
							if err != nil {
								return err
							}
							if read += b.Record.NumRows(); n == 0 {
								truncate()
							}
							b.Record.Release()
						}
					}()
					if err == nil {
						continue
					}
					errs++
					if fault.CodeOf(err) != fault.Changed || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "changed after it was listed") {
						t.Fatalf("truncated at allocation %d: %v", n, err)
					}
				}
				if errs < 8 {
					t.Errorf("%d of 16 truncations are seen", errs)
				}
			})
		}
	}
}

// TestMapped: what is read is the same and counted the same whatever is mapped, also where the system refuses at
// some time; a file that is written to while it is mapped is an error; and mappings are bounded.
func TestMapped(t *testing.T) {
	path, rows := mapFile(t, compress.Codecs.Uncompressed)
	tab := mustOpen(t, nil, path)
	read := func(each func(*reader)) (sum string, bytes int64, err error) {
		var st driver.ScanStats
		r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{Alloc: memtest.New(t), BatchRows: 1000, Stats: &st})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var total int64
		for {
			b, err := r.Next(t.Context())
			if err == io.EOF && total == rows {
				return sum, st.BytesRead.Load(), nil
			}
			if err != nil {
				return sum, st.BytesRead.Load(), err
			}
			total += b.Record.NumRows()
			for _, c := range b.Record.Columns() {
				sum += c.ValueStr(int(total) % c.Len())
			}
			each(r.(*reader))
			b.Record.Release()
		}
	}
	var want string
	var bytes int64
	for _, least := range mapCases {
		for _, refuse := range []int{-1, 0, 7} {
			mapFrom(t, least)
			n, mapped := 0, int64(0)
			got, k, err := read(func(r *reader) {
				if n == refuse {
					r.in.noMap = true
				}
				n++
				now := int64(0)
				for _, c := range r.dec.cols {
					now += int64(len(c.win.view.Bytes()))
				}
				mapped = max(mapped, now)
			})
			if err != nil {
				t.Fatal(err)
			}
			if want == "" {
				want, bytes = got, k
			}
			if got != want {
				t.Errorf("mapped from %d, refused at %d: other rows", least, refuse)
			}
			if refuse < 0 && k != bytes || k < bytes {
				t.Errorf("mapped from %d, refused at %d: %d bytes are counted, want %d", least, refuse, k, bytes)
			}
			if mapped > localAhead || (mapped > 0) != (least < math.MaxInt64) {
				t.Errorf("mapped from %d: %d bytes are mapped", least, mapped)
			}
		}
	}
	for _, least := range mapCases {
		mapFrom(t, least)
		_, _, err := read(func(r *reader) {
			if err := os.Chtimes(path, time.Time{}, time.Unix(1e9, 0)); err != nil {
				t.Fatal(err)
			}
		})
		if fault.CodeOf(err) != fault.Changed || !strings.Contains(err.Error(), "changed after it was listed") {
			t.Errorf("mapped from %d: a file that was written to gives %v", least, err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Unix(2e9, 0)); err != nil {
			t.Fatal(err)
		}
		tab = mustOpen(t, nil, path)
	}
}
