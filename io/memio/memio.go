// Package memio holds the sources that need no file: records in memory, a range
// of integers, and a generator function.
//
// All of it is safe for concurrent use, as far as a generator's function is.
package memio

import (
	"context"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/io/driver"
)

// SplitRows is the size of the splits of [Range] and [Records].
const SplitRows = 65536

// table is what all three have in common.
type table struct {
	schema *arrow.Schema
	splits []driver.Split
	name   string
	// open starts split i at row o.FromRow. idx and schema are the projection.
	open func(ctx context.Context, i int, o *driver.ScanOptions, p projection) (driver.Reader, error)
	// identity is hashed into the fingerprint; "" means there is none.
	identity string
	close    func()
}

type projection struct {
	idx    []int
	schema *arrow.Schema
}

func (t *table) Schema() *arrow.Schema  { return t.schema }
func (t *table) Splits() []driver.Split { return t.splits }

func (t *table) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, driver.Wrap(err, driver.Place{})
	}
	so := o.WithDefaults()
	idx, schema, err := cut.Columns(t.schema, so.Columns)
	if err != nil {
		return nil, err
	}
	return t.open(ctx, i, &so, projection{idx, schema})
}

func (t *table) Fingerprint(context.Context) (string, error) {
	if t.identity == "" {
		return "", driver.Errorf(driver.Unsupported, "%s has no identity that another run could check; write the data to files to resume over it", t.name)
	}
	return hash(t.identity), nil
}

func (t *table) Close() error {
	if t.close != nil {
		t.close()
		t.close = nil
	}
	return nil
}

// slices cuts rows into splits of SplitRows.
func slices(name string, rows, width int64) []driver.Split {
	var s []driver.Split
	for from := int64(0); from < rows; from += SplitRows {
		n := min(SplitRows, rows-from)
		i := from / SplitRows
		s = append(s, driver.Split{ID: fmt.Sprintf("%s#%d", name, i), Index: i, Rows: n, Bytes: n * width})
	}
	return s
}

// reader runs next until it fails, and keeps the failure.
type reader struct {
	stats *driver.ScanStats
	left  int64 // rows that the limit still allows; -1: no limit
	next  func(ctx context.Context) (driver.Batch, error)
	done  func() // may be nil
	err   error
}

// newReader counts batches of next and stops after o.Limit rows, if all rows
// count.
func newReader(o *driver.ScanOptions, next func(context.Context) (driver.Batch, error), done func()) *reader {
	r := &reader{stats: o.Stats, left: -1, next: next, done: done}
	if o.Limit > 0 && o.Predicate == nil {
		r.left = o.Limit
	}
	return r
}

func (r *reader) Next(ctx context.Context) (driver.Batch, error) {
	if r.err == nil {
		if err := context.Cause(ctx); err != nil {
			r.err = driver.Wrap(err, driver.Place{})
		} else if r.left == 0 {
			r.err = io.EOF
		}
	}
	if r.err != nil {
		return driver.Batch{}, r.err
	}
	b, err := r.next(ctx)
	if err != nil {
		r.err = err
		return driver.Batch{}, err
	}
	n := b.Record.NumRows()
	if r.left >= 0 {
		r.left = max(0, r.left-n)
	}
	r.stats.Rows.Add(n)
	return b, nil
}

func (r *reader) Close() error {
	if r.done != nil {
		r.done()
		r.done = nil
	}
	if r.err == nil {
		r.err = driver.Errorf(driver.Invalid, "the reader is closed")
	}
	return nil
}
