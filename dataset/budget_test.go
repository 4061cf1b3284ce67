package dataset_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/ops"
)

// badCSV is files of 1000 rows each, of which so many do not parse.
func badCSV(t *testing.T, bad ...int) *dataset.Dataset {
	t.Helper()
	dir := t.TempDir()
	for f, n := range bad {
		var text strings.Builder
		text.WriteString("id,x\n")
		for i := range 1000 {
			if i < n {
				fmt.Fprintf(&text, "%d,bad\n", i)
			} else {
				fmt.Fprintf(&text, "%d,%d\n", i, 2*i)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("e%d.csv", f)), []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dataset.Read(csvio.New(csvio.Options{Options: fileset.Options{Paths: []string{dir}, Types: map[string]string{"id": "int", "x": "int"}}}))
}

// The limits of skipped rows are the job's: to run it again does not get round them, and larger ones let it go on from what is finished.
func TestBudgetOfAJob(t *testing.T) {
	skip := func(rows int64, rate float64) *ops.OnError {
		return &ops.OnError{Policy: "skip", MaxRows: rows, MaxRate: rate}
	}
	steps := map[string]func(*dataset.Dataset) *dataset.Dataset{
		"parts": func(d *dataset.Dataset) *dataset.Dataset { return d },
		"cut":   func(d *dataset.Dataset) *dataset.Dataset { return d.Limit(1e9) },
	}
	for _, c := range []struct {
		name  string
		first *ops.OnError
		again []*ops.OnError // all fail
		text  []string
		more  *ops.OnError
	}{
		{"max_rows", skip(5, 0), []*ops.OnError{skip(5, 0), skip(200, 0), nil},
			[]string{"more than max_rows 5: raise max_rows", "201 rows skipped (201 of them by an earlier run of this job), more than max_rows 200", "policy fail, and an earlier run of this job has skipped 201 rows"}, skip(201, 0)},
		{"max_rate", skip(0, 0.02), []*ops.OnError{skip(0, 0.02), skip(0, 0.1), skip(1, 0.9)},
			[]string{"of 1000 rows skipped (201 of them by an earlier run of this job), more than max_rate 0.02: raise max_rate", "more than max_rate 0.1", "more than max_rows 1:"}, skip(0, 0.21)},
	} {
		for name, step := range steps {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				ds, dir := step(badCSV(t, 201, 0, 0)), t.TempDir()
				var stats func() exec.Stats
				write := func(on *ops.OnError) (*dataset.WriteResult, error) {
					return ds.WriteCSV(t.Context(), dir+"/out", &dataset.WriteOptions{RunOptions: dataset.RunOptions{OnError: on, DeadLetter: dir + "/bad", CPUs: 1,
						Observe: func(f func() exec.Stats) { stats = f }}, TargetBytes: 1})
				}
				if _, err := write(c.first); fault.CodeOf(err) != fault.Exhausted {
					t.Fatal(err)
				}
				for i, on := range c.again {
					_, err := write(on)
					if name == "cut" { // nothing was finished: it is the same run once more
						if fault.CodeOf(err) != fault.Exhausted {
							t.Errorf("%+v: %v", on, err)
						}
						break
					}
					if fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), c.text[i]) {
						t.Errorf("%+v: %v", on, err)
					}
					if st := stats(); st.Skipped != 201 {
						t.Errorf("%+v: %+v", on, st)
					}
				}
				r, err := write(c.more)
				if err != nil || r.Rows != 2799 || r.Stats.RowsIn != 2799 || r.Stats.RowsOut != 2799 || r.Stats.Skipped != 201 {
					t.Fatalf("%+v, %v", r, err)
				}
				if n, _ := letters(t, dir+"/bad"); n != 201 {
					t.Errorf("%d letters", n)
				}
				// A finished job stays as it is.
				if r, err = write(nil); err != nil || !r.Already || r.Stats.RowsIn != 2799 || r.Stats.Skipped != 201 || r.Stats.RowsOut != 2799 {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
	}
}

// Branches of a union have steps of the same name, each with a budget of its own; and who skipped too much is not tried again.
func TestBudgetOfBranches(t *testing.T) {
	skip := func(rows int64) ops.OnError { return ops.OnError{Policy: "skip", MaxRows: rows} }
	branch := func(bad int, on *ops.OnError) *dataset.Dataset {
		d := badCSV(t, 0, 0, 0).WithColumns(fmt.Sprintf(`v = int(id < %d ? "x" : "1")`, bad))
		if on != nil {
			d = d.OnError(*on)
		}
		return d
	}
	small, large := skip(5), skip(1000)
	for name, c := range map[string]struct {
		first, second *ops.OnError
		run           *ops.OnError
		fails         bool
	}{
		"a small one of its own":    {&small, &large, nil, true},
		"the run's is the small":    {nil, &large, &small, true},
		"the other one's is":        {&large, &small, nil, false},
		"each has what it needs":    {&large, nil, nil, false},
		"the run's is large enough": {nil, &small, &large, false},
	} {
		t.Run(name, func(t *testing.T) {
			skipped := 0
			ds := branch(50, c.first).Union(branch(0, c.second)).Limit(1e9)
			_, err := ds.WriteCSV(t.Context(), t.TempDir(), &dataset.WriteOptions{RunOptions: dataset.RunOptions{OnError: c.run, CPUs: 1, Events: &exec.Events{RowSkipped: func(*exec.Skipped) { skipped++ }}}})
			if c.fails && (fault.CodeOf(err) != fault.Exhausted || skipped > 6) || !c.fails && (err != nil || skipped == 0) {
				t.Errorf("%v, after %d skipped rows", err, skipped)
			}
		})
	}
}
