package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/s3blob"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/trainer/store"
)

const parallel = 8 // uploads, on both sides

// checkpoint is the speed of store.Run.Commit beside plain writes of the same files by gocloud.dev, as many at once, into a folder and an S3 server of this machine (versitygw). They take turns.
// Into a folder Commit makes everything durable (fsync) before the manifest; what gocloud.dev writes is not, so there is a line where each file is synced after it.
func checkpoint(b *bench) error {
	for _, c := range []struct{ files, kib int }{{8, 16 << 10}, {1, 128 << 10}, {256, 64}} {
		rounds := 5
		if b.Quick {
			rounds, c.kib = 2, max(c.kib/16, 64)
		}
		dir, err := writeFiles(filepath.Join(b.Dir, "model"), c.files, c.kib<<10)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("checkpoint of %d x %s: speed of Commit / plain parallel writes, ", c.files, kib(c.kib<<10))
		if err := b.commitToFolder(what, dir, rounds); err != nil {
			return err
		}
		if err := b.commitToS3(what, dir, rounds); err != nil {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

func writeFiles(dir string, files, size int) (string, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	data := make([]byte, size)
	rnd := rand.NewChaCha8([32]byte{1})
	for i := range files {
		_, _ = rnd.Read(data) // never an error
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%03d", i)), data, 0o666); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func (b *bench) commitToFolder(what, dir string, rounds int) error {
	folder := filepath.Join(b.Dir, "storage")
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	bucket, err := fileblob.OpenBucket(folder, &fileblob.Options{Metadata: fileblob.MetadataDontWrite, NoTempDir: true})
	if err != nil {
		return err
	}
	defer bucket.Close()
	plain := func(sync bool) func() error {
		return func() error {
			return writeAll(b.Ctx, bucket, dir, func(key string) error {
				if !sync {
					return nil
				}
				return syncFile(filepath.Join(folder, key))
			})
		}
	}
	return b.commitTo(what, folder, dir, rounds, []way{{"a folder (plain: not durable)", "", plain(false)}, {"a folder (plain: each file synced)", ">= 80 %", plain(true)}}, bucket)
}

func (b *bench) commitToS3(what, dir string, rounds int) error {
	t := kit.NewHost(b.Ctx, b.Dir, b.Close)
	defer t.Close()
	srv := testserver.S3(t)
	srv.CreateBucket(t, "bench")
	bucket, err := blob.OpenBucket(b.Ctx, srv.URL("bench"))
	if err != nil {
		return err
	}
	defer bucket.Close()
	return b.commitTo(what, srv.URL("bench"), dir, rounds, []way{{"S3 (versitygw)", ">= 80 %", func() error { return writeAll(b.Ctx, bucket, dir, nil) }}}, bucket)
}

// way of plain writes.
type way struct {
	name, goal string
	write      func() error
}

func (b *bench) commitTo(what, storage, dir string, rounds int, ways []way, bucket *blob.Bucket) (err error) {
	run, err := store.Create(b.Ctx, storage, store.Record{Name: "x", Workers: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	if _, err := run.Begin(b.Ctx, store.BeginOptions{}); err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var own []float64
	plain, again := make([][]float64, len(ways)), make([][]float64, len(ways))
	report := int64(0)
	commit := func() error {
		report++
		begin := time.Now()
		if _, err := run.Commit(b.Ctx, store.Commit{Report: report, World: 1, Parts: []store.Part{{Rank: 0, Dir: dir}}, Parallel: parallel}); err != nil {
			return err
		}
		own = append(own, time.Since(begin).Seconds())
		return run.Prune(b.Ctx, store.Policy{KeepLast: 1})
	}
	write := func(i int, to *[]float64) error {
		begin := time.Now()
		if err := ways[i].write(); err != nil {
			return err
		}
		*to = append(*to, time.Since(begin).Seconds())
		for _, f := range files {
			if err := bucket.Delete(b.Ctx, "plain/"+f.Name()); err != nil {
				return err
			}
		}
		return nil
	}
	for r := range rounds + 1 {
		for i := range ways {
			if err := write(i, &plain[i]); err != nil {
				return err
			}
		}
		if err := commit(); err != nil {
			return err
		}
		for i := range ways {
			if err := write(i, &again[i]); err != nil {
				return err
			}
		}
		if r == 0 { // connections and caches
			own = nil
			clear(plain)
			clear(again)
		}
	}
	size := int64(0)
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return err
		}
		size += info.Size()
	}
	for i, w := range ways {
		var ratios, aa []float64
		for k := range own {
			ratios, aa = append(ratios, (plain[i][k]+again[i][k])/2/own[k]), append(aa, plain[i][k]/again[i][k])
		}
		b.Add(what+w.name, w.goal, "%.0f %% (%.0f to %.0f %%; A/A of plain %.2fx); %.0f MB/s, plain %.0f MB/s", 100*kit.Median(ratios), 100*slices.Min(ratios), 100*slices.Max(ratios), kit.Median(aa),
			float64(size)/1e6/kit.Median(own), float64(size)/1e6/kit.Median(append(plain[i], again[i]...)))
	}
	return nil
}

// writeAll writes the files of dir, and calls then with each key.
func writeAll(ctx context.Context, bucket *blob.Bucket, dir string, then func(key string) error) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	g := new(errgroup.Group)
	g.SetLimit(parallel)
	for _, f := range files {
		g.Go(func() error {
			key := "plain/" + f.Name()
			if err := writeOne(ctx, bucket, key, filepath.Join(dir, f.Name())); err != nil || then == nil {
				return err
			}
			return then(key)
		})
	}
	return g.Wait()
}

func writeOne(ctx context.Context, bucket *blob.Bucket, key, name string) error {
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
		return errors.Join(err, w.Close())
	}
	return w.Close()
}

func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
