package fileset

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	_ "gocloud.dev/blob/s3blob"
)

// tree makes files that hold their own name and returns the folder.
func tree(t testing.TB, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, n := range names {
		p := filepath.Join(dir, filepath.FromSlash(n))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func rels(s *Set) string {
	var rs []string
	for _, f := range s.Files {
		rs = append(rs, f.Rel)
	}
	return strings.Join(rs, " ")
}

func list(t testing.TB, o *Options, ext []string, p driver.Predicate) (*Set, error) {
	t.Helper()
	s, err := List(context.Background(), o, ext, &driver.ResolveOptions{Files: p})
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s, err
}

func TestList(t *testing.T) {
	dir := tree(t, "a.csv", "b.csv", "b/z.csv", "b/a.CSV", "b/c/deep.csv", "c.txt", "_h/x.csv", ".h.csv", "b/_tmp.csv", "d-1/x.csv", "[x].csv", "e/f.csv.gz")
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"folder", Options{Paths: []string{"."}}, "[x].csv a.csv b.csv b/a.CSV b/c/deep.csv b/z.csv d-1/x.csv e/f.csv.gz"},
		{"slash", Options{Paths: []string{"b/"}}, "a.CSV c/deep.csv z.csv"},
		{"hidden", Options{Paths: []string{"."}, Hidden: true}, ".h.csv [x].csv _h/x.csv a.csv b.csv b/_tmp.csv b/a.CSV b/c/deep.csv b/z.csv d-1/x.csv e/f.csv.gz"},
		{"file", Options{Paths: []string{"b/z.csv"}}, "z.csv"},
		{"files", Options{Paths: []string{"b/z.csv", "a.csv", "b/z.csv", "b/c/../z.csv"}}, "b/z.csv a.csv b/z.csv (2) b/z.csv (3)"},
		{"outright", Options{Paths: []string{"c.txt", "_h"}}, "c.txt _h/x.csv"},
		{"star", Options{Paths: []string{"*.csv"}}, "[x].csv a.csv b.csv"},
		{"starstar", Options{Paths: []string{"**/*.csv"}}, "[x].csv a.csv b.csv b/c/deep.csv b/z.csv d-1/x.csv"},
		{"inner", Options{Paths: []string{"b/**/deep.*"}}, "c/deep.csv"},
		{"braces", Options{Paths: []string{"{b,d-1}/*.csv"}}, "b/z.csv d-1/x.csv"},
		{"slash in braces", Options{Paths: []string{"{b/c,d-1}/*.csv"}}, "b/c/deep.csv d-1/x.csv"},
		{"hidden in glob", Options{Paths: []string{"_*/*.csv", "b/_t*"}}, "_h/x.csv b/_tmp.csv"},
		{"own extension", Options{Paths: []string{"*.txt"}}, "c.txt"},
		{"extensions", Options{Paths: []string{"."}, Extensions: []string{"txt"}}, "c.txt"},
		{"any", Options{Paths: []string{"*"}, Extensions: []string{""}}, "[x].csv a.csv b.csv c.txt"},
		{"not a glob", Options{Paths: []string{"[x].csv"}}, "[x].csv"},
		{"overlap", Options{Paths: []string{"b", "b/c", "b/*.csv"}}, "a.CSV c/deep.csv z.csv c/deep.csv (2) z.csv (2)"},
		{"order of entries", Options{Paths: []string{"e/*", "d-1", "b/[a-z].*", "a.csv"}}, "e/f.csv.gz d-1/x.csv b/a.CSV b/z.csv a.csv"},
	} {
		for _, abs := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/abs=%v", c.name, abs), func(t *testing.T) {
				t.Chdir(dir)
				o := c.o
				if abs {
					o.Paths = slices.Clone(o.Paths)
					for i, p := range o.Paths {
						o.Paths[i] = dir + "/" + p
					}
				}
				s, err := list(t, &o, []string{".csv", ".csv.gz"}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if got := rels(s); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
				for _, f := range s.Files {
					want := !strings.HasPrefix(f.Path, "/")
					if abs {
						want = strings.HasPrefix(f.Path, dir+"/")
					}
					if !want {
						t.Errorf("path %q", f.Path)
					}
				}
			})
		}
	}
}

func TestListErrors(t *testing.T) {
	dir := tree(t, "a.txt", "b.txt", "c/d.txt", "e.txt", "h/_x.csv", "p/year=1/a.csv", "g/a.txt", "g/.git/x", "g/_log.txt")
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "loop/in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..", filepath.Join(dir, "loop/in/back")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, c := range []struct {
		o    Options
		code fault.Code
		want string
	}{
		{Options{}, fault.Invalid, "at least one"},
		{Options{Paths: []string{""}, Partitions: "hvie"}, fault.Invalid, "empty"},
		{Options{Paths: []string{"nix"}}, fault.NotFound, "nix: no such file or folder"},
		{Options{Paths: []string{"a.txt", "nix/x.csv"}}, fault.NotFound, "nix/x.csv: no such file or folder"},
		{Options{Paths: []string{"empty"}}, fault.NotFound, "empty: the folder is empty"},
		{Options{Paths: []string{"empty/*.csv"}}, fault.NotFound, "empty/*.csv: no file matches: the folder is empty"},
		{Options{Paths: []string{"nix/*.csv"}}, fault.NotFound, "nix/*.csv: no file matches: there is no folder nix"},
		{Options{Paths: []string{"c"}}, fault.NotFound, `c: the folder has no files with extension .csv; found with another extension: d.txt: name the extension or set extensions: [""]`},
		{Options{Paths: []string{"."}, Extensions: []string{".parquet"}}, fault.NotFound, ", ... (6 in all): name the extension or set extensions: [\"\"]; not looked into, as a name that begins with _ or . is hidden: .git"},
		{Options{Paths: []string{"*.csv"}}, fault.NotFound, "*.csv: no file matches; not matched: a.txt, b.txt, e.txt"},
		{Options{Paths: []string{"*"}}, fault.NotFound, "no file with extension .csv matches; found with another extension: a.txt, b.txt, e.txt"},
		{Options{Paths: []string{"p/*"}}, fault.NotFound, "the glob matches folders (year=1), but gives files only: to read what is below them, end it in /**"},
		{Options{Paths: []string{"h"}}, fault.NotFound, "h: the folder has no files with extension .csv; hidden, as the name begins with _ or .: _x.csv: set hidden: true"},
		{Options{Paths: []string{"h/*x.csv"}}, fault.NotFound, "no file matches; hidden, as the name begins with _ or .: _x.csv: set hidden: true"},
		{Options{Paths: []string{"g/*.csv"}}, fault.NotFound, "g/*.csv: no file matches; not matched: a.txt"},
		{Options{Paths: []string{"g/**"}}, fault.NotFound, "g/**: no file with extension .csv matches; found with another extension: a.txt: name the extension or set extensions: [\"\"]; not looked into, as a name that begins with _ or . is hidden: .git"},
		{Options{Paths: []string{"a[.txt"}}, fault.Invalid, "bad glob"},
		{Options{Paths: []string{"loop"}}, fault.NotFound, "loop: the folder has no files"},
		{Options{Paths: []string{"p"}, PartitionTypes: map[string]string{"yaer": "int"}}, fault.Invalid, `no folder gives a column "yaer"; have year`},
		{Options{Paths: []string{"p"}, PartitionTypes: map[string]string{"year": "list<int>"}}, fault.Invalid, "not a type for partitions"},
		{Options{Paths: []string{"p"}, PartitionTypes: map[string]string{"year": "date"}}, fault.Invalid, `"1" is no date`},
		{Options{Paths: []string{"p"}, PathColumn: "x", RowColumn: "x"}, fault.Invalid, "both"},
	} {
		_, err := list(t, &c.o, []string{".csv"}, nil)
		if fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v (%v), want %v %q", c.o.Paths, err, fault.CodeOf(err), c.code, c.want)
		} else if n := strings.Count(err.Error(), "idden"); n > 0 && !strings.Contains(c.want, "idden") {
			t.Errorf("%v: nothing that is meant is hidden: %v", c.o.Paths, err)
		}
	}
}

func TestHive(t *testing.T) {
	dir := tree(t,
		"y=2020/m=01/a", "y=2020/m=12/a", "y=2021/m=__HIVE_DEFAULT_PARTITION__/a", "y=2021/m=02/b",
		"d=2020-01-01/s=x%20y/a", "d=1969-12-31/s=7/a", "d=__HIVE_DEFAULT_PARTITION__/s=%zz/a")
	t.Chdir(dir)
	col := func(s *Set) string {
		var b strings.Builder
		for _, f := range s.Columns() {
			fmt.Fprintf(&b, "%s %s; ", f.Name, typename.Name(f.Type))
		}
		for _, f := range s.Files {
			fmt.Fprintf(&b, "%s:", f.Rel)
			for _, p := range f.parts {
				fmt.Fprintf(&b, " %v", p.v)
			}
			b.WriteString("; ")
		}
		return b.String()
	}
	for _, c := range []struct {
		name string
		o    Options
		p    driver.Predicate
		want string
	}{
		{"ints", Options{Paths: []string{"y=*/**"}}, nil, "y int64; m int64; y=2020/m=01/a: 2020 1; y=2020/m=12/a: 2020 12; y=2021/m=02/b: 2021 2; y=2021/m=__HIVE_DEFAULT_PARTITION__/a: 2021 <nil>; "},
		{"date and string", Options{Paths: []string{"d=*/**"}}, nil, "d date; s string; d=1969-12-31/s=7/a: -1 7; d=2020-01-01/s=x%20y/a: 18262 x y; d=__HIVE_DEFAULT_PARTITION__/s=%zz/a: <nil> %zz; "},
		{"named by the path", Options{Paths: []string{"y=2020"}}, nil, "y int64; m int64; m=01/a: 2020 1; m=12/a: 2020 12; "},
		{"file", Options{Paths: []string{"y=2020/m=01/a"}}, nil, "y int64; m int64; a: 2020 1; "},
		{"absolute", Options{Paths: []string{dir + "/y=2020/m=01/a"}}, nil, "y int64; m int64; a: 2020 1; "},
		{"none", Options{Paths: []string{"y=2020"}, Partitions: "none"}, nil, "m=01/a:; m=12/a:; "},
		{"typed", Options{Paths: []string{"y=2020"}, PartitionTypes: map[string]string{"m": "string"}}, nil, "y int64; m string; m=01/a: 2020 01; m=12/a: 2020 12; "},
		{"missing is null", Options{Paths: []string{"y=2020/m=12/a", "d=1969-12-31/s=7/a"}}, nil, "y int64; m int64; d date; s int64; y=2020/m=12/a: 2020 12 <nil> <nil>; d=1969-12-31/s=7/a: <nil> <nil> -1 7; "},
		{"predicate", Options{Paths: []string{"y=*/**"}}, driver.Predicate{{Column: "y", Op: driver.Gt, Values: []any{int64(2020)}}, {Column: "zz", Op: driver.Eq, Values: []any{int64(1)}}},
			"y int64; m int64; y=2021/m=02/b: 2021 2; y=2021/m=__HIVE_DEFAULT_PARTITION__/a: 2021 <nil>; "},
		{"predicate in", Options{Paths: []string{"y=*/**"}}, driver.Predicate{{Column: "m", Op: driver.In, Values: []any{int64(12), int64(2)}}},
			"y int64; m int64; y=2020/m=12/a: 2020 12; y=2021/m=02/b: 2021 2; "},
		{"predicate null", Options{Paths: []string{"y=*/**"}}, driver.Predicate{{Column: "m", Op: driver.IsNull}},
			"y int64; m int64; y=2021/m=__HIVE_DEFAULT_PARTITION__/a: 2021 <nil>; "},
		{"predicate string", Options{Paths: []string{"d=*/**"}}, driver.Predicate{{Column: "s", Op: driver.Eq, Values: []any{"x y"}}},
			"d date; s string; d=2020-01-01/s=x%20y/a: 18262 x y; "},
		{"predicate date", Options{Paths: []string{"d=*/**"}}, driver.Predicate{{Column: "d", Op: driver.Lt, Values: []any{int64(0)}}},
			"d date; s string; d=1969-12-31/s=7/a: -1 7; "}, // the folders with other kinds of s count
		{"all excluded", Options{Paths: []string{"y=*/**"}}, driver.Predicate{{Column: "y", Op: driver.Lt, Values: []any{int64(0)}}},
			"y int64; m int64; y=2020/m=01/a: 2020 1; "},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := list(t, &c.o, nil, c.p)
			if err != nil {
				t.Fatal(err)
			}
			if got := col(s); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	twice := tree(t, "k=1/k=2/a")
	if _, err := list(t, &Options{Paths: []string{twice}}, nil, nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("partition named twice: %v", err)
	}
}

// A folder that the predicate excludes must not be opened.
func TestPruneDoesNotList(t *testing.T) {
	dir := tree(t, "y=1/a", "y=2/y=3/a") // an error if listed
	if _, err := list(t, &Options{Paths: []string{dir}}, nil, nil); err == nil {
		t.Fatal("a partition named twice is not seen")
	}
	s, err := list(t, &Options{Paths: []string{dir}}, nil, driver.Predicate{{Column: "y", Op: driver.Eq, Values: []any{int64(1)}}})
	if err != nil || rels(s) != "y=1/a" {
		t.Fatalf("%v %v", err, s)
	}
}

// What a predicate excludes does not change the type of what is left, and is listed only where it could.
func TestPruneKeepsTypes(t *testing.T) {
	deep := []string{"y=2024/m=01/a", "y=2024/m=02/a", "y=2025/m=x/a"}
	twice := "y=2025/m=3/m=4/a" // an error if listed
	y := func(n int64) driver.Predicate {
		return driver.Predicate{{Column: "y", Op: driver.Eq, Values: []any{n}}}
	}
	m := driver.Predicate{{Column: "m", Op: driver.Eq, Values: []any{"x"}}}
	for _, c := range []struct {
		name  string
		files []string
		types map[string]string
		p     driver.Predicate
		want  string // "" is an error
	}{
		{"below", deep, nil, y(2024), "y int64; m string; y=2024/m=01/a y=2024/m=02/a"},
		{"none left", deep, nil, y(2026), "y int64; m string; y=2024/m=01/a"},
		{"both", append(deep, "y=2024/m=x/a"), nil, append(y(2024), m...), "y int64; m string; y=2024/m=x/a"},
		{"above", append(deep, "y=z/m=4/a"), nil, m, "y string; m string; y=2025/m=x/a"},
		{"empty folder", []string{"y=1/m=1/a", "y=2/m=x/.keep"}, nil, y(1), "y int64; m int64; y=1/m=1/a"},
		{"empty folder above", []string{"y=1/m=x/a", "y=z/m=3/.keep"}, nil, m, "y int64; m string; y=1/m=x/a"},
		{"declared below", []string{"y=1/a", "y=2/m=3/a"}, map[string]string{"m": "string"}, y(1), "y int64; m string; y=1/a"},
		{"open", append(deep, twice), nil, y(2024), ""},
		{"declared", append(deep, twice), map[string]string{"m": "string"}, y(2024), "y int64; m string; y=2024/m=01/a y=2024/m=02/a"},
		{"text", []string{"y=2024/m=x/a", twice}, nil, y(2024), "y int64; m string; y=2024/m=x/a"},
	} {
		s, err := list(t, &Options{Paths: []string{tree(t, c.files...)}, PartitionTypes: c.types}, nil, c.p)
		got := ""
		if err == nil {
			for _, p := range s.parts {
				got += p.name + " " + typename.Name(p.typ) + "; "
			}
			got += rels(s)
		} else if c.want != "" {
			t.Errorf("%s: %v", c.name, err)
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		a, b any
		want string
	}{
		{int64(1), int64(2), "<"}, {int64(-1), uint64(0), "<"}, {uint64(1 << 63), int64(-5), ">"},
		{int64(1<<53 + 1), float64(1 << 53), ">"}, {int64(1), 1.5, "<"}, {int64(-2), -1.5, "<"}, {int64(3), 3.0, "="},
		{uint64(1<<64 - 1), 1e30, "<"}, {int64(-1 << 63), -1e30, ">"}, {"a", "b", "<"}, {false, true, "<"},
		{int64(1), "1", "?"}, {int64(1), nan(), "NaN"},
	} {
		for _, flip := range []bool{false, true} {
			a, b, want := c.a, c.b, c.want
			if flip {
				a, b = b, a
				want = strings.NewReplacer("<", ">", ">", "<").Replace(want)
			}
			o, ordered, ok := compare(a, b)
			got := map[int]string{-1: "<", 0: "=", 1: ">"}[o]
			if !ok {
				got = "?"
			} else if !ordered {
				got = "NaN"
			}
			if got != want {
				t.Errorf("%v %s %v, want %s", a, got, b, want)
			}
		}
	}
}

func nan() float64 { var z float64; return z / z }

func TestFingerprint(t *testing.T) {
	fp := func(dir string, cfg string) string {
		s, err := list(t, &Options{Paths: []string{dir}}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		f, err := s.Fingerprint(t.Context(), "text", []byte(cfg), s.EdgeHash)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	a, b := tree(t, "x/1", "x/2"), tree(t, "x/1", "x/2")
	if fp(a, "") != fp(b, "") {
		t.Error("equal data differs")
	}
	if fp(a, "") == fp(a, "1") || fp(a, "") == fp(a+"/x", "") || fp(a, "") == fp(tree(t, "x/1", "x/3"), "") {
		t.Error("different data is equal")
	}
	if err := os.WriteFile(b+"/x/1", []byte("X/1"), 0o644); err != nil {
		t.Fatal(err)
	}
	if fp(a, "") == fp(b, "") {
		t.Error("content does not count")
	}
}

func FuzzHive(f *testing.F) {
	for _, s := range []string{"year=2020", "a=b=c", "=x", "k=%41%zz", "d=2020-02-30", "n=__HIVE_DEFAULT_PARTITION__"} {
		f.Add(s, int64(3))
	}
	f.Fuzz(func(t *testing.T, s string, lit int64) {
		k, v, ok := hivePart(s)
		if !ok {
			return
		}
		if k == "" {
			t.Fatal("no key")
		}
		g := new(guess)
		g.add(v)
		if v.null {
			return
		}
		val, err := parseAs(g.typ(), v)
		if err != nil {
			t.Fatalf("%q guessed as %v: %v", v, g.typ(), err)
		}
		// What prunes a folder by its raw name must agree with the typed value.
		if id := g.typ().ID(); id != arrow.INT64 && id != arrow.DATE32 {
			return
		}
		for op := driver.Eq; op <= driver.NotNull; op++ {
			term := driver.Term{Column: k, Op: op, Values: []any{lit}}
			if excludes(term, v, nil) == holds(term, val) {
				t.Fatalf("%q: %v: excluded and kept differ", v, term)
			}
		}
	})
}

// A bucket behaves as the local file system does.
func TestListBucket(t *testing.T) {
	ctx := t.Context()
	url := "mem://" + t.Name()
	b, err := blobio.Open(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, k := range []string{"d/y=1/a.csv", "d/y=2/a.csv", "d/y=2/b.txt", "d/_tmp/x.csv", "e.csv"} {
		if err := b.Put(ctx, k, []byte(k), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ path, want string }{
		{"/d", "y=1/a.csv y=2/a.csv"},
		{"/d/**/a.*", "y=1/a.csv y=2/a.csv"},
		{"", "d/y=1/a.csv d/y=2/a.csv e.csv"},
		{"/d/y=2/b.txt", "b.txt"},
		{"/d/y=?/*.csv", "y=1/a.csv y=2/a.csv"},
	} {
		s, err := list(t, &Options{Paths: []string{url + c.path}}, []string{".csv"}, nil)
		if err != nil || rels(s) != c.want {
			t.Errorf("%q: %v, %v", c.path, s, err)
			continue
		}
		for _, f := range s.Files {
			if !strings.HasPrefix(f.Path, url+"/") {
				t.Errorf("path %q", f.Path)
			}
		}
		if _, err := s.Fingerprint(ctx, "x", nil, s.EdgeHash); err != nil {
			t.Error(err)
		}
	}
	if _, err := list(t, &Options{Paths: []string{url + "/nix"}}, nil, nil); fault.CodeOf(err) != fault.NotFound || !strings.Contains(err.Error(), "nix") {
		t.Errorf("%v", err)
	}
	for path, want := range map[string]string{"/nix/": "no such object", "/nix/*.csv": "there is no folder " + url + "/nix", "/d/*.csv": "no file matches"} {
		if _, err := list(t, &Options{Paths: []string{url + path}}, nil, nil); fault.CodeOf(err) != fault.NotFound || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// Two places: the same names stay apart.
	s, err := list(t, &Options{Paths: []string{url + "/d", tree(t, "y=1/a.csv")}}, []string{".csv"}, nil)
	if err != nil || rels(s) != "1/y=1/a.csv 1/y=2/a.csv 0/y=1/a.csv" {
		t.Errorf("%v %v", s, err)
	}
}

// Folders of a bucket are listed side by side: many that each answer late cost a few answers, not all of them one after another.
func TestListsAtOnce(t *testing.T) {
	srv := testserver.S3(t)
	srv.CreateBucket(t, "data")
	b, err := blobio.Open(t.Context(), srv.URL("data"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const folders, latency = 24, 200 * time.Millisecond
	for i := range folders {
		if err := b.Put(t.Context(), fmt.Sprintf("d/k=%02d/a.csv", i), []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	p := testserver.NewProxy(t, srv, testserver.Faults{Base: latency})
	url, query, _ := strings.Cut(srv.Via(p).URL("data"), "?")
	begin := time.Now()
	s, err := list(t, &Options{Paths: []string{url + "/d/*/*.csv?" + query}}, nil, nil)
	took, n := time.Since(begin), p.Requests.Load()
	if err != nil || len(s.Files) != folders {
		t.Fatal(s, err)
	}
	if n < folders || took > time.Duration(n)*latency/3 {
		t.Errorf("%d requests that take %v each took %v", n, latency, took)
	}
}

// What a service says of the bucket reaches the user, whether he names an object, a folder or a glob.
func TestListRefused(t *testing.T) {
	srv := testserver.S3(t)
	srv.CreateBucket(t, "there")
	check := func(bucket string, code fault.Code, want string) {
		t.Helper()
		url, query, _ := strings.Cut(srv.URL(bucket), "?")
		for _, path := range []string{"", "/d/", "/d/a.csv", "/d/*.csv"} {
			_, err := list(t, &Options{Paths: []string{url + path + "?" + query}}, nil, nil)
			if fault.CodeOf(err) != code || !strings.Contains(err.Error(), want) {
				t.Errorf("%s%s: %v: %v", bucket, path, fault.CodeOf(err), err)
			}
		}
	}
	check("there", fault.NotFound, "s3://there")
	check("tehre", fault.NotFound, "there is no such bucket as s3://tehre")
	t.Setenv("AWS_ACCESS_KEY_ID", "nobody")
	check("there", fault.Denied, "check the credentials")
}

func BenchmarkList(b *testing.B) {
	var names []string
	for d := range 100 {
		for f := range 100 {
			names = append(names, fmt.Sprintf("day=%02d/part-%03d.csv", d, f))
		}
	}
	dir := tree(b, names...)
	b.ReportAllocs()
	for b.Loop() {
		s, err := List(context.Background(), &Options{Paths: []string{dir}}, []string{".csv"}, nil)
		if err != nil || len(s.Files) != len(names) {
			b.Fatal(err)
		}
		s.Close()
	}
}
