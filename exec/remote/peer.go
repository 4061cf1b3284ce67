package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
	"github.com/penstock-data/penstock/internal/narrow"
)

const (
	// inlineBytes of blocks of a task may come without being asked for: small ones need no word between. Of all tasks of a node at most mostInline may, and no
	// more than a share of the leader's memory: see inlineOf. Each counts blockCost beside its bytes.
	inlineBytes = 64 << 10
	mostInline  = 4 << 20
	blockCost   = 256
	// partGrace is how long the end of a part that was told to stop is waited for while the run goes on: nobody else may write it before.
	partGrace = 15 * time.Second
)

const maxBlockWords = ipcrecord.MaxMeta + 4<<10

// inlineOf is what may come unasked from each of so many other nodes where the leader has so much memory: 1/16 of it from all.
func inlineOf(memory int64, nodes int) int64 { return min(mostInline, memory/16/int64(max(nodes, 1))) }

// peer is a node as its leader sees it: a [local.Node].
type peer struct {
	node   int
	l      *link
	enough int64 // of blocks of a task that came unasked is worth a word
	cpus   int
	room   atomic.Int64
	log    *slog.Logger
	fatal  func(error)   // the run cannot go on
	over   chan struct{} // the reader is gone
	said   sync.Map      // *arrow.Schema: its IPC metadata

	mu     sync.Mutex
	inline int64         // of blocks that may still come unasked
	owed   int64         // of those that came for tasks which were given up: they may come again, which has not been said
	watch  local.Watcher // nil: nobody reads yet
	tasks  map[uint64]*stream
	lost   error // why nothing comes from there any more
	ended  bool  // it has said that it is through
	ending bool  // it was told that the run is over
}

// stream is what comes of one task.
type stream struct {
	hand   *local.Hand
	begun  bool
	over   bool // there: nothing follows
	closed bool // here: nothing is wanted
	events []event
	wake   chan struct{} // room 1
	wants  int           // blocks that were asked for and have not come
	landed []*landing    // granted, for the next blocks that are not inline
	inline int64         // of blocks that came unasked: what the node may not send again yet
	used   int64         // of it: they are handled; whoever handles them only
}

// event is what a node said of a task: one of them.
type event struct {
	block *blockHead
	bytes *landing // of block; in Go memory, and paid for, where it is inline. Nil: there are none
	want  int64    // bytes; -1: none
	done  *local.Result
	read  int64 // of done
	err   error
}

func newPeer(node int, l *link, cpus, room int, inline int64, fatal func(error), log *slog.Logger) *peer {
	p := &peer{log: log, node: node, l: l, cpus: cpus, fatal: fatal, over: make(chan struct{}), tasks: map[uint64]*stream{}, inline: inline, enough: min(inline, inlineBytes) / 2}
	p.room.Store(int64(room))
	return p
}

// CPUs implements local.Node.
func (p *peer) CPUs() int { return p.cpus }

// Room implements local.Node.
func (p *peer) Room() int { return int(p.room.Load()) }

// Watch implements local.Node.
func (p *peer) Watch(w local.Watcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watch == nil {
		go p.read()
	}
	p.watch = w
}

func (p *peer) watcher() local.Watcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.watch
}

// Urge implements local.Node.
func (p *peer) Urge(id uint64, on bool) {
	p.l.say(kindUrge, func(b []byte) []byte { return putFlag(putUint(b, id), on) })
}

func (p *peer) name() string { return fmt.Sprint(p.node) }

// Do implements local.Node.
func (p *peer) Do(ctx context.Context, t *local.Task, h *local.Hand) (*local.Result, error) {
	s, err := p.send(t, h)
	if err != nil {
		return nil, err
	}
	defer p.forget(t.ID, s)
	done := ctx.Done()
	var over <-chan struct{}
	var late <-chan time.Time
	for {
		if r, err := p.handle(ctx, t, s, late == nil); r != nil || err != nil {
			return r, err
		}
		select {
		case <-s.wake:
		case <-done:
			if t.Part < 0 {
				return nil, context.Cause(ctx)
			}
			p.cancel(t.ID)
			done, over = nil, h.Over
			timer := time.NewTimer(partGrace)
			defer timer.Stop()
			late = timer.C
		case <-over:
			return nil, context.Cause(ctx)
		case <-late:
			return nil, context.Cause(ctx)
		}
	}
}

// send says a task, and begins to take in what comes of it, until forget.
func (p *peer) send(t *local.Task, h *local.Hand) (*stream, error) {
	s := &stream{hand: h, wake: make(chan struct{}, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil || p.ended {
		return nil, local.ErrMoved
	}
	p.tasks[t.ID] = s
	p.l.say(kindTask, func(b []byte) []byte {
		t.Urgent = h.Urgent()
		return putTask(b, t)
	})
	return s, nil
}

// handle does what the events of a task say; neither a result nor an error: it goes on. Blocks that are not wanted are let go of.
func (p *peer) handle(ctx context.Context, t *local.Task, s *stream, wanted bool) (*local.Result, error) {
	for {
		e, ok := p.take(s)
		if !ok {
			return nil, nil
		}
		switch {
		case e.err != nil:
			return nil, e.err
		case e.done != nil:
			s.hand.Read(e.read)
			return e.done, nil
		case !wanted:
			if e.bytes != nil {
				e.bytes.Release()
			}
		case e.block != nil:
			if err := p.emit(t, s.hand, e); err != nil && ctx.Err() == nil {
				return nil, err
			}
		default:
			p.land(t.ID, s, e.want)
		}
		if e.block != nil && e.block.inline {
			if s.used += e.block.cost(); s.used >= p.enough {
				p.allow(t.ID, s, s.used)
				s.used = 0
			}
		}
	}
}

// take removes the next event of a task.
func (p *peer) take(s *stream) (event, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(s.events) == 0 {
		return event{}, false
	}
	e := s.events[0]
	s.events[0] = event{}
	s.events = s.events[1:]
	return e, true
}

func (p *peer) cancel(id uint64) {
	p.l.say(kindCancel, func(b []byte) []byte { return putUint(b, id) })
}

// forget ends a task here, and at the node unless it is over there. What still comes of it is not wanted.
func (p *peer) forget(id uint64, s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.over {
		p.cancel(id)
	}
	delete(p.tasks, id)
	s.closed = true
	for _, e := range s.events {
		if e.bytes != nil {
			e.bytes.Release()
		}
	}
	for _, b := range s.landed {
		b.Release()
	}
	s.events, s.landed = nil, nil
	p.allowLocked(id, s, s.inline)
}

// allow lets a node send again what it has sent unasked of a task.
func (p *peer) allow(id uint64, s *stream, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allowLocked(id, s, n)
}

// allowLocked is allow; it needs p.mu.
func (p *peer) allowLocked(id uint64, s *stream, n int64) {
	if n > 0 {
		s.inline -= n
		p.inline += n
		p.grant(id, true, n)
	}
}

func (p *peer) grant(id uint64, inline bool, n int64) {
	p.l.say(kindGrant, func(b []byte) []byte { return putUint(putFlag(putUint(b, id), inline), n) })
}

// land takes memory for a block of n bytes and lets it come, unless the attempt is over. When memory is out, the allocator panics, as with whatever else takes it in
// an attempt.
func (p *peer) land(id uint64, s *stream, n int64) {
	mem, ok := s.hand.Take(int(n))
	if !ok {
		return
	}
	p.mu.Lock()
	s.landed = append(s.landed, newLanding(s.hand.Alloc, mem, nil))
	p.mu.Unlock()
	p.grant(id, false, n)
}

// read is the goroutine that reads what the node says, until nothing more comes.
func (p *peer) read() {
	defer close(p.over)
	err := p.listen()
	p.room.Store(0)
	p.mu.Lock()
	switch {
	case p.ended:
		err = errEnded
	case !p.ending:
		p.log.Warn("a node is lost: its tasks run elsewhere", "node", p.node, "tasks", len(p.tasks), "error", err)
	}
	p.lost = err
	for i, id := range slices.Sorted(maps.Keys(p.tasks)) {
		s := p.tasks[id]
		e := event{want: -1, err: local.ErrMoved}
		if s.begun || i < p.cpus { // what comes first begins first, and that may not have been said any more
			e.err = fault.New(fault.WorkerLost, "node %d was lost while it was at work on this: %w", p.node, err)
		}
		s.push(e)
	}
	p.mu.Unlock()
	p.watcher().RoomChanged()
	p.l.fail(err)
}

var errEnded = errors.New("it is through")

// push adds an event; it needs p.mu.
func (s *stream) push(e event) {
	if s == nil || s.over || s.closed {
		if e.bytes != nil {
			e.bytes.Release()
		}
		return
	}
	s.over = e.done != nil || e.err != nil
	s.events = append(s.events, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (p *peer) listen() error {
	var buf []byte
	for {
		kind, said, err := p.l.next(buf)
		if err != nil {
			return err
		}
		if cap(said) <= 1<<20 {
			buf = said
		}
		if over, err := p.heard(kind, &words{b: said}); over || err != nil {
			return err
		}
	}
}

// heard does what a message says; over: nothing follows.
func (p *peer) heard(kind byte, w *words) (over bool, err error) {
	switch kind {
	case kindPing:
	case kindRoom:
		p.room.Store(w.num(maxOpen))
		p.watcher().RoomChanged()
	case kindNews:
		grown, held, peak, moved := takeGrown(w), w.num(1<<60), w.num(1<<60), w.flag()
		if err := w.end(); err != nil {
			return false, err
		}
		p.watcher().Count(grown, held, peak)
		if moved {
			p.watcher().Moved()
		}
	case kindBegun:
		id := w.uint()
		p.mu.Lock()
		if s := p.tasks[id]; s != nil {
			s.begun = true
		}
		p.mu.Unlock()
	case kindWant:
		id, n := w.uint(), w.num(maxBlock)
		if err := p.wanted(id, n); err != nil {
			return false, err
		}
	case kindBlock:
		h := takeBlockHead(w)
		if err := w.end(); err != nil {
			return false, err
		}
		if err := p.body(h); err != nil {
			return false, err
		}
	case kindDone:
		id := w.uint()
		r := &local.Result{Rows: w.num(1 << 60), Ratio: w.num(1 << 60)}
		read := w.num(1 << 60)
		r.Report = append([]byte(nil), w.bytes(maxWords)...)
		p.push(id, event{want: -1, done: r, read: read})
	case kindFail:
		id := w.uint()
		e := takeError(w)
		if e.Node == "" {
			e.Node = p.name()
		}
		p.push(id, event{want: -1, err: e})
	case kindEnd:
		ok := w.flag()
		if !ok {
			e := takeError(w)
			if err := w.end(); err != nil {
				return false, err
			}
			p.fatal(e.At(fault.Place{Node: p.name()}))
			return false, e
		}
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		over = true
	default:
		return false, errWords
	}
	return over, w.end()
}

func (p *peer) push(id uint64, e event) {
	p.mu.Lock()
	p.tasks[id].push(e)
	p.mu.Unlock()
}

// wanted is a block of a task that waits at the node.
func (p *peer) wanted(id uint64, n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.tasks[id]
	if s == nil || s.over {
		return nil
	}
	if s.wants++; s.wants > mostWaiting {
		return errWords
	}
	s.push(event{want: n})
	return nil
}

// body reads the bytes of a block to where they are to be.
func (p *peer) body(h *blockHead) error {
	n := h.bytes()
	p.mu.Lock()
	s := p.tasks[h.id]
	if s != nil && s.over {
		s = nil
	}
	var buf *landing
	switch {
	case h.inline && (h.cost() > p.inline || s != nil && h.cost() > inlineBytes-s.inline):
		p.mu.Unlock()
		return errWords // more than may come unasked
	case s == nil: // of a task that was given up
		if h.inline {
			p.inline -= h.cost()
			if p.owed += h.cost(); p.owed >= p.enough {
				p.inline += p.owed
				p.grant(h.id, true, p.owed)
				p.owed = 0
			}
		}
		p.mu.Unlock()
		return noEOF(narrow.Skip(p.l.br, h.size()))
	case h.inline:
		p.inline -= h.cost()
		s.inline += h.cost()
	case len(s.landed) == 0 || int64(s.landed[0].Len()) != n:
		p.mu.Unlock()
		return errWords // not what was granted
	default:
		buf, s.landed = s.landed[0], s.landed[1:]
		s.wants--
	}
	p.mu.Unlock()
	if h.inline && n > 0 {
		buf = newLanding(memory.DefaultAllocator, memory.DefaultAllocator.Allocate(int(n)), s.hand.Charge(n))
	}
	if buf != nil {
		if err := narrow.Read(p.l.br, buf.Bytes()[:h.size()]); err != nil {
			buf.Release()
			return noEOF(err)
		}
		copy(buf.Bytes()[h.size():], h.meta)
		h.meta = buf.Bytes()[h.size():]
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.push(event{want: -1, block: h, bytes: buf})
	return nil
}

// end tells the node that the run is over, waits a moment for it to end, and joins what reads.
func (p *peer) end(err error) {
	sayEnd(p.l, err)
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	if p.watcher() == nil {
		p.l.close()
		return
	}
	late := time.NewTimer(lastWords)
	defer late.Stop()
	select {
	case <-p.over:
	case <-late.C:
	}
	p.l.close()
	<-p.over
}
