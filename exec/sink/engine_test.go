package sink_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/parquetio"
)

// column reads a column of every Parquet file of a folder, in order of names.
func column[T any](t *testing.T, dir string, get func(c arrow.Array) []T, col int) (out []T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		pf, err := file.NewParquetReader(f)
		if err != nil {
			t.Fatal(err)
		}
		r, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: 4096}, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		tab, err := r.ReadTable(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range tab.Column(col).Data().Chunks() {
			out = append(out, get(c)...)
		}
		tab.Release()
		pf.Close()
	}
	return out
}

func int64s(c arrow.Array) []int64 { return slices.Clone(c.(*array.Int64).Int64Values()) }

func strs(c arrow.Array) (out []string) {
	for i := range c.Len() {
		out = append(out, strings.Clone(c.(*array.String).Value(i)))
	}
	return out
}

// The engine, Parquet and the sink together: rows, rows left out, a run that
// fails and one that goes on.
func TestWithEngine(t *testing.T) {
	enc, err := parquetio.NewEncoding(nil)
	if err != nil {
		t.Fatal(err)
	}
	bad := func(id int64) bool { return id%1000 == 7 || id/500 == 9 } // the latter: all rows of a split
	for _, cut := range []bool{false, true} {
		dir := t.TempDir()
		run := func(fail bool, o *exec.Options) (*sink.Result, error) {
			table := exectest.NewTable(20, 500)
			if fail {
				table.Faults = []exectest.Fault{{Split: 15, Code: fault.Corrupt}}
			}
			stage := exectest.ScanStage(0, table, exectest.FailRows(fault.RowError, bad))
			if cut {
				stage = exectest.Cut(1<<40, []*exec.Stage{stage})
			}
			s, err := sink.New(sink.Options{Path: filepath.Join(dir, "out"), DeadLetter: filepath.Join(dir, "bad"), Encoding: enc, Job: "engine", TargetBytes: 64 << 20})
			if err != nil {
				t.Fatal(err)
			}
			o.OnError = exec.OnError{Policy: exec.Skip}
			o.Budget = exec.NewBudget(64 << 20)
			defer o.Budget.Close()
			_, err = local.New(nil).Write(t.Context(), exectest.Graph(stage), s, o)
			if n := o.Budget.Used(); n != 0 {
				t.Errorf("%d bytes are left", n)
			}
			return s.Result(), err
		}
		if _, err := run(true, &exec.Options{CPUs: 2, BatchRows: 100}); fault.CodeOf(err) != fault.Corrupt {
			t.Fatalf("cut %v: %v", cut, err)
		}
		if got, _ := filepath.Glob(filepath.Join(dir, "*", "*.parquet")); len(got) > 0 {
			t.Fatalf("visible after a failure: %v", got)
		}
		r, err := run(false, &exec.Options{CPUs: 1, BatchRows: 33})
		if err != nil {
			t.Fatal(err)
		}
		var want, left []int64
		for id := range int64(20 * 500) {
			if bad(id) {
				left = append(left, id)
			} else {
				want = append(want, id)
			}
		}
		if got := column(t, filepath.Join(dir, "out"), int64s, 0); !slices.Equal(got, want) {
			t.Errorf("cut %v: %d rows, want %d", cut, len(got), len(want))
		}
		if r.Rows != int64(len(want)) || r.Skipped != int64(len(left)) {
			t.Errorf("cut %v: result %+v, want %d rows, %d skipped", cut, r, len(want), len(left))
		}
		var letters []int64
		splits := column(t, filepath.Join(dir, "bad"), strs, 3)
		for i, row := range column(t, filepath.Join(dir, "bad"), int64s, 6) {
			split := slices.IndexFunc(exectest.NewTable(20, 500).Splits(), func(s driver.Split) bool { return s.ID == splits[i] })
			letters = append(letters, int64(split*500)+row)
		}
		if !slices.Equal(letters, left) {
			t.Errorf("cut %v: dead letter has %d rows, want %d", cut, len(letters), len(left))
		}
	}
}

func TestCountWithEngine(t *testing.T) {
	c := sink.NewCount()
	if _, err := local.New(nil).Write(t.Context(), exectest.Scan(exectest.NewTable(20, 500)), c, nil); err != nil {
		t.Fatal(err)
	}
	if r := c.Result(); r.Rows != 10000 || r.Bytes < 16*10000 {
		t.Errorf("%+v", r)
	}
}
