package lanes

import (
	"bytes"
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
// when they are due: for windows that do not fit the budget beside the others. The file has no name,
// so that nothing stays behind a process that is killed.
type spill struct {
	file   *os.File
	alloc  memory.Allocator
	rows   int64   // of a chunk, but for the last
	ends   []int64 // of chunks, in the file
	loaded []*Rec  // nil: not read, or done
	left   []int64 // samples of a chunk not yet taken
	origin func(i int64) Origin
}

// spillTo moves the samples of w to a file of dir ("": the system's folder for temporary files).
func (w *Window) spillTo(dir string, alloc memory.Allocator, given int64) (err error) {
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
	recs := make([]arrow.RecordBatch, len(w.Recs))
	origins := make([]func(int) Origin, len(w.Recs))
	var size, total int64
	for i, r := range w.Recs {
		recs[i], origins[i] = r.Batch, r.Origin
	}
	size = w.size
	total = w.Count()
	schema := nullable(recs[0].Schema())
	s.rows = max(min(chunkRows, chunkBytes*total/max(size, 1)), 1)
	var end int64
	for from := int64(0); from < total; from += s.rows {
		n := min(s.rows, total-from)
		rec, err := gather.Record(alloc, schema, recs, w.slice(from, n))
		if err != nil {
			return err
		}
		var buf bytes.Buffer
		out := ipc.NewWriter(&buf, ipc.WithSchema(schema), ipc.WithAllocator(mem.Zeroed{Allocator: alloc}))
		err = out.Write(rec)
		rec.Release()
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			_, err = f.Write(buf.Bytes())
		}
		if err != nil {
			return fault.New(fault.Exhausted, "a window does not fit the memory budget, and cannot be written to disk (TMPDIR): %w", err)
		}
		end += int64(buf.Len())
		s.ends = append(s.ends, end)
		s.left = append(s.left, n)
	}
	for i := range s.left { // samples given before a restore are never taken
		k := min(given, s.left[i])
		s.left[i] -= k
		given -= k
	}
	s.loaded = make([]*Rec, len(s.ends))
	places := *w
	w.size = 0
	s.origin = func(i int64) Origin {
		rec, row, _ := places.place(i)
		return origins[rec](int(row))
	}
	w.Rows.Release()
	w.spill = s
	return nil
}

// nullable is a schema whose columns may all hold nulls: leaves of a union differ in that, and IPC leaves
// out what cannot be.
func nullable(s *arrow.Schema) *arrow.Schema {
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

// load reads the chunk of sample i, if that must be.
func (s *spill) load(i int64) error {
	c := int(i / s.rows)
	if s.loaded[c] != nil {
		return nil
	}
	from := int64(0)
	if c > 0 {
		from = s.ends[c-1]
	}
	rd, err := ipc.NewReader(io.NewSectionReader(s.file, from, s.ends[c]-from), ipc.WithAllocator(s.alloc))
	if err != nil {
		return fault.New(fault.Unavailable, "reading a window back from disk: %w", err)
	}
	defer rd.Release()
	rec, err := rd.Read()
	if err != nil {
		return fault.New(fault.Unavailable, "reading a window back from disk: %w", err)
	}
	rec.Retain()
	first := int64(c) * s.rows
	s.loaded[c] = NewRec(rec, func(row int) Origin { return s.origin(first + int64(row)) })
	return nil
}

// take counts sample i as done, and frees its chunk with the last one.
func (s *spill) take(i int64) {
	c := i / s.rows
	if s.left[c]--; s.left[c] == 0 {
		s.loaded[c].release()
		s.loaded[c] = nil
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
