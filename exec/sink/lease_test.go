package sink

import (
	"io"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// hoarding is an encoding whose encoders say that they hold 1,000 bytes for every row, all of it outside the
// allocator, or what they are told to hold at most.
type hoarding struct {
	ipcEncoding
	most  int64
	state *hoard
}

// hoard is what all encoders say to hold, the most of it, and of what Frugal was asked for the least.
type hoard struct {
	now, peak, least atomic.Int64
}

func (e hoarding) Frugal(most int64) driver.Encoding {
	if l := e.state.least.Load(); l == 0 || most < l {
		e.state.least.Store(most)
	}
	e.most = most
	return e
}

func (e hoarding) NewEncoder(w io.Writer, s *arrow.Schema, alloc memory.Allocator) (driver.Encoder, error) {
	enc, err := e.ipcEncoding.NewEncoder(w, s, alloc)
	if err != nil {
		return nil, err
	}
	return &hoarder{ipcEncoder: enc.(*ipcEncoder), e: e}, nil
}

type hoarder struct {
	*ipcEncoder
	e    hoarding
	held int64
}

func (h *hoarder) set(n int64) {
	now := h.e.state.now.Add(n - h.held)
	h.e.state.peak.Store(max(h.e.state.peak.Load(), now))
	h.held = n
}

func (h *hoarder) Write(rec arrow.RecordBatch) error {
	h.set(min(h.held+1000*rec.NumRows(), h.e.most))
	return h.ipcEncoder.Write(rec)
}
func (h *hoarder) Outside() int64 { return h.held }
func (h *hoarder) Held() int64    { return h.held }
func (h *hoarder) Cut()           { h.set(0) }
func (h *hoarder) Close() error   { h.set(0); return h.ipcEncoder.Close() }
func (h *hoarder) Abort()         { h.set(0); h.ipcEncoder.Abort() }

// lender is an allocator that counts what it lends.
type lender struct {
	memory.Allocator
	now, peak atomic.Int64
}

func (l *lender) Limit() int64 { return 256 << 20 }

func (l *lender) Borrow(n int64) func() {
	l.peak.Store(max(l.peak.Load(), l.now.Add(n)))
	return func() { l.now.Add(-n) }
}

// What encoders hold beyond their allocator is paid for, to a step; it is given back with the part, finished or not. Where
// many files are open, each is told its share.
func TestOutsideIsPaid(t *testing.T) {
	for _, fail := range []bool{false, true} {
		d := data{Splits: 4, Rows: 2000, Bad: -1}
		alloc := &lender{Allocator: memtest.New(t)}
		enc := hoarding{most: 1 << 40, state: new(hoard)}
		s := newFiles(t, Options{Path: t.TempDir(), TargetBytes: 20 << 20, PartitionBy: []string{"p"}, BufferBytes: 4 << 20, Encoding: enc})
		spec := runSpec{Data: d, Workers: 1, Batch: 500, Alloc: alloc}
		if fail {
			spec.Fail = func(_, split, row int) error {
				if split == 3 && row == 1000 {
					return io.ErrUnexpectedEOF
				}
				return nil
			}
		}
		if err := spec.run(t.Context(), s); (err != nil) != fail {
			t.Fatal(err)
		}
		open := int64(len(parts) * uploadBuffer)
		if paid, peak := alloc.peak.Load(), enc.state.peak.Load(); peak < 3<<20 || paid < peak || paid > peak+open+3*leaseStep {
			t.Errorf("%d bytes were paid for %d", paid, peak)
		}
		if n := alloc.now.Load(); n != 0 {
			t.Errorf("%d bytes are still paid for", n)
		}
		if want := int64(4<<20) / int64(len(parts)); enc.state.least.Load() != want {
			t.Errorf("an encoder of %d may hold %d bytes, want %d", len(parts), enc.state.least.Load(), want)
		}
	}
}
