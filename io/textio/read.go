package textio

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Open does not read.
func (t *table) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	if ctx.Err() != nil {
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	so := o.WithDefaults()
	p := t.parts[i]
	if err := fileset.CheckBytes(&so, t.Offsets(i), &t.splits[i]); err != nil {
		return nil, err
	}
	ad, err := t.set.Adapter(p.File, t.schema, t.file, so.Columns, so.Predicate, 0)
	if err != nil {
		return nil, err
	}
	r := &reader{encoding: strings.ToUpper(cmp.Or(t.o.Encoding, "utf-8")), split: t.splits[i], file: t.file, begin: p.Range.Off, o: so, keep: t.o.KeepEmpty, ad: ad, left: -1, extra: ad.RowBytes(), lines: len(ad.FileColumns) > 0}
	if r.lines {
		r.extra += 4
	}
	if ad.Never {
		r.err = io.EOF
	}
	if most := fileset.ReadLimit(&so); most > 0 {
		r.left = most
	}
	r.queue = fileset.NewQueue(fault.Place{File: r.split.File, RowGroup: fault.N(r.split.Index)}, &r.o)
	r.growth = t.set.TextGrowth(p)
	r.chunks = t.set.OpenChunks(ctx, p, 0, &so)
	return r, nil
}

// reader is one pass over a split. A batch is a run of good lines of one chunk.
type reader struct {
	encoding string // for messages
	split    driver.Split
	file     *arrow.Schema
	begin    int64 // of the split in the file
	o        driver.ScanOptions
	queue    fileset.Queue
	keep     bool
	ad       *fileset.Adapter
	lines    bool  // the column of lines is wanted
	extra    int64 // bytes of memory per row beyond the text
	chunks   *fileset.Chunks
	growth   *fileset.Growth
	chunk    []byte // whole lines
	off      int64  // of chunk in the file
	line     int64  // number of the line at count in the file, from 1; 0: unknown, as the split does not begin the file
	count    int    // offset in chunk
	data     []byte // lines that are left of the chunk
	valid    bool   // data is UTF-8, or need not be
	row      int64  // split position of the next line
	left     int64  // rows that the limit still allows; -1: no limit
	ends     []int  // scratch: for each row of a batch, where its line begins and ends in data
	err      error
}

func (r *reader) Next(ctx context.Context) (driver.Batch, error) {
	if r.err == nil && ctx.Err() != nil {
		r.err = fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	for r.err == nil {
		b, ok, err := r.queue.Next()
		if ok {
			return b, nil
		}
		if r.err = err; err == nil && r.left == 0 {
			r.err = io.EOF
		}
		if r.err != nil {
			break
		}
		if len(r.data) == 0 {
			r.err = r.next(ctx)
			continue
		}
		if n, size := r.collect(); n > 0 {
			r.err = r.batch(n, size)
		}
	}
	return driver.Batch{}, r.err
}

// used gives the chunk back.
func (r *reader) used() {
	r.countTo(len(r.chunk))
	r.chunk, r.data, r.count = nil, nil, 0
	r.chunks.Done()
}

func (r *reader) next(ctx context.Context) error {
	r.used()
	b, off, err := r.chunks.Next(ctx)
	if err != nil {
		return err
	}
	r.chunk, r.off = b, off
	if off == 0 {
		r.line = 1
		b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
	}
	r.data = b
	r.skip()
	r.valid = r.lines && (r.file.Field(0).Type.ID() == arrow.BINARY || utf8.Valid(r.data))
	return nil
}

// at is the split's byte at which data begins.
func (r *reader) at() int64 { return r.off - r.begin + int64(len(r.chunk)-len(r.data)) }

// skip counts the lines of data that are left out by number or by byte.
func (r *reader) skip() {
	least := r.o.FromByte - r.at() // in data
	pos := 0
	for pos < len(r.data) && (r.row < r.o.FromRow || int64(pos) < least) {
		end, after := lineAt(r.data, pos)
		if end > pos || r.keep {
			r.row++
		}
		pos = after
	}
	r.data = r.data[pos:]
}

// lineAt returns where the line at pos ends, without and with its line break.
func lineAt(data []byte, pos int) (end, after int) {
	end, after = len(data), len(data)
	if i := bytes.IndexByte(data[pos:], '\n'); i >= 0 {
		end, after = pos+i, pos+i+1
	}
	if end > pos && data[end-1] == '\r' {
		end--
	}
	return end, after
}

// collect finds the lines of the next batch: ends holds n pairs of offsets in data of
// which batch makes rows. It may find none, having reported a bad row or skipped lines.
func (r *reader) collect() (n, size int) {
	r.ends = r.ends[:0]
	pos, bytesLeft := 0, r.o.BatchBytes
	most := r.o.BatchRows
	if r.left >= 0 {
		most = int(min(int64(most), r.left))
	}
	for pos < len(r.data) && n < most {
		if r.data[pos] == '\n' && !r.keep { // a blank line, perhaps of many
			pos++
			continue
		}
		end, after := lineAt(r.data, pos)
		line := r.data[pos:end]
		if len(line) == 0 && !r.keep {
			pos = after
			continue
		}
		cost := r.extra
		if r.lines {
			cost += int64(len(line))
			if !r.valid && !utf8.Valid(line) {
				if n > 0 {
					break // the rows before it first
				}
				r.bad(pos, line)
				r.row++
				r.data = r.data[after:]
				return 0, 0
			}
		}
		if bytesLeft -= cost; bytesLeft < 0 && n > 0 {
			break
		}
		r.ends = append(r.ends, pos, end)
		size += len(line)
		n++
		r.row++
		pos = after
	}
	if r.left >= 0 {
		r.left -= int64(n)
	}
	r.ends = append(r.ends, pos)
	if n == 0 {
		r.data = r.data[pos:]
	}
	return n, size
}

// countTo moves count to a later offset of chunk.
func (r *reader) countTo(to int) {
	if r.line > 0 {
		r.line += int64(bytes.Count(r.chunk[r.count:to], []byte{'\n'}))
		r.count = to
	}
}

// bad reports the line at pos in data.
func (r *reader) bad(pos int, line []byte) {
	const most = 1000
	show := strconv.Quote(string(line[:min(len(line), most)]))
	if len(line) > most {
		show += "..."
	}
	what := "the line"
	if r.countTo(len(r.chunk) - len(r.data) + pos); r.line > 0 {
		what = fmt.Sprintf("line %d of the file", r.line)
	}
	var err error = fault.New(fault.RowError, "%s is not valid %s; set encoding of the source if the file has another (latin-1, cp1252, utf-16, utf-8-lossy), or read the lines as bytes (types: {text: binary}): %s", what, r.encoding, show).
		At(fault.Place{Row: fault.N(r.row), Column: Column})
	r.err = r.queue.Tell(err)
}

// batch queues n rows of size bytes of what collect found.
func (r *reader) batch(n, size int) error {
	first := r.row - int64(n)
	file := arrow.NewSchema(nil, nil)
	var cols []arrow.Array
	if r.lines {
		file = r.file
		offs := newBuffer(r.o.Alloc, 4*(n+1))
		out := arrow.Int32Traits.CastFromBytes(offs.Bytes())
		out[0] = 0
		var text *memory.Buffer
		if n == 1 {
			text = r.chunks.Lend(r.data[r.ends[0]:r.ends[1]], size)
			out[1] = int32(size)
		}
		if text == nil {
			text = newBuffer(r.o.Alloc, size)
			for k, at := 0, 0; k < n; k++ {
				at += copy(text.Bytes()[at:], r.data[r.ends[2*k]:r.ends[2*k+1]])
				out[k+1] = int32(at)
			}
		}
		d := array.NewData(file.Field(0).Type, n, []*memory.Buffer{nil, offs, text}, nil, 0, 0)
		a := array.MakeFromData(d)
		d.Release()
		offs.Release()
		text.Release()
		defer a.Release()
		cols = append(cols, a)
	}
	var offsets []int64
	if r.o.Offsets {
		offsets = make([]int64, n)
		at := r.at()
		for k := range offsets {
			offsets[k] = at + int64(r.ends[2*k])
		}
	}
	if r.data = r.data[r.ends[2*n]:]; len(r.data) == 0 {
		r.used()
	}
	rec := array.NewRecordBatch(file, cols, int64(n))
	defer rec.Release()
	if err := r.growth.AddRecord(rec); err != nil {
		return fault.Wrap(err, fault.Place{File: r.split.File, RowGroup: fault.N(r.split.Index), Row: fault.N(first)})
	}
	bad := new(fileset.BadRows)
	out, err := r.ad.Apply(driver.Batch{Record: rec, Row: first}, r.o.Alloc, bad)
	if err == nil {
		r.queue.Put(driver.Batch{Record: out, Row: first, Offsets: offsets}, bad)
	}
	return err
}

func newBuffer(alloc memory.Allocator, n int) *memory.Buffer {
	b := memory.NewResizableBuffer(alloc)
	b.Resize(n)
	return b
}

// Close is idempotent.
func (r *reader) Close() error {
	if r.err == nil {
		r.err = fault.New(fault.Invalid, "the reader is closed")
	}
	r.ad.Release()
	r.queue.Release()
	r.data, r.chunk = nil, nil
	return r.chunks.Close()
}
