package sink

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	_ "gocloud.dev/blob/s3blob"
)

// failingEncoding fails at its at-th call of any kind.
type failingEncoding struct {
	ipcEncoding
	n  *atomic.Int64
	at int64
}

func (e failingEncoding) fail() error {
	if e.n.Add(1) == e.at {
		return errTest
	}
	return nil
}

func (e failingEncoding) NewEncoder(w io.Writer, s *arrow.Schema, alloc memory.Allocator) (driver.Encoder, error) {
	if err := e.fail(); err != nil {
		return nil, err
	}
	enc, err := e.ipcEncoding.NewEncoder(w, s, alloc)
	return &failingEncoder{enc, e}, err
}

type failingEncoder struct {
	driver.Encoder
	e failingEncoding
}

func (e *failingEncoder) Write(r arrow.RecordBatch) error {
	if err := e.e.fail(); err != nil {
		return err
	}
	return e.Encoder.Write(r)
}

func (e *failingEncoder) Close() error {
	if err := e.e.fail(); err != nil {
		e.Encoder.Abort()
		return err
	}
	return e.Encoder.Close()
}

// An encoder that fails anywhere: a clean error, nothing visible, nothing held,
// and the next run ends well.
func TestEncoderFails(t *testing.T) {
	for _, by := range [][]string{nil, {"p"}, {"k"}} {
		d := data{Splits: 4, Rows: 60, Bad: 3}
		for at := int64(1); ; at += 1 + at/2 {
			dir := t.TempDir()
			o := Options{Path: filepath.Join(dir, "out"), TargetBytes: 2 << 20, PartitionBy: by, BufferBytes: 5000, DeadLetter: filepath.Join(dir, "bad")}
			var n atomic.Int64
			bad := o
			bad.Encoding = failingEncoding{n: &n, at: at}
			run := runSpec{Data: d, Workers: 1, Batch: 40, Alloc: memtest.New(t)}
			err := run.run(t.Context(), newFiles(t, bad))
			if err == nil {
				if at < 10 {
					t.Error("it never failed")
				}
				break
			}
			if !errors.Is(err, errTest) || !strings.Contains(err.Error(), "part-") {
				t.Fatalf("at %d: %v", at, err)
			}
			if got := append(visible(t, o.Path), visible(t, o.DeadLetter)...); len(got) > 0 {
				t.Fatalf("at %d visible: %v", at, got)
			}
			if err := run.run(t.Context(), newFiles(t, o)); err != nil {
				t.Fatal(err)
			}
			exact(t, o.Path, d)
			exactDead(t, o.DeadLetter, d)
			leftovers(t, o.Path)
		}
	}
}

func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		memtest.Skip(t, "cannot mount a small file system: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	d := data{Splits: 8, Rows: 20000, Bad: -1}
	o := Options{Path: filepath.Join(dir, "out"), TargetBytes: 2 << 20}
	err := (runSpec{Data: d, Workers: 2, Batch: 1000, Alloc: memtest.New(t)}).run(t.Context(), newFiles(t, o))
	if fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), dir) {
		t.Fatalf("%v", err)
	}
	if got := visible(t, o.Path); len(got) > 0 {
		t.Fatalf("visible: %v", got)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=20m"); err != nil {
		t.Fatal(err)
	}
	if err := (runSpec{Data: d, Workers: 2, Batch: 1000}).run(t.Context(), newFiles(t, o)); err != nil {
		t.Fatal(err)
	}
	exact(t, o.Path, d)
}

// Things in the way: of the records, and of a file when it is already decided.
func TestInTheWay(t *testing.T) {
	run := runSpec{Data: small, Workers: 2, Batch: 100, Alloc: memtest.New(t)}
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o666)
	for _, path := range []string{file, filepath.Join(file, "below")} {
		err := run.run(t.Context(), newFiles(t, Options{Path: path}))
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("output is a file: %v", err)
		}
	}
	dir := t.TempDir()
	os.WriteFile(recordsDir(dir), nil, 0o666)
	if err := run.run(t.Context(), newFiles(t, Options{Path: dir})); err == nil || !strings.Contains(err.Error(), recordsDir(dir)) {
		t.Errorf("the records are a file: %v", err)
	}
	dir = t.TempDir()
	o := Options{Path: dir, TargetBytes: 3 << 20}
	way := filepath.Join(dir, partName(tagOf("job"), 2, 0, ".arrow"))
	os.MkdirAll(filepath.Join(way, "x"), 0o777) // no file: nobody sees it before the move
	err := run.run(t.Context(), newFiles(t, o))
	if err == nil || !strings.Contains(err.Error(), way) || !strings.Contains(err.Error(), "run a job on this output again") {
		t.Fatalf("%v", err)
	}
	if n := len(rows(t, dir, false)); n != 0 {
		t.Errorf("the manifest has %d rows", n)
	}
	os.RemoveAll(way)
	// It is decided: another job finishes it, and then finds it there.
	other := o
	other.Job = "other"
	if err := run.run(t.Context(), newFiles(t, other)); fault.CodeOf(err) != fault.Exists {
		t.Fatalf("%v", err)
	}
	exact(t, dir, small)
	if err := run.run(t.Context(), newFiles(t, o)); err != nil {
		t.Fatal(err)
	}
	leftovers(t, dir)
}

// below is the path of key in the server's bucket.
func below(url, key string) string {
	bucket, query, _ := strings.Cut(url, "?")
	return bucket + "/" + key + "?" + query
}

// Only S3: the packages of the GCS driver make fuzzing in this package crawl.
func TestS3(t *testing.T) {
	srv := testserver.S3(t)
	srv.CreateBucket(t, "sink")
	url := srv.URL("sink")
	t.Run("undisturbed", func(t *testing.T) {
		d := data{Splits: 6, Rows: 200, Bad: 5}
		o := Options{Path: below(url, "a b/out"), DeadLetter: below(url, "a b/bad"), TargetBytes: 2 << 20, PartitionBy: []string{"p"}}
		if err := (runSpec{Data: d, Workers: 2, Batch: 70, Alloc: memtest.New(t)}).run(t.Context(), newFiles(t, o)); err != nil {
			t.Fatal(err)
		}
		exact(t, o.Path, d)
		exactDead(t, o.DeadLetter, d)
		leftovers(t, o.Path)
		o.Job, o.Mode = "next", ModeAppend
		if err := (runSpec{Data: d, Workers: 2, Batch: 70}).run(t.Context(), newFiles(t, o)); err != nil {
			t.Fatal(err)
		}
		exact(t, o.Path, d, d)
		o.Job, o.Mode = "third", ModeOverwrite
		if err := (runSpec{Data: d, Workers: 2, Batch: 70}).run(t.Context(), newFiles(t, o)); err != nil {
			t.Fatal(err)
		}
		exact(t, o.Path, d)
	})
	t.Run("faults", func(t *testing.T) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		p := testserver.NewProxy(t, srv, testserver.Faults{Seed: seed, Error: 0.03, Reset: 0.03, Truncate: 0.03})
		far := srv.Via(p).URL("sink")
		d := data{Splits: 6, Rows: 100, Bad: 5}
		o := Options{Path: below(far, "faults/out"), DeadLetter: below(far, "faults/bad"), TargetBytes: 1 << 20, Mode: ModeOverwrite,
			Blob: &blobio.Options{Timeout: 2 * time.Second}}
		runs := 1
		for ; runs < 50; runs++ {
			err := (runSpec{Data: d, Workers: 2, Batch: 70, Alloc: memtest.New(t)}).run(t.Context(), newFiles(t, o))
			if err == nil {
				break
			}
			t.Logf("run %d: %v", runs, err)
		}
		p.Set(testserver.Faults{})
		t.Logf("%d runs, %d errors, %d resets, %d truncated of %d requests", runs, p.Errors.Load(), p.Resets.Load(), p.Truncated.Load(), p.Requests.Load())
		if p.Errors.Load()+p.Resets.Load()+p.Truncated.Load() == 0 {
			t.Error("the bucket never failed")
		}
		exact(t, o.Path, d)
		exactDead(t, o.DeadLetter, d)
	})
	t.Run("kill", func(t *testing.T) {
		killed := 0
		for i := range 4 {
			rnd := rand.New(rand.NewPCG(uint64(i), 3))
			c := childConfig{O: Options{Path: below(url, fmt.Sprintf("kill%d/out", i)), DeadLetter: below(url, fmt.Sprintf("kill%d/bad", i)), Job: "killed", TargetBytes: 2 << 20},
				Spec: runSpec{Data: data{Splits: 6, Rows: 200, Bad: 42}, Workers: 2, Batch: 64}, DieAt: 1 + rnd.Int64N(30)}
			if i%2 == 0 {
				c.O.PartitionBy, c.DieAt = []string{"p"}, 1+rnd.Int64N(120)
			}
			if _, wait := c.start(t); !wait() {
				killed++
			}
			midway(t, c, nil, []data{c.Spec.Data})
			c.finish(t, rnd, []data{c.Spec.Data})
		}
		if killed == 0 {
			t.Error("nothing was killed")
		}
	})
}
