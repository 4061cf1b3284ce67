package sink

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/jsontext"
	"github.com/penstock-data/penstock/io/blobio"
)

// DeadSchema is that of dead-letter files, one row per row that was left out.
// record is the row as the step saw it, as a JSON object; null where it never became one
// (a line that does not parse), or where it takes more than 16 MiB.
var DeadSchema = arrow.NewSchema([]arrow.Field{
	{Name: "code", Type: arrow.BinaryTypes.String},
	{Name: "message", Type: arrow.BinaryTypes.String},
	{Name: "source", Type: arrow.PrimitiveTypes.Int64}, // ordinal of the read in the plan
	{Name: "split", Type: arrow.BinaryTypes.String},
	{Name: "file", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "row_group", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "row", Type: arrow.PrimitiveTypes.Int64}, // in the split
	{Name: "step", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "column", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "record", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

const (
	deadRows    = 1024
	deadBytes   = 4 << 20
	deadGroup   = 16 << 20
	maxDeadText = 16 << 20
)

func deadName(tag string, part int) string { return "dead-" + tag + "-" + pad5(part) + ".parquet" }

// deadFile writes one dead-letter file.
type deadFile struct {
	file    partFile
	w       *blobio.Writer
	n       counter
	pq      *pqarrow.FileWriter
	b       *array.RecordBuilder
	mask    func(string) string
	pending int64 // bytes of text in b
	group   int64 // and in the row group, which is held in memory
}

// newDeadFile takes over w. mask may be nil.
func newDeadFile(w *blobio.Writer, name string, alloc memory.Allocator, mask func(string) string) (*deadFile, error) {
	if mask == nil {
		mask = func(text string) string { return text }
	}
	d := &deadFile{file: partFile{Path: name}, w: w, mask: mask}
	d.n.w = w
	// No dictionaries: arrow-go asserts (tag assert) when it compresses an empty one, of a column of nulls.
	props := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd), parquet.WithDictionaryDefault(false), parquet.WithAllocator(alloc))
	pq, err := pqarrow.NewFileWriter(DeadSchema, &d.n, props, pqarrow.NewArrowWriterProperties(pqarrow.WithAllocator(alloc)))
	if err != nil {
		w.Abort()
		return nil, fault.New(fault.Internal, "dead letter: %w", err)
	}
	d.pq, d.b = pq, array.NewRecordBuilder(alloc, DeadSchema)
	return d, nil
}

// add borrows s.
func (d *deadFile) add(s *exec.Skipped) error {
	str := func(i int, v string) {
		v = strings.ToValidUTF8(v, "\uFFFD")
		b := d.b.Field(i).(*array.StringBuilder)
		if v == "" && DeadSchema.Field(i).Nullable {
			b.AppendNull()
			return
		}
		b.Append(v)
		d.pending += int64(len(v))
	}
	num := func(i int, v int64, ok bool) {
		if b := d.b.Field(i).(*array.Int64Builder); ok {
			b.Append(v)
		} else {
			b.AppendNull()
		}
	}
	p, message := fault.PlaceOf(s.Err), "unknown"
	if s.Err != nil {
		message = s.Err.Error()
		if e, ok := s.Err.(*fault.Error); ok { // its place has columns
			message = e.Err.Error()
		}
	}
	str(0, fault.CodeOf(s.Err).String())
	str(1, d.mask(message))
	num(2, int64(s.Origin.Source), true)
	str(3, d.mask(s.Origin.Split))
	if p.File == "" {
		p.File = s.Origin.File
	}
	str(4, d.mask(p.File))
	group, known := p.RowGroup.Get()
	if !known && s.Origin.File != "" {
		group, known = s.Origin.Index, true
	}
	num(5, group, known)
	num(6, s.Row, true)
	str(7, d.mask(p.Step))
	str(8, d.mask(p.Column))
	str(9, rowText(s.Record))
	d.file.Rows++
	if d.b.Field(0).Len() >= deadRows || d.pending >= deadBytes {
		return d.flush()
	}
	return nil
}

// rowText is the one row of rec as a JSON object; "" if there is none, it is too
// large, or has a value that JSON cannot hold.
func rowText(rec arrow.RecordBatch) (text string) {
	if rec == nil || rec.NumRows() != 1 {
		return ""
	}
	defer func() {
		if r := recover(); r != nil { // arrow panics on values out of a type's range
			text = ""
		}
	}()
	b := jsontext.AppendRow(nil, rec, 0, maxDeadText)
	if len(b) >= maxDeadText {
		return ""
	}
	return string(b)
}

func (d *deadFile) flush() error {
	if d.b.Field(0).Len() == 0 {
		return nil
	}
	rec := d.b.NewRecordBatch()
	defer rec.Release()
	if d.group += d.pending; d.group > deadGroup {
		if err := d.pq.NewBufferedRowGroupChecked(); err != nil {
			return fmt.Errorf("dead letter: %w", err)
		}
		d.group = d.pending
	}
	d.pending = 0
	if err := d.pq.WriteBuffered(rec); err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	return nil
}

// finish completes the file; after an error abort must be called.
func (d *deadFile) finish() error {
	if err := d.flush(); err != nil {
		return err
	}
	d.b.Release()
	d.b = nil
	pq := d.pq
	d.pq = nil
	if err := pq.Close(); err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	w := d.w
	d.w = nil
	if err := w.Close(); err != nil {
		return err
	}
	d.file.Bytes = d.n.n
	return nil
}

// abort frees what finish did not. Idempotent.
func (d *deadFile) abort() {
	if d.b != nil {
		d.b.Release()
		d.b = nil
	}
	if d.pq != nil {
		d.n.w = io.Discard // Close is what frees the writer's memory
		_ = d.pq.Close()
		d.pq = nil
	}
	if d.w != nil {
		d.w.Abort()
		d.w = nil
	}
}

// DeadLetter keeps the rows left out of a run that is not written but consumed:
// give Add to exec.Options.DeadLetter. One goroutine at a time. A sink of type
// [Files] needs none: it has Options.DeadLetter.
type DeadLetter struct {
	r      *root
	name   string
	create func() (*blobio.Writer, error)
	cancel context.CancelFunc
	mask   func(string) string
	d      *deadFile
}

// NewDeadLetter prepares file dead-<job>.parquet in the folder p, a path or bucket
// URL. It is written until ctx ends; there is no object before Close, which must be called.
// mask is that of [Options].
func NewDeadLetter(ctx context.Context, p, job string, mask func(string) string) (*DeadLetter, error) {
	if err := checkJobID(job); err != nil {
		return nil, err
	}
	r, err := openRoot(ctx, p, nil)
	if err != nil {
		return nil, err
	}
	r.b.Within(r.prefix, true) // others may have been here
	ctx, cancel := context.WithCancel(ctx)
	l := &DeadLetter{r: r, name: "dead-" + tagOf(job) + ".parquet", cancel: cancel, mask: mask}
	l.create = func() (*blobio.Writer, error) { return r.b.Create(ctx, r.prefix+l.name, nil) }
	return l, nil
}

// Path is where the rows go.
func (l *DeadLetter) Path() string { return l.r.path(l.name) }

// Add writes one row; it borrows s.
func (l *DeadLetter) Add(ctx context.Context, s *exec.Skipped) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if l.d == nil {
		w, err := l.create()
		if err != nil {
			return err
		}
		if l.d, err = newDeadFile(w, l.name, memory.DefaultAllocator, l.mask); err != nil {
			return err
		}
	}
	return l.d.add(s)
}

// Close ends it: with commit the file becomes visible, whole, and replaces that of an earlier
// run of the job, also where no row was left out now; without, nothing changes. Only the first call does anything.
func (l *DeadLetter) Close(ctx context.Context, commit bool) (err error) {
	if l.r == nil {
		return nil
	}
	defer func() {
		l.cancel()
		l.r.b.Close()
		l.r = nil
	}()
	switch {
	case l.d == nil && commit:
		return l.r.b.Delete(ctx, l.r.prefix+l.name)
	case l.d == nil:
		return nil
	case !commit:
		l.d.abort()
		return nil
	}
	if err := l.d.finish(); err != nil {
		l.d.abort()
		return err
	}
	return nil
}
