package sink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

var small = data{Splits: 12, Rows: 300, Bad: -1}

func TestUndisturbed(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    Options
		d    data
	}{
		{"plain", Options{}, small},
		{"parts", Options{TargetBytes: 3 << 20}, small},
		{"rolls", Options{TargetBytes: 4000}, small},
		{"own encoding", Options{TargetBytes: 1 << 20, Encoding: idEncoding{}}, small},
		{"partition", Options{TargetBytes: 3 << 20, PartitionBy: []string{"p"}}, small},
		{"partitions", Options{TargetBytes: 12 << 20, PartitionBy: []string{"k", "p"}, BufferBytes: 1 << 12}, data{Splits: 2, Rows: 100, Bad: -1}},
		{"many partitions", Options{TargetBytes: 12 << 20, PartitionBy: []string{"k"}}, data{Splits: 2, Rows: 100, Bad: -1}},
		{"empty", Options{}, data{Splits: 3, Rows: 0, Bad: -1}},
		{"no splits", Options{}, data{Bad: -1}},
		{"no splits, partitioned", Options{PartitionBy: []string{"p"}}, data{Bad: -1}},
	} {
		for _, place := range []string{"local", "mem"} {
			t.Run(tc.name+"/"+place, func(t *testing.T) {
				o := tc.o
				if o.Path = filepath.Join(t.TempDir(), "deep", "out"); place == "mem" {
					o.Path = "mem://" + strings.ReplaceAll(strings.ReplaceAll(t.Name(), "/", "-"), ",", "") + "/deep/out"
				}
				s := newFiles(t, o)
				if err := (runSpec{Data: tc.d, Workers: 3, Batch: 77, Alloc: memtest.New(t)}).run(t.Context(), s); err != nil {
					t.Fatal(err)
				}
				exact(t, o.Path, tc.d)
				r := s.Result()
				if r.Rows != int64(tc.d.Splits*tc.d.Rows) || r.Already || r.Manifest != 1 || int64(len(r.List)) != r.Files {
					t.Errorf("result %+v", r)
				}
				if o.PartitionBy == nil && r.Files == 0 {
					t.Error("an output without any file has no schema")
				}
				before := visible(t, o.Path)
				// Again: nothing is done, nothing changes.
				s = newFiles(t, o)
				plan, err := s.Begin(t.Context(), dataSchema, tc.d.splits())
				if err != nil || !plan.Committed || !s.Result().Already || s.Result().Rows != r.Rows {
					t.Fatalf("second run: %+v, %v", plan, err)
				}
				if after := visible(t, o.Path); !slices.Equal(before, after) {
					t.Errorf("files changed: %v, %v", before, after)
				}
				leftovers(t, o.Path)
			})
		}
	}
}

// leftovers fails if anything but manifests is among the records, or anything but the files that the newest lists in the output.
func leftovers(t *testing.T, path string) {
	t.Helper()
	out, err := openOutput(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer out.b.Close()
	st, err := out.rec.state(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.newest > 0 {
		m, err := out.rec.manifest(t.Context(), st.newest)
		if err != nil {
			t.Fatal(err)
		}
		listed := map[string]bool{}
		for _, f := range m.Files {
			listed[f.Path] = true
		}
		for info, err := range out.list(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			if rel := strings.TrimPrefix(info.Key, out.prefix); !listed[rel] {
				t.Errorf("in the output there is %s", rel)
			}
		}
	}
	r := out.rec
	for info, err := range r.list(t.Context(), jobsDir) {
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("left over: %s", info.Key)
	}
	if dir, ok := r.b.Local(r.prefix + jobsDir); ok {
		// What a process was writing when it was killed is a hidden file, which may be younger
		// than what clean-up takes for abandoned. Anything else is too much.
		_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() && !strings.HasPrefix(e.Name(), ".penstock-tmp-") {
				t.Errorf("left over: %s", p)
			}
			return nil
		})
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	job := "0123456789abcdef0123456789abcdef"
	s := newFiles(t, Options{Path: dir, Job: job, TargetBytes: 6 << 20})
	if err := (runSpec{Data: small, Workers: 1, Batch: 1000}).run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	want := []string{"part-01234567-00000-000.arrow", "part-01234567-00001-000.arrow"}
	if got := visible(t, dir); !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	es, _ := os.ReadDir(recordsDir(dir))
	var names []string
	for _, e := range es {
		names = append(names, e.Name())
	}
	if want := []string{"0001.json", "0001.pending", "0001.tidy", "jobs"}; !slices.Equal(names, want) {
		t.Errorf("the records are %v, want %v", names, want)
	}
}

func TestModes(t *testing.T) {
	for _, place := range []string{"local", "mem"} {
		t.Run(place, func(t *testing.T) {
			path := t.TempDir()
			if place == "mem" {
				path = "mem://TestModes/x"
			}
			run := func(o Options) error {
				o.Path, o.TargetBytes = path, 4<<20
				return (runSpec{Data: small, Workers: 2, Batch: 100}).run(t.Context(), newFiles(t, o))
			}
			wantErr := func(err error, code fault.Code, texts ...string) {
				t.Helper()
				if fault.CodeOf(err) != code {
					t.Fatalf("error %v, want code %v", err, code)
				}
				for _, s := range texts {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("error %q lacks %q", err, s)
					}
				}
			}
			if err := run(Options{Job: "a"}); err != nil {
				t.Fatal(err)
			}
			wantErr(run(Options{Job: "b"}), fault.Exists, `"a"`, "error", "append", "overwrite")
			exact(t, path, small)
			if err := run(Options{Job: "b", Mode: ModeAppend}); err != nil {
				t.Fatal(err)
			}
			exact(t, path, small, small)
			if err := run(Options{Job: "a"}); err != nil { // it is there: nothing to do
				t.Fatal(err)
			}
			wantErr(run(Options{Job: "c", Mode: ModeAppend, Encoding: idEncoding{}}), fault.Invalid, "ids")
			wantErr(run(Options{Job: "c", Mode: ModeAppend, PartitionBy: []string{"p"}}), fault.Invalid, "partitioned")
			exact(t, path, small, small)
			if err := run(Options{Job: "c", Mode: ModeOverwrite, PartitionBy: []string{"p"}}); err != nil {
				t.Fatal(err)
			}
			exact(t, path, small)
			if err := run(Options{Job: "a", Mode: ModeOverwrite}); err != nil { // it was replaced: it runs again
				t.Fatal(err)
			}
			exact(t, path, small)
			m, err := ReadManifest(t.Context(), path, nil)
			if err != nil || m.Number != 4 || m.Job != "a" || len(m.Jobs) != 1 {
				t.Fatalf("manifest %+v, %v", m, err)
			}
			leftovers(t, path)
		})
	}
}

// TestLostFiles: a committed job whose files are gone is no finished one.
func TestLostFiles(t *testing.T) {
	for _, place := range []string{"local", "mem"} {
		for _, damage := range []string{"some", "size", "all"} {
			t.Run(place+"/"+damage, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "out")
				if place == "mem" {
					path = "mem://TestLostFiles/" + damage
				}
				run := func(mode string) (*Result, error) {
					s := newFiles(t, Options{Path: path, Mode: mode, TargetBytes: 4 << 20})
					err := (runSpec{Data: small, Workers: 2, Batch: 100}).run(t.Context(), s)
					return s.Result(), err
				}
				if _, err := run(""); err != nil {
					t.Fatal(err)
				}
				hurt := visible(t, path)[1:2]
				if damage == "all" {
					hurt = visible(t, path)
				}
				r, err := openRoot(t.Context(), path, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer r.b.Close()
				for _, f := range hurt {
					if err := r.b.Delete(t.Context(), r.prefix+f); err != nil {
						t.Fatal(err)
					}
					if damage == "size" {
						if err := r.b.Put(t.Context(), r.prefix+f, []byte("short"), nil); err != nil {
							t.Fatal(err)
						}
					}
				}
				if damage == "all" { // somebody has removed the output
					if res, err := run(ModeError); err != nil || res.Already || res.Manifest != 2 {
						t.Fatalf("%+v, %v", res, err)
					}
					exact(t, path, small)
					leftovers(t, path)
					if res, err := run(ModeError); err != nil || !res.Already {
						t.Fatalf("after it: %+v, %v", res, err)
					}
					return
				}
				for _, mode := range []string{ModeError, ModeAppend} {
					_, err := run(mode)
					if want := fmt.Sprintf("%d of its 3 files", len(hurt)); fault.CodeOf(err) != fault.NotFound || !strings.Contains(err.Error(), want) ||
						!strings.HasSuffix(fault.PlaceOf(err).File, hurt[0]) {
						t.Fatalf("mode %s: error %v", mode, err)
					}
				}
				res, err := run(ModeOverwrite)
				if err != nil || res.Already || res.Manifest != 2 {
					t.Fatalf("overwrite: %+v, %v", res, err)
				}
				exact(t, path, small)
				leftovers(t, path)
				if res, err = run(ModeError); err != nil || !res.Already {
					t.Fatalf("after it: %+v, %v", res, err)
				}
			})
		}
	}
}

func TestOutputIsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{{Path: file}, {Path: file + "/sub/out"}, {Path: filepath.Join(t.TempDir(), "out"), DeadLetter: file}} {
		_, err := newFiles(t, o).Begin(t.Context(), dataSchema, small.splits())
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "a file, not a folder") {
			t.Errorf("%+v: error %v", o, err)
		}
	}
}

func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "old.ids")
	os.WriteFile(foreign, []byte("1000000\n"), 0o666)
	run := func(job, mode string) error {
		return (runSpec{Data: small, Workers: 2, Batch: 100}).run(t.Context(), newFiles(t, Options{Path: dir, Job: job, Mode: mode, Encoding: idEncoding{}}))
	}
	for _, mode := range []string{ModeError, ModeOverwrite} {
		if err := run("a", mode); fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), "old.ids") {
			t.Fatalf("mode %s: %v", mode, err)
		}
		untouched(t, dir, "old.ids")
	}
	if err := run("a", ModeAppend); err != nil {
		t.Fatal(err)
	}
	if n := len(rows(t, dir, true)); n != small.Splits*small.Rows+1 {
		t.Errorf("%d rows", n)
	}
	if err := run("b", ModeOverwrite); fault.CodeOf(err) != fault.Exists {
		t.Fatal(err)
	}
	os.Rename(foreign, filepath.Join(dir, "old.txt")) // no reader of this format sees it
	if err := run("b", ModeOverwrite); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "old.txt")); err != nil {
		t.Error(err)
	}
	os.Remove(filepath.Join(dir, "old.txt"))
	exact(t, dir, small)
	// A manifest lost, its files still there.
	dir = t.TempDir()
	if err := run("b", ModeError); err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(recordsDir(dir))
	made := visible(t, dir)
	if err := run("b", ModeAppend); fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), "part-") {
		t.Fatal(err)
	}
	untouched(t, dir, made...)
	// A run that was refused since a file came into the way keeps what an earlier one finished.
	dir = t.TempDir()
	stop := runSpec{Data: small, Workers: 1, Batch: 50, Fail: func(part, split, row int) error {
		if part > 0 {
			return errTest
		}
		return nil
	}}
	if err := stop.run(t.Context(), newFiles(t, Options{Path: dir, Job: "c", Encoding: idEncoding{}, TargetBytes: 2 << 20})); !errors.Is(err, errTest) {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(dir, "x.ids"), []byte("1000000\n"), 0o666)
	if err := run("c", ModeError); fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), "x.ids") {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(recordsDir(dir), "jobs/c", receiptName(0))); err != nil {
		t.Error(err)
	}
}

// untouched fails if the folder has anything but these files, hidden ones and folders included.
func untouched(t *testing.T, dir string, want ...string) {
	t.Helper()
	var have []string
	es, err := os.ReadDir(dir)
	for _, e := range es {
		have = append(have, e.Name())
	}
	if err != nil || !slices.Equal(have, want) {
		t.Errorf("the folder has %v, want %v: %v", have, want, err)
	}
}

var errTest = errors.New("test")

func TestFailAndResume(t *testing.T) {
	for _, by := range [][]string{nil, {"p"}, {"k"}} {
		t.Run(fmt.Sprint(by), func(t *testing.T) {
			dir := t.TempDir()
			small := small
			if by != nil {
				small.Rows = 150
			}
			o := Options{Path: dir, TargetBytes: 2 << 20, PartitionBy: by}
			s := newFiles(t, o)
			err := (runSpec{Data: small, Workers: 1, Batch: 50, Alloc: memtest.New(t), Fail: func(part, split, row int) error {
				if split == 5 && row >= 50 {
					return errTest
				}
				return nil
			}}).run(t.Context(), s)
			if !errors.Is(err, errTest) {
				t.Fatal(err)
			}
			if got := visible(t, dir); len(got) > 0 {
				t.Fatalf("visible after a failure: %v", got)
			}
			// Another job in mode error hears of it; in mode append it does not mind.
			err = (runSpec{Data: small, Workers: 1, Batch: 50}).run(t.Context(), newFiles(t, Options{Path: dir, Job: "other"}))
			if fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), `"job"`) {
				t.Fatal(err)
			}
			// The same id for something else.
			err = (runSpec{Data: data{Splits: 3, Rows: 1}, Workers: 1, Batch: 50}).run(t.Context(), newFiles(t, o))
			if fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), "another data") {
				t.Fatal(err)
			}
			o.TargetBytes = 100 << 20
			s = newFiles(t, o)
			done := 0
			err = (runSpec{Data: small, Workers: 2, Batch: 33, Alloc: memtest.New(t), Fail: func(part, split, row int) error {
				if split < 4 {
					done++
				}
				return nil
			}}).run(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if done > 0 {
				t.Error("finished splits were run again")
			}
			exact(t, dir, small)
			leftovers(t, dir)
		})
	}
}

func TestAbortLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	err := (runSpec{Data: small, Workers: 2, Batch: 50, Fail: func(part, split, row int) error { return errTest }}).run(t.Context(), newFiles(t, Options{Path: dir}))
	if !errors.Is(err, errTest) {
		t.Fatal(err)
	}
	leftovers(t, dir)
	if err := (runSpec{Data: small, Workers: 2, Batch: 50}).run(t.Context(), newFiles(t, Options{Path: dir, Job: "other"})); err != nil {
		t.Fatal(err)
	}
}

func TestCancel(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	err := (runSpec{Data: small, Workers: 2, Batch: 50, Alloc: memtest.New(t), Fail: func(part, split, row int) error {
		if split == 3 {
			cancel(errTest)
		}
		return nil
	}}).run(ctx, newFiles(t, Options{Path: dir, TargetBytes: 2 << 20}))
	if fault.CodeOf(err) != fault.Canceled {
		t.Fatalf("%v", err)
	}
	if got := visible(t, dir); len(got) > 0 {
		t.Fatalf("visible: %v", got)
	}
	if err := (runSpec{Data: small, Workers: 2, Batch: 50}).run(t.Context(), newFiles(t, Options{Path: dir, TargetBytes: 2 << 20})); err != nil {
		t.Fatal(err)
	}
	exact(t, dir, small)
}

// A commit of many folders ends when its context does: no more of them are synced, and the next run
// goes on.
func TestCancelOfManyFolders(t *testing.T) {
	dir := t.TempDir()
	many := data{Splits: 2, Rows: 1000, Bad: -1}
	o := Options{Path: dir, PartitionBy: []string{"k"}, TargetBytes: 2 << 20, Encoding: joinEncoding{}}
	ctx, cancel := context.WithCancelCause(t.Context())
	var synced atomic.Int64
	s := newFiles(t, o)
	s.hook = func(step, rel string) {
		if step == "sync" {
			synced.Add(1)
			cancel(errTest)
		}
	}
	if err := (runSpec{Data: many, Workers: 2, Batch: 500}).run(ctx, s); !errors.Is(err, errTest) {
		t.Fatal(err)
	}
	if n := synced.Load(); n == 0 || n > inFlight {
		t.Errorf("%d folders of 503 were synced after the end", n)
	}
	if err := (runSpec{Data: many, Workers: 2, Batch: 500}).run(t.Context(), newFiles(t, o)); err != nil {
		t.Fatal(err)
	}
	exact(t, dir, many)
	leftovers(t, dir)
}

// What is removed file by file ends when its context does, too.
func TestCancelOfRemoval(t *testing.T) {
	dir := t.TempDir()
	out, err := openOutput(t.Context(), dir+"/out", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer out.b.Close()
	if err := os.MkdirAll(dir+"/_penstock-out/a/b/c", 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/_penstock-out/a/b/f", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, dir+"/_penstock-out/a/link"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errTest)
	if err := out.rec.removeTree(ctx, "a/"); !errors.Is(err, errTest) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(dir + "/_penstock-out/a/b/f"); err != nil {
		t.Error(err)
	}
	if err := out.rec.removeTree(t.Context(), "a/"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir + "/_penstock-out/a"); !os.IsNotExist(err) {
		t.Error(err)
	}
	if err := out.rec.removeTree(t.Context(), "a/"); err != nil {
		t.Error(err)
	}
}

func TestNewRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"path":     {Encoding: ipcEncoding{}, Job: "a"},
		"encoding": {Path: "x", Job: "a"},
		"job id":   {Path: "x", Encoding: ipcEncoding{}, Job: "a/b"},
		"mode":     {Path: "x", Encoding: ipcEncoding{}, Job: "a", Mode: "replace"},
		"glob":     {Path: "x/*", Encoding: ipcEncoding{}, Job: "a"},
		"negative": {Path: "x", Encoding: ipcEncoding{}, Job: "a", TargetBytes: -1},
	} {
		if _, err := New(o); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, o := range map[string]Options{"the driver of az": {Path: "x", DeadLetter: "azblob://nope/x"}, "unknown scheme": {Path: "s4://b/x"}} {
		o.Encoding, o.Job = ipcEncoding{}, "a"
		if _, err := New(o); fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := t.TempDir()
	for name, o := range map[string]Options{
		`did you mean "p"?; have id`: {PartitionBy: []string{"pp"}},
		"named twice":                {PartitionBy: []string{"p", "p"}},
		"no column would":            {PartitionBy: []string{"p", "id", "k", "text"}},
		`"p" is no int64`:            {Encoding: idEncoding{}, PartitionBy: []string{"id"}},
	} {
		o.Path = filepath.Join(dir, "x")
		s := newFiles(t, o)
		if _, err := s.Begin(t.Context(), dataSchema, small.splits()); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestApart(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		out, dead string
		apart     bool
	}{
		{"out", "out/bad", false},
		{"out/", "./out", false},
		{"bad/out", "bad/", false},
		{"out", wd + "/out/bad", false},
		{"file://" + wd + "/out", "out/bad", false},
		{"out", "/", false},
		{"s3://b/out?region=x", "s3://b/out/bad?region=x", false},
		{"s3://b/out", "S3://b", false},
		{"mem://b/out", "mem://b/out/bad", false},
		{"out", "output", true},
		{"out", "../out", true},
		{"s3://b/out", "s3://b/out2", true},
		{"s3://b/out", "s3://c/out", true},
		{"s3://b/out", "out", true},
	} {
		_, err := New(Options{Path: c.out, DeadLetter: c.dead, Encoding: ipcEncoding{}, Job: "a"})
		if strings.HasPrefix(c.out, "s3") { // this program has no driver
			err = Apart(c.out, c.dead)
		}
		if want := fmt.Sprintf("the dead letter folder %s and the output %s must lie apart", c.dead, c.out); c.apart && err != nil || !c.apart && (fault.CodeOf(err) != fault.Invalid || err.Error() != want) {
			t.Errorf("%s, %s: %v", c.out, c.dead, err)
		}
	}
}

func TestGroup(t *testing.T) {
	mb := func(ns ...int64) (s []exec.SinkSplit) {
		for i, n := range ns {
			s = append(s, exec.SinkSplit{ID: fmt.Sprint(i), Rows: -1, Bytes: n << 20})
		}
		return s
	}
	for _, tc := range []struct {
		splits []exec.SinkSplit
		target int64
		want   []int
	}{
		{nil, 0, nil},
		{mb(1), 0, []int{0}},
		{mb(10, 10, 10, 10), 20 << 20, []int{0, 2}},
		{mb(10, 10, 10, 10), 1 << 20, []int{0, 1, 2, 3}},
		{mb(1, 1, 1000, 1, 1), 20 << 20, []int{0, 2, 3}},
		{mb(0, 0, 0, 0), 64 << 20, []int{0, 2}},
		{mb(16, 16, 16, 16), 0, []int{0, 2}},
	} {
		if got := group(tc.splits, tc.target); !slices.Equal(got, tc.want) {
			t.Errorf("%v by %d: %v, want %v", tc.splits, tc.target, got, tc.want)
		}
	}
	many := make([]exec.SinkSplit, 1_000_000)
	for i := range many {
		many[i].Bytes = int64(i % 1000 * 1e6)
	}
	if got := group([]exec.SinkSplit{{Rows: 1 << 17}, {Rows: 1 << 17}, {Rows: 0}, {Rows: 1 << 20}}, 32<<20); !slices.Equal(got, []int{0, 2, 3}) {
		t.Errorf("by rows: %v", got)
	}
	if n := len(group(many, 1)); n > maxParts || n < maxParts/8 {
		t.Errorf("%d parts", n)
	}
}

func TestCount(t *testing.T) {
	d := data{Splits: 5, Rows: 200, Bad: 7}
	c := NewCount()
	if err := (runSpec{Data: d, Workers: 2, Batch: 64, Alloc: memtest.New(t)}).run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if r := c.Result(); r.Rows != 990 || r.Skipped != 10 || r.Bytes < 990*(8+4+4+4) {
		t.Errorf("%+v", r)
	}
}
