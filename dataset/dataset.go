// Package dataset is what users build pipelines with: lazily built, immutable
// plans over Arrow data, and the calls that run them.
//
//	ds := dataset.ReadParquet("s3://bucket/taxi/**/*.parquet").
//		Filter("fare_amount > 0 && trip_distance < 100").
//		WithColumns("tip_rate = tip_amount / fare_amount").
//		Select("tip_rate", "passenger_count")
//	for b, err := range ds.IterBatches(ctx, &dataset.BatchOptions{Rows: 1024}) { ... }
//
// Nothing is read until a call takes a context. A mistake in a verb (unknown
// column, type error) sticks and surfaces at the first such call, with the verb's
// position. Buckets need their driver imported by the program, e.g.
// _ "gocloud.dev/blob/s3blob".
package dataset

import (
	"context"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// Dataset is a plan: a source and the verbs applied to it. Immutable, safe for
// concurrent use; every verb returns a new one that shares what was already
// found out (listings, footers, schemas). What was found stays as it was until
// [Dataset.Refresh].
type Dataset struct {
	ins    []*Dataset
	meta   ops.Meta
	source driver.Source // of a leaf
	step   stepFunc
	filter *expr.Expr // of a filter by expression
	err    error
	wrap   func(error) error // what is wrong with the last verb; nil: as it is
	names  []string          // of ins, where messages say which one: of a mix

	mu     sync.Mutex
	node   ops.Node       // once resolved
	tables []driver.Table // opened for node
}

// Read starts a dataset from any source; the formats of this module have their
// own functions ([ReadParquet], ...), which take paths only.
func Read(src driver.Source) *Dataset {
	return &Dataset{source: src, meta: ops.Meta{Verb: src.Kind()}}
}

// stepFunc makes the node of a verb; ctx is for steps that call a user's function once.
type stepFunc func(ctx context.Context, in []ops.Node, m ops.Meta) (ops.Node, error)

// then appends a verb.
func (d *Dataset) then(verb string, step func(in ops.Node, m ops.Meta) (ops.Node, error)) *Dataset {
	return &Dataset{
		ins:  []*Dataset{d},
		meta: ops.Meta{Verb: verb, Pos: d.meta.Pos + 1},
		step: func(_ context.Context, in []ops.Node, m ops.Meta) (ops.Node, error) { return step(in[0], m) },
	}
}

// fail makes a dataset whose verb is wrong by itself.
func (d *Dataset) fail(verb string, err error) *Dataset {
	n := d.then(verb, nil)
	n.err = fault.Each(err, func(err error) error {
		return fault.Wrap(fault.WithCode(fault.Invalid, err), fault.Place{Step: n.meta.Step()})
	})
	return n
}

// plan resolves the dataset: it lists, reads footers, checks names and types.
// Done once; a failure is tried again by the next call. The error has what is wrong with several steps, as far as the columns are known that they would have.
func (d *Dataset) plan(ctx context.Context) (ops.Node, error) {
	return d.planOnce(ctx, map[*Dataset]failure{})
}

// failure is what resolving a dataset came to. node has the columns that it would have, and is nil where they are not known.
type failure struct {
	node ops.Node
	err  error
}

// planOnce is plan, as part of that of another dataset: what has failed is not tried again for it, however often it is in there. The node beside an error is that of its failure.
func (d *Dataset) planOnce(ctx context.Context, failed map[*Dataset]failure) (ops.Node, error) {
	if d.err != nil {
		return nil, d.err
	}
	if f, ok := failed[d]; ok {
		return f.node, f.err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.node != nil {
		return d.node, nil
	}
	n, err := d.resolve(ctx, failed)
	if err != nil {
		if enough(err) {
			n = nil
		}
		failed[d] = failure{n, err}
		return n, err
	}
	d.node = n
	return n, nil
}

// mostMistakes are told at once: as many or a few more.
const mostMistakes = 20

// enough reports whether no more is looked for beside these errors: they are many, or one of them is nobody's mistake, and what is tried next may fail by it, too, after a while.
func enough(errs ...error) bool {
	n := 0
	for _, err := range errs {
		for _, err := range fault.All(err) {
			if c := fault.CodeOf(err); c == fault.Canceled || c.Retryable() {
				return true
			}
			n++
		}
	}
	return n >= mostMistakes
}

func (d *Dataset) resolve(ctx context.Context, failed map[*Dataset]failure) (ops.Node, error) {
	if d.source != nil {
		return d.read(ctx, d, nil)
	}
	if chain := d.filters(); len(chain) > 0 {
		return d.filteredRead(ctx, chain)
	}
	in, errs := make([]ops.Node, len(d.ins)), make([]error, len(d.ins)+1)
	known := true
	for i, p := range d.ins {
		var err error
		in[i], err = p.planOnce(ctx, failed)
		errs[i] = fault.Each(err, func(err error) error { return d.of(i, err) })
		if known = known && in[i] != nil; enough(errs...) {
			known = false
			break
		}
	}
	if !known {
		return nil, fault.Join(errs...)
	}
	n, err := d.step(ctx, in, d.meta)
	if errs[len(in)] = d.wrapped(err); err != nil {
		n = nil
		if d.filter != nil { // the columns stay what they are
			n = in[0]
		}
	}
	return n, fault.Join(errs...)
}

// wrapped is an error of the last verb as WrapErrors wants it; nil stays nil.
func (d *Dataset) wrapped(err error) error {
	if err == nil || d.wrap == nil {
		return err
	}
	return fault.Each(err, d.wrap)
}

// of says which input an error comes from, where inputs have names.
func (d *Dataset) of(i int, err error) error {
	if err == nil || i >= len(d.names) {
		return err
	}
	return fault.New(fault.CodeOf(err), "source %q of the mix: %w", d.names[i], err)
}

// WrapErrors passes what is found wrong with the last verb, or with the source, through f: a program that builds
// datasets of something written down says with it where. Errors of a run do not come by.
func (d *Dataset) WrapErrors(f func(error) error) *Dataset {
	n := d.copy()
	inner := d.wrap
	n.wrap = func(err error) error {
		if inner != nil {
			err = inner(err)
		}
		return f(err)
	}
	if n.err != nil {
		n.err = f(n.err)
	}
	return n
}

// copy is the same plan, with nothing looked up.
func (d *Dataset) copy() *Dataset {
	return &Dataset{ins: d.ins, meta: d.meta, source: d.source, step: d.step, filter: d.filter, err: d.err, wrap: d.wrap, names: d.names}
}

// filters are the datasets from the one behind the read to d, if all of them are
// filters of which some may decide what is listed.
func (d *Dataset) filters() []*Dataset {
	var chain []*Dataset
	var exprs []*expr.Expr
	for n := d; n.source == nil; n = n.ins[0] {
		if n.filter == nil {
			return nil
		}
		chain = append(chain, n)
		exprs = append(exprs, n.filter)
	}
	if len(ops.FilesPredicate(exprs)) == 0 {
		return nil
	}
	slices.Reverse(chain)
	return chain
}

// filteredRead resolves a read with the filters behind it: files that they
// exclude by hive values are not listed.
func (d *Dataset) filteredRead(ctx context.Context, chain []*Dataset) (ops.Node, error) {
	exprs := make([]*expr.Expr, len(chain))
	for i, f := range chain {
		exprs[i] = f.filter
	}
	n, err := d.read(ctx, chain[0].ins[0], exprs)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(chain))
	for i, f := range chain {
		kept, err := f.step(ctx, []ops.Node{n}, f.meta)
		if errs[i] = f.wrapped(err); err == nil {
			n = kept
		}
		if enough(errs[max(i+1-mostMistakes, 0) : i+1]...) {
			break
		}
	}
	return n, fault.Join(errs...)
}

// read resolves the source of a leaf; d keeps the table until Close.
func (d *Dataset) read(ctx context.Context, leaf *Dataset, filters []*expr.Expr) (ops.Node, error) {
	r, err := ops.Resolve(ctx, leaf.source, filters, 0, leaf.meta, nil)
	if err != nil {
		return nil, leaf.wrapped(err)
	}
	d.tables = append(d.tables, r.Table)
	return r, nil
}

// Schema resolves the dataset and returns the schema of its rows. It reads
// listings and footers only.
func (d *Dataset) Schema(ctx context.Context) (*arrow.Schema, error) {
	n, err := d.plan(ctx)
	if err != nil {
		return nil, err
	}
	return n.Schema(), nil
}

// Err returns the mistake that can be seen without I/O, if there is one.
func (d *Dataset) Err() error {
	if d.err != nil {
		return d.err
	}
	for i, p := range d.ins {
		if err := p.Err(); err != nil {
			return d.of(i, err)
		}
	}
	return nil
}

// Refresh returns the same plan with everything to be looked up again.
func (d *Dataset) Refresh() *Dataset {
	n := d.copy()
	n.ins = nil
	for _, p := range d.ins {
		n.ins = append(n.ins, p.Refresh())
	}
	return n
}

// Close frees what resolving opened (listings, footers, connections), here and in the
// datasets that this one was made from. Optional: a program that ends or drops the dataset need not. No run
// may be under way; a later call resolves again.
func (d *Dataset) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var first error
	for _, t := range d.tables {
		if err := t.Close(); err != nil && first == nil {
			first = err
		}
	}
	d.tables, d.node = nil, nil
	for _, p := range d.ins {
		if err := p.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
