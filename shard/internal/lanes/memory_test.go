package lanes

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// large is a table whose readers keep much while they wait.
type large struct {
	*exectest.Table
	each int64

	mu         sync.Mutex
	kept, most int64
	shrunk     int
}

type largeReader struct {
	driver.Reader
	t    *large
	kept int64
}

func (t *large) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	r, err := t.Table.Open(ctx, i, o)
	return &largeReader{Reader: r, t: t}, err
}

func (r *largeReader) set(n int64) {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.t.kept += n - r.kept
	r.t.most = max(r.t.most, r.t.kept)
	r.kept = n
}

func (r *largeReader) Next(ctx context.Context) (driver.Batch, error) {
	r.set(r.t.each)
	return r.Reader.Next(ctx)
}
func (r *largeReader) Kept() int64 { return r.kept }
func (r *largeReader) Shrink() {
	r.set(0)
	r.t.mu.Lock()
	r.t.shrunk++
	r.t.mu.Unlock()
}
func (r *largeReader) Close() error { r.set(0); return r.Reader.Close() }

// drain takes all samples of a pass.
func drain(t *testing.T, s *Source) (n int) {
	t.Helper()
	p, err := s.Open(context.Background(), 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	var late []Piece
	for r := rand.New(rand.NewPCG(1, 1)); ; {
		ids, err := give(p, 20, &late, r, false)
		if err != nil {
			t.Fatal(err)
		}
		if n += len(ids); len(ids) == 0 {
			break
		}
		for _, x := range late {
			p.Take(x)
		}
		late = late[:0]
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}

// Readers that wait keep no more than the room for them, together, and those at work what they need; where there is room
// none gives anything back.
func TestIdleReaders(t *testing.T) {
	for _, limit := range []int64{64 << 20, 1 << 30} {
		tab := &large{Table: exectest.NewTable(16, 200), each: 10 << 20}
		w := newWorld([]*exectest.Table{tab.Table}, order.Shape{Mode: order.Window, Lanes: 16, Window: 20}, func() []exec.Operator { return nil }, func(int64) int64 { return 1 }, limit)
		st := *w.c.Leaves[0].Stage
		scan := *st.Scan
		scan.Table, st.Scan = tab, &scan
		w.c.Leaves[0].Stage = &st
		s := New(w.c)
		if n := drain(t, s); n != 3200 {
			t.Errorf("%d samples", n)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		atWork := int64(w.c.Exec.CPUs+1) * tab.each // one may be about to
		if limit == 64<<20 && (tab.most > limit/2+atWork || tab.shrunk == 0) || limit > 64<<20 && tab.shrunk > 0 {
			t.Errorf("budget %d MiB: readers kept up to %d MiB, and %d gave back", limit>>20, tab.most>>20, tab.shrunk)
		}
		if tab.kept != 0 {
			t.Errorf("%d bytes are kept by readers that are closed", tab.kept)
		}
		w.c.Exec.Budget.Close()
	}
}

// Windows that are larger than the room for all are written to disk one at a time: beside what the engine reads ahead, one of them
// is in memory.
func TestLargeWindows(t *testing.T) {
	const row, window, limit = 256 << 10, 64, 16 << 20
	tab := exectest.NewTable(8, 128)
	tab.Width = func(int) int { return row }
	w := newWorld([]*exectest.Table{tab}, order.Shape{Mode: order.Window, Lanes: 4, Window: window}, func() []exec.Operator { return nil }, func(int64) int64 { return 1 }, limit)
	w.c.Exec.BatchBytes = 1 << 20
	s := New(w.c)
	if n := drain(t, s); n != 1024 {
		t.Errorf("%d samples", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	peak := w.c.Exec.Budget.Peak()
	t.Logf("%d MiB, windows of %d MiB", peak>>20, window*row>>20)
	if most := int64(limit*5/4 + window*row + 14<<20); peak > most || w.meter.Spilled.Load() == 0 {
		t.Errorf("peak %d MiB, want at most %d; %d windows on disk", peak>>20, most>>20, w.meter.Spilled.Load())
	}
	w.c.Exec.Budget.Close()
}
