package lanes

import (
	"context"
	"sync"
	"testing"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// noting is a table that keeps what its readers were opened with.
type noting struct {
	driver.Table
	mu    sync.Mutex
	stops map[int][]driver.ScanOptions
}

func (t *noting) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	t.mu.Lock()
	t.stops[i] = append(t.stops[i], *o)
	t.mu.Unlock()
	return t.Table.Open(ctx, i, o)
}

// TestReadersStopAtWindows: readers of lanes are told where windows end in their split; of windows of few rows, of every some of
// them; those of the only lane make no pause.
func TestReadersStopAtWindows(t *testing.T) {
	for _, c := range []struct {
		lanes  int
		window int64
	}{{4, 3000}, {4, 500}, {1, 3000}} {
		w := newWorld([]*exectest.Table{exectest.NewTable(9, 10_000)}, order.Shape{Mode: order.Window, Lanes: c.lanes, Window: c.window},
			func() []exec.Operator { return nil }, func(int64) int64 { return 1 }, 64<<20)
		tab := &noting{Table: w.tables[0], stops: map[int][]driver.ScanOptions{}}
		w.c.Leaves[0].Stage.Scan.Table = tab
		_, lay, _ := w.want(0, 0)
		s := New(w.c)
		p, err := s.Open(t.Context(), 0, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		for {
			lanes, err := p.Ahead(1000)
			if err != nil {
				t.Fatal(err)
			}
			if len(lanes) == 0 {
				break
			}
			for _, x := range p.Give(len(lanes), nil) {
				p.Take(x)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		ends := map[int]map[int64]bool{} // of windows, by split
		for _, lane := range lay {
			for _, x := range lane {
				for _, s := range x.Segments {
					if ends[s.Split] == nil {
						ends[s.Split] = map[int64]bool{}
					}
					ends[s.Split][s.To] = true
				}
			}
		}
		for split := range ends {
			if len(tab.stops[split]) == 0 {
				t.Fatalf("%+v: split %d was not opened", c, split)
			}
			for _, o := range tab.stops[split] {
				if !o.Own {
					t.Fatalf("%+v: rows that wait in windows may be of a file that is mapped", c)
				}
				if c.lanes == 1 {
					if o.StopEvery != 0 {
						t.Fatalf("%+v: readers of the only lane stop every %d rows", c, o.StopEvery)
					}
					continue
				}
				if o.StopEvery < max(c.window, leastRead) || o.StopEvery >= leastRead+c.window {
					t.Fatalf("%+v: readers stop every %d rows", c, o.StopEvery)
				}
				rows := int64(w.tables[0].Rows[split])
				for at := o.StopRow; at < rows; at += o.StopEvery {
					if !ends[split][at] {
						t.Fatalf("%+v: the reader of split %d stops at row %d, where no window ends", c, split, at)
					}
				}
				if c.window >= leastRead {
					for at := range ends[split] {
						if at < rows && (at-o.StopRow)%o.StopEvery != 0 {
							t.Fatalf("%+v: the reader of split %d does not stop at row %d", c, split, at)
						}
					}
				}
			}
		}
	}
}
