package lanes

import (
	"context"
	"errors"
	"io"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// Pass is one way through a source. A goroutine of its own, the collector, takes windows
// from the engine and puts their rows in order, a few windows ahead of the caller. For one goroutine.
type Pass struct {
	s          *Source
	epoch, num uint64
	key        order.Key
	order      *order.Pass
	merge      *order.Merge
	from       []order.Pos // where it began; nil: at the beginning
	ctx        context.Context
	cancel     context.CancelFunc
	lots       []*lot
	queue      [][]*Window // by lane: published, in order
	own        []bool      // by lane: read here; nil: all are
	all        skips       // of all lanes, where own is not nil
	live       map[*Window]struct{}
	ready      chan collected // of the collector; nil before Start
	over       error          // why ready was closed
	drained    atomic.Bool    // the collector has all
	work       sync.WaitGroup

	// Of the collector alone.
	plan      *order.Production
	planned   bool // plan is at its end
	now, next *chunk
	skipped   skips
	permute   permuter
	segs      []order.Segment
}

// collected is a window on its way to the caller.
type collected struct {
	lane   int
	window int64
	w      *Window // nil: all its samples were given before
	m      int64
	err    error         // of the pass; the last
	seen   chan struct{} // of a window that nothing is to be collected beside: closed once it is published

	skipped []int64 // see Elsewhere.Collected
}

// ahead is how many windows wait, in order, beside the one that is worked on and those published: of those that take more than this
// fraction of the room for windows, none.
const (
	ahead     = 2
	aheadRoom = 8
)

// Open begins a pass at pos (nil: at its beginning). Nothing is read yet.
func (s *Source) Open(ctx context.Context, epoch, pass uint64, pos []order.Pos) (*Pass, error) {
	o, err := s.Order(epoch, pass)
	if err != nil {
		return nil, err
	}
	if pos != nil {
		if err := o.CheckPos(pos); err != nil {
			return nil, err
		}
	}
	p := &Pass{
		s: s, epoch: epoch, num: pass, key: s.key(epoch, pass), order: o, merge: order.NewMerge(o, pos), plan: o.Production(pos), from: pos,
		queue: make([][]*Window, o.Lanes()), live: map[*Window]struct{}{}, skipped: newSkips(s),
	}
	if x := s.c.Elsewhere; x != nil {
		p.own = make([]bool, o.Lanes())
		for v := range p.own {
			p.own[v] = x.Own(v)
		}
		p.all = newSkips(s)
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	rest := &idle{room: s.room()}
	for i, l := range s.c.Leaves {
		p.lots = append(p.lots, newLot(p.ctx, l.Stage.Scan.Table, s.c.Exec.Budget, "lanes of "+s.c.Name, s.bytes(i), s.c.AheadBytes, rest))
		p.lots[i].counted = l.Counted
		if w := s.c.Shape.Window; o.Lanes() > 1 && !s.c.Bytes {
			p.lots[i].every = (leastRead + w - 1) / w * w
		}
	}
	return p, nil
}

// Close gives everything up but records that somebody else retained. Idempotent.
func (p *Pass) Close() error {
	p.cancel()
	p.work.Wait()
	if p.ready != nil {
		for c := range p.ready {
			if c.w != nil {
				c.w.free()
			}
		}
	}
	err := errors.Join(p.now.close(), p.next.close())
	p.now, p.next = nil, nil
	for w := range p.live {
		p.drop(w)
	}
	for _, l := range p.lots {
		l.close()
	}
	p.lots = nil
	return err
}

// Start lets reading begin before the first Next.
func (p *Pass) Start() {
	if p.ready != nil {
		return
	}
	p.ready = make(chan collected, ahead)
	p.work.Go(func() {
		defer close(p.ready)
		send := func(c collected) bool {
			select {
			case p.ready <- c:
				return c.err == nil
			case <-p.ctx.Done():
				if c.w != nil {
					c.w.free()
				}
				return false
			}
		}
		defer func() {
			if x := recover(); x != nil {
				f, ok := x.(*fault.Error) // the allocator's
				if !ok {
					panic(x)
				}
				send(collected{err: f})
			}
		}()
		for {
			c, ok := p.collect()
			if !ok {
				p.drained.Store(true)
				if n := p.skipped.total(); n > 0 && p.s.c.Skipped != nil {
					p.s.c.Skipped(p.epoch, p.num, n, p.skipped.rows)
				}
				if err := p.skipped.check(true); err != nil && p.own == nil {
					send(collected{err: err})
				}
				return
			}
			if !send(c) {
				return
			}
			if c.seen != nil {
				select {
				case <-c.seen:
				case <-p.ctx.Done():
				}
			}
		}
	})
}

// Drained reports whether all has been read: another pass may begin to.
func (p *Pass) Drained() bool { return p.drained.Load() }

// Piece is N samples of a window that were given, from the Index-th on.
type Piece struct {
	Window  *Window
	Index   int64
	N, Lane int32
}

// Ahead returns the lanes of the next samples in their order, one or more, at most max > 0; none at the
// end. They are valid until the next call of Give.
func (p *Pass) Ahead(max int64) ([]int32, error) {
	for {
		lane, window, ok := p.merge.Needs()
		if !ok {
			break
		}
		if err := p.publish(lane, window); err != nil {
			return nil, err
		}
	}
	lanes := p.merge.Ahead(max)
	if len(lanes) == 0 {
		if _, err := p.receive(); err != errOver {
			return nil, err
		}
		if p.own != nil {
			return nil, p.all.check(true)
		}
	}
	return lanes, nil
}

// Give gives the first n > 0 samples of Ahead. It appends them to dst by lane, but for those of lanes that are read
// elsewhere; give each piece back with Take.
func (p *Pass) Give(n int, dst []Piece) []Piece {
	for _, x := range p.merge.Give(n) {
		if p.own != nil && !p.own[x.Lane] {
			continue
		}
		q := p.queue[x.Lane]
		for q[0].Window != x.Window {
			q[0] = nil
			q = q[1:]
		}
		p.queue[x.Lane] = q
		dst = append(dst, Piece{q[0], x.Index, x.N, x.Lane})
	}
	return dst
}

// Take says that samples are of no more use: their rows were copied, or are not wanted.
func (p *Pass) Take(x Piece) {
	w := x.Window
	if w.left == 0 {
		return // the pass was closed
	}
	if w.spill != nil {
		w.spill.take(x.Index, int64(x.N))
	}
	if w.left -= int64(x.N); w.left == 0 {
		p.drop(w)
	}
}

// drop gives up a window.
func (p *Pass) drop(w *Window) {
	delete(p.live, w)
	p.s.held -= w.size
	w.size, w.left = 0, 0
	w.free()
}

// Pos is where the pass stands.
func (p *Pass) Pos(dst []order.Pos) []order.Pos { return p.merge.Pos(dst) }

var errOver = errors.New("no more windows")

// receive takes a window from the collector.
func (p *Pass) receive() (collected, error) {
	p.Start()
	if p.over != nil {
		return collected{}, p.over
	}
	c, ok := <-p.ready
	switch {
	case !ok && p.ctx.Err() != nil:
		p.over = fault.WithCode(fault.Canceled, context.Cause(p.ctx))
	case !ok:
		p.over = errOver
	case c.err != nil:
		p.over = c.err
	}
	return c, p.over
}

// publish receives the next window and tells the merge how many samples it has.
func (p *Pass) publish(lane int, window int64) error {
	if p.own != nil && !p.own[lane] {
		return p.elsewhere(lane, window)
	}
	c, err := p.receive()
	if err == nil && (c.lane != lane || c.window != window) {
		err = internal("window %d of lane %d came instead of %d of %d", c.window, c.lane, window, lane)
	}
	if err == nil {
		err = p.all.join(c.skipped)
	}
	if err != nil {
		if c.w != nil {
			c.w.free()
		}
		return err
	}
	given := p.given(lane, window)
	p.s.c.Meter.Windows.Add(1)
	if c.m == 0 {
		p.s.c.Meter.Empty.Add(1)
	}
	switch w := c.w; {
	case w == nil:
	case c.m <= given:
		w.free()
	default:
		p.live[w] = struct{}{}
		w.left = c.m - given
		if p.s.held+w.size > p.s.room() {
			if err := p.spill(w, given); err != nil {
				return err
			}
		}
		p.s.held += w.size
		p.queue[lane] = append(p.queue[lane], w)
	}
	if c.seen != nil {
		close(c.seen)
	}
	if err := p.merge.Publish(lane, window, c.m); err != nil {
		return err
	}
	if f := p.s.c.Published; f != nil {
		f(p.epoch, p.num, lane, window, c.m)
	}
	return nil
}

// elsewhere is publish for a window of a lane that is read elsewhere.
func (p *Pass) elsewhere(lane int, window int64) error {
	from, to := p.order.Bounds(lane, window)
	m := to - from
	if !p.s.c.Known() {
		n, skipped, err := p.s.c.Elsewhere.Await(p.ctx, p.epoch, p.num, lane, window)
		if err == nil {
			err = p.all.join(skipped)
		}
		if err != nil {
			return err
		}
		m = n
	}
	if err := p.merge.Publish(lane, window, m); err != nil {
		return err
	}
	if f := p.s.c.Published; f != nil {
		f(p.epoch, p.num, lane, window, m)
	}
	return nil
}

// given is how many samples of a window were given before the pass began.
func (p *Pass) given(lane int, window int64) int64 {
	if p.from != nil && p.from[lane].Window == window {
		return p.from[lane].Given
	}
	return 0
}

// spill moves a window to disk, if it can be.
func (p *Pass) spill(w *Window, given int64) error {
	if w.spill != nil || !w.uniform() {
		return nil
	}
	if err := w.spillTo("", p.s.alloc, p.s.chunk(), given); err != nil {
		return err
	}
	p.s.c.Meter.Spilled.Add(1)
	return nil
}

// collect takes the next window of the plan from the engine; false at the end.
func (p *Pass) collect() (c collected, ok bool) {
	c, ok = p.read()
	if !ok || c.err != nil || p.own == nil {
		return c, ok
	}
	if !p.s.c.Known() {
		c.skipped = p.skipped.news()
		p.s.c.Elsewhere.Collected(p.epoch, p.num, c.lane, c.window, c.m, c.skipped)
	} else if from, to := p.order.Bounds(c.lane, c.window); c.m != to-from {
		if c.w != nil {
			c.w.free()
		}
		c = collected{err: internal("window %d of lane %d has %d samples of %d rows, though no step changes their number", c.window, c.lane, c.m, to-from)}
	}
	return c, ok
}

// read makes the next window of the plan; false at the end.
func (p *Pass) read() (c collected, ok bool) {
	plan, err := p.nextPlan()
	if err != nil || plan == nil {
		return collected{err: err}, err != nil
	}
	c = collected{lane: plan.lane, window: plan.window}
	if plan.given {
		from, to := p.order.Bounds(c.lane, c.window)
		c.m = to - from
		return c, true
	}
	if c.w, err = p.window(plan); err == nil && p.own == nil {
		err = p.skipped.check(false)
	}
	if err != nil {
		if c.w != nil {
			c.w.free()
		}
		return collected{err: err}, true
	}
	c.m = c.w.Count()
	c.w.index()
	c.w.measure(p.s.c.Exec.Budget, "places of "+p.s.c.Name)
	room := p.s.room()
	if c.w.size > room/aheadRoom {
		c.seen = make(chan struct{})
	}
	if given := p.given(c.lane, c.window); c.w.size > room && c.m > given { // it never fits
		if err := p.spill(c.w, given); err != nil {
			c.w.free()
			return collected{err: err}, true
		}
	}
	return c, true
}

// nextPlan goes from chunk to chunk; nil at the end.
func (p *Pass) nextPlan() (*winPlan, error) {
	if p.now == nil || p.now.at == len(p.now.wins) {
		if err := p.now.close(); err != nil {
			return nil, err
		}
		p.now, p.next = p.next, nil
		if p.now == nil && !p.planned {
			var err error
			if p.now, err = p.chunk(); err != nil {
				return nil, err
			}
		}
		if p.now == nil {
			return nil, nil
		}
	}
	plan := &p.now.wins[p.now.at]
	p.now.at++
	if !p.planned && p.next == nil && len(p.now.wins)-p.now.at <= nextChunk {
		var err error
		if p.next, err = p.chunk(); err != nil {
			return nil, err
		}
	}
	return plan, nil
}

// feed is the stream of a leaf's tasks.
type feed struct {
	stream exec.Stream
	meter  *Meter
	tasks  []*task
	rest   *exec.Block // taken from the stream, of the window to come
	ended  int         // tasks before this one are through
}

// take gives the blocks of task t up to its k-th edge to each, which takes them over; none is empty.
func (f *feed) take(ctx context.Context, t, k int, each func(*exec.Block) error, skipped *skips) (err error) {
	add := func(b *exec.Block) error {
		if b.Batch.NumRows() == 0 {
			b.Release()
			return nil
		}
		return each(b)
	}
	for f.ended <= t {
		b := f.rest
		if f.rest = nil; b == nil {
			b, err = f.stream.Next(ctx)
			if err == io.EOF {
				f.ended = len(f.tasks)
				break
			}
			if err != nil {
				return err
			}
			skipped.add(b.Skipped)
		}
		if b.Origin.Task > t {
			f.rest, f.ended = b, b.Origin.Task
			break
		}
		if b.End || b.Origin.Task < t {
			f.ended = max(f.ended, b.Origin.Task+1)
			b.Release()
			continue
		}
		edge, known := f.tasks[t].edge(k)
		if known && b.Row >= edge {
			f.rest = b
			break
		}
		if n := int(b.Batch.NumRows()); !known || b.Row+b.Span <= edge && (n == 0 || b.RowAt(n-1) < edge) {
			// The span of a part of a row's copies ends before that row.
			to := b.Row + b.Span
			if err := add(b); err != nil {
				return err
			}
			if known && to == edge && k < len(f.tasks[t].edges)-1 {
				break
			}
			continue
		}
		head, tail := halve(b, edge)
		f.rest = tail
		return add(head)
	}
	return nil
}

// halve cuts b, which it takes over, before position edge.
func halve(b *exec.Block, edge int64) (head, tail *exec.Block) {
	n := int(b.Batch.NumRows())
	i := sort.Search(n, func(i int) bool { return b.RowAt(i) >= edge })
	head, tail = b.Slice(0, i), b.Slice(i, n)
	head.Row, head.Span = b.Row, edge-b.Row
	tail.Row, tail.Span = edge, b.Row+b.Span-edge
	if tail.Rows == nil && i < n && b.RowAt(i) != edge { // positions were relative to Row
		rows := make([]int64, n-i)
		for k := range rows {
			rows[k] = b.RowAt(i + k)
		}
		tail.Rows = rows
	}
	var open atomic.Int32 // halves of different windows are released by different goroutines
	open.Store(2)
	release := func() {
		if open.Add(-1) == 0 {
			b.Release()
		}
	}
	head.OnRelease(release)
	tail.OnRelease(release)
	return head, tail
}
