package local_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collect runs g and returns its ids; it checks that all memory comes back.
func collect(t *testing.T, g *exec.Graph, o *exec.Options) ([]int64, exec.Stats, error) {
	t.Helper()
	var opt exec.Options
	if o != nil {
		opt = *o
	}
	if opt.Budget == nil {
		limit := opt.Memory
		if limit == 0 {
			limit = 64 << 20
		}
		opt.Budget = exec.NewBudget(limit)
		defer opt.Budget.Close()
	}
	s, err := local.New(nil).Run(t.Context(), g, &opt)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for {
		b, e := s.Next(t.Context())
		if e != nil {
			if e != io.EOF {
				err = e
			}
			break
		}
		ids = append(ids, exectest.Ids(b.Batch)...)
		b.Release()
	}
	if e := s.Close(); e != nil {
		t.Errorf("Close: %v", e)
	}
	checkEmpty(t, opt.Budget)
	return ids, s.Stats(), err
}

func checkEmpty(t *testing.T, b *exec.Budget) {
	t.Helper()
	if b.Used() != 0 || b.Allocated() != 0 || b.Leased() != 0 {
		t.Errorf("%d bytes charged, %d allocated, %d leased after the end: %s", b.Used(), b.Allocated(), b.Leased(), b.Holders())
	}
}

func count(n int) []int64 {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(i)
	}
	return ids
}

func TestOrdered(t *testing.T) {
	for _, cpus := range []int{1, 4} {
		ids, st, err := collect(t, exectest.Scan(exectest.NewTable(20, 1000), exectest.Pass(), exectest.Halves()), &exec.Options{CPUs: cpus, BatchRows: 100})
		if err != nil || !slices.Equal(ids, count(20000)) {
			t.Fatalf("cpus %d: %d rows, %v", cpus, len(ids), err)
		}
		if st.RowsIn != 20000 || st.RowsOut != 20000 || st.Splits != 20 || st.SplitsDone != 20 {
			t.Errorf("stats %+v", st)
		}
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := local.New(nil).Run(ctx, exectest.Scan(exectest.NewTable(5, 100)), nil)
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	cancel(why)
	for err == nil {
		var b *exec.Block
		if b, err = s.Next(t.Context()); b != nil {
			b.Release()
		}
	}
	if !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
