package local_test

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
)

func write(t *testing.T, g *exec.Graph, s *exectest.Sink, o exec.Options) (ids []int64, st exec.Stats, err error) {
	t.Helper()
	o.Budget = exec.NewBudget(64 << 20)
	defer o.Budget.Close()
	st, err = local.New(nil).Write(t.Context(), g, s, &o)
	ids, commits, aborts, problems := s.Result()
	for _, p := range problems {
		t.Error(p)
	}
	if err == nil && (commits != 1 || aborts != 0) || err != nil && (commits != 0 || aborts != 1) {
		t.Errorf("%d commits, %d aborts after %v", commits, aborts, err)
	}
	checkEmpty(t, o.Budget)
	return ids, st, err
}

func TestWrite(t *testing.T) {
	for _, c := range []struct {
		name string
		g    func(*exectest.Table) *exec.Graph
	}{
		{"parts", func(tb *exectest.Table) *exec.Graph { return exectest.Scan(tb, exectest.Pass()) }},
		{"one", func(tb *exectest.Table) *exec.Graph {
			return exectest.Graph(exectest.Cut(-1, []*exec.Stage{exectest.ScanStage(0, tb)}, exectest.Pass()))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &exectest.Sink{PerPart: 3}
			ids, st, err := write(t, c.g(exectest.NewTable(20, 1000)), s, exec.Options{CPUs: 4, BatchRows: 100})
			if err != nil || !slices.Equal(ids, count(20000)) {
				t.Fatalf("%d rows, %v", len(ids), err)
			}
			if st.RowsIn != 20000 || st.RowsOut != 20000 || st.SplitsDone != st.Splits || st.Splits != 20 {
				t.Errorf("stats %+v", st)
			}
			var fails atomic.Int64
			s = &exectest.Sink{PerPart: 3, FailWrite: func(part, attempt int) error {
				if attempt == 1 && fails.Add(1)%7 == 0 {
					return fault.New(fault.Unavailable, "flaky")
				}
				return nil
			}}
			ids, st, err = write(t, c.g(exectest.NewTable(20, 1000)), s, exec.Options{CPUs: 4, BatchRows: 100})
			if err != nil || !slices.Equal(ids, count(20000)) || st.Retries == 0 {
				t.Fatalf("flaky writer: %d rows, %d retries, %v", len(ids), st.Retries, err)
			}
			s = &exectest.Sink{FailPart: func(part, attempt int) error { return fault.New(fault.Invalid, "no") }}
			if _, _, err = write(t, c.g(exectest.NewTable(20, 10)), s, exec.Options{}); fault.CodeOf(err) != fault.Invalid {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestWriteDoneParts(t *testing.T) {
	tb := exectest.NewTable(6, 10)
	s := &exectest.Sink{PerPart: 2, Done: []int{1}}
	ids, st, err := write(t, exectest.Scan(tb), s, exec.Options{})
	want := slices.Concat(count(20), count(60)[40:])
	if err != nil || !slices.Equal(ids, want) || st.SplitsDone != 6 {
		t.Fatalf("%v %v %+v", ids, err, st)
	}
	if o := tb.Opens(); !slices.Equal(o, []int{1, 1, 0, 0, 1, 1}) {
		t.Errorf("opened %v", o)
	}
}
