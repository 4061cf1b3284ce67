package memio

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// GenerateFunc makes the rows of one split. What it yields is borrowed: it may
// release a record once yield returned. It must give the same rows whenever it is
// called for the same split (that is how a run resumes: by replay), obey ctx, and
// allow calls for several splits at once. ctx ends with the read that waits for it; what a function yields then,
// or that it ends, does not count.
type GenerateFunc func(ctx context.Context, split int) iter.Seq2[arrow.RecordBatch, error]

// GeneratorOptions may be nil: one split of unknown length.
type GeneratorOptions struct {
	Splits int // how many splits; 0 means len(Rows), at least 1
	// Rows of each split, if known. A split that yields another number fails.
	Rows []int64
}

// Generator is a source of the records that fn makes, which must have schema.
func Generator(schema *arrow.Schema, fn GenerateFunc, o *GeneratorOptions) (driver.Source, error) {
	var g generator
	if o != nil {
		g.o = *o
	}
	if g.o.Splits == 0 {
		g.o.Splits = max(1, len(g.o.Rows))
	}
	switch {
	case fn == nil || schema == nil:
		return nil, driver.Errorf(driver.Invalid, "a generator needs a schema and a function")
	case g.o.Splits < 0:
		return nil, driver.Errorf(driver.Invalid, "a generator of %d splits", g.o.Splits)
	case g.o.Rows != nil && len(g.o.Rows) != g.o.Splits:
		return nil, driver.Errorf(driver.Invalid, "a generator of %d splits states the rows of %d", g.o.Splits, len(g.o.Rows))
	}
	for i, n := range g.o.Rows {
		if n < 0 {
			return nil, driver.Errorf(driver.Invalid, "a generator states %d rows for split %d", n, i)
		}
	}
	g.schema, g.fn = schema, fn
	return &g, nil
}

type generator struct {
	schema *arrow.Schema
	fn     GenerateFunc
	o      GeneratorOptions
}

func (g *generator) Kind() string { return "generator" }

func (g *generator) Config() (json.RawMessage, error) {
	return nil, driver.Errorf(driver.Unsupported, "a generator function cannot be named in a plan that leaves this process; use files or range and a registered function")
}

func (g *generator) Resolve(ctx context.Context, _ *driver.ResolveOptions) (driver.Table, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, driver.Wrap(err, driver.Place{})
	}
	splits := make([]driver.Split, g.o.Splits)
	for i := range splits {
		splits[i] = driver.Split{ID: fmt.Sprintf("generator#%d", i), Index: int64(i), Rows: -1}
		if g.o.Rows != nil {
			splits[i].Rows = g.o.Rows[i]
		}
	}
	return &table{schema: g.schema, splits: splits, name: "a generator function", open: g.open}, nil
}

func (g *generator) open(_ context.Context, i int, o *driver.ScanOptions, p projection) (driver.Reader, error) {
	r := &generated{g: g, split: i, want: -1, p: p, o: o, cols: make([]arrow.Array, len(p.idx))}
	if g.o.Rows != nil {
		r.want = g.o.Rows[i]
	}
	return newReader(o, r.next, r.close), nil
}

// generated pulls records out of the function and cuts them.
type generated struct {
	g     *generator
	split int
	want  int64 // rows stated; -1: unknown
	p     projection
	o     *driver.ScanOptions
	cols  []arrow.Array

	pull   func() (arrow.RecordBatch, error, bool)
	stop   func()
	cancel context.CancelCauseFunc // ends the function's context

	rec  arrow.RecordBatch // borrowed until the next pull
	from int64             // rows of rec given out or skipped
	row  int64             // position in the split of rec's first row
}

func (r *generated) next(ctx context.Context) (driver.Batch, error) {
	if r.pull == nil {
		// The function runs on as long as the reader, this call's context does not.
		gctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		r.cancel = cancel
		r.pull, r.stop = iter.Pull2(r.g.fn(gctx, r.split))
	}
	stop := context.AfterFunc(ctx, func() { r.cancel(context.Cause(ctx)) })
	b, err := r.batch()
	if !stop() { // the function was told to end: what it made as ctx ended may be cut short
		if err == nil {
			b.Record.Release()
		}
		b, err = driver.Batch{}, context.Cause(ctx)
	}
	if err != nil && err != io.EOF {
		err = driver.Wrap(err, fault.Place{RowGroup: fault.N(int64(r.split)), Row: fault.N(r.row)})
	}
	return b, err
}

// batch cuts the next one from what the function yields.
func (r *generated) batch() (driver.Batch, error) {
	for r.rec == nil || r.from == r.rec.NumRows() {
		if err := r.advance(); err != nil {
			return driver.Batch{}, err
		}
	}
	for j, c := range r.p.idx {
		r.cols[j] = r.rec.Column(c)
	}
	to := cut.Next(r.cols, r.from, r.rec.NumRows(), r.o.BatchRows, r.o.BatchBytes)
	b := driver.Batch{Record: cut.Pick(r.rec, r.p.schema, r.p.idx, r.from, to), Row: r.row + r.from}
	r.from = to
	return b, nil
}

// advance pulls the next record and skips what FromRow asks to.
func (r *generated) advance() error {
	if r.rec != nil {
		r.row += r.rec.NumRows()
		r.rec = nil
	}
	rec, err, ok := r.pull()
	if !ok {
		if r.want >= 0 && r.row != r.want {
			return fault.New(fault.UserCode, "the generator yielded %d rows for split %d and stated %d", r.row, r.split, r.want)
		}
		return io.EOF
	}
	if err != nil {
		if fault.CodeOf(err) == fault.Canceled {
			return err
		}
		return fault.WithCode(fault.UserCode, err)
	}
	if !rec.Schema().Equal(r.g.schema) {
		return fault.New(fault.UserCode, "the generator yielded a record with the schema %v and stated %v", rec.Schema(), r.g.schema)
	}
	if r.want >= 0 && r.row+rec.NumRows() > r.want {
		return fault.New(fault.UserCode, "the generator yielded more than the %d rows it stated for split %d", r.want, r.split)
	}
	r.rec, r.from = rec, min(max(0, r.o.FromRow-r.row), rec.NumRows())
	return nil
}

func (r *generated) close() {
	if r.pull != nil {
		r.cancel(context.Canceled)
		r.stop()
		r.rec = nil
	}
}
