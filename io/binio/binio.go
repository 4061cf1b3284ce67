// Package binio reads whole files: one row per file, with columns "path" (string)
// and "bytes" (binary, so a file of 2 GiB or more is an Unsupported error).
//
// Files go together into splits of up to 16 MiB and 256 files, in order of path, so that a folder
// of many small images is no list of many small tasks; a larger file is a split
// of its own, and no split crosses a change of partition values. A scan without the column bytes reads nothing.
package binio

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"golang.org/x/sync/errgroup"
)

// Options of a source of binary files. PathColumn and RowColumn are refused:
// there is a column path, and each file is one row. All extensions are read by default.
type Options struct {
	fileset.Options
}

const (
	splitBytes = 16 << 20
	splitFiles = 256
	parallel   = 16 // files of one batch read at once
)

// New describes binary files. No I/O; what is wrong with the options is an error of Resolve.
func New(o Options) driver.Source { return source{o} }

// Format rebuilds sources from their configuration.
func Format() driver.Format {
	return driver.Format{Kind: "binary", Open: func(config json.RawMessage) (driver.Source, error) {
		var o Options
		if err := strict.JSON("options of a binary source", config, &o); err != nil {
			return nil, err
		}
		return New(o), nil
	}}
}

type source struct{ o Options }

func (source) Kind() string                       { return "binary" }
func (s source) Config() (json.RawMessage, error) { return json.Marshal(s.o) }

// Meets implements driver.Placed.
func (s source) Meets(folder string) (path, root string) { return s.o.Meets(folder) }

var schema = arrow.NewSchema([]arrow.Field{{Name: "path", Type: arrow.BinaryTypes.String}, {Name: "bytes", Type: arrow.BinaryTypes.Binary}}, nil)

type table struct {
	o      Options
	set    *fileset.Set
	schema *arrow.Schema
	splits []driver.Split
	first  []int // file of each split, and the number of files behind the last
}

func (s source) Resolve(ctx context.Context, ro *driver.ResolveOptions) (driver.Table, error) {
	if s.o.PathColumn != "" || s.o.RowColumn != "" {
		return nil, fault.New(fault.Invalid, "binary files have a column path, and one row each: leave path_column and row_column out")
	}
	set, err := fileset.List(ctx, &s.o.Options, nil, ro)
	if err != nil {
		return nil, err
	}
	t := &table{o: s.o, set: set}
	all := make([]*arrow.Schema, len(set.Files))
	for i := range all {
		all[i] = schema
	}
	if t.schema, err = set.Schema(all, nil); err != nil {
		set.Close()
		return nil, err
	}
	for i := 0; i < len(set.Files); {
		s := driver.Split{ID: set.Files[i].Rel, File: set.Files[i].Path}
		t.first = append(t.first, i)
		for k := i; i < len(set.Files) && s.Rows < splitFiles && set.SamePartition(k, i); i++ {
			n := set.Files[i].Info.Size
			if s.Rows > 0 && s.Bytes+n > splitBytes {
				break
			}
			s.Rows++
			s.Bytes += n
		}
		t.splits = append(t.splits, s)
	}
	t.first = append(t.first, len(set.Files))
	return t, nil
}

func (t *table) Schema() *arrow.Schema  { return t.schema }
func (t *table) Splits() []driver.Split { return t.splits }

// PartitionColumns implements driver.Partitioned.
func (t *table) PartitionColumns() []string { return t.set.PartitionColumns() }

// TakeRead implements driver.Metered.
func (t *table) TakeRead() int64 { return t.set.TakeRead() }

// Remote implements driver.Remote.
func (t *table) Remote() bool { return t.set.Remote() }

// Size is exact.
func (t *table) Size(i int, columns []string) (fetch, decoded int64) {
	idx, err := fileset.Select(t.schema, columns)
	if err != nil {
		return 0, 0
	}
	rows := t.splits[i].Rows
	for _, k := range idx {
		f := t.schema.Field(k)
		switch w, fixed := f.Type.(arrow.FixedWidthDataType); {
		case fixed:
			decoded += rows * int64(w.BitWidth()+7) / 8
		case f.Name == "bytes":
			fetch = t.splits[i].Bytes
			decoded += fetch + 4*rows
		default:
			for _, f := range t.set.Files[t.first[i]:t.first[i+1]] {
				decoded += int64(len(f.Path)) + 4
			}
		}
	}
	return fetch, decoded
}

// Fingerprint hashes the options that change rows, and the files.
func (t *table) Fingerprint(ctx context.Context) (string, error) {
	o := t.o
	o.Paths, o.MaxGrowth = nil, 0
	config, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	return t.set.Fingerprint(ctx, "binary", config, t.set.EdgeHash)
}

func (t *table) Close() error { return t.set.Close() }

// Open does not read.
func (t *table) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	if ctx.Err() != nil {
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	so := o.WithDefaults()
	ad, err := t.set.Adapter(t.first[i], t.schema, schema, so.Columns, so.Predicate, 0)
	if err != nil {
		return nil, err
	}
	r := &reader{t: t, o: so, ad: ad, first: t.first[i], end: t.first[i+1]}
	r.next = int(min(int64(r.first)+so.FromRow, int64(r.end)))
	if most := fileset.ReadLimit(&so); most > 0 {
		r.end = int(min(int64(r.end), int64(r.next)+most))
	}
	r.queue = fileset.NewQueue(fault.Place{}, &r.o)
	if ad.Never {
		r.err = io.EOF
	}
	fs := make([]arrow.Field, len(ad.FileColumns))
	for k, c := range ad.FileColumns {
		fs[k] = schema.Field(schema.FieldIndices(c)[0])
		r.bytes = r.bytes || c == "bytes"
	}
	r.schema = arrow.NewSchema(fs, nil)
	return r, nil
}

// reader is one pass over a split.
type reader struct {
	t                *table
	o                driver.ScanOptions
	ad               *fileset.Adapter
	schema           *arrow.Schema // of FileColumns
	bytes            bool          // is among them
	first, next, end int           // files
	queue            fileset.Queue
	err              error
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
		if r.err = err; err == nil {
			r.err = r.fill(ctx)
		}
	}
	return driver.Batch{}, r.err
}

// fill queues the next files.
func (r *reader) fill(ctx context.Context) error {
	if r.next == r.end {
		return io.EOF
	}
	from, size := r.next, r.o.BatchBytes
	for ; r.next < r.end && r.next-from < r.o.BatchRows; r.next++ {
		f := &r.t.set.Files[r.next]
		cost := r.ad.RowBytes() + int64(len(f.Path)) + 8
		if r.bytes {
			cost += f.Info.Size
		}
		if size -= cost; size < 0 && r.next > from {
			break
		}
	}
	return r.batch(ctx, from, r.next)
}

func (r *reader) batch(ctx context.Context, from, to int) error {
	cols := make([]arrow.Array, r.schema.NumFields())
	for k, f := range r.schema.Fields() {
		var err error
		if f.Name == "path" {
			cols[k] = r.paths(from, to)
		} else if cols[k], err = r.contents(ctx, from, to); err != nil {
			for _, c := range cols[:k] {
				c.Release()
			}
			return err
		}
	}
	rec := array.NewRecordBatch(r.schema, cols, int64(to-from))
	for _, c := range cols {
		c.Release()
	}
	defer rec.Release()
	row := int64(from - r.first)
	found, bad := new(fileset.BadRows), new(fileset.BadRows)
	out, err := r.ad.Apply(driver.Batch{Record: rec, Row: row}, r.o.Alloc, found)
	if err != nil {
		return err
	}
	for k, e := range found.All { // each row is a file
		e.File = r.t.set.Files[from+k].Path
		bad.Add(k, e)
	}
	r.queue.Put(driver.Batch{Record: out, Row: row}, bad)
	return nil
}

func (r *reader) paths(from, to int) arrow.Array {
	b := array.NewStringBuilder(r.o.Alloc)
	defer b.Release()
	for _, f := range r.t.set.Files[from:to] {
		b.Append(f.Path)
	}
	return b.NewArray()
}

// contents reads files in parallel into one buffer.
func (r *reader) contents(ctx context.Context, from, to int) (arrow.Array, error) {
	n := to - from
	offs := newBuffer(r.o.Alloc, 4*(n+1))
	defer offs.Release()
	ends := arrow.Int32Traits.CastFromBytes(offs.Bytes())
	var total int64
	ends[0] = 0
	for k := range n {
		f := &r.t.set.Files[from+k]
		if total += f.Info.Size; total > math.MaxInt32 {
			return nil, fault.New(fault.Unsupported, "the file has %d bytes, more than a binary column holds (2 GiB)", f.Info.Size).At(fault.Place{File: f.Path})
		}
		ends[k+1] = int32(total)
	}
	data := newBuffer(r.o.Alloc, int(total))
	defer data.Release()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for k := range n {
		if ends[k] == ends[k+1] {
			continue
		}
		p := data.Bytes()[ends[k]:ends[k+1]]
		g.Go(func() error {
			m, err := r.t.set.Object(from+k, r.o.Stats).ReadAt(gctx, p, 0)
			if m == len(p) {
				return nil
			}
			if err == nil || errors.Is(err, io.EOF) {
				err = fault.New(fault.Corrupt, "the file ends at byte %d of %d", m, len(p))
			}
			return fault.Wrap(err, fault.Place{File: r.t.set.Files[from+k].Path})
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	d := array.NewData(arrow.BinaryTypes.Binary, n, []*memory.Buffer{nil, offs, data}, nil, 0, 0)
	defer d.Release()
	return array.MakeFromData(d), nil
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
	return nil
}
