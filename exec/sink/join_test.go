package sink

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// Which files become one: small neighbours of a folder, up to the target, in order.
func TestLayout(t *testing.T) {
	const target = 1000
	receiptsOf := func(parts ...string) (rs []*receipt) { // "a=1/:300 :20": folders and sizes
		for i, p := range parts {
			r := &receipt{Part: i, Attempt: fmt.Sprint(i)}
			for j, f := range strings.Fields(p) {
				dir, size, _ := strings.Cut(f, ":")
				file := partFile{Path: dir + partName("t", i, j, ".x")}
				fmt.Sscan(size, &file.Bytes)
				r.Files = append(r.Files, file)
			}
			rs = append(rs, r)
		}
		return rs
	}
	for name, c := range map[string]struct {
		parts       []string
		partitioned bool
		want        string
	}{
		"partitions":       {[]string{"a/:300 b/:10", "a/:300 b/:20", "b/:30", "a/:300 b/:1"}, true, "a/:300+300+300 b/:10+20+30+1"},
		"up to the target": {[]string{"a/:400", "a/:400", "a/:400", "a/:200", "a/:200"}, true, "a/:400+400 a/:400+200+200"},
		"large ones stay":  {[]string{"a/:100", "a/:500", "a/:100", "a/:1000 a/:10", "a/:10"}, true, "a/:100 a/:500 a/:100 a/:1000 a/:10+10"},
		"not small":        {[]string{":300", ":32", ":300"}, false, ":300 :32 :300"},
		"little was left":  {[]string{":30", ":29", ":300", ":1", ":0", ":2"}, false, ":30+29 :300 :1+0+2"},
	} {
		var got []string
		for _, from := range layout(receiptsOf(c.parts...), target, c.partitioned, true) {
			var sizes []string
			for _, f := range from {
				sizes = append(sizes, fmt.Sprint(f.Bytes))
			}
			dir := path.Dir(from[0].Path) + "/"
			got = append(got, strings.TrimPrefix(dir, "./")+":"+strings.Join(sizes, "+"))
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: %s, want %s", name, g, c.want)
		}
		if all := layout(receiptsOf(c.parts...), target, c.partitioned, false); slices.ContainsFunc(all, func(f []staged) bool { return len(f) != 1 }) {
			t.Errorf("%s: joined where it cannot be", name)
		}
	}
	many := make([]string, maxJoin+2)
	for i := range many {
		many[i] = ":0"
	}
	if all := layout(receiptsOf(many...), target, false, true); len(all) != 2 || len(all[0]) != maxJoin {
		t.Errorf("%d files of %d", len(all), len(many))
	}
}

// Many parts and few partitions give a file for each partition, whatever ran at once: with all rows, in the order of the data, and
// the same bytes. Locally and in buckets.
func TestPartitionsAreJoined(t *testing.T) {
	d := data{Splits: 20, Rows: 100, Bad: -1}
	for _, place := range []string{t.TempDir(), fmt.Sprintf("mem://joined-%x", rand.Uint64())} {
		var first [][]byte
		for i, workers := range []int{1, 4, 3} {
			out := fmt.Sprintf("%s/out%d", place, i)
			s := newFiles(t, Options{Path: out, Encoding: joinEncoding{}, PartitionBy: []string{"p"}, TargetBytes: 1 << 20, Metadata: map[string]string{"a": "b"}})
			if err := (runSpec{Data: d, Workers: workers, Batch: 40}).run(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			exact(t, out, d)
			names := visible(t, out)
			if len(names) != len(parts) || s.Result().Files != int64(len(parts)) || s.Result().Rows != int64(d.Splits*d.Rows) {
				t.Errorf("%d workers: %d files of %d parts: %v", workers, len(names), d.Splits, names)
			}
			r, err := openRoot(t.Context(), out, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, name := range names {
				raw, err := r.b.ReadAll(t.Context(), r.prefix+name, 1<<30)
				if err != nil {
					t.Fatal(err)
				}
				if ids := readFile(t, name, raw); !slices.IsSorted(ids) {
					t.Errorf("%s: rows are in another order: %v", name, ids)
				}
				if i == 0 {
					first = append(first, raw)
				} else if !slices.Equal(raw, first[k]) {
					t.Errorf("%d workers: %s has other bytes", workers, name)
				}
			}
			r.b.Close()
			// The job is finished, and so it is without its encoding's help.
			again := newFiles(t, Options{Path: out, Encoding: joinEncoding{}, PartitionBy: []string{"p"}, TargetBytes: 1 << 20})
			if plan, err := again.Begin(t.Context(), dataSchema, d.splits()); err != nil || !plan.Committed {
				t.Errorf("again: %+v, %v", plan, err)
			}
			leftovers(t, out)
		}
	}
}

// A job that was killed before its files were joined joins them, and a staged file that is gone is an error that names it.
func TestJoinOfAnEarlierRun(t *testing.T) {
	d := data{Splits: 12, Rows: 100, Bad: -1}
	out := filepath.Join(t.TempDir(), "out")
	o := Options{Path: out, Encoding: joinEncoding{}, PartitionBy: []string{"p"}, TargetBytes: 2 << 20}
	stop := func(part, _, _ int) error {
		if part == 5 {
			return fault.New(fault.Invalid, "stop")
		}
		return nil
	}
	if err := (runSpec{Data: d, Workers: 1, Batch: 30, Fail: stop}).run(t.Context(), newFiles(t, o)); fault.CodeOf(err) != fault.Invalid {
		t.Fatal(err)
	}
	staged, err := filepath.Glob(recordsDir(out) + "/jobs/job/stage/*/00000-*/p=plain/*.staged")
	if err != nil || len(staged) != 1 {
		t.Fatal(staged, err)
	}
	away := filepath.Join(t.TempDir(), "away")
	if err := os.Rename(staged[0], away); err != nil {
		t.Fatal(err)
	}
	err = (runSpec{Data: d, Workers: 2, Batch: 50}).run(t.Context(), newFiles(t, o))
	if c := fault.CodeOf(err); c != fault.NotFound && c != fault.Corrupt || !strings.Contains(err.Error(), "p=plain/") {
		t.Fatalf("a file is gone: %v", err)
	}
	if len(visible(t, out)) != 0 {
		t.Errorf("%v", visible(t, out))
	}
	if err := os.Rename(away, staged[0]); err != nil {
		t.Fatal(err)
	}
	if err := (runSpec{Data: d, Workers: 2, Batch: 50}).run(t.Context(), newFiles(t, o)); err != nil {
		t.Fatal(err)
	}
	exact(t, out, d)
	if names := visible(t, out); len(names) != len(parts) {
		t.Errorf("%v", names)
	}
	leftovers(t, out)
}
