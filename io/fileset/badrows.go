package fileset

import (
	"cmp"
	"io"
	"slices"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// BadRows are rows of a batch with a value that cannot be read, each with the first reason that was
// found. The zero BadRows has none.
type BadRows struct {
	rows  []badRow
	known map[int]bool
}

type badRow struct {
	at  int // in the batch
	err *fault.Error
}

// Has reports whether a row of the batch is there.
func (b *BadRows) Has(row int) bool { return b.known[row] }

// Add puts a row there. err is of a code that is Skippable, and says which row and column.
func (b *BadRows) Add(row int, err *fault.Error) {
	if b.known == nil {
		b.known = map[int]bool{}
	}
	if !b.known[row] {
		b.known[row] = true
		b.rows = append(b.rows, badRow{row, err})
	}
}

// Part are those of rows [from, to), of a batch that begins at from.
func (b *BadRows) Part(from, to int) *BadRows {
	p := new(BadRows)
	for _, r := range b.rows {
		if from <= r.at && r.at < to {
			p.Add(r.at-from, r.err)
		}
	}
	return p
}

// Len is how many there are.
func (b *BadRows) Len() int { return len(b.rows) }

// All gives them in their order.
func (b *BadRows) All(yield func(row int, err *fault.Error) bool) {
	slices.SortFunc(b.rows, func(a, b badRow) int { return cmp.Compare(a.at, b.at) })
	for _, r := range b.rows {
		if !yield(r.at, r.err) {
			return
		}
	}
}

// report takes the rows of an array that cannot be converted.
type report struct {
	has func(row int) bool // it has the row
	add func(row int, why string)
}

// Queue is what a reader has made and not handed out: batches, and between them bad rows, which are
// told when it is their turn. Not safe for concurrent use.
type Queue struct {
	place fault.Place
	o     *driver.ScanOptions
	left  int64 // rows that the limit allows; -1: all
	items []queued
}

type queued struct {
	batch driver.Batch
	bad   *fault.Error
}

// NewQueue is for a pass over the split at place. It counts the rows that are handed out, and ends
// with the limit of o where ReadLimit is none.
func NewQueue(place fault.Place, o *driver.ScanOptions) Queue {
	q := Queue{place: place, o: o, left: -1}
	if o.Limit > 0 && len(o.Predicate) == 0 && ReadLimit(o) == 0 {
		q.left = o.Limit
	}
	return q
}

// ReadLimit is how many rows a reader reads at most, 0: all. A limit is of rows that are handed
// out, of which there are fewer where bad ones are left out.
func ReadLimit(o *driver.ScanOptions) int64 {
	if len(o.Predicate) > 0 || o.OnBadRow != nil {
		return 0
	}
	return o.Limit
}

// Put takes over b, but for the bad rows.
func (q *Queue) Put(b driver.Batch, bad *BadRows) {
	n := b.Record.NumRows()
	if bad.Len() == 0 {
		if n > 0 {
			q.items = append(q.items, queued{batch: b})
		} else {
			b.Record.Release()
		}
		return
	}
	from := int64(0)
	part := func(to int64) {
		if from < to {
			q.items = append(q.items, queued{batch: b.Slice(from, to)})
		}
	}
	for row, err := range bad.All {
		part(int64(row))
		q.items = append(q.items, queued{bad: err})
		from = int64(row) + 1
	}
	part(n)
	b.Record.Release()
}

// Next is the next batch; false where more has to be Put. Its errors are those of driver.Reader.
func (q *Queue) Next() (driver.Batch, bool, error) {
	for {
		if q.left == 0 {
			return driver.Batch{}, false, io.EOF
		}
		if len(q.items) == 0 {
			return driver.Batch{}, false, nil
		}
		x := q.items[0]
		q.items[0] = queued{}
		q.items = q.items[1:]
		if x.bad == nil {
			b := x.batch
			if n := b.Record.NumRows(); q.left >= 0 && n > q.left {
				b = x.batch.Slice(0, q.left)
				x.batch.Record.Release()
			}
			if q.left >= 0 {
				q.left -= b.Record.NumRows()
			}
			q.o.Stats.Rows.Add(b.Record.NumRows())
			return b, true, nil
		}
		if err := q.Tell(x.bad); err != nil {
			return driver.Batch{}, false, err
		}
	}
}

// Tell has a bad row left out at once, or gives the error that ends the pass.
func (q *Queue) Tell(bad error) error {
	err := fault.Wrap(bad, q.place)
	if q.o.OnBadRow == nil {
		return err
	}
	return q.o.OnBadRow(err)
}

// Release gives back what is left.
func (q *Queue) Release() {
	for _, x := range q.items {
		if x.batch.Record != nil {
			x.batch.Record.Release()
		}
	}
	q.items = nil
}
