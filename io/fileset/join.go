package fileset

import (
	"context"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// JoinText is driver.JoiningEncoding's Join for files of text, compressed as kind and level say: their bytes one after
// another, of all but the first without the first skip bytes.
func JoinText(ctx context.Context, w io.Writer, kind string, level int, skip int64, o *driver.JoinOptions) error {
	z, err := Compress(kind, level, w)
	if err != nil {
		return err
	}
	buf := make([]byte, min(max(o.Most/4, 4<<10), 256<<10))
	for i, f := range o.Files {
		if err := copyText(ctx, z, f, kind, buf, skip*int64(min(i, 1))); err != nil {
			return fault.Wrap(err, fault.Place{File: f.Path})
		}
	}
	return z.Close()
}

func copyText(ctx context.Context, w io.Writer, f driver.JoinFile, kind string, buf []byte, skip int64) error {
	in := f.Open(ctx)
	defer in.Close()
	text, err := Decompress(kind, in, 1<<40)
	if err != nil {
		return err
	}
	defer text.Close()
	for {
		if err := ctx.Err(); err != nil {
			return fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		n, err := text.Read(buf)
		drop := min(skip, int64(n))
		skip -= drop
		if _, werr := w.Write(buf[drop:n]); werr != nil {
			return werr
		}
		if err == io.EOF {
			if skip > 0 {
				return fault.New(fault.Corrupt, "the file has no header")
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// JoinOptions are those of a source of the files to be joined.
func JoinOptions(o *driver.JoinOptions, b *blobio.Options) Options {
	s := Options{Partitions: "none", Blob: b, Exact: true}
	for _, f := range o.Files {
		s.Paths = append(s.Paths, f.Path)
	}
	return s
}

// JoinRows is driver.JoiningEncoding's Join for files that are read and written again. src reads them; begin makes the
// encoder of a schema, which has the names, nullability and metadata of o.Schema, and the types that were read: these
// stand for themselves in the files.
func JoinRows(ctx context.Context, src driver.Source, begin func(*arrow.Schema, memory.Allocator) (driver.Encoder, error), o *driver.JoinOptions) (err error) {
	t, err := src.Resolve(ctx, nil)
	if err != nil {
		return err
	}
	defer t.Close()
	read := t.Schema()
	if read.NumFields() != o.Schema.NumFields() {
		return fault.New(fault.Corrupt, "the files have %d columns, not %d", read.NumFields(), o.Schema.NumFields())
	}
	fields := o.Schema.Fields()
	for i := range fields {
		if read.Field(i).Name != fields[i].Name {
			return fault.New(fault.Corrupt, "the files have another column %d", i+1).At(fault.Place{Column: fields[i].Name})
		}
		fields[i].Type = read.Field(i).Type
	}
	meta := o.Schema.Metadata()
	schema := arrow.NewSchema(fields, &meta)
	enc, err := begin(schema, o.Alloc)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			enc.Abort()
		}
	}()
	want, rows := int64(0), int64(0)
	for _, f := range o.Files {
		want += f.Rows
	}
	scan := &driver.ScanOptions{Alloc: o.Alloc, BatchBytes: min(max(o.Most/8, 64<<10), driver.DefaultBatchBytes), AheadBytes: max(o.Most/4, 64<<10)}
	for i := range t.Splits() {
		n, err := joinSplit(ctx, t, i, scan, schema, enc, o.Most)
		if err != nil {
			return err
		}
		rows += n
	}
	if rows != want {
		return fault.New(fault.Corrupt, "the files have %d rows, not %d", rows, want)
	}
	return enc.Close()
}

func joinSplit(ctx context.Context, t driver.Table, i int, scan *driver.ScanOptions, schema *arrow.Schema, enc driver.Encoder, most int64) (rows int64, err error) {
	r, err := t.Open(ctx, i, scan)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	cutter, _ := enc.(driver.Cutter)
	for {
		b, err := r.Next(ctx)
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		rows += b.Record.NumRows()
		if cutter != nil && cutter.Held() > most {
			cutter.Cut()
		}
		rec := array.NewRecordBatch(schema, b.Record.Columns(), b.Record.NumRows())
		err = enc.Write(rec)
		rec.Release()
		b.Record.Release()
		if err != nil {
			return rows, err
		}
	}
}
