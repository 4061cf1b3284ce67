package remote

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
	"github.com/penstock-data/penstock/internal/memtest"
)

func aRecord(alloc memory.Allocator, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(alloc, arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}, nil))
	defer b.Release()
	for i := range n {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append("some text")
	}
	return b.NewRecordBatch()
}

// TestWords: what is said is what is heard.
func TestWords(t *testing.T) {
	task := &local.Task{ID: 1 << 40, Stage: 3, Part: -1, Split: 7, From: 100, To: -1, Attempt: 2, Ratio: 1024, Urgent: true}
	w := &words{b: putTask(nil, task)}
	if got := takeTask(w); w.end() != nil || !reflect.DeepEqual(got, task) {
		t.Errorf("%+v, want %+v: %v", got, task, w.end())
	}
	e := fault.New(fault.Corrupt, "text").At(fault.Place{File: "f", RowGroup: fault.N(3), Row: fault.N(0), Column: "c", Step: "s", Node: "1", Attempt: 4})
	w = &words{b: putError(nil, e)}
	if got := takeError(w); w.end() != nil || got.Error() != e.Error() || got.Code != e.Code || got.Place != e.Place {
		t.Errorf("%v, want %v", got, e)
	}
	w = &words{b: putError(nil, errors.New("plain"))}
	if got := takeError(w); w.end() != nil || got.Error() != "plain" || got.Code != fault.Unknown {
		t.Errorf("%v", got)
	}
	h := &blockHead{id: 5, split: 2, row: 3, span: 4, rows: 6, read: 7, inline: true, meta: []byte("meta"), record: 16, rest: 3}
	w = &words{b: h.put(nil)}
	if got := takeBlockHead(w); w.end() != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("%+v, want %+v", got, h)
	}
	now, before := []int64{1, 5, 5, 0, -3}, []int64{1, 2, 5, 0, 0}
	w = &words{b: putGrown(nil, now, before)}
	if got := takeGrown(w); w.end() != nil || !reflect.DeepEqual(got, []int64{0, 3, 0, 0, -3}) {
		t.Errorf("%v", got)
	}
}

// TestRest: origins of rows, and rows that were left out, arrive with a block.
func TestRest(t *testing.T) {
	alloc := memtest.New(t)
	rec := aRecord(alloc, 1)
	defer rec.Release()
	b := &exec.Block{Row: 10, Rows: []int64{10, 10, 12}, Ords: []uint64{0, 1 << 63, 5}, Skipped: []exec.Skipped{
		{Err: fault.New(fault.RowError, "bad"), Row: 11, Record: rec}, {Err: fault.New(fault.UserCode, "worse"), Row: 12}}}
	raw, err := putRest(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	got := &exec.Block{Row: 10}
	if err := takeRest(raw, got, 3, alloc); err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	if !reflect.DeepEqual(got.Rows, b.Rows) || !reflect.DeepEqual(got.Ords, b.Ords) || len(got.Skipped) != 2 || !array.RecordEqual(got.Skipped[0].Record, rec) || got.Skipped[1].Row != 12 {
		t.Errorf("%+v", got)
	}
	for n := range raw { // cut off anywhere, it is an error
		part := &exec.Block{Row: 10}
		if n > 0 && takeRest(raw[:n], part, 3, alloc) == nil {
			t.Errorf("%d of %d bytes are believed", n, len(raw))
		}
		part.Batch = rec
		rec.Retain()
		part.Release()
	}
}

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
	if err := r.Write(&body); err != nil {
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

// hearAll has a leader hear what a node says.
func hearAll(t *testing.T, rec arrow.RecordBatch, said []byte) {
	alloc := memtest.New(t)
	here, there := net.Pipe()
	l := newLink(here)
	p := newPeer(1, l, 2, 2, func(error) {}, slog.New(slog.DiscardHandler))
	p.Watch(deaf{})
	go func() {
		there.Write(said)
		there.Close()
	}()
	go io.Copy(io.Discard, there)
	none := rec.NewSlice(0, 0)
	defer none.Release()
	defer p.end(nil)
	defer func() {
		if e := recover(); e != nil && fault.CodeOf(e.(error)) != fault.Exhausted { // the allocator's
			panic(e)
		}
	}()
	p.Do(t.Context(), &local.Task{ID: 1, Split: 2, Part: -1, To: -1, Attempt: 1}, &local.Hand{Schema: rec.Schema(), None: func() arrow.RecordBatch { return none },
		Alloc: bounded{alloc}, Read: func(int64) {}, Emit: func(b *exec.Block) error {
			defer b.Release()
			if b.Batch.NumRows() > 0 && b.Batch.NumCols() != 2 {
				t.Errorf("%v", b.Batch)
			}
			return nil
		}})
}

// deaf is a Watcher.
type deaf struct{}

func (deaf) RoomChanged()                {}
func (deaf) Count([]int64, int64, int64) {}
func (deaf) Moved()                      {}

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
