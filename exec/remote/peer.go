package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
)

const (
	// inlineBytes of blocks of a task may come without being asked for: small ones need no word between.
	inlineBytes = 64 << 10
	// partGrace is how long the end of a part that was told to stop is waited for: nobody else may write it before.
	partGrace = 15 * time.Second
)

const maxBlockWords = ipcrecord.MaxMeta + 4<<10

// peer is a node as its leader sees it: a [local.Node].
type peer struct {
	node  int
	l     *link
	cpus  int
	room  atomic.Int64
	log   *slog.Logger
	fatal func(error)   // the run cannot go on
	over  chan struct{} // the reader is gone
	said  sync.Map      // *arrow.Schema: its IPC metadata

	mu     sync.Mutex
	watch  local.Watcher // nil: nobody reads yet
	tasks  map[uint64]*stream
	lost   error // why nothing comes from there any more
	ended  bool  // it has said that it is through
	ending bool  // it was told that the run is over
}

// stream is what comes of one task.
type stream struct {
	begun  bool
	closed bool
	events []event
	wake   chan struct{} // room 1
	wants  int           // blocks that were asked for and have not come
	landed []*landing    // granted, for the next blocks that are not inline
}

// event is what a node said of a task: one of them.
type event struct {
	block *blockHead
	bytes *landing // of block; in Go memory where it is inline
	want  int64    // bytes; -1: none
	done  *local.Result
	read  int64 // of done
	err   error
}

func newPeer(node int, l *link, cpus, room int, fatal func(error), log *slog.Logger) *peer {
	p := &peer{log: log, node: node, l: l, cpus: cpus, fatal: fatal, over: make(chan struct{}), tasks: map[uint64]*stream{}}
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
	s := &stream{wake: make(chan struct{}, 1)}
	p.mu.Lock()
	if p.lost != nil || p.ended {
		p.mu.Unlock()
		return nil, local.ErrMoved
	}
	p.tasks[t.ID] = s
	p.mu.Unlock()
	defer p.forget(t.ID, s)
	p.l.say(kindTask, func(b []byte) []byte { return putTask(b, t) })
	var inline int64 // taken in since the last grant
	done := ctx.Done()
	var late <-chan time.Time
	for {
		for {
			e, ok := p.take(s)
			if !ok {
				break
			}
			switch {
			case e.err != nil:
				return nil, e.err
			case e.done != nil:
				h.Read(e.read)
				return e.done, nil
			case late != nil: // nobody wants it any more
				if e.bytes != nil {
					e.bytes.Release()
				}
			case e.block != nil:
				if err := p.emit(t, h, e); err != nil && ctx.Err() == nil {
					p.l.say(kindCancel, func(b []byte) []byte { return putUint(b, t.ID) })
					return nil, err
				}
				if e.block.inline {
					if inline += e.block.size(); inline >= inlineBytes/2 {
						p.grant(t.ID, true, inline)
						inline = 0
					}
				}
			default:
				if err := p.land(ctx, t.ID, s, h, e.want); err != nil {
					return nil, err
				}
			}
		}
		select {
		case <-s.wake:
		case <-done:
			p.l.say(kindCancel, func(b []byte) []byte { return putUint(b, t.ID) })
			if t.Part < 0 {
				return nil, context.Cause(ctx)
			}
			done = nil
			timer := time.NewTimer(partGrace)
			defer timer.Stop()
			late = timer.C
		case <-late:
			return nil, context.Cause(ctx)
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

// forget ends a task here. What still comes of it is not wanted.
func (p *peer) forget(id uint64, s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
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
}

func (p *peer) grant(id uint64, inline bool, n int64) {
	p.l.say(kindGrant, func(b []byte) []byte { return putUint(putFlag(putUint(b, id), inline), n) })
}

// land takes memory for a block of n bytes and lets it come. When memory is out, the allocator panics, as with whatever else takes it in an attempt.
func (p *peer) land(ctx context.Context, id uint64, s *stream, h *local.Hand, n int64) error {
	buf := newLanding(h.Alloc, n)
	p.mu.Lock()
	s.landed = append(s.landed, buf)
	p.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	p.grant(id, false, n)
	return nil
}

// emit hands on a block that has come.
func (p *peer) emit(t *local.Task, h *local.Hand, e event) error {
	k := e.block
	buf := e.bytes
	if k.inline && k.size() > 0 { // into memory that is paid for
		buf = newLanding(h.Alloc, k.size())
		copy(buf.Bytes(), e.bytes.Bytes())
		e.bytes.Release()
	}
	if buf != nil {
		defer buf.Release()
	}
	end := t.Split + 1
	if t.Part >= 0 {
		end = t.End
	}
	if k.split < t.Split || k.split >= end {
		return errWords
	}
	h.Read(k.read)
	b, err := k.block(h, p.schema(h.Schema), buf)
	if err != nil {
		buf.lose()
		return fault.Wrap(err, fault.Place{Node: p.name()})
	}
	return h.Emit(b)
}

// schema is s in IPC metadata.
func (p *peer) schema(s *arrow.Schema) []byte {
	if b, ok := p.said.Load(s); ok {
		return b.([]byte)
	}
	b, _ := p.said.LoadOrStore(s, ipcrecord.Schema(s))
	return b.([]byte)
}

// block makes the block whose bytes are buf, which may be nil if there are none.
func (k *blockHead) block(h *local.Hand, schema []byte, buf *landing) (*exec.Block, error) {
	b := &exec.Block{Row: k.row, Span: k.span, Origin: exec.Origin{Task: k.split}}
	var rest []byte
	if k.rows == 0 {
		none := h.None()
		none.Retain()
		b.Batch = none
	} else {
		rows := memory.NewBufferBytes(nil)
		if k.record > 0 {
			rows = memory.SliceBuffer(buf.Buffer, 0, int(k.record))
		}
		rec, err := ipcrecord.Decode(schema, k.meta, rows)
		rows.Release()
		if err != nil {
			return nil, err
		}
		b.Batch, err = as(rec, h.Schema, k.rows)
		rec.Release()
		if err != nil {
			return nil, err
		}
	}
	if k.rest > 0 {
		rest = buf.Bytes()[k.record:]
	}
	if err := takeRest(rest, b, k.rows, h.Alloc); err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

// as is rec as a record of n rows of the very schema that was said.
func as(rec arrow.RecordBatch, schema *arrow.Schema, n int64) (arrow.RecordBatch, error) {
	if rec.NumRows() != n || int(rec.NumCols()) != schema.NumFields() {
		return nil, errWords
	}
	for i, f := range schema.Fields() {
		if !arrow.TypeEqual(f.Type, rec.Column(i).DataType()) {
			return nil, fault.New(fault.Unsupported, "column %q of type %s comes as %s from another process: register the extension type in both", f.Name, f.Type, rec.Column(i).DataType())
		}
	}
	return array.NewRecordBatch(schema, rec.Columns(), n), nil
}

// landing is memory for the bytes of a block, of an allocator.
type landing struct {
	*memory.Buffer
	memory.Allocator
	mem   []byte
	freed atomic.Bool
}

func newLanding(alloc memory.Allocator, n int64) *landing {
	l := &landing{Allocator: alloc, mem: alloc.Allocate(int(n))}
	l.Buffer = memory.NewBufferWithAllocator(l.mem, l)
	return l
}

// Free implements memory.Allocator, for the buffer's last reference.
func (l *landing) Free([]byte) {
	if l.freed.CompareAndSwap(false, true) {
		l.Allocator.Free(l.mem)
	}
}

// lose gives the memory back where arrow-go's reader has lost references to it, as it does of batches that turn out to be damaged.
func (l *landing) lose() {
	if l != nil {
		l.Free(nil)
	}
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
	if s == nil || s.closed {
		if e.bytes != nil {
			e.bytes.Release()
		}
		return
	}
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
		w := &words{b: said}
		switch kind {
		case kindPing:
		case kindRoom:
			p.room.Store(w.num(maxOpen))
			p.watcher().RoomChanged()
		case kindNews:
			grown, held, peak, moved := takeGrown(w), w.num(1<<60), w.num(1<<60), w.flag()
			if err := w.end(); err != nil {
				return err
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
				return err
			}
		case kindBlock:
			h := takeBlockHead(w)
			if err := w.end(); err != nil {
				return err
			}
			h.meta = append([]byte(nil), h.meta...)
			if err := p.body(h); err != nil {
				return err
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
					return err
				}
				p.fatal(e.At(fault.Place{Node: p.name()}))
				return e
			}
			p.mu.Lock()
			p.ended = true
			p.mu.Unlock()
			return nil
		default:
			return errWords
		}
		if err := w.end(); err != nil {
			return err
		}
	}
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
	if s == nil {
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
	n := h.size()
	p.mu.Lock()
	s := p.tasks[h.id]
	var buf *landing
	if s != nil && !h.inline {
		if len(s.landed) == 0 || int64(s.landed[0].Len()) != n {
			p.mu.Unlock()
			return errWords // not what was granted
		}
		buf, s.landed = s.landed[0], s.landed[1:]
		s.wants--
	}
	p.mu.Unlock()
	switch {
	case s == nil: // of a task that was given up
		_, err := io.CopyN(io.Discard, p.l.br, n)
		return noEOF(err)
	case h.inline && n > 0:
		buf = newLanding(memory.DefaultAllocator, n)
	}
	if buf != nil {
		if _, err := io.ReadFull(p.l.br, buf.Bytes()); err != nil {
			buf.Release()
			return noEOF(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.push(event{want: -1, block: h, bytes: buf})
	return nil
}

// end tells the node that the run is over, waits a moment for it to end, and joins what reads.
func (p *peer) end(err error) {
	p.l.say(kindEnd, func(b []byte) []byte {
		if err == nil {
			return putFlag(b, true)
		}
		return putError(putFlag(b, false), err)
	})
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
