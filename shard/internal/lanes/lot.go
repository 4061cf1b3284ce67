package lanes

import (
	"context"
	"io"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/driver"
)

// task is a slice of a split that the engine reads at once: the segments of one or
// more windows that follow each other in it.
type task struct {
	split    int
	from, to int64         // units
	edges    []int64       // where its windows end in it, in units; the last is to
	last     bool          // to is the end of the split
	gone     chan struct{} // closed when an attempt at it has ended
	once     sync.Once

	mu    sync.Mutex
	prev  *task   // which it goes on from; nil: none, or it is gone
	rows  []int64 // the edges in rows of the split, as far as known
	ends  []int64 // rows behind the last ones read before; not for tasks in rows
	some  int64   // 1 + the first row read; 0: none so far
	begin int64   // 1 + the row at which it begins, those that do not parse among them; 0: not known yet
	cuts  []cut   // batches handed out so far: another attempt gives the same ones
}

// cut is a batch: positions of the first row and of the one behind the last.
type cut struct{ row, end int64 }

// edge is the row at which the k-th window ends in the split; false: it lies beyond what was read.
func (t *task) edge(k int) (int64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k < len(t.rows) {
		return t.rows[k], true
	}
	return 0, false
}

// window is the first row of the k-th window that was read, and the one behind its last: rows before
// and behind that do not parse are no rows of it, whatever task reads them. They are among those passed. Not for tasks in rows.
func (t *task) window(k int) (first, end, passed int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k >= len(t.ends) {
		return 0, 0, 0, internal("the run ended before byte %d of split %d", t.edges[k], t.split)
	}
	first, passed = max(t.some-1, 0), t.rows[k]-max(t.begin-1, 0)
	if k > 0 {
		first, passed = t.rows[k-1], t.rows[k]-t.rows[k-1]
	}
	return first, max(t.ends[k], first), passed, nil
}

// begins notes that t begins at row, if that is not known.
func (t *task) begins(row int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begin == 0 {
		t.begin = row + 1
	}
}

// end is the row at which t ends in the split; false: that is not known.
func (t *task) end() (int64, bool) { return t.edge(len(t.edges) - 1) }

// lot keeps the readers of a leaf open from window to window: a lane reads its
// splits one after another, with pauses. A reader in the lot stands at a place in
// its split; the task that goes on there takes it.
type lot struct {
	table driver.Table
	acct  *exec.Account // never waits: what readers hold is part of a job's resident memory
	bytes bool          // places are bytes, not rows
	ahead int64         // see driver.ScanOptions.AheadBytes
	idle  *idle
	every int64 // rows between pauses of a reader; 0: it makes none

	counted bool // see Leaf.Counted
	ctx     context.Context
	free    context.CancelFunc

	mu     sync.Mutex
	parked map[int]*laneReader // by split
	closed bool

	tails map[int]*task // the last one planned, of splits that go on; the planner's
}

// idle is what the readers of all lots of a pass keep while they wait.
type idle struct {
	room int64 // beyond which they keep as little as they can
	kept atomic.Int64
}

// laneReader is a reader on its way through a split. Its task alone uses it, but for busy and done.
type laneReader struct {
	rd     driver.Reader
	cancel context.CancelFunc
	ctx    context.Context
	at     int64        // unit at which it stands, or will when its task is through
	rest   driver.Batch // read, of the next task
	bad    atomic.Pointer[func(error) error]
	badEnd atomic.Int64 // row behind the last one that did not parse; it may be the last of the split
	stats  driver.ScanStats
	told   [5]int64 // of stats, to tasks before

	busy bool          // guarded by lot.mu
	kept int64         // of lot.kept; the same
	done chan struct{} // closed when busy ends
}

// leastRead is how many rows a reader decodes at once, or more: of small windows, those of several.
const leastRead = 2048

func newLot(ctx context.Context, t driver.Table, b *exec.Budget, name string, bytes bool, ahead int64, idle *idle) *lot {
	l := &lot{table: t, bytes: bytes, ahead: ahead, idle: idle, parked: map[int]*laneReader{}, tails: map[int]*task{}}
	l.ctx, l.free = context.WithCancel(ctx)
	l.acct = b.Account(l.ctx, name)
	l.acct.SetPriority(exec.Overdraw)
	return l
}

// close ends all readers. One that a task uses still, as it does where a run was closed and its code does not obey its context, is ended when that task parks it.
func (l *lot) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, p := range l.parked {
		if !p.busy {
			p.close()
		}
	}
	clear(l.parked)
	l.acct.Close()
	l.free()
}

func (p *laneReader) close() {
	if p.rest.Record != nil {
		p.rest.Record.Release()
		p.rest.Record = nil
	}
	_ = p.rd.Close() // nothing is lost with a reader
	p.cancel()
}

// take finds or opens the reader for t, waiting for the task before it in the split.
func (l *lot) take(ctx context.Context, t *task, o *driver.ScanOptions) (*laneReader, error) {
	t.mu.Lock()
	prev := t.prev
	t.mu.Unlock()
	if prev != nil {
		if err := await(ctx, prev.gone); err != nil {
			return nil, err
		}
		if row, ok := prev.end(); ok {
			t.begins(row)
		}
		t.mu.Lock()
		t.prev = nil
		t.mu.Unlock()
	}
	var bad func(error) error
	if o.OnBadRow != nil {
		bad = func(err error) error {
			if row, ok := fault.PlaceOf(err).Row.Get(); ok {
				t.begins(row)
			}
			return o.OnBadRow(err)
		}
	}
	for {
		l.mu.Lock()
		p := l.parked[t.split]
		if p == nil || p.at != t.from {
			break
		}
		if !p.busy {
			p.busy, p.at, p.done = true, t.to, make(chan struct{})
			l.idle.kept.Add(-p.kept)
			p.kept = 0
			l.mu.Unlock()
			p.bad.Store(&bad)
			return p, nil
		}
		done := p.done
		l.mu.Unlock()
		if err := await(ctx, done); err != nil {
			return nil, err
		}
	}
	p := &laneReader{at: t.to, busy: true, done: make(chan struct{})}
	if old := l.parked[t.split]; old != nil && !old.busy && old.at < t.from { // its task was given up
		l.idle.kept.Add(-old.kept)
		old.close()
		delete(l.parked, t.split)
	}
	if l.parked[t.split] == nil {
		l.parked[t.split] = p
	}
	l.mu.Unlock()

	p.ctx, p.cancel = context.WithCancel(l.ctx)
	so := *o
	so.AheadBytes = l.ahead
	so.Alloc, so.Stats, so.Limit = l.acct, &p.stats, 0
	so.Own = true // rows wait in windows
	so.FromRow, so.FromByte, so.Offsets = t.from, 0, false
	so.StopRow, so.StopEvery = t.edges[0], l.every
	if l.bytes {
		so.FromRow, so.FromByte, so.Offsets = 0, t.from, true
	}
	if bad != nil {
		p.bad.Store(&bad)
		so.OnBadRow = func(err error) error {
			if row, ok := fault.PlaceOf(err).Row.Get(); ok {
				p.badEnd.Store(row + 1)
			}
			return (*p.bad.Load())(err)
		}
	}
	stop := context.AfterFunc(ctx, p.cancel)
	var err error
	p.rd, err = l.table.Open(p.ctx, t.split, &so)
	stopped := stop()
	if err == nil && !stopped {
		err = fault.WithCode(fault.Canceled, context.Cause(ctx))
		_ = p.rd.Close()
	}
	if err != nil {
		p.cancel()
		l.drop(t.split, p)
		return nil, err
	}
	return p, nil
}

// await waits for another task.
func await(ctx context.Context, c chan struct{}) error {
	end := exec.Waiting(ctx)
	defer end()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
}

// drop forgets a reader that is of no use any more.
func (l *lot) drop(split int, p *laneReader) {
	l.mu.Lock()
	if l.parked[split] == p {
		delete(l.parked, split)
	}
	p.busy = false
	close(p.done)
	l.mu.Unlock()
}

// park gives p back after a task; ok: it stands at the task's end and may go on.
func (l *lot) park(split int, p *laneReader, ok bool) {
	if !ok {
		l.drop(split, p)
		p.close()
		return
	}
	kept := int64(0)
	if rest, ok := p.rd.(driver.Rester); ok {
		// Lanes take turns: of all that wait, the one that comes last is wanted last. It may write to disk, so not under the lock.
		if kept = rest.Kept(); kept > 0 && l.idle.kept.Load()+kept > l.idle.room {
			rest.Shrink()
			kept = rest.Kept()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	close(p.done)
	p.busy = false
	if l.closed {
		p.close()
		return
	}
	if q := l.parked[split]; q != p {
		if q != nil && (q.busy || q.at > p.at) {
			p.close()
			return
		}
		if q != nil {
			l.idle.kept.Add(-q.kept)
			q.close()
		}
		l.parked[split] = p
	}
	p.kept = kept
	l.idle.kept.Add(kept)
}

// view is a lot's table, with tasks for splits.
type view struct {
	driver.Table
	lot    *lot
	tasks  []*task
	splits []driver.Split
}

func (l *lot) view(tasks []*task) *view {
	v := &view{Table: l.table, lot: l, tasks: tasks, splits: make([]driver.Split, len(tasks))}
	all := l.table.Splits()
	for i, t := range tasks {
		v.splits[i] = all[t.split]
		v.splits[i].Rows = -1
	}
	return v
}

func (v *view) Splits() []driver.Split { return v.splits }

// Open implements driver.Table for task i.
func (v *view) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	t := v.tasks[i]
	p, err := v.lot.take(ctx, t, o)
	if err != nil {
		t.once.Do(func() { close(t.gone) })
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &slice{lot: v.lot, t: t, p: p, at: t.from, stats: o.Stats, again: slices.Clone(t.cuts)}
	if v.lot.bytes {
		s.at = 0 // a row, and unknown
	}
	return s, nil
}

// slice is a driver.Reader over a task.
type slice struct {
	lot   *lot
	t     *task
	p     *laneReader
	at    int64 // row behind the last one read; of bytes 0 before the first
	stats *driver.ScanStats
	again []cut          // what an earlier attempt handed out: batches are cut the same way
	back  []driver.Batch // read too much for that
	ended bool           // the split is at its end
	err   error
}

// Close gives the reader back to the lot.
func (s *slice) Close() error {
	if s.p == nil {
		return nil
	}
	if s.stats != nil {
		from := []*atomic.Int64{&s.p.stats.BytesRead, &s.p.stats.Requests, &s.p.stats.Retries, &s.p.stats.Rows, &s.p.stats.Pruned}
		for i, to := range []*atomic.Int64{&s.stats.BytesRead, &s.stats.Requests, &s.stats.Retries, &s.stats.Rows, &s.stats.Pruned} {
			now := from[i].Load()
			to.Add(now - s.p.told[i])
			s.p.told[i] = now
		}
	}
	whole := s.err == io.EOF && len(s.back) == 0 && !s.t.last // at the end of the split, too: tasks behind it find nothing more
	for _, b := range s.back {
		b.Record.Release()
	}
	s.lot.park(s.t.split, s.p, whole)
	s.p = nil
	s.t.once.Do(func() { close(s.t.gone) })
	return nil
}

// Next implements driver.Reader.
func (s *slice) Next(ctx context.Context) (driver.Batch, error) {
	if s.p == nil {
		return driver.Batch{}, fault.New(fault.Invalid, "read after close")
	}
	if s.err != nil {
		return driver.Batch{}, s.err
	}
	b, err := s.next(ctx)
	if err == nil && len(s.again) > 0 {
		return s.like(ctx, b)
	}
	if err != nil {
		s.err = err
		return driver.Batch{}, err
	}
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.t.cuts = append(s.t.cuts, cut{b.Row, b.End()})
	return b, nil
}

// next reads up to the end of the task, as the driver cuts it.
func (s *slice) next(ctx context.Context) (driver.Batch, error) {
	if n := len(s.back); n > 0 {
		b := s.back[n-1]
		s.back = s.back[:n-1]
		return b, nil
	}
	p, t := s.p, s.t
	b := p.rest
	p.rest = driver.Batch{}
	if b.Record == nil {
		if !s.lot.bytes && s.at >= t.to && !(s.lot.counted && t.last) {
			return driver.Batch{}, io.EOF
		}
		stop := context.AfterFunc(ctx, p.cancel)
		var err error
		b, err = p.rd.Next(p.ctx)
		if !stop() {
			if err == nil {
				b.Record.Release()
			}
			return driver.Batch{}, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		if err == io.EOF {
			s.ended = true
			s.settle(b)
			if end := max(s.at, p.badEnd.Load()); s.lot.counted && (end < t.to || end > t.to && t.last) {
				return driver.Batch{}, recounted(end, t.to)
			}
		}
		if err == nil && s.lot.counted && t.last && b.End() > t.to {
			n := b.End()
			b.Record.Release()
			return driver.Batch{}, recounted(n, t.to)
		}
		if err != nil {
			return driver.Batch{}, err
		}
	}
	n, k := b.Record.NumRows(), b.Before(t.to)
	if s.lot.bytes {
		if int64(len(b.Offsets)) != n {
			return driver.Batch{}, internal("%d offsets for %d rows", len(b.Offsets), n)
		}
		s.t.begins(b.Row)
		s.settle(b)
		k = int64(before(b.Offsets, t.to))
	}
	if k == 0 {
		p.rest = b
		return driver.Batch{}, io.EOF
	}
	if k < n {
		p.rest = b.Slice(k, n)
		first := b.Slice(0, k)
		b.Record.Release()
		b = first
	}
	s.at = b.End()
	if s.lot.bytes {
		s.t.read(b.Row)
	}
	return b, nil
}

// read notes the first row read.
func (t *task) read(row int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.some == 0 {
		t.some = row + 1
	}
}

func recounted(rows, was int64) error {
	return fault.New(fault.Changed, "%d rows were counted here, now there are others (%d so far): the file was changed; if it was not, remove the folder penstock in the user's cache folder", was, rows)
}

// before counts the offsets before end.
func before(offsets []int64, end int64) int {
	return sort.Search(len(offsets), func(i int) bool { return offsets[i] >= end })
}

// settle notes at which rows windows end: those that end in b, or, when the split
// is at its end, all that are left.
func (s *slice) settle(b driver.Batch) {
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.rows) < len(t.edges) {
		row, end := max(s.at, s.p.badEnd.Load(), t.begin-1), s.at
		if !s.ended {
			i := before(b.Offsets, t.edges[len(t.rows)])
			if i == len(b.Offsets) {
				return
			}
			if row = b.Row + int64(i); i > 0 {
				end = row
			}
		}
		t.rows, t.ends = append(t.rows, row), append(t.ends, end)
	}
}

// like makes of b and what follows the batch that an earlier attempt gave out here: the same rows, but for such as the
// predicate left out of one of the two.
func (s *slice) like(ctx context.Context, b driver.Batch) (driver.Batch, error) {
	want := s.again[0]
	s.again = s.again[1:]
	var parts []driver.Batch
	defer func() {
		for _, p := range parts {
			p.Record.Release()
		}
	}()
	for {
		from, to, n := b.Before(want.row), b.Before(want.end), b.Record.NumRows()
		if from < to {
			parts = append(parts, b.Slice(from, to))
		}
		if to < n {
			s.back = append(s.back, b.Slice(to, n))
		}
		end := b.End()
		b.Record.Release()
		if end >= want.end {
			break
		}
		var err error
		if b, err = s.next(ctx); err == io.EOF {
			break
		} else if err != nil {
			s.err = err
			return driver.Batch{}, err
		}
	}
	if len(parts) == 0 {
		s.err = fault.New(fault.Invalid, "the split has other rows than when it was read before")
		return driver.Batch{}, s.err
	}
	return joined(s.lot.acct, parts)
}

// joined is batches that follow each other as one, with a reference of its own.
func joined(alloc memory.Allocator, parts []driver.Batch) (driver.Batch, error) {
	b := parts[0]
	if len(parts) == 1 {
		b.Record.Retain()
		return b, nil
	}
	recs, runs := make([]arrow.RecordBatch, len(parts)), make([]gather.Run, len(parts))
	var rows []int64
	gaps := false
	for i, p := range parts {
		n := int(p.Record.NumRows())
		recs[i], runs[i] = p.Record, gather.Run{Rec: int32(i), N: int32(n)}
		gaps = gaps || p.Rows != nil || i > 0 && p.Row != parts[i-1].End()
		for k := range n {
			if p.Rows != nil {
				rows = append(rows, p.Rows[k])
			} else {
				rows = append(rows, p.Row+int64(k))
			}
		}
	}
	rec, err := gather.Record(alloc, b.Record.Schema(), recs, runs)
	b = driver.Batch{Record: rec, Row: b.Row}
	if gaps {
		b.Rows = rows
	}
	return b, err
}
