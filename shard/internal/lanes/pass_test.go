package lanes

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/internal/order"
	"github.com/penstock-data/penstock/shard/internal/order/ordertest"
	"github.com/penstock-data/penstock/shard/internal/rows"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// packIds lays out the ids of exectest's rows.
func packIds() *rows.Layout {
	return rows.New([][]rows.Field{{{From: rows.Int64, To: rows.Int64, Width: 1}}}, false)
}

// world is a source over tables, and what it must give.
type world struct {
	c      Config
	tables []*exectest.Table
	meter  Meter
	counts map[[2]int64]int64
	copies func(id int64) int64 // samples of a row
}

func newWorld(tables []*exectest.Table, shape order.Shape, ops func() []exec.Operator, copies func(int64) int64, limit int64) *world {
	w := &world{tables: tables, copies: copies, counts: map[[2]int64]int64{}}
	w.c = Config{Name: "w", Shape: shape, Seed: 5, Meter: &w.meter, Runner: local.New(nil), Sources: 1}
	w.c.Exec = exec.Options{Budget: exec.NewBudget(limit), CPUs: 2}
	w.c.Published = func(_, _ uint64, lane int, window, samples int64) { w.counts[[2]int64{int64(lane), window}] = samples }
	for i, t := range tables {
		l := Leaf{Stage: exectest.ScanStage(i, t, ops()...)}
		for _, n := range t.Rows {
			l.Units = append(l.Units, int64(n))
		}
		w.c.Leaves = append(w.c.Leaves, l)
	}
	return w
}

// want is the ids of the samples of a pass, in order, and what it needs to find positions.
func (w *world) want(epoch, pass uint64) (ids []int64, lay [][]ordertest.Window, seq []ordertest.Timed) {
	key := order.Key{Seed: w.c.Seed, Epoch: epoch, Pass: pass, Source: w.c.Name}
	var units, first []int64
	for _, t := range w.tables {
		for i, n := range t.Rows {
			units, first = append(units, int64(n)), append(first, int64(t.First(i)))
		}
	}
	lay = ordertest.Lay(key, w.c.Shape, units)
	samples := map[[2]int64][]int64{}
	for v, lane := range lay {
		for k, x := range lane {
			var all []int64
			for _, s := range x.Segments {
				for r := s.From; r < s.To; r++ {
					all = append(all, first[s.Split]+r)
				}
			}
			turn := make([]int, len(all))
			for i := range turn {
				turn[i] = i
			}
			if w.c.Shape.Mode == order.Window {
				turn = ordertest.Perm(key, "rows", fmt.Sprint(v), fmt.Sprint(k), len(all))
			}
			at := [2]int64{int64(v), int64(k)}
			for _, i := range turn {
				for range w.copies(all[i]) {
					samples[at] = append(samples[at], all[i])
				}
			}
		}
	}
	seq = ordertest.Sequence(lay, func(v int, k int64) int64 { return int64(len(samples[[2]int64{int64(v), k}])) })
	for _, s := range seq {
		ids = append(ids, samples[[2]int64{int64(s.Lane), s.Window}][s.Index])
	}
	return ids, lay, seq
}

// idAt reads the id of a sample.
func idAt(rec *Rec, row int32) int64 {
	if rec.Batch == nil {
		return int64(binary.LittleEndian.Uint64(rec.Packed[8*row:]))
	}
	return exectest.Ids(rec.Batch)[row]
}

// give takes up to n samples and returns their ids in order. What was given is kept in late for a while.
func give(p *Pass, n int64, late *[]Piece, r *rand.Rand, lineage bool) (ids []int64, err error) {
	lanes, err := p.Ahead(n)
	if err != nil || len(lanes) == 0 {
		return nil, err
	}
	lanes = slices.Clone(lanes)
	pieces := p.Give(len(lanes), nil)
	next := map[int32][]int64{}
	for _, x := range pieces {
		for i, left := x.Index, x.N; left > 0; {
			rec, row, k, err := x.Window.At(i)
			if err != nil {
				return nil, err
			}
			for ; k > 0 && left > 0; k, left = k-1, left-1 {
				id := idAt(rec, row)
				if lineage {
					if o := rec.Origin(int(row)); o.Source != "w" || id < 0 || o.RowGroup < 0 {
						return nil, fmt.Errorf("row %d comes from %+v", id, o)
					}
				}
				next[x.Lane] = append(next[x.Lane], id)
				row++
				i++
			}
		}
	}
	for _, v := range lanes {
		ids = append(ids, next[v][0])
		next[v] = next[v][1:]
	}
	*late = append(*late, pieces...)
	for len(*late) > 0 && r.IntN(3) > 0 {
		p.Take((*late)[0])
		*late = (*late)[1:]
	}
	return ids, nil
}

// Any source gives exactly the reference's samples: packed or not, filtered or repeated, with several leaves, in a budget that
// makes windows wait on disk, with reads that fail and are tried again, and from any position. All memory and every
// reader is given back, also where a pass is left in its middle.
func TestPassEqualsReference(t *testing.T) {
	base := rand.Uint64()
	var spilled, packed, restored, retried int64
	for i := range 120 {
		seed := base + uint64(i)
		r := rand.New(rand.NewPCG(seed, 0))
		var tables []*exectest.Table
		first := 0
		for range 1 + r.IntN(2) {
			tab := &exectest.Table{}
			for range r.IntN(12) {
				tab.Rows = append(tab.Rows, r.IntN(1+r.IntN(300)))
			}
			if r.IntN(4) == 0 && len(tab.Rows) > 0 {
				tab.Faults = append(tab.Faults, exectest.Fault{Split: r.IntN(len(tab.Rows)), Batch: r.IntN(4), Code: fault.Unavailable, Times: 1})
				retried++
			}
			tables = append(tables, tab)
			first += len(tab.Rows)
		}
		shape := order.Shape{Mode: order.Window, Lanes: 1 + r.IntN(6), Window: 1 + r.Int64N(100)}
		if r.IntN(5) == 0 {
			shape.Mode, shape.Lanes = order.Mode(r.IntN(2)), 1
		}
		ops, copies := func() []exec.Operator { return nil }, func(int64) int64 { return 1 }
		keeps := false
		switch r.IntN(4) {
		case 0:
			keep := func(id int64) bool { return id%3 != 1 }
			ops = func() []exec.Operator { return []exec.Operator{exectest.Filter(keep), exectest.Halves()} }
			copies = func(id int64) int64 {
				if keep(id) {
					return 1
				}
				return 0
			}
		case 1:
			ops = func() []exec.Operator { return []exec.Operator{exectest.Repeat(4)} }
			copies = func(id int64) int64 { return id % 4 }
		default:
			keeps = true
		}
		limit := int64(64 << 20)
		if r.IntN(3) == 0 {
			limit = 4 << 10
		}
		w := newWorld(tables, shape, ops, copies, limit)
		w.c.KeepsRows, w.c.Lineage = keeps && r.IntN(4) > 0, r.IntN(4) == 0
		w.c.Exec.BatchRows = 1 + r.IntN(60)
		if r.IntN(2) == 0 {
			w.c.Layout = packIds()
			packed++
		}
		ids, lay, seq := w.want(2, 1)
		s := New(w.c)
		check := func(from int, stop int) {
			var pos []order.Pos
			if from > 0 {
				pos = ordertest.Pos(lay, seq, from)
				restored++
			}
			p, err := s.Open(context.Background(), 2, 1, pos)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if r.IntN(2) == 0 {
				p.Start()
			}
			var late []Piece
			n := from
			for n < stop {
				got, err := give(p, 1+r.Int64N(200), &late, r, w.c.Lineage)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if len(got) == 0 {
					if n != len(ids) {
						t.Fatalf("seed %d: only %d samples of %d", seed, n, len(ids))
					}
					break
				}
				if n+len(got) > len(ids) || !slices.Equal(got, ids[n:n+len(got)]) {
					t.Fatalf("seed %d: from sample %d on %v, want %v", seed, n, got, ids[n:min(n+len(got), len(ids))])
				}
				n += len(got)
				if now := p.Pos(nil); !slices.Equal(now, ordertest.Pos(lay, seq, n)) {
					t.Fatalf("seed %d: after %d samples at %v", seed, n, now)
				}
			}
			for _, x := range late {
				p.Take(x)
			}
			if n == len(ids) && s.held != 0 {
				t.Fatalf("seed %d: %d bytes of windows after the last sample", seed, s.held)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if err := p.Close(); err != nil {
				t.Fatal("closed again: ", err)
			}
		}
		check(0, len(ids)+1)
		for at, n := range w.counts {
			if at[1] >= int64(len(lay[at[0]])) || n < 0 {
				t.Fatalf("seed %d: window %v has %d samples", seed, at, n)
			}
		}
		if len(ids) > 0 {
			from := r.IntN(len(ids))
			check(from, from+r.IntN(len(ids)-from+1)) // left in the middle
			check(from, len(ids)+1)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for _, tab := range tables {
			if n := tab.Readers(); n != 0 {
				t.Fatalf("seed %d: %d readers are open", seed, n)
			}
		}
		if n := w.c.Exec.Budget.Allocated(); n != 0 {
			t.Fatalf("seed %d: %d bytes are not given back: %s", seed, n, w.c.Exec.Budget.Holders())
		}
		w.c.Exec.Budget.Close()
		spilled += w.meter.Spilled.Load()
	}
	if spilled < 50 || packed < 20 || restored < 50 || retried < 10 {
		t.Errorf("the test sees too little: %d windows on disk, %d packed sources, %d positions, %d faults", spilled, packed, restored, retried)
	}
}

// Readers stay open from window to window, over the borders of chunks: every split is opened once, whatever the number
// of its windows.
func TestReadersAreKept(t *testing.T) {
	tab := exectest.NewTable(4, 3000)
	w := newWorld([]*exectest.Table{tab}, order.Shape{Mode: order.Window, Lanes: 2, Window: 1}, func() []exec.Operator { return nil }, func(int64) int64 { return 1 }, 64<<20)
	w.c.Exec.BatchRows = 100
	s := New(w.c)
	p, err := s.Open(context.Background(), 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, late := 0, []Piece{}
	for r := rand.New(rand.NewPCG(1, 1)); ; {
		ids, err := give(p, 500, &late, r, false)
		if err != nil {
			t.Fatal(err)
		}
		if n += len(ids); len(ids) == 0 {
			break
		}
	}
	if windows := w.meter.Windows.Load(); n != 12_000 || windows != 12_000 || windows < 2*chunkWindows || !p.Drained() {
		t.Errorf("%d samples of %d windows", n, windows)
	}
	if opens := tab.Opens(); !slices.Equal(opens, []int{1, 1, 1, 1}) {
		t.Errorf("splits were opened %v times", opens)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w.c.Exec.Budget.Close()
}

// A pass whose context ends gives that as its error, also while it waits.
func TestPassCanceled(t *testing.T) {
	tab := exectest.NewTable(2, 100)
	tab.Faults = []exectest.Fault{{Split: 1, Batch: 0, Kind: exectest.Hang}}
	w := newWorld([]*exectest.Table{tab}, order.Shape{Mode: order.Window, Lanes: 2, Window: 10}, func() []exec.Operator { return nil }, func(int64) int64 { return 1 }, 64<<20)
	s := New(w.c)
	ctx, cancel := context.WithCancel(context.Background())
	p, err := s.Open(ctx, 0, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Start()
	go cancel()
	for err == nil {
		var late []Piece
		_, err = give(p, 1, &late, rand.New(rand.NewPCG(1, 1)), false)
	}
	if fault.CodeOf(err) != fault.Canceled {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w.c.Exec.Budget.Close()
}
