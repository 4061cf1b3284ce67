package parquetio

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/io/driver"
)

var writersSeed = flag.Uint64("writers.seed", 0, "seed of TestWriters; 0: another one each time")

// TestWriters reads what parquet-go, pyarrow, DuckDB and Polars write, of random types, nestings, nulls, encodings, codecs, page versions and sizes: the values are
// those that pyarrow reads.
func TestWriters(t *testing.T) {
	python := datatest.Python(t, "pyarrow", "duckdb", "polars")
	seed := *writersSeed
	if seed == 0 {
		seed = rand.Uint64N(1 << 32)
	}
	t.Logf("-writers.seed %d", seed)
	dir := t.TempDir()
	run := func(name string, args ...string) []byte {
		c := exec.Command(name, append(args, dir, fmt.Sprint(seed))...)
		var errs bytes.Buffer
		c.Stderr = &errs
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(c.Args, " "), err, errs.Bytes())
		}
		return out
	}
	run(datatest.Tool(t, "parquetgo"))
	out := json.NewDecoder(bytes.NewReader(run(python, "-B", "testdata/writers.py")))
	files := map[string]int{}
	for out.More() {
		var want struct {
			File   string
			Rows   int64
			Names  []string
			Hashes []string
		}
		if err := out.Decode(&want); err != nil {
			t.Fatal(err)
		}
		writer, _, _ := strings.Cut(want.File, "-")
		files[writer]++
		names, cols, rows, err := columns(t, filepath.Join(dir, want.File), driver.ScanOptions{})
		if err != nil || rows != want.Rows || !slices.Equal(names, want.Names) {
			t.Errorf("%s: %d rows of %v, %v; want %d rows of %v", want.File, rows, names, err, want.Rows, want.Names)
			continue
		}
		for c := range cols {
			h := sha256.Sum256([]byte(strings.Join(cols[c], "\n")))
			if got := hex.EncodeToString(h[:]); got != want.Hashes[c] {
				t.Errorf("%s: column %s is another than pyarrow reads: %.200s", want.File, names[c], strings.Join(cols[c], " "))
			}
		}
	}
	if len(files) != 4 || t.Failed() {
		keep := filepath.Join(os.TempDir(), fmt.Sprintf("writers-%d", seed))
		t.Errorf("files by writer: %v; they are in %s (%v)", files, keep, os.CopyFS(keep, os.DirFS(dir)))
	}
}
