package lanes

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// record has these ids.
func record(alloc memory.Allocator, ids ...int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(alloc, exectest.Schema)
	defer b.Release()
	for _, id := range ids {
		b.Field(0).(*array.Int64Builder).Append(id)
		b.Field(1).(*array.BinaryBuilder).Append(exectest.Data(int(id), 8))
	}
	return b.NewRecordBatch()
}

// Rows stand in the order of the permutation of their source rows, some of which have none and some several, in blocks that
// begin anywhere.
func TestPermuter(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	var p permuter
	for range 500 {
		n := r.IntN(200)
		key := order.Key{Seed: r.Uint64()}.Rows(1, 2)
		perm := make([]int32, n)
		order.Perm(key, perm)
		place := make([]int, n)
		for k, s := range perm {
			place[s] = k
		}
		var blocks []piece
		type row struct{ at, rec, row int }
		var want []row
		for s := 0; s < n; {
			k := min(1+r.IntN(40), n-s)
			base := r.Int64N(100) - 50
			b := piece{base: base, row: int64(s) - base, rec: int32(len(blocks))}
			if r.IntN(2) == 0 {
				b.at = []int64{}
				for i := range k {
					for range r.IntN(3) {
						b.at = append(b.at, int64(s+i)-base)
						want = append(want, row{place[s+i], len(blocks), b.n})
						b.n++
					}
				}
			} else {
				b.placed = r.IntN(2) == 0
				for i := range k {
					x := row{place[s+i], len(blocks), i}
					if b.placed {
						x.row = place[s+i]
					}
					want = append(want, x)
				}
				b.n = k
			}
			blocks = append(blocks, b)
			s += k
		}
		slices.SortStableFunc(want, func(a, b row) int { return a.at - b.at })
		p.begin(n, key)
		got := p.runs(blocks)
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d rows, want %d", seed, len(got), len(want))
		}
		for i, x := range want {
			if got[i] != (gather.Run{Rec: int32(x.rec), Row: int32(x.row), N: 1}) {
				t.Fatalf("seed %d: place %d is %v, want %v", seed, i, got[i], x)
			}
		}
	}
}

// A window on disk gives its samples as in memory, records or packed rows, from a chunk at a time, which is given back with its
// last sample.
func TestSpill(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for _, pack := range []bool{false, true} {
		alloc := memtest.New(t)
		w := &Window{}
		var ids []int64
		for i := range 5 {
			var some []int64
			for range 1 + r.IntN(1000) {
				some = append(some, r.Int64())
			}
			rec := NewRec(record(alloc, some...), func(row int) Origin { return Origin{RowGroup: int64(i), Row: int64(row)} })
			if pack {
				f := &filling{p: &Pass{s: &Source{}}, layout: packIds()}
				buf := memory.NewResizableBuffer(alloc)
				buf.Resize(8 * len(some))
				f.layout.Pack(buf.Bytes(), rec.Batch, nil)
				rec.release()
				rec = newPacked(buf, rec.Origin)
			}
			w.Recs = append(w.Recs, rec)
			ids = append(ids, some...)
		}
		var origins []Origin
		for i, rec := range w.Recs {
			n := 8 // ids
			if rec.Batch != nil {
				n = int(rec.Batch.NumRows())
			} else {
				n = len(rec.Packed) / n
			}
			for row := range n {
				w.Runs = append(w.Runs, gather.Run{Rec: int32(i), Row: int32(row), N: 1})
				origins = append(origins, Origin{RowGroup: int64(i), Row: int64(row)})
			}
		}
		r.Shuffle(len(ids), func(i, j int) {
			ids[i], ids[j] = ids[j], ids[i]
			origins[i], origins[j] = origins[j], origins[i]
			w.Runs[i], w.Runs[j] = w.Runs[j], w.Runs[i]
		})
		if pack {
			w.inlinePacked(alloc, 8, true)
		}
		w.index()
		budget := exec.NewBudget(1 << 30)
		w.measure(budget, "places")
		places := w.places() // stay in memory
		given := r.Int64N(int64(len(ids)))
		chunk := int64(4<<10) << r.IntN(9)
		if err := w.spillTo(t.TempDir(), alloc, chunk, given); err != nil {
			t.Fatal(err)
		}
		if n := w.size - places; n < 1 || n > chunk+chunk/4+2<<10 { // IPC has a head
			t.Fatalf("seed %d: a window on disk counts %d bytes beside places, with chunks of %d", seed, n, chunk)
		}
		if n := budget.Used(); n != places || pack != (n > 0) {
			t.Fatalf("seed %d: %d bytes of places are paid for, of %d", seed, n, places)
		}
		if n := alloc.CurrentAlloc(); n != 0 {
			t.Fatalf("%d bytes in memory beside the disk", n)
		}
		if pack != (w.spill.packed == 8) {
			t.Fatalf("rows of %d bytes on disk", w.spill.packed)
		}
		most := 0
		for i := given; i < int64(len(ids)); {
			rec, row, n, err := w.At(i)
			if err != nil || n < 1 {
				t.Fatal(n, err)
			}
			n = min(n, 1+r.Int32N(2000))
			for k := range n {
				if id, o := idAt(rec, row+k), rec.Origin(int(row+k)); id != ids[i+int64(k)] || o.RowGroup != origins[i+int64(k)].RowGroup || o.Row != origins[i+int64(k)].Row {
					t.Fatalf("seed %d: sample %d is %d of %v, want %d of %v", seed, i+int64(k), id, o, ids[i+int64(k)], origins[i+int64(k)])
				}
			}
			most = max(most, alloc.CurrentAlloc())
			w.spill.take(i, int64(n))
			i += int64(n)
		}
		if n := alloc.CurrentAlloc(); n != 0 || most == 0 || most > chunkRows*64 {
			t.Fatalf("seed %d: %d bytes of chunks at the end, %d at most", seed, n, most)
		}
		w.free()
		if n := budget.Used(); n != 0 {
			t.Fatalf("seed %d: %d bytes are not given back", seed, n)
		}
		budget.Close()
	}
}

// fakeStream gives blocks.
type fakeStream struct {
	exec.Stream
	blocks []*exec.Block
}

func (s *fakeStream) Next(context.Context) (*exec.Block, error) {
	if len(s.blocks) == 0 {
		return nil, io.EOF
	}
	b := s.blocks[0]
	s.blocks = s.blocks[1:]
	return b, nil
}

// A feed cuts the blocks of tasks at the edges of windows, wherever blocks end, whatever rows are left of
// them and whether tasks end with a block of their own.
func TestFeedTake(t *testing.T) {
	base := rand.Uint64()
	for i := range 300 {
		seed := base + uint64(i)
		r := rand.New(rand.NewPCG(seed, 0))
		alloc := memtest.New(t)
		f := &feed{}
		st := &fakeStream{}
		f.stream = st
		type window struct {
			task, edge int
			ids        []int64
		}
		var want []window
		for k := range 1 + r.IntN(4) {
			from := r.Int64N(50)
			tk := &task{from: from, gone: make(chan struct{})}
			to := from
			for range 1 + r.IntN(4) {
				to += 1 + r.Int64N(20)
				tk.edges = append(tk.edges, to)
			}
			tk.to, tk.rows = to, tk.edges
			f.tasks = append(f.tasks, tk)
			kept := r.IntN(4)
			for row := from; row < to; {
				n := min(1+r.Int64N(15), to-row)
				b := &exec.Block{Origin: exec.Origin{Task: k}, Row: row, Span: n}
				var ids []int64
				for x := row; x < row+n; x++ {
					for range []int{1, r.IntN(2), r.IntN(3), 0}[kept] {
						ids = append(ids, 1000*int64(k)+x)
						b.Rows = append(b.Rows, x)
					}
				}
				if kept == 0 {
					b.Rows = nil
				} else if b.Rows == nil {
					b.Rows = []int64{}
				}
				b.Batch = record(alloc, ids...)
				st.blocks = append(st.blocks, b)
				lo := row
				for e, edge := range tk.edges {
					if len(want) == 0 || want[len(want)-1].task < k || want[len(want)-1].edge < e {
						if lo >= edge || row+n <= from {
							continue
						}
						want = append(want, window{task: k, edge: e})
					}
				}
				for _, id := range ids {
					x := id - 1000*int64(k)
					e := slices.IndexFunc(tk.edges, func(edge int64) bool { return x < edge })
					i := slices.IndexFunc(want, func(w window) bool { return w.task == k && w.edge == e })
					want[i].ids = append(want[i].ids, id)
				}
				row += n
			}
			if r.IntN(2) == 0 {
				st.blocks = append(st.blocks, &exec.Block{Batch: record(alloc), Origin: exec.Origin{Task: k}, Row: to, End: true})
			}
		}
		skipped := newSkips(&Source{})
		for _, w := range want {
			var ids []int64
			err := f.take(context.Background(), w.task, w.edge, func(b *exec.Block) error {
				ids = append(ids, exectest.Ids(b.Batch)...)
				b.Release()
				return nil
			}, &skipped)
			if err != nil || !slices.Equal(ids, w.ids) {
				t.Fatalf("seed %d: window %d of task %d has %v, want %v (%v)", seed, w.edge, w.task, ids, w.ids, err)
			}
		}
		c := chunk{feeds: []*feed{f}}
		f.stream = nil
		if err := c.close(); err != nil { // gives back what was cut off
			t.Fatal(err)
		}
		for _, b := range st.blocks { // ends that nobody asked for
			b.Release()
		}
	}
}

// Another attempt at a task gives the batches of the one before it, whatever the reader gives; a reader that
// stands at the end of a task goes on with the next.
func TestLotGivesTheSameBatches(t *testing.T) {
	base := rand.Uint64()
	for i := range 100 {
		seed := base + uint64(i)
		r := rand.New(rand.NewPCG(seed, 0))
		tab := exectest.NewTable(1, 100+r.IntN(200))
		budget := exec.NewBudget(1 << 30)
		l := newLot(t.Context(), tab, budget, "lot", false, 0, &idle{room: 1 << 20})
		var tasks []*task
		for from := int64(0); from < int64(tab.Rows[0]); {
			to := min(from+1+r.Int64N(80), int64(tab.Rows[0]))
			tk := &task{from: from, to: to, edges: []int64{to}, last: to == int64(tab.Rows[0]), gone: make(chan struct{})}
			if len(tasks) > 0 {
				tk.prev = tasks[len(tasks)-1]
			}
			tasks, from = append(tasks, tk), to
		}
		v := l.view(tasks)
		next := int64(0)
		again := 0
		for k := range tasks {
			read := func(rows, most int) (got [][]int64) {
				rd, err := v.Open(t.Context(), k, &driver.ScanOptions{BatchRows: rows, Stats: &driver.ScanStats{}})
				if err != nil {
					t.Fatal(err)
				}
				defer rd.Close()
				for range most {
					b, err := rd.Next(t.Context())
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					got = append(got, slices.Clone(exectest.Ids(b.Record)))
					b.Record.Release()
				}
				return got
			}
			var first [][]int64
			if r.IntN(3) == 0 {
				first = read(1+r.IntN(30), 1+r.IntN(4)) // given up
				again++
			}
			all := read(1+r.IntN(30), 1000)
			for i, b := range first {
				if !slices.Equal(all[i], b) {
					t.Fatalf("seed %d: batch %d of another attempt is %v, was %v", seed, i, all[i], b)
				}
			}
			for _, b := range all {
				for _, id := range b {
					if id != next {
						t.Fatalf("seed %d: row %d, want %d", seed, id, next)
					}
					next++
				}
			}
			if next != tasks[k].to {
				t.Fatalf("seed %d: task %d ends at %d, want %d", seed, k, next, tasks[k].to)
			}
		}
		if n := tab.Opens()[0]; n > 1+2*again {
			t.Fatalf("seed %d: opened %d times for %d attempts more", seed, n, again)
		}
		l.close()
		if n, m := tab.Readers(), budget.Allocated(); n != 0 || m != 0 {
			t.Fatalf("seed %d: %d readers open, %d bytes", seed, n, m)
		}
		budget.Close()
	}
}

// slowTable opens its first split at the gate, whatever becomes of the context.
type slowTable struct {
	*exectest.Table
	gate chan struct{}
}

func (s slowTable) Open(ctx context.Context, split int, o *driver.ScanOptions) (driver.Reader, error) {
	if split == 0 {
		<-s.gate
	}
	return s.Table.Open(context.WithoutCancel(ctx), split, o)
}

// A reader whose task goes on when the lot is closed, as the code of a run that was closed may, is closed by that task and not under its hands.
func TestLotClosedWhileRead(t *testing.T) {
	for _, opening := range []bool{false, true} {
		tab := exectest.NewTable(2, 100)
		gate := make(chan struct{})
		if !opening {
			close(gate)
		}
		budget := exec.NewBudget(1 << 30)
		l := newLot(t.Context(), slowTable{tab, gate}, budget, "lot", false, 0, &idle{room: 1 << 20})
		v := l.view([]*task{{to: 50, edges: []int64{50}, gone: make(chan struct{})}, {split: 1, to: 50, edges: []int64{50}, gone: make(chan struct{})}})
		o := &driver.ScanOptions{BatchRows: 10, Stats: &driver.ScanStats{}}
		other, err := v.Open(t.Context(), 1, o) // which waits for its next task
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			var b driver.Batch
			if b, err = other.Next(t.Context()); err == nil {
				b.Record.Release()
			}
		}
		other.Close()
		opened := make(chan driver.Reader)
		go func() {
			rd, _ := v.Open(context.WithoutCancel(t.Context()), 0, o)
			opened <- rd
		}()
		var rd driver.Reader
		if !opening {
			rd = <-opened
			if b, err := rd.Next(t.Context()); err != nil {
				t.Fatal(err)
			} else {
				b.Record.Release()
			}
		} else {
			for entered := false; !entered; runtime.Gosched() {
				l.mu.Lock()
				entered = l.parked[0] != nil
				l.mu.Unlock()
			}
		}
		l.close()
		if opening {
			close(gate)
			rd = <-opened
		} else if n := tab.Readers(); n != 1 {
			t.Errorf("%d readers are open, want the one that is used", n)
		}
		if rd == nil {
			t.Fatal("it was not opened")
		}
		if _, err := rd.Next(t.Context()); err == nil || err == io.EOF {
			t.Errorf("it reads on: %v", err)
		}
		rd.Close()
		if n, m := tab.Readers(), budget.Allocated(); n != 0 || m != 0 {
			t.Errorf("%d readers open, %d bytes", n, m)
		}
		budget.Close()
	}
}

// Skipped rows count for their step, and for the run where the step has no limits; rates are judged from 1,000 rows
// on, and at the end.
func TestSkips(t *testing.T) {
	s := &Source{limits: exec.OnError{MaxRows: 3}, stepLimits: map[string]exec.OnError{"step 2": {MaxRate: 0.01}}}
	l := newSkips(s)
	at := func(step string) exec.Skipped {
		return exec.Skipped{Err: fault.New(fault.RowError, "bad").At(fault.Place{Step: step})}
	}
	l.rows = 999
	l.add([]exec.Skipped{at("step 1"), at("step 2"), at(""), at("step 1")})
	for range 11 {
		l.add([]exec.Skipped{at("step 2")})
	}
	if err := l.check(false); err != nil {
		t.Fatalf("3 rows, and a rate of few rows: %v", err)
	}
	for want, end := range map[string]bool{"12 of 999 rows skipped by step 2": true, "12 of 1000 rows skipped by step 2": false} {
		if !end {
			l.rows = 1000
		} else {
			l.rows = 999
		}
		if err := l.check(end); fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), want) {
			t.Fatalf("%s: %v", want, err)
		}
	}
	l.rows = 1200
	if err := l.check(true); err != nil {
		t.Fatalf("1 in a hundred: %v", err)
	}
	l.add([]exec.Skipped{at("step 9")})
	if err := l.check(false); err == nil || !strings.Contains(err.Error(), "4 rows skipped in this epoch, more than max_rows 3") {
		t.Fatal(err)
	}
}
