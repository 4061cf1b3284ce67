package remote

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
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

// TestSentUrgent: a task is sent as what it is in that moment: no word of urgency gets between.
func TestSentUrgent(t *testing.T) {
	here, there := net.Pipe()
	p := newPeer(1, newLink(here), 2, 2, 1<<20, func(error) {}, slog.New(slog.DiscardHandler))
	p.Watch(deaf{})
	var over sync.WaitGroup
	over.Go(func() {
		p.Do(t.Context(), &local.Task{ID: 1, Part: -1, To: -1, Attempt: 1}, &local.Hand{Urgent: func() bool {
			if p.l.mu.TryLock() {
				p.l.mu.Unlock()
				t.Error("what is said now comes before the task")
			}
			return true
		}})
	})
	node := newLink(there)
	kind, said, err := node.next(nil)
	if k := takeTask(&words{b: said}); err != nil || kind != kindTask || !k.Urgent {
		t.Errorf("%d: %+v, %v", kind, k, err)
	}
	node.close()
	over.Wait()
	p.end(nil)
}

// TestGivenUpIsSaid: a task that ends at the leader while a block of it waits for memory there ends at its node, too; and of a part that end is waited for while the run goes on.
func TestGivenUpIsSaid(t *testing.T) {
	why, there, out := errors.New("nobody wants it"), fault.New(fault.Canceled, "it has stopped"), fault.New(fault.Exhausted, "memory is out")
	for name, c := range map[string]struct {
		part int
		out  bool
		over bool // the run is
		want error
	}{"rows": {-1, false, false, why}, "part": {3, false, false, there}, "part of a run that is over": {3, false, true, why}, "memory is out": {-1, true, false, out}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at := time.Now()
				here, its := net.Pipe()
				p := newPeer(1, newLink(here), 2, 2, 1<<20, func(error) {}, slog.New(slog.DiscardHandler))
				p.Watch(deaf{})
				ctx, cancel := context.WithCancelCause(t.Context())
				ended := make(chan struct{})
				if c.over {
					close(ended)
				}
				var over sync.WaitGroup
				over.Go(func() {
					defer func() {
						if e := recover(); e != c.want && c.out {
							t.Errorf("panic: %v", e)
						}
					}()
					_, err := p.Do(ctx, &local.Task{ID: 1, Part: c.part, End: 1, To: -1, Attempt: 1}, &local.Hand{Over: ended, Urgent: func() bool { return false }, Take: func(int) ([]byte, bool) {
						if c.out {
							panic(out)
						}
						cancel(why)
						return nil, false
					}})
					if err == nil || !strings.Contains(err.Error(), c.want.Error()) {
						t.Errorf("%v, want %v", err, c.want)
					}
				})
				node := newLink(its)
				hears := func(want byte) {
					kind, said, err := node.next(nil)
					if id := (&words{b: said}).uint(); err != nil || kind != want || id != 1 {
						t.Errorf("message %d of task %d, want %d: %v", kind, id, want, err)
					}
				}
				hears(kindTask)
				node.say(kindWant, func(b []byte) []byte { return putUint(putUint(b, 1), 1000) })
				hears(kindCancel)
				if c.over {
					over.Wait()
				}
				node.say(kindFail, func(b []byte) []byte { return putError(putUint(b, 1), there) })
				over.Wait()
				node.close()
				p.end(nil)
				if took := time.Since(at); took >= lastWords {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
