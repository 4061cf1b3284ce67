package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// byted is a split that Offsetter says yes to.
type byted struct {
	i     int
	begin int64   // in its file
	rows  []int64 // where they begin in the split
	first int64   // row of the data
}

// offsets checks driver.Offsetter: where rows begin, and that a split can be
// entered there and anywhere else.
func (s *suite) offsets(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	of, ok := tab.(driver.Offsetter)
	if !ok {
		t.Skip("rows have no place in bytes")
	}
	at := starts(t, tab, d.want)
	alloc := memtest.New(t)
	files := map[string][]byted{}
	for i, sp := range tab.Splits() {
		if !of.Offsets(i) {
			for _, o := range []*driver.ScanOptions{{Offsets: true}, {FromByte: 1}} {
				if r, err := tab.Open(t.Context(), i, o); fault.CodeOf(err) != fault.Invalid {
					t.Errorf("split %s has no offsets, and Open with %+v gives %v", sp.ID, o, err)
					if err == nil {
						r.Close()
					}
				}
			}
			continue
		}
		if sp.Rows != -1 {
			t.Errorf("split %s has offsets and %d rows", sp.ID, sp.Rows)
		}
		b := byted{i: i, first: at[i]}
		if before := files[sp.File]; len(before) > 0 {
			last := before[len(before)-1]
			b.begin = last.begin + tab.Splits()[last.i].Bytes
		}
		if b.rows = s.from(t, tab, d.want, b, &driver.ScanOptions{Offsets: true, Alloc: alloc}); int64(len(b.rows)) != at[i+1]-at[i] {
			t.Fatalf("split %s: %d rows, want %d", sp.ID, len(b.rows), at[i+1]-at[i])
		}
		files[sp.File] = append(files[sp.File], b)
		s.enter(t, tab, d.want, b, &driver.ScanOptions{Alloc: alloc})
	}
	for _, path := range d.paths {
		if bs := files[path]; len(bs) > 0 {
			lines(t, path, bs, tab.Splits()[bs[len(bs)-1].i].Bytes)
		}
	}
}

// from scans a split of which earlier rows are left out, and returns the offsets of
// those handed out; nil if they are not asked for.
func (s *suite) from(t *testing.T, tab driver.Table, want arrow.RecordBatch, b byted, o *driver.ScanOptions) (all []int64) {
	t.Helper()
	row := o.FromRow
	if b.rows != nil {
		n, _ := slices.BinarySearch(b.rows, o.FromByte)
		row = max(row, int64(n))
	}
	size := tab.Splits()[b.i].Bytes
	err := scan(t.Context(), tab, b.i, o, func(x driver.Batch) error {
		n := int(x.Record.NumRows())
		if x.Row != row {
			return fmt.Errorf("Batch.Row is %d, want %d", x.Row, row)
		}
		if o.BatchRows > 0 && n > o.BatchRows {
			return fmt.Errorf("a batch has %d rows", n)
		}
		if !o.Offsets && x.Offsets != nil || o.Offsets && len(x.Offsets) != n {
			return fmt.Errorf("%d offsets of %d rows", len(x.Offsets), n)
		}
		for k, off := range x.Offsets {
			if off < o.FromByte || off >= size || len(all) > 0 && off <= all[len(all)-1] {
				return fmt.Errorf("row %d of a split of %d bytes begins at byte %d", x.Row+int64(k), size, off)
			}
			if b.rows != nil && off != b.rows[row+int64(k)] {
				return fmt.Errorf("row %d begins at byte %d, before at %d", row+int64(k), off, b.rows[row+int64(k)])
			}
			all = append(all, off)
		}
		err := equal(x.Record, want, b.first+row)
		row += int64(n)
		return err
	})
	if err == nil && b.rows != nil && row != max(int64(len(b.rows)), o.FromRow) {
		err = fmt.Errorf("ends at row %d of %d", row, len(b.rows))
	}
	if err != nil {
		t.Fatalf("split %s, from row %d, byte %d, batches of %d: %v", tab.Splits()[b.i].ID, o.FromRow, o.FromByte, o.BatchRows, err)
	}
	return all
}

// enter opens the split at all kinds of places.
func (s *suite) enter(t *testing.T, tab driver.Table, want arrow.RecordBatch, b byted, o *driver.ScanOptions) {
	t.Helper()
	size := tab.Splits()[b.i].Bytes
	places := []int64{0, 1, size / 2, size - 1, size, size + 5}
	rng := s.rng(uint64(100 + b.i))
	for range 3 {
		if len(b.rows) > 0 {
			x := b.rows[rng.IntN(len(b.rows))]
			places = append(places, x-1, x, x+1)
		}
		places = append(places, rng.Int64N(size+1))
	}
	for k, from := range places {
		if from < 0 {
			continue
		}
		for _, batch := range []int{0, 7, 1} {
			if batch == 1 && k%3 > 0 {
				continue
			}
			c := *o
			c.FromByte, c.BatchRows, c.Offsets = from, batch, k%2 == 0
			s.from(t, tab, want, b, &c)
			c.FromRow = rng.Int64N(int64(len(b.rows)) + 1)
			s.from(t, tab, want, b, &c)
		}
		c := *o
		c.FromByte, c.Columns = from, []string{}
		s.from(t, tab, want, b, &c)
	}
}

// lines compares offsets with the file: ranges cover it, and every row begins a line;
// where there are as many lines as rows, but for a header, each row its own.
func lines(t *testing.T, path string, bs []byted, last int64) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if end := bs[len(bs)-1].begin + last; end != int64(len(raw)) {
		t.Fatalf("the splits of %s have %d bytes, the file %d", path, end, len(raw))
	}
	var starts, rows []int64
	from := 0
	if bytes.HasPrefix(raw, []byte("\xef\xbb\xbf")) {
		from = 3
	}
	for at := from; at < len(raw); {
		starts = append(starts, int64(at))
		n := bytes.IndexByte(raw[at:], '\n') + 1
		if n == 0 {
			break
		}
		at += n
	}
	for _, b := range bs {
		for _, off := range b.rows {
			rows = append(rows, b.begin+off)
		}
	}
	if header := len(starts) - len(rows); header == 0 || header == 1 {
		starts = starts[header:]
	}
	k := 0
	for i, at := range rows {
		for k < len(starts) && starts[k] < at {
			k++
		}
		if k == len(starts) || starts[k] != at || len(starts) == len(rows) && k != i {
			t.Fatalf("%s: row %d is said to begin at byte %d, which is no begin of its line", path, i, at)
		}
	}
}

// contexts reads with a context for Open and another for each Next, which end when
// the call returns: nothing that goes on in between may depend on them.
func (s *suite) contexts(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	at := starts(t, tab, d.want)
	i := largest(at)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := tab.Open(ctx, i, &driver.ScanOptions{BatchRows: 64, Alloc: memtest.New(t)})
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	row := at[i]
	for {
		ctx, cancel := context.WithCancel(t.Context())
		b, err := r.Next(ctx)
		cancel()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("after %d rows: %v", row-at[i], err)
		}
		err = equal(b.Record, d.want, row)
		row += b.Record.NumRows()
		b.Record.Release()
		if err != nil {
			t.Fatal(err)
		}
	}
	if row != at[i+1] {
		t.Errorf("%d rows, want %d", row-at[i], at[i+1]-at[i])
	}
}
