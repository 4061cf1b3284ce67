package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/internal/hosttest"
	"github.com/penstock-data/penstock/internal/testserver"
)

// What is done with files is done with URLs of a bucket: a spec reads from it and writes to it, and whoever looks reads no more than
// he must: a count and a schema footers only, three rows one row group.
func TestBucket(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "data")
	p := testserver.NewProxy(t, s, testserver.Faults{})
	var gets atomic.Int64
	p.Set(testserver.Faults{Only: func(r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, ".parquet") {
			gets.Add(1)
		}
		return false
	}})
	base, query, _ := strings.Cut(s.Via(p).URL("data"), "?")
	at := func(key string) string { return base + "/" + key + "?" + query }
	fill := writeSpec(t, "version: 1\nsource: {range: {n: 200000}}\nsteps: [{with_columns: {x: double(id) / 2.0, s: string(id)}}]\n"+
		"sink: {parquet: {path: \""+at("in")+"\", target_size: 256KiB}}\n")
	ok(t, "run", fill)
	files := strings.Count(ok(t, "show", "-n", "1000", writeSpec(t, "version: 1\nsource: {binary: {paths: [\""+at("in")+"\"], extensions: [.parquet]}}\nsteps: [{select: [path]}]\n")), "part-")
	if files < 3 {
		t.Fatalf("%d files", files)
	}
	for _, c := range []struct {
		args []string
		want string
		gets int // beside a footer of each file
	}{
		{[]string{"count", at("in")}, "200000\n", 0},
		{[]string{"schema", at("in")}, "double", 0},
		{[]string{"show", "-n", "3", at("in")}, "1", 2},
	} {
		gets.Store(0)
		if out := ok(t, c.args...); !strings.Contains(out, c.want) {
			t.Errorf("%s: %s", c.args[0], out)
		}
		if n := int(gets.Load()); n < 1 || n > files+c.gets {
			t.Errorf("%s: %d requests, %d files", c.args[0], n, files)
		}
	}
	out := ok(t, "run", "--json", writeSpec(t, "version: 1\nsource: {parquet: {paths: [\""+at("in/**/*.parquet")+"\"]}}\nsteps: [{filter: id % 3 == 1}]\nsink: {csv: {path: \""+at("out")+"\", compression: gzip}}\n"))
	if !strings.Contains(out, `"rows_out":66667`) {
		t.Errorf("run: %s", out)
	}
	if out := ok(t, "count", at("out")); out != "66667\n" {
		t.Errorf("count of what was written: %s", out)
	}
}

// A run that is killed at any moment and run again ends with the rows of an undisturbed one: in the files that its manifest lists, and
// in those that lie in the folder.
func TestKilledRun(t *testing.T) {
	hosttest.Alone(t)
	kills := 6
	if os.Getenv("PENSTOCK_SOAK") != "" {
		kills = 50
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	in := filepath.Join(dir, "in")
	const rows = 200_000
	ok(t, "run", writeSpec(t, fmt.Sprintf("version: 1\nsource: {range: {n: %d}}\nsteps: [{with_columns: {x: random(), s: 'concat(\"row \", string(id))'}}]\nsink: {parquet: {path: %s, target_size: 256KiB}}\n", rows, in)))
	for i, by := range []string{"", ", partition_by: [k]"} {
		union := ""
		if i == 0 {
			union = fmt.Sprintf("  - filter: id < %d\n  - union: [{source: {parquet: {paths: [%s]}}, steps: [{filter: id >= %[1]d}]}]\n", rows/2, in)
		}
		spec := writeSpec(t, "version: 1\nsource: {parquet: {paths: ["+in+"]}}\nsteps:\n"+union+"  - filter: id % 10 != 3\n  - with_columns: {y: log1p(x), k: id % 4}\nsink: {parquet: {path: out, target_size: 256KiB, compression: zstd"+by+"}}\n"+
			"run: {cpus: 2, memory: 64MiB}\n")
		run := func(out string, kill time.Duration) (killed bool) {
			c := command(t, "run", spec, "--set", "sink.parquet.path="+out)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if kill > 0 {
				defer time.AfterFunc(kill, func() { _ = c.Process.Kill() }).Stop()
			}
			err := c.Wait()
			if err != nil && c.ProcessState.ExitCode() >= 0 {
				t.Fatalf("exit %d", c.ProcessState.ExitCode())
			}
			return err != nil
		}
		begin := time.Now()
		run(filepath.Join(dir, fmt.Sprint("undisturbed", i)), 0)
		whole := time.Since(begin)
		for k, died := 0, 0; died < kills/2; k++ {
			if k == 10*kills {
				t.Fatalf("of %d runs %d were killed in %v", k, died, whole)
			}
			out := filepath.Join(dir, fmt.Sprint("out", i, "-", k))
			begin := time.Now()
			if run(out, time.Duration(rng.Int64N(int64(whole)))+time.Millisecond) {
				died++
			} else {
				whole = time.Since(begin) // another load of the machine
			}
			run(out, 0)
			if check(t, out, rows); t.Failed() {
				t.Fatalf("run %d", k)
			}
			os.RemoveAll(out)
		}
	}
}

// check looks for every row of TestKilledRun once, and for the files of the manifest.
func check(t *testing.T, out string, rows int) {
	t.Helper()
	type row struct {
		ID int64
		S  string
		Y  float64
		K  int64
	}
	seen := make([]bool, rows)
	n := 0
	for r, err := range dataset.Rows[row](t.Context(), dataset.ReadParquet(out), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if r.ID < 0 || int(r.ID) >= rows || seen[r.ID] || r.ID%10 == 3 || r.S != fmt.Sprint("row ", r.ID) || r.K != r.ID%4 || !(r.Y >= 0 && r.Y < 0.7) {
			t.Fatalf("%+v twice, or wrong", r)
		}
		seen[r.ID] = true
		n++
	}
	m, err := sink.ReadManifest(t.Context(), out, nil)
	if err != nil {
		t.Fatal(err)
	}
	var listed, there []string
	for _, f := range m.Files {
		listed = append(listed, filepath.FromSlash(f.Path))
	}
	err = filepath.WalkDir(out, func(p string, e os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".parquet") {
			rel, _ := filepath.Rel(out, p)
			there = append(there, rel)
		}
		return err
	})
	slices.Sort(listed)
	slices.Sort(there)
	if want := rows / 10 * 9; n != want || m.Rows != int64(want) || err != nil || !slices.Equal(listed, there) {
		a, _ := json.Marshal(listed)
		b, _ := json.Marshal(there)
		t.Errorf("%d rows, the manifest has %d, want %d; it lists %s, there are %s", n, m.Rows, want, a, b)
	}
}
