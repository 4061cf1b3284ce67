package remote_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/io/parquetio"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(childVar); what != "" {
		if err := child(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// logTo logs to the output of a test.
func logTo(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// all runs f on every member of a gang, each with a Runner, and gives their errors.
func all(t testing.TB, gs []*gang.Gang, f func(node int, r *remote.Runner) error) []error {
	t.Helper()
	errs := make([]error, len(gs))
	var work sync.WaitGroup
	for i, g := range gs {
		r, err := remote.New(g, &remote.Options{Log: logTo(t)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		work.Go(func() { errs[i] = f(i, r) })
	}
	work.Wait()
	return errs
}

// served fails the test unless every node but the first served.
func served(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		if i == 0 && err != nil || i > 0 && !errors.Is(err, exec.ErrServed) {
			t.Fatalf("node %d: %v", i, err)
		}
	}
}

// comparable gives a graph words.
func comparable(g *exec.Graph) *exec.Graph {
	g.Words = func(context.Context) ([][2]string, error) { return [][2]string{{"plan", "test"}}, nil }
	return g
}

func files(path, job string) *sink.Files {
	enc, err := parquetio.NewEncoding(nil)
	if err != nil {
		panic(err)
	}
	s, err := sink.New(sink.Options{Path: path, Encoding: enc, Job: job, TargetBytes: 64 << 10})
	if err != nil {
		panic(err)
	}
	return s
}

// digests are the files below a folder and what is in them.
func digests(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(p) == ".pending" { // which names attempts
			return err
		}
		b, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		all[rel] = fmt.Sprintf("%d %x", len(b), sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func drain(s exec.Stream) (ids []int64, err error) {
	defer func() { err = errors.Join(err, s.Close()) }()
	for {
		b, err := s.Next(context.Background())
		if err == io.EOF {
			return ids, nil
		}
		if err != nil {
			return ids, err
		}
		ids = append(ids, exectest.Ids(b.Batch)...)
		b.Release()
	}
}

func graph(splits, rows int) (*exec.Graph, *exectest.Table) {
	tb := exectest.NewTable(splits, rows)
	tb.Width = func(id int) int { return id % 50 }
	return comparable(exectest.Scan(tb, exectest.Filter(func(id int64) bool { return id%7 != 3 }))), tb
}

func TestWrite(t *testing.T) {
	scan := func() *exec.Graph {
		g, _ := graph(40, 3000)
		return g
	}
	for name, make := range map[string]func() *exec.Graph{"scan": scan, "union": func() *exec.Graph {
		g, more := scan(), scan()
		more.Root.Scan.Source = 1
		g.Root = exectest.Cut(-1, []*exec.Stage{g.Root, more.Root})
		return g
	}} {
		t.Run(name, func(t *testing.T) {
			one, two := t.TempDir(), t.TempDir()
			want, err := local.New(nil).Write(t.Context(), make(), files(one, "job"), nil)
			if err != nil {
				t.Fatal(err)
			}
			var got exec.Stats
			served(t, all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
				st, err := r.Write(t.Context(), make(), files(two, "job"), nil)
				if node == 0 {
					got = st
				}
				return err
			}))
			if a, b := digests(t, one), digests(t, two); fmt.Sprint(a) != fmt.Sprint(b) {
				t.Errorf("the files differ:\n%v\n%v", a, b)
			}
			if got.RowsIn != want.RowsIn || got.RowsOut != want.RowsOut || got.SplitsDone != want.SplitsDone || got.BytesRead != want.BytesRead {
				t.Errorf("statistics\n%+v\n%+v", got, want)
			}
			t.Logf("%+v", got)
		})
	}
}

func TestRun(t *testing.T) {
	g, _ := graph(30, 5000)
	s, err := local.New(nil).Run(t.Context(), g, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := drain(s)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	var tables [2]*exectest.Table
	served(t, all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
		g, tb := graph(30, 5000)
		tables[node] = tb
		s, err := r.Run(t.Context(), g, nil)
		if err != nil {
			return err
		}
		got, err = drain(s)
		t.Logf("%+v", s.Stats())
		return err
	}))
	if fmt.Sprint(want) != fmt.Sprint(got) {
		t.Errorf("%d rows, want %d", len(got), len(want))
	}
	for i, tb := range tables {
		n := 0
		for _, o := range tb.Opens() {
			n += o
		}
		if n == 0 || tb.Readers() != 0 {
			t.Errorf("node %d opened %d splits, %d readers are open", i, n, tb.Readers())
		}
	}
}
