package remote

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/narrow"
)

// script is a connection whose other side said everything beforehand, and does not listen.
type script struct {
	net.Conn
	io.Reader
}

func (s script) Read(p []byte) (int, error)      { return s.Reader.Read(p) }
func (s script) Write(p []byte) (int, error)     { return len(p), nil }
func (s script) Close() error                    { return nil }
func (s script) SetReadDeadline(time.Time) error { return nil }

// FuzzPeer: whatever a node says, its leader neither breaks nor takes memory that was not granted.
func FuzzPeer(f *testing.F) {
	rec := aRecord(memory.DefaultAllocator, 50)
	defer rec.Release()
	for _, said := range everything(f, rec) {
		f.Add(said)
	}
	f.Fuzz(func(t *testing.T, said []byte) { hearAll(t, rec, said) })
}

// everything is what a node may say, in three forms.
func everything(t testing.TB, rec arrow.RecordBatch) [][]byte {
	r, err := ipcrecord.New(rec)
	if err != nil {
		t.Fatal(err)
	}
	defer r.End()
	var body bytes.Buffer
	if err := r.Write(narrow.NewWriter(&body)); err != nil {
		t.Fatal(err)
	}
	h := &blockHead{id: 1, split: 2, span: 50, rows: 50, read: 50, inline: true, meta: r.Meta, record: r.Size}
	said := message(nil, kindBegun, func(b []byte) []byte { return putUint(b, 1) })
	said = append(message(said, kindBlock, h.put), body.Bytes()...)
	said = message(said, kindNews, func(b []byte) []byte {
		return putFlag(putUint(putUint(putGrown(b, []int64{1, 2}, []int64{0, 0}), 5), 6), true)
	})
	said = message(said, kindRoom, func(b []byte) []byte { return putUint(b, 8) })
	said = message(said, kindWant, func(b []byte) []byte { return putUint(putUint(b, 1), 1<<16) })
	return [][]byte{
		message(bytes.Clone(said), kindDone, func(b []byte) []byte { return putBytes(putUint(putUint(putUint(putUint(b, 1), 50), 7), 50), "") }),
		message(bytes.Clone(said), kindFail, func(b []byte) []byte { return putError(putUint(b, 1), fault.New(fault.UserCode, "x")) }),
		message(bytes.Clone(said), kindEnd, func(b []byte) []byte { return putFlag(b, true) }),
	}
}

// TestDamage is a little of FuzzPeer.
func TestDamage(t *testing.T) {
	rec := aRecord(memory.DefaultAllocator, 50)
	defer rec.Release()
	said := everything(t, rec)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	d := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		b := bytes.Clone(said[d.IntN(len(said))])
		for range 1 + d.IntN(3) {
			b[d.IntN(len(b))] = byte(d.Uint32())
		}
		hearAll(t, rec, b[:d.IntN(len(b)+1)])
	}
}

// hearAll has a leader hear what a node says, message by message, on one goroutine: what happens depends on the words alone.
func hearAll(t *testing.T, rec arrow.RecordBatch, said []byte) {
	alloc := memtest.New(t)
	const most = 64 << 10
	var charged int64
	p, s := deafPeer(rec, most, bounded{alloc}, func(n int64) func() {
		if charged += n; charged > most {
			t.Errorf("%d bytes came unasked, of %d", charged, most)
		}
		return func() { charged -= n }
	})
	p.l.br = bufio.NewReaderSize(bytes.NewReader(said), readBuffer)
	task := &local.Task{ID: 1, Split: 2, Part: -1, To: -1, Attempt: 1}
	defer func() {
		if e := recover(); e != nil && fault.CodeOf(e.(error)) != fault.Exhausted { // the allocator's
			panic(e)
		}
		p.forget(1, s)
		if charged != 0 || p.inline+p.owed != most {
			t.Errorf("%d bytes are still paid for, and %d and %d of %d may come unasked", charged, p.inline, p.owed, most)
		}
	}()
	var buf []byte
	for {
		kind, said, err := p.l.next(buf)
		if err != nil {
			return
		}
		buf = said
		if over, err := p.heard(kind, &words{b: said}); over || err != nil {
			return
		}
		if d := len(p.l.said); d > 1<<20 {
			t.Fatalf("%d bytes of answers wait", d)
		}
		if r, err := p.handle(t.Context(), task, s, true); r != nil || err != nil {
			return
		}
	}
}

// deafPeer is a peer of which nothing is read or written, with a task 1 whose blocks are as rec.
func deafPeer(rec arrow.RecordBatch, inline int64, alloc memory.Allocator, charge func(int64) func()) (*peer, *stream) {
	p := newPeer(1, &link{c: script{}, wake: make(chan struct{}, 1)}, 2, 2, inline, func(error) {}, slog.New(slog.DiscardHandler))
	p.watch = deaf{}
	none := rec.NewSlice(0, 0)
	s, _ := p.send(&local.Task{ID: 1, Split: 2, Part: -1, To: -1, Attempt: 1}, &local.Hand{Schema: rec.Schema(), None: func() arrow.RecordBatch { return none },
		Alloc: alloc, Take: func(n int) ([]byte, bool) { return alloc.Allocate(n), true }, Read: func(int64) {}, Urgent: func() bool { return true }, Charge: charge, Emit: func(b *exec.Block) error {
			b.Release()
			return nil
		}})
	return p, s
}

// deaf is a Watcher.
type deaf struct{}

func (deaf) RoomChanged()                {}
func (deaf) Count([]int64, int64, int64) {}
func (deaf) Moved()                      {}

// FuzzServer: whatever a leader says after a hello that fits, a node neither breaks nor keeps anything once that is over.
func FuzzServer(f *testing.F) {
	task := func(b []byte, id uint64, split int) []byte {
		return message(b, kindTask, func(b []byte) []byte {
			return putTask(b, &local.Task{ID: id, Part: -1, Split: split, To: -1, Attempt: 1, Urgent: split == 1})
		})
	}
	about := func(b []byte, kind byte, id uint64, more ...byte) []byte {
		return message(b, kind, func(b []byte) []byte { return append(putUint(b, id), more...) })
	}
	said := task(task(task(nil, 1, 0), 2, 1), 3, 2)
	said = about(about(about(said, kindUrge, 3, 1), kindUrge, 3, 0), kindCancel, 2)
	said = about(said, kindGrant, 1, putUint([]byte{1}, 1000)...)
	f.Add(message(bytes.Clone(said), kindEnd, func(b []byte) []byte { return putFlag(b, true) }))
	f.Add(message(message(bytes.Clone(said), kindPing, nil), kindEnd, func(b []byte) []byte { return putError(putFlag(b, false), errors.New("x")) }))
	f.Add(about(said, kindGrant, 1, putUint([]byte{0}, 150_000)...))
	f.Add(message(nil, kindBegin, nil))
	f.Fuzz(func(t *testing.T, said []byte) { serveAll(t, said) })
}

// TestUrgentFirst: a task that comes as urgent begins at once, whatever waits: another attempt at the head, behind tasks that wait for memory.
func TestUrgentFirst(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	tb := exectest.NewTable(3, 10)
	set, memory, err := local.SettingsOf(&exec.Options{CPUs: 1, Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	w, err := local.New(nil).Worker(ctx, exectest.Scan(tb), nil, &exec.Options{CPUs: 1, Memory: 1 << 20}, set)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{l: newLink(script{Reader: bytes.NewReader(nil)}), w: w, ctx: ctx, cancel: cancel, tasks: map[uint64]*task{}, joined: true, inline: inlineOf(memory, 1), counts: w.Counts()}
	for id := range uint64(3) { // no CPU is free
		if err := s.add(&local.Task{ID: id, Split: int(id), Part: -1, To: -1, Attempt: 1, Urgent: id == 2}); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	if len(s.queue) != 2 || s.queue[0].id != 0 || s.queue[1].id != 1 {
		t.Errorf("%d tasks wait", len(s.queue))
	}
	s.mu.Unlock()
	s.stop(exec.ErrDone)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	s.l.close()
}

// TestQueuedPartDropped: a part that has not begun is ended at once where the leader cancels it, and that says so; of other tasks nothing is said.
func TestQueuedPartDropped(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	set, memory, err := local.SettingsOf(&exec.Options{CPUs: 1, Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	w, err := local.New(nil).Worker(ctx, exectest.Scan(exectest.NewTable(3, 10)), nil, &exec.Options{CPUs: 1, Memory: 1 << 20}, set)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{wake: make(chan struct{}, 1)}
	s := &server{l: l, w: w, ctx: ctx, cancel: cancel, tasks: map[uint64]*task{}, inline: inlineOf(memory, 1), counts: w.Counts()}
	for id := range uint64(2) { // the sink is not there yet
		if err := s.add(&local.Task{ID: id, Split: int(id), Part: -1, To: -1, Attempt: 1}); err != nil {
			t.Fatal(err)
		}
	}
	s.tasks[1].part = true // this graph has no sink
	for id := range uint64(3) {
		s.drop(id)
	}
	l.br = bufio.NewReaderSize(bytes.NewReader(l.said), readBuffer)
	kind, said, err := l.next(nil)
	if r := (&words{b: said}); err != nil || kind != kindFail || r.uint() != 1 || takeError(r).Code != fault.Canceled || l.br.Buffered() > 0 {
		t.Errorf("%v: message %d: %q", err, kind, said)
	}
	if len(s.tasks) != 0 || len(s.queue) != 0 {
		t.Errorf("%d tasks, %d wait", len(s.tasks), len(s.queue))
	}
	s.stop(exec.ErrDone)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// serveAll has a node do what a leader says.
func serveAll(t *testing.T, said []byte) {
	tb := exectest.NewTable(3, 200)
	tb.Width = func(id int) int { return 10 * (id % 200) }
	g := exectest.Scan(tb)
	budget := exec.NewBudget(1 << 20)
	defer budget.Close()
	o := &exec.Options{Budget: budget, CPUs: 2}
	set, memory, err := local.SettingsOf(o)
	if err != nil {
		t.Fatal(err)
	}
	h := hello{Words: [][2]string{{"plan", "test"}}, Settings: set, Inline: inlineOf(memory, 1)}
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	said = append(message(nil, kindHello, func(b []byte) []byte { return append(b, text...) }), said...)
	l := newLink(script{Reader: bytes.NewReader(said)})
	r := &Runner{o: Options{Log: slog.New(slog.DiscardHandler)}}
	if err := r.served(t.Context(), t.Context(), func() {}, l, g, nil, o, &h); err == nil {
		t.Error("neither served nor failed")
	}
	l.close()
	if n := budget.Used(); n != 0 || tb.Readers() != 0 {
		t.Errorf("%d readers are open, and %s", tb.Readers(), budget.Holders())
	}
}

// bounded refuses what no budget of a test would give.
type bounded struct{ memory.Allocator }

func (b bounded) Allocate(n int) []byte {
	if n > 64<<20 {
		panic(fault.New(fault.Exhausted, "%d bytes", n))
	}
	return b.Allocator.Allocate(n)
}

func (b bounded) Reallocate(n int, p []byte) []byte {
	if n > 64<<20 {
		panic(fault.New(fault.Exhausted, "%d bytes", n))
	}
	return b.Allocator.Reallocate(n, p)
}
