package memio

import (
	"context"
	"encoding/json"
	"io"
	"sort"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/io/driver"
)

// RecordsSource is a source of records in memory.
type RecordsSource struct {
	schema *arrow.Schema
	mu     sync.Mutex
	recs   []arrow.RecordBatch // guarded by mu; nil after Release
	gone   bool
}

// Records is a source of the rows of recs in their order. All must have schema.
// It retains recs until Release, and every table made of it until its Close;
// batches share their memory. A batch ends where a record ends.
func Records(schema *arrow.Schema, recs ...arrow.RecordBatch) (*RecordsSource, error) {
	for i, r := range recs {
		if !r.Schema().Equal(schema) {
			return nil, driver.Errorf(driver.Invalid, "record %d has the schema %v, want %v", i, r.Schema(), schema)
		}
	}
	s := &RecordsSource{schema: schema}
	for _, r := range recs {
		if r.NumRows() > 0 {
			r.Retain()
			s.recs = append(s.recs, r)
		}
	}
	return s, nil
}

// Release gives the records back. Needed only where their allocator is not the
// garbage collector; later calls of Resolve fail. Idempotent.
func (s *RecordsSource) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	release(s.recs)
	s.recs, s.gone = nil, true
}

func release(recs []arrow.RecordBatch) {
	for _, r := range recs {
		r.Release()
	}
}

func (s *RecordsSource) Kind() string { return "records" }

func (s *RecordsSource) Config() (json.RawMessage, error) {
	return nil, driver.Errorf(driver.Unsupported, "records in memory cannot be named in a plan that leaves this process; write them to files first")
}

func (s *RecordsSource) Resolve(ctx context.Context, _ *driver.ResolveOptions) (driver.Table, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, driver.Wrap(err, driver.Place{})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, driver.Errorf(driver.Invalid, "the records of this source were released")
	}
	t := &recordsTable{recs: s.recs}
	var rows, bytes int64
	for _, r := range s.recs {
		r.Retain()
		t.ends = append(t.ends, rows+r.NumRows())
		rows += r.NumRows()
		for _, c := range r.Columns() {
			bytes += cut.Bytes(c.Data(), 0, r.NumRows())
		}
	}
	t.table = table{schema: s.schema, splits: slices("records", rows, 0), name: "a set of records in memory"}
	for i := range t.splits {
		t.splits[i].Bytes = bytes * t.splits[i].Rows / rows
	}
	t.open, t.close = t.scan, func() { release(t.recs) }
	return t, nil
}

type recordsTable struct {
	table
	recs []arrow.RecordBatch
	ends []int64 // ends[i]: rows of recs[:i+1]
}

func (t *recordsTable) scan(_ context.Context, i int, o *driver.ScanOptions, p projection) (driver.Reader, error) {
	base := t.splits[i].Index * SplitRows
	row, end := base+o.FromRow, base+t.splits[i].Rows
	k := sort.Search(len(t.ends), func(k int) bool { return t.ends[k] > row })
	cols := make([]arrow.Array, len(p.idx))
	return newReader(o, func(context.Context) (driver.Batch, error) {
		if row >= end {
			return driver.Batch{}, io.EOF
		}
		if row >= t.ends[k] {
			k++
		}
		rec, first := t.recs[k], t.ends[k]-t.recs[k].NumRows()
		for j, c := range p.idx {
			cols[j] = rec.Column(c)
		}
		from := row - first
		to := cut.Next(cols, from, min(rec.NumRows(), end-first), o.BatchRows, o.BatchBytes)
		b := driver.Batch{Record: cut.Pick(rec, p.schema, p.idx, from, to), Row: row - base}
		row += to - from
		return b, nil
	}, nil), nil
}
