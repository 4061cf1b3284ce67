package remote

import (
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
	"github.com/penstock-data/penstock/internal/typename"
)

// emit hands on a block that has come.
func (p *peer) emit(t *local.Task, h *local.Hand, e event) error {
	k := e.block
	buf := e.bytes
	if k.inline && buf != nil {
		if buf = buf.settle(h); buf == nil {
			return exec.ErrDone
		}
		k.meta = buf.Bytes()[k.size():]
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
		rest = buf.Bytes()[k.record:k.size()]
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
			return nil, fault.New(fault.Unsupported, "column %q of type %s comes as %s from another process: register the extension type in both", f.Name, typename.Name(f.Type), typename.Name(rec.Column(i).DataType()))
		}
	}
	return array.NewRecordBatch(schema, rec.Columns(), n), nil
}

// landing is memory for a block: its bytes, then what describes its record.
type landing struct {
	*memory.Buffer
	memory.Allocator
	mem   []byte
	paid  func() // gives back what was paid beside the allocator; nil: nothing
	freed atomic.Bool
}

// newLanding is mem, which alloc frees.
func newLanding(alloc memory.Allocator, mem []byte, paid func()) *landing {
	l := &landing{Allocator: alloc, mem: mem, paid: paid}
	l.Buffer = memory.NewBufferWithAllocator(l.mem, l)
	return l
}

// Free implements memory.Allocator, for the buffer's last reference.
func (l *landing) Free([]byte) {
	if l.freed.CompareAndSwap(false, true) {
		l.Allocator.Free(l.mem)
		if l.paid != nil {
			l.paid()
		}
	}
}

// settle moves what lies in l, whose reference it takes over, to memory for which it waits. Nil: the attempt is over.
func (l *landing) settle(h *local.Hand) *landing {
	defer l.Release()
	mem, ok := h.Take(l.Len())
	if !ok {
		return nil
	}
	to := newLanding(h.Alloc, mem, nil)
	copy(to.Bytes(), l.Bytes())
	return to
}

// lose gives the memory back where arrow-go's reader has lost references to it, as it does of batches that turn out to be damaged.
func (l *landing) lose() {
	if l != nil {
		l.Free(nil)
	}
}
