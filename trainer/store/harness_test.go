package store

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/testserver"
)

var memNumber atomic.Int64

// storages runs f on a folder, a bucket in memory and an S3 service.
func storages(t *testing.T, f func(t *testing.T, storage string)) {
	t.Run("folder", func(t *testing.T) { f(t, filepath.Join(t.TempDir(), "runs")) })
	t.Run("mem", func(t *testing.T) { f(t, fmt.Sprintf("mem://store%d/a/runs", memNumber.Add(1))) })
	t.Run("s3", func(t *testing.T) {
		s := testserver.S3(t)
		s.CreateBucket(t, "bucket")
		f(t, strings.Replace(s.URL("bucket"), "?", "/some/runs?", 1))
	})
}

func newRun(t *testing.T, storage, name string) *Run {
	t.Helper()
	r, err := Create(t.Context(), storage, Record{Name: name, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func openRun(t *testing.T, storage, name string) *Run {
	t.Helper()
	r, err := Open(t.Context(), storage, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func begin(t *testing.T, r *Run) *Attempt {
	t.Helper()
	a, err := r.Begin(t.Context(), BeginOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// die makes r look dead to others, though it goes on.
func die(r *Run) { atWork.remove(r.own.id) }

// tree writes files into a new folder.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// readTree is the files below dir.
func readTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		files[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func commit(t testing.TB, r *Run, report int64, files map[string]string) *Manifest {
	t.Helper()
	c := Commit{Report: report, World: 2, Metrics: map[string]float64{"loss": 1 / float64(report)}}
	if files != nil {
		c.Parts = []Part{{0, tree(t, files)}}
	}
	m, err := r.Commit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// wantErr checks code and parts of the text.
func wantErr(t testing.TB, err error, code fault.Code, parts ...string) {
	t.Helper()
	if err == nil || fault.CodeOf(err) != code {
		t.Fatalf("error %v (%v), want %v", err, fault.CodeOf(err), code)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Fatalf("error %q lacks %q", err, p)
		}
	}
}

// objects are the keys below the run.
func objects(t testing.TB, r *Run) []string {
	t.Helper()
	var keys []string
	for info, err := range r.b.List(context.Background(), r.prefix) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, strings.TrimPrefix(info.Key, r.prefix))
	}
	return keys
}

// checkWhole checks that every checkpoint is whole, and returns their numbers.
func checkWhole(t testing.TB, r *Run) (numbers []int) {
	t.Helper()
	list, err := r.Checkpoints(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		if err := r.Verify(context.Background(), &list[i]); err != nil {
			t.Fatalf("checkpoint %d: %v", list[i].Number, err)
		}
		numbers = append(numbers, list[i].Number)
	}
	return numbers
}

// checkClean checks that nothing lies there but what belongs to checkpoints, starts, metrics and the records.
func checkClean(t testing.TB, r *Run) {
	t.Helper()
	list, err := r.Checkpoints(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, m := range list {
		known[entryName(m.Number)] = true
		for _, f := range m.Files {
			known[checkpointsDir+m.Try+"/"+objectName(f.Path)] = true
		}
		for _, d := range m.Data {
			if d.LedgerFile != nil {
				known[checkpointsDir+m.Try+"/"+d.LedgerFile.Path] = true
			}
		}
	}
	entries, err := r.readLog(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range starts(entries) {
		known[entryName(s.Number)] = true
	}
	for _, key := range objects(t, r) {
		if !known[key] && key != runFile && !strings.HasPrefix(key, statusDir) && !strings.HasPrefix(key, metricsDir) {
			t.Errorf("%s is left", key)
		}
	}
}

// randomFiles are a few files of any sizes, some larger than a chunk.
func randomFiles(rnd *rand.Rand) map[string]string {
	files := make(map[string]string)
	for range 1 + rnd.IntN(6) {
		size := []int{0, 1, 1000, chunk - 1, chunk, chunk + 1, 3*chunk + 17}[rnd.IntN(7)]
		data := make([]byte, size)
		for i := 0; i+8 <= size; i += 8 {
			v := rnd.Uint64()
			for k := range 8 {
				data[i+k] = byte(v >> (8 * k))
			}
		}
		name := strings.Repeat("d/", rnd.IntN(3)) + fmt.Sprintf("f%d", rnd.IntN(1000))
		files[name] = string(data)
	}
	return files
}

func sameFiles(t testing.TB, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Fatalf("files %q, want %q (or their contents differ)", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}
