// Package exectest has what tests of the engine, and of what stands on it, run:
// tables in memory with scripted faults, operators that inflate, fail, panic,
// hang or meet, and a sink that checks its contract.
package exectest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// Schema of every table: the id counts rows through all splits, data is
// filled with a byte that follows from the id.
var Schema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "data", Type: arrow.BinaryTypes.Binary},
}, nil)

// FaultKind is what goes wrong.
type FaultKind uint8

const (
	Error   FaultKind = iota // Next returns Code
	Hang                     // Next waits for its context
	Stuck                    // Next waits for Release, whatever its context says
	Panic                    // Next panics
	BadRows                  // the batch lacks its first row, which goes to OnBadRow
)

// Fault happens at a batch of a split, the first Times passes over it (0: always).
type Fault struct {
	Split, Batch int
	Kind         FaultKind
	Code         fault.Code
	Times        int
	Release      chan struct{}
}

// Table is a driver.Table over generated rows. Set its fields before use.
type Table struct {
	Rows   []int            // per split
	Width  func(id int) int // bytes of data; nil: 8
	Faults []Fault
	Seek   bool            // splits may be read in pieces
	Reads  []chan struct{} // per split, may be nil: Open waits for it

	mu     sync.Mutex
	passes map[[2]int]int
	opens  []int
	firsts []int // ids of the first rows
	open   atomic.Int64
}

// NewTable returns a table of n splits of rows each.
func NewTable(n, rows int) *Table {
	t := &Table{}
	for range n {
		t.Rows = append(t.Rows, rows)
	}
	return t
}

func (t *Table) Schema() *arrow.Schema { return Schema }

func (t *Table) Splits() []driver.Split {
	var s []driver.Split
	for i, n := range t.Rows {
		s = append(s, driver.Split{ID: fmt.Sprintf("mem#%d", i), File: "mem", Index: int64(i), Rows: int64(n)})
	}
	return s
}

func (t *Table) Fingerprint(context.Context) (string, error) { return "exectest", nil }
func (t *Table) Close() error                                { return nil }

// Readers returns how many are open; 0 at the end of a test.
func (t *Table) Readers() int64 { return t.open.Load() }

// Opens returns how often each split was opened.
func (t *Table) Opens() []int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := make([]int, len(t.Rows))
	copy(n, t.opens)
	return n
}

// First returns the id of the first row of a split.
func (t *Table) First(split int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.firsts == nil {
		t.firsts = make([]int, len(t.Rows)+1)
		for i, n := range t.Rows {
			t.firsts[i+1] = t.firsts[i] + n
		}
	}
	return t.firsts[split]
}

// Seeks implements driver.Seeker.
func (t *Table) Seeks(int) bool { return t.Seek }

func (t *Table) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	t.mu.Lock()
	if t.opens == nil {
		t.opens = make([]int, len(t.Rows))
	}
	t.opens[i]++
	t.mu.Unlock()
	if t.Reads != nil && t.Reads[i] != nil {
		select {
		case <-t.Reads[i]:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	t.open.Add(1)
	return &reader{t: t, split: i, o: o.WithDefaults(), row: int(o.FromRow), first: t.First(i)}, nil
}

type reader struct {
	t                        *Table
	o                        driver.ScanOptions
	split, batch, row, first int
	err                      error
	closed                   bool
}

func (r *reader) Close() error {
	if !r.closed {
		r.closed = true
		r.t.open.Add(-1)
	}
	return nil
}

func (r *reader) width(id int) int {
	if r.t.Width == nil {
		return 8
	}
	return r.t.Width(id)
}

func (r *reader) Next(ctx context.Context) (driver.Batch, error) {
	if r.err != nil {
		return driver.Batch{}, r.err
	}
	b, err := r.next(ctx)
	r.err = err
	return b, err
}

func (r *reader) next(ctx context.Context) (driver.Batch, error) {
	if err := context.Cause(ctx); err != nil {
		return driver.Batch{}, err
	}
	for _, f := range r.t.Faults {
		if f.Split != r.split || f.Batch != r.batch {
			continue
		}
		if f.Kind != BadRows && f.Times > 0 && r.t.pass(f) > f.Times {
			continue
		}
		switch f.Kind {
		case Error:
			return driver.Batch{}, fault.New(f.Code, "scripted fault at batch %d", f.Batch)
		case Hang:
			<-ctx.Done()
			return driver.Batch{}, context.Cause(ctx)
		case Stuck:
			<-f.Release
		case Panic:
			panic("scripted panic")
		case BadRows:
			if r.row >= r.t.Rows[r.split] {
				continue
			}
			e := fault.New(fault.RowError, "scripted bad row")
			e.Row = fault.N(int64(r.row))
			if r.o.OnBadRow == nil {
				return driver.Batch{}, e
			}
			if err := r.o.OnBadRow(e); err != nil {
				return driver.Batch{}, err
			}
			r.row++
		}
	}
	total := r.t.Rows[r.split]
	if r.row >= total {
		return driver.Batch{}, io.EOF
	}
	n, size := 0, int64(0)
	for n < r.o.BatchRows && r.row+n < total {
		w := int64(r.width(r.first+r.row+n) + 12)
		if n > 0 && size+w > r.o.BatchBytes {
			break
		}
		size += w
		n++
	}
	b := driver.Batch{Record: r.make(r.row, n), Row: int64(r.row)}
	r.row += n
	r.batch++
	r.o.Stats.Rows.Add(int64(n))
	r.o.Stats.BytesRead.Add(size)
	return b, nil
}

func (t *Table) pass(f Fault) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.passes == nil {
		t.passes = map[[2]int]int{}
	}
	k := [2]int{f.Split, f.Batch}
	t.passes[k]++
	return t.passes[k]
}

func (r *reader) make(row, n int) arrow.RecordBatch {
	fields := Schema.Fields()
	if r.o.Columns != nil {
		fields = nil
		for _, c := range r.o.Columns {
			fields = append(fields, Schema.Field(Schema.FieldIndices(c)[0]))
		}
	}
	cols := make([]arrow.Array, len(fields))
	for i, f := range fields {
		if f.Name == "id" {
			b := array.NewInt64Builder(r.o.Alloc)
			b.Reserve(n)
			for k := range n {
				b.UnsafeAppend(int64(r.first + row + k))
			}
			cols[i] = b.NewArray()
			b.Release()
			continue
		}
		total := 0
		for k := range n {
			total += r.width(r.first + row + k)
		}
		cols[i] = binary(r.o.Alloc, n, total, func(k int, b []byte) []byte {
			id := r.first + row + k
			return fill(b, id, r.width(id))
		})
	}
	rec := array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, int64(n))
	for _, c := range cols {
		c.Release()
	}
	return rec
}

// binary makes a column of n values of total bytes; add appends value i.
func binary(alloc memory.Allocator, n, total int, add func(i int, b []byte) []byte) arrow.Array {
	off, buf := memory.NewResizableBuffer(alloc), memory.NewResizableBuffer(alloc)
	defer off.Release()
	defer buf.Release()
	off.Resize((n + 1) * 4)
	buf.Resize(total)
	o := arrow.Int32Traits.CastFromBytes(off.Bytes())
	p := buf.Bytes()[:0]
	for i := range n {
		o[i] = int32(len(p))
		p = add(i, p)
	}
	o[n] = int32(len(p))
	data := array.NewData(arrow.BinaryTypes.Binary, n, []*memory.Buffer{nil, off, buf}, nil, 0, 0)
	defer data.Release()
	return array.NewBinaryData(data)
}

func fill(b []byte, id, width int) []byte {
	i := len(b)
	b = slices.Grow(b, width)[:i+width]
	for ; i < len(b); i++ {
		b[i] = byte(id*31 + 7)
	}
	return b
}

// Data is the content of the data column of a row.
func Data(id, width int) []byte { return fill(nil, id, width) }

// Scan returns a graph that reads t through ops.
func Scan(t *Table, ops ...exec.Operator) *exec.Graph {
	return Graph(ScanStage(0, t, ops...))
}

// ScanStage returns the stage of Scan.
func ScanStage(source int, t *Table, ops ...exec.Operator) *exec.Stage {
	return &exec.Stage{Scan: &exec.Scan{Source: source, Step: "step 1 (read)", Table: t}, Limit: -1, Ops: Fuse(ops...)}
}

// Cut returns a stage that joins inputs.
func Cut(limit int64, inputs []*exec.Stage, ops ...exec.Operator) *exec.Stage {
	return &exec.Stage{Inputs: inputs, Limit: limit, Ops: Fuse(ops...)}
}

// Fuse gives operators no policy of their own.
func Fuse(ops ...exec.Operator) []exec.Fused {
	var f []exec.Fused
	for _, o := range ops {
		f = append(f, exec.Fused{Operator: o})
	}
	return f
}

// Graph wraps a root stage.
func Graph(root *exec.Stage) *exec.Graph { return &exec.Graph{Root: root, Schema: Schema} }

// Held is a table of one split that hands out one batch it holds itself, without a copy.
type Held struct{ Batch arrow.RecordBatch }

func (h *Held) Schema() *arrow.Schema { return h.Batch.Schema() }
func (h *Held) Splits() []driver.Split {
	return []driver.Split{{ID: "held", Rows: h.Batch.NumRows()}}
}
func (h *Held) Fingerprint(context.Context) (string, error) { return "held", nil }
func (h *Held) Close() error                                { return nil }
func (h *Held) Open(context.Context, int, *driver.ScanOptions) (driver.Reader, error) {
	return &heldReader{b: h.Batch}, nil
}

type heldReader struct{ b arrow.RecordBatch }

func (r *heldReader) Next(context.Context) (driver.Batch, error) {
	if r.b == nil {
		return driver.Batch{}, io.EOF
	}
	b := r.b
	r.b = nil
	b.Retain()
	return driver.Batch{Record: b}, nil
}
func (r *heldReader) Close() error { return nil }
