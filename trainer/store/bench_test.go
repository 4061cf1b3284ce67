package store

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/testserver"
	"gocloud.dev/blob"
	"golang.org/x/sync/errgroup"
)

// BenchmarkCommit compares Commit with plain parallel writes of the same files by gocloud.dev, in turns, into the same service. Its figure "of-plain" is the speed of Commit
// over that of the plain writes, the fastest round of each: a busy machine disturbs the others.
func BenchmarkCommit(b *testing.B) {
	for _, c := range []struct{ files, mib int }{{1, 128}, {8, 16}, {64, 2}, {256, 0}} {
		b.Run(fmt.Sprintf("%dx%dMiB", c.files, c.mib), func(b *testing.B) {
			s := testserver.S3(b)
			s.CreateBucket(b, "bucket")
			benchCommit(b, s.URL("bucket"), c.files, c.mib)
		})
	}
}

// benchCommit commits files and writes them plainly, in turns.
func benchCommit(b *testing.B, storage string, files, mib int) {
	ctx := context.Background()
	dir := b.TempDir()
	size := max(mib<<20, 64<<10)
	data := make([]byte, size)
	rnd := rand.NewChaCha8([32]byte{1})
	names := make([]string, files)
	for i := range names {
		rnd.Read(data)
		names[i] = filepath.Join(dir, fmt.Sprintf("f%03d", i))
		if err := os.WriteFile(names[i], data, 0o666); err != nil {
			b.Fatal(err)
		}
	}
	r, err := Create(ctx, storage, Record{Name: "x", Workers: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Begin(ctx, BeginOptions{}); err != nil {
		b.Fatal(err)
	}
	bucket, err := blob.OpenBucket(ctx, storage)
	if err != nil {
		b.Fatal(err)
	}
	defer bucket.Close()
	b.SetBytes(int64(size) * int64(files))
	own, plain := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	report := int64(0)
	writePlainly := func() {
		begin := time.Now()
		g := new(errgroup.Group)
		g.SetLimit(parallelUploads)
		for i, name := range names {
			g.Go(func() error { return plainWrite(ctx, bucket, fmt.Sprintf("plain/%d/%d", report, i), name) })
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		plain = min(plain, time.Since(begin))
		for i := range names {
			if err := bucket.Delete(ctx, fmt.Sprintf("plain/%d/%d", report, i)); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		report++
		b.StopTimer()
		if report%2 == 0 {
			writePlainly()
		}
		b.StartTimer()
		begin := time.Now()
		if _, err := r.Commit(ctx, Commit{Report: report, World: 1, Parts: []Part{{0, dir}}}); err != nil {
			b.Fatal(err)
		}
		own = min(own, time.Since(begin))
		b.StopTimer()
		if err := r.Prune(ctx, Policy{KeepLast: 1}); err != nil {
			b.Fatal(err)
		}
		if report%2 == 1 {
			writePlainly()
		}
		b.StartTimer()
	}
	b.ReportMetric(plain.Seconds()/own.Seconds(), "of-plain")
	b.ReportMetric(float64(size)*float64(files)/plain.Seconds()/1e6, "plain-MB/s")
}

func plainWrite(ctx context.Context, bucket *blob.Bucket, key, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := bucket.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, f); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}

// BenchmarkSum compares the sums of files of runs without a key and with one.
func BenchmarkSum(b *testing.B) {
	data := make([]byte, 4<<20)
	for name, strong := range map[string]bool{"XXH3": false, "SHA-256": true} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				newSum(strong).of(data)
			}
		})
	}
}
