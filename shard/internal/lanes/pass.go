package lanes

import (
	"context"
	"errors"
	"io"
	"math"
	"sort"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// Pass is one way through a source. For one goroutine.
type Pass struct {
	s          *Source
	epoch, num uint64
	key        order.Key
	order      *order.Pass
	merge      *order.Merge
	plan       *order.Production
	from       []order.Pos // where it began; nil: at the beginning
	ctx        context.Context
	cancel     context.CancelFunc
	lots       []*lot
	now, next  *chunk
	peek       *winPlan    // the first window of the chunk to come
	planned    bool        // plan is at its end
	queue      [][]*Window // by lane: published, in order
	live       map[*Window]struct{}
	skipped    letters
	permute    permuter
	segs       []order.Segment
}

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
		queue: make([][]*Window, o.Lanes()), live: map[*Window]struct{}{}, skipped: newLetters(s),
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	for i, l := range s.c.Leaves {
		p.lots = append(p.lots, newLot(p.ctx, l.Stage.Scan.Table, s.c.Exec.Budget, "lanes of "+s.c.Name, s.bytes(i)))
	}
	return p, nil
}

// Close gives everything up but records that somebody else retained.
func (p *Pass) Close() error {
	p.cancel()
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
func (p *Pass) Start() (err error) {
	if p.now == nil && !p.planned {
		p.now, err = p.chunk()
	}
	return err
}

// Drained reports whether all has been read: another pass may begin to.
func (p *Pass) Drained() bool {
	return p.planned && p.next == nil && (p.now == nil || p.now.at == len(p.now.wins))
}

// Sample is a sample of a pass.
type Sample struct {
	Lane   int
	Window *Window
	Index  int64
}

// Next gives the next sample; false at the end. Give it back with Take.
func (p *Pass) Next() (Sample, bool, error) {
	for {
		lane, window, ok := p.merge.Needs()
		if !ok {
			break
		}
		if err := p.publish(lane, window); err != nil {
			return Sample{}, false, err
		}
	}
	m, ok := p.merge.Next()
	if !ok {
		return Sample{}, false, p.skipped.check(true)
	}
	q := p.queue[m.Lane]
	for q[0].Window != m.Window {
		q = q[1:]
	}
	p.queue[m.Lane] = q
	if sp := q[0].spill; sp != nil {
		if err := sp.load(m.Index); err != nil {
			return Sample{}, false, err
		}
	}
	return Sample{int(m.Lane), q[0], m.Index}, true, nil
}

// Take says that a sample is of no more use: its rows were copied, or are not wanted.
func (p *Pass) Take(s Sample) {
	w := s.Window
	if _, ok := p.live[w]; !ok {
		return // the pass was closed
	}
	if w.spill != nil {
		w.spill.take(s.Index)
	}
	if w.left--; w.left == 0 {
		p.drop(w)
	}
}

// drop gives up a window.
func (p *Pass) drop(w *Window) {
	delete(p.live, w)
	p.s.held -= w.size
	w.size = 0
	w.free()
}

// Pos is where the pass stands.
func (p *Pass) Pos(dst []order.Pos) []order.Pos { return p.merge.Pos(dst) }

// publish collects a window and tells the merge how many samples it has.
func (p *Pass) publish(lane int, window int64) error {
	w, m, err := p.collect(lane, window)
	if err != nil {
		return err
	}
	if w == nil {
		return p.published(lane, window, m)
	}
	given := int64(0)
	if p.from != nil && p.from[lane].Window == window {
		given = p.from[lane].Given
	}
	p.live[w] = struct{}{}
	if w.left = m - given; w.left <= 0 {
		p.drop(w)
		return p.published(lane, window, m)
	}
	w.index()
	for _, r := range w.Recs {
		w.size += exec.SizeOf(r.Batch)
	}
	if room := p.s.c.Exec.Budget.Limit() / p.s.c.share(); p.s.held+w.size > room {
		if err := w.spillTo("", p.s.alloc, given); err != nil {
			return err
		}
		w.size = 0
	}
	p.s.held += w.size
	p.queue[lane] = append(p.queue[lane], w)
	return p.published(lane, window, m)
}

// published tells everybody how many samples a window has.
func (p *Pass) published(lane int, window, m int64) error {
	if err := p.merge.Publish(lane, window, m); err != nil {
		return err
	}
	if f := p.s.c.Published; f != nil {
		f(p.epoch, p.num, lane, window, m)
	}
	return nil
}

// collect takes the next window of the plan from the engine. It is nil where nothing had to be read.
func (p *Pass) collect(lane int, window int64) (*Window, int64, error) {
	if p.now == nil || p.now.at == len(p.now.wins) {
		if err := p.now.close(); err != nil {
			return nil, 0, err
		}
		p.now, p.next = p.next, nil
		if err := p.Start(); err != nil {
			return nil, 0, err
		}
	}
	if p.now == nil || p.now.at == len(p.now.wins) || p.now.wins[p.now.at].lane != lane || p.now.wins[p.now.at].window != window {
		return nil, 0, internal("window %d of lane %d is not the next one planned", window, lane)
	}
	plan := &p.now.wins[p.now.at]
	p.now.at++
	if !p.planned && p.next == nil && len(p.now.wins)-p.now.at <= nextChunk {
		var err error
		if p.next, err = p.chunk(); err != nil {
			return nil, 0, err
		}
	}
	if plan.given {
		from, to := p.order.Bounds(lane, window)
		return nil, to - from, nil
	}
	w := &Window{Lane: lane, Window: window}
	blocks, base, n, err := p.blocks(plan)
	for _, b := range blocks {
		w.Recs = append(w.Recs, blockRec(p.s.c.Name, b))
	}
	if err == nil && n > math.MaxInt32 {
		err = internal("a window of %d rows", n)
	}
	if err != nil {
		w.Release()
		return nil, 0, err
	}
	if p.s.c.Shape.Mode == order.Window {
		key := p.key.Rows(lane, window)
		w.Runs = p.permute.sort(blocks, base, p.permute.ranks(int(n), func(s []int32) { order.Perm(key, s) }))
	} else {
		w.Runs = inOrder(blocks)
	}
	if t := p.s.c.Transform; t != nil {
		rows, err := t(p.s.alloc, &w.Rows)
		w.Rows.Release()
		if err != nil {
			return nil, 0, err
		}
		w.Rows = *rows
	}
	return w, w.Count(), p.skipped.check(false)
}

// blocks takes the rows of a window, n source rows: row r of the split of block i is the
// source row base[i]+r of the window. What it returns with an error is the caller's, too.
func (p *Pass) blocks(w *winPlan) (blocks []*exec.Block, base []int64, n int64, err error) {
	for _, s := range w.segs {
		var first, end int64
		if s.task >= 0 {
			f := p.now.feeds[s.leaf]
			had := len(blocks)
			blocks, first, end, err = f.take(p.ctx, s.task, s.edge, blocks, &p.skipped)
			if err != nil {
				return blocks, base, n, err
			}
			if !p.s.bytes(s.leaf) {
				first = s.from
			}
			for range blocks[had:] {
				base = append(base, n-first)
			}
		}
		p.skipped.rows += end - first
		if !p.s.bytes(s.leaf) {
			end, first = s.rows, 0
		}
		n += end - first
	}
	return blocks, base, n, nil
}

// feed is the stream of a leaf's tasks.
type feed struct {
	stream exec.Stream
	tasks  []*task
	rest   *exec.Block // taken from the stream, of the window to come
	ended  int         // tasks before this one are through
}

// take appends the blocks of task t up to its k-th edge. They cover rows first to end-1 of the split.
func (f *feed) take(ctx context.Context, t, k int, blocks []*exec.Block, skipped *letters) (_ []*exec.Block, first, end int64, err error) {
	first, end = -1, -1
	add := func(b *exec.Block) {
		if first < 0 {
			first = b.Row
		}
		end = b.Row + b.Span
		if b.Batch.NumRows() == 0 {
			b.Release()
			return
		}
		blocks = append(blocks, b)
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
				return blocks, first, end, err
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
		if !known || b.Row+b.Span <= edge {
			to := b.Row + b.Span
			add(b)
			if known && to == edge && k < len(f.tasks[t].edges)-1 {
				break
			}
			continue
		}
		head, tail := halve(b, edge)
		add(head)
		f.rest = tail
		break
	}
	return blocks, max(first, 0), max(end, 0), nil
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
	open := 2
	release := func() {
		if open--; open == 0 {
			b.Release()
		}
	}
	head.OnRelease(release)
	tail.OnRelease(release)
	return head, tail
}
