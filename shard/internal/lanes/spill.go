package lanes

import (
	"bufio"
	"io"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/mem"
)

const (
	chunkRows  = 1024
	chunkBytes = 1 << 20
)

// spill is the samples of a window on disk, in their order, in chunks that are read
// when they are due, packed or as Arrow IPC: for windows that do not fit the budget beside the others. The file has no name,
// so that nothing stays behind a process that is killed.
type spill struct {
	file   *os.File
	alloc  memory.Allocator
	rows   int64   // of a chunk, but for the last
	ends   []int64 // of chunks, in the file
	loaded []*Rec  // nil: not read, or done
	left   []int64 // samples of a chunk not yet taken
	packed int64   // bytes of a row, where they are packed; 0: they are records
	origin func(i int64) Origin
}

// spillTo moves the samples of w to a file of dir ("": the system's folder for temporary files), in chunks of about so many bytes. What
// is left in memory is a chunk, which counts from now on, and where samples come from.
func (w *Window) spillTo(dir string, alloc memory.Allocator, chunk, given int64) (err error) {
	f, err := os.CreateTemp(dir, "penstock-window-*")
	if err != nil {
		return fault.New(fault.Exhausted, "a window does not fit the memory budget, and there is no place on disk for it (TMPDIR): %w", err)
	}
	_ = os.Remove(f.Name()) // its space lives as long as f
	s := &spill{file: f, alloc: alloc}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	total := w.Count()
	places := w.places()
	size := w.size - places
	if b := w.Recs[0].Bins; b != nil {
		size = total * b.RowBytes() // they are records there
	}
	s.rows = max(min(chunkRows, chunk*total/max(size, 1)), 1)
	write := w.records(alloc)
	if rows := w.Recs[0].Packed; rows != nil {
		s.packed = int64(len(rows)) / total
		write = func(out io.Writer, from, n int64) error {
			_, err := out.Write(rows[from*s.packed : (from+n)*s.packed])
			return err
		}
	}
	out := &counted{w: bufio.NewWriterSize(f, 64<<10)}
	largest := int64(0)
	for from := int64(0); from < total && out.err == nil; from += s.rows {
		n := min(s.rows, total-from)
		before := out.n
		if err := write(out, from, n); err != nil && out.err == nil {
			return err
		}
		largest = max(largest, out.n-before)
		s.ends = append(s.ends, out.n)
		s.left = append(s.left, n)
	}
	for i := range s.left { // samples given before a restore are never taken
		k := min(given, s.left[i])
		s.left[i] -= k
		given -= k
	}
	if out.err == nil {
		out.err = out.w.Flush()
	}
	if out.err != nil {
		return fault.New(fault.Exhausted, "a window does not fit the memory budget, and cannot be written to disk (TMPDIR): %w", out.err)
	}
	s.loaded = make([]*Rec, len(s.ends))
	rows := *w
	origins := make([]func(int) Origin, len(w.Recs))
	for i, r := range w.Recs {
		origins[i] = r.Origin
	}
	w.size = largest + places
	s.origin = func(i int64) Origin {
		rec, row, _ := rows.place(i)
		return origins[rec](int(row))
	}
	w.Rows.Release()
	w.spill = s
	return nil
}

// counted counts what is written, and keeps the first error: writers of formats go on at those, or say something else.
type counted struct {
	w   *bufio.Writer
	n   int64
	err error
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	if c.err == nil {
		c.err = err
	}
	return n, err
}

// records writes n samples from one on as a stream of one record.
func (w *Window) records(alloc memory.Allocator) func(out io.Writer, from, n int64) error {
	recs := make([]arrow.RecordBatch, len(w.Recs))
	for i, r := range w.Recs {
		recs[i] = r.Batch
	}
	record := func(from, n int64) (arrow.RecordBatch, error) {
		if b := w.Recs[0].Bins; b != nil {
			return b.Record(alloc, int(from), int(from+n)), nil
		}
		return gather.Record(alloc, Nullable(recs[0].Schema()), recs, w.slice(from, n))
	}
	return func(to io.Writer, from, n int64) error {
		rec, err := record(from, n)
		if err != nil {
			return err
		}
		defer rec.Release()
		schema := rec.Schema()
		out := ipc.NewWriter(to, ipc.WithSchema(schema), ipc.WithAllocator(mem.Zeroed{Allocator: alloc}))
		err = out.Write(rec)
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return internal("writing a window as Arrow IPC: %w", err)
		}
		return nil
	}
}

// Nullable is a schema whose columns may all hold nulls: leaves of a union differ in that, and IPC leaves
// out what cannot be.
func Nullable(s *arrow.Schema) *arrow.Schema {
	fields := s.Fields() // a copy
	for i := range fields {
		fields[i].Nullable = true
	}
	return arrow.NewSchema(fields, nil)
}

// slice names n samples from sample i on.
func (w *Window) slice(i, n int64) []gather.Run {
	out := make([]gather.Run, 0, n)
	for k := i; k < i+n; {
		rec, row, m := w.place(k)
		m = int32(min(int64(m), i+n-k))
		out = append(out, gather.Run{Rec: rec, Row: row, N: m})
		k += int64(m)
	}
	return out
}

// at is Window.At.
func (s *spill) at(i int64) (rec *Rec, row, n int32, err error) {
	c := int(i / s.rows)
	if s.loaded[c] == nil {
		if err := s.load(c); err != nil {
			return nil, 0, 0, fault.New(fault.Unavailable, "reading a window back from disk: %w", err)
		}
	}
	row = int32(i % s.rows)
	rec = s.loaded[c]
	if n = int32(s.rows) - row; rec.Batch != nil {
		n = min(n, int32(rec.Batch.NumRows())-row)
	} else {
		n = min(n, int32(int64(len(rec.Packed))/s.packed)-row)
	}
	return rec, row, n, nil
}

// load reads a chunk.
func (s *spill) load(c int) error {
	from := int64(0)
	if c > 0 {
		from = s.ends[c-1]
	}
	first := int64(c) * s.rows
	origin := func(row int) Origin { return s.origin(first + int64(row)) }
	if s.packed > 0 {
		buf := memory.NewResizableBuffer(s.alloc)
		buf.Resize(int(s.ends[c] - from))
		if _, err := s.file.ReadAt(buf.Bytes(), from); err != nil {
			buf.Release()
			return err
		}
		s.loaded[c] = newPacked(buf, origin)
		return nil
	}
	rd, err := ipc.NewReader(io.NewSectionReader(s.file, from, s.ends[c]-from), ipc.WithAllocator(s.alloc))
	if err != nil {
		return err
	}
	defer rd.Release()
	rec, err := rd.Read()
	if err != nil {
		return err
	}
	rec.Retain()
	s.loaded[c] = NewRec(rec, origin)
	return nil
}

// take counts n samples from sample i on as done, and frees chunks with their last one.
func (s *spill) take(i, n int64) {
	for n > 0 {
		c := i / s.rows
		k := min(n, (c+1)*s.rows-i)
		if s.left[c] -= k; s.left[c] == 0 && s.loaded[c] != nil {
			s.loaded[c].release()
			s.loaded[c] = nil
		}
		i, n = i+k, n-k
	}
}

func (s *spill) close() {
	for i, r := range s.loaded {
		if r != nil {
			r.release()
			s.loaded[i] = nil
		}
	}
	_ = s.file.Close() // it is gone with it
}
