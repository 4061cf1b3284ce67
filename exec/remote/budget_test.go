package remote_test

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/fault"
)

// Limits of skipped rows are the job's on several nodes, too: whoever wrote the parts of an earlier run.
func TestBudgetOfAJob(t *testing.T) {
	dir := t.TempDir()
	write := func(o exec.OnError) (st exec.Stats, err error) {
		errs := all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
			g := comparable(exectest.Scan(exectest.NewTable(40, 3000), exectest.FailRows(fault.RowError, func(id int64) bool { return id%1000 == 7 })))
			s, err := r.Write(t.Context(), g, files(dir, "job"), &exec.Options{OnError: o})
			if node == 0 {
				st = s
			}
			return err
		})
		return st, errs[0]
	}
	skip := func(rows int64) exec.OnError { return exec.OnError{Policy: exec.Skip, MaxRows: rows} }
	st, err := write(skip(100)) // 120 are bad
	if fault.CodeOf(err) != fault.Exhausted || st.RowsOut == 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	if _, err = write(exec.OnError{}); fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "an earlier run of this job has skipped") {
		t.Errorf("policy fail: %v", err)
	}
	if _, err = write(skip(100)); fault.CodeOf(err) != fault.Exhausted {
		t.Errorf("again: %v", err)
	}
	if st, err = write(skip(120)); err != nil || st.Skipped != 120 || st.RowsIn != 120_000 || st.RowsOut != 120_000-120 {
		t.Errorf("%+v, %v", st, err)
	}
	if st, err = write(skip(1)); err != nil || st.Skipped != 120 || st.RowsIn != 120_000 {
		t.Errorf("finished: %+v, %v", st, err)
	}
}
