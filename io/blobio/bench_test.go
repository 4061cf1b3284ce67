package blobio_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/blobio"
)

const benchSize = 256 << 20

// benchObject is a file in the page cache.
func benchObject(b *testing.B) *blobio.Object {
	bucket := open(b, "file://"+b.TempDir(), nil)
	return bucket.Object(put(b, bucket, "f", randomBytes(1, benchSize)), nil)
}

func BenchmarkLocalReadAt(b *testing.B) {
	o := benchObject(b)
	for _, n := range []int{4 << 10, 64 << 10, 1 << 20, 32 << 20} {
		b.Run(fmt.Sprintf("%dKiB", n>>10), func(b *testing.B) {
			p, off := make([]byte, n), int64(0)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := o.ReadAt(b.Context(), p, off); err != nil {
					b.Fatal(err)
				}
				if off += int64(n); off+int64(n) > benchSize {
					off = 0
				}
			}
		})
	}
}

// Columns of a row group: some next to each other, some far apart.
func BenchmarkLocalFetch(b *testing.B) {
	o := benchObject(b)
	for _, c := range []struct {
		n         int
		size, gap int64
	}{{4, 16 << 10, 0}, {8, 1 << 20, 32 << 10}, {8, 1 << 20, 8 << 20}, {64, 64 << 10, 1 << 20}} {
		b.Run(fmt.Sprintf("%dx%dKiB/gap%dKiB", c.n, c.size>>10, c.gap>>10), func(b *testing.B) {
			var rs []blobio.Range
			for i := range int64(c.n) {
				rs = append(rs, blobio.Range{Off: i * (c.size + c.gap), Len: c.size})
			}
			b.SetBytes(int64(c.n) * c.size)
			b.ReportAllocs()
			for b.Loop() {
				f, err := o.Fetch(b.Context(), rs, memory.DefaultAllocator)
				if err != nil {
					b.Fatal(err)
				}
				f.Release()
			}
		})
	}
}

func BenchmarkLocalStream(b *testing.B) {
	o := benchObject(b)
	buf := make([]byte, 1<<20)
	b.SetBytes(benchSize)
	b.ReportAllocs()
	for b.Loop() {
		s := o.Stream(b.Context(), 0, benchSize)
		for {
			if _, err := s.Read(buf); err == io.EOF {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
		s.Close()
	}
}

func BenchmarkLocalPut(b *testing.B) {
	bucket := open(b, "file://"+b.TempDir(), nil)
	data := randomBytes(1, 64<<10)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := bucket.Put(b.Context(), "f", data, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLocalList(b *testing.B) {
	bucket := open(b, "file://"+b.TempDir(), nil)
	for i := range 2000 {
		put(b, bucket, fmt.Sprintf("year=%d/month=%d/f%d", i%4, i%12, i), nil)
	}
	for b.Loop() {
		for _, err := range bucket.List(b.Context(), "") {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2000, "ns/file")
}
