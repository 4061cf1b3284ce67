package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// scan reads one split to its end and hands over every batch; the batch is
// released afterwards. The error is that of Open, Next or each; nil at io.EOF.
func scan(ctx context.Context, tab driver.Table, i int, o *driver.ScanOptions, each func(driver.Batch) error) error {
	r, err := tab.Open(ctx, i, o)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		b, err := r.Next(ctx)
		if err != nil {
			if _, again := r.Next(ctx); !same(err, again) {
				return fmt.Errorf("the error %v is not sticky: %v", err, again)
			}
			if err == io.EOF {
				return nil
			}
			return err
		}
		err = func() error {
			defer b.Record.Release()
			if b.Record.NumRows() == 0 {
				return errors.New("an empty batch")
			}
			return each(b)
		}()
		if err != nil {
			return err
		}
	}
}

func same(a, b error) bool { return a == b || b != nil && a.Error() == b.Error() }

// decoded returns the values of a dictionary's rows. Every index of a row that is not null must be one of its entries.
func decoded(d *array.Dictionary) (arrow.Array, error) {
	b := array.NewBuilder(memory.DefaultAllocator, d.Dictionary().DataType())
	defer b.Release()
	parts := make([]arrow.Array, 0, d.Len()+1)
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	b.AppendNull()
	null := b.NewArray()
	defer null.Release()
	for i := range d.Len() {
		if d.IsNull(i) {
			null.Retain()
			parts = append(parts, null)
			continue
		}
		k := int64(d.GetValueIndex(i))
		if k >= int64(d.Dictionary().Len()) {
			return nil, fmt.Errorf("row %d has index %d of %d entries", i, k, d.Dictionary().Len())
		}
		parts = append(parts, array.NewSlice(d.Dictionary(), k, k+1))
	}
	if len(parts) == 0 {
		parts = append(parts, b.NewArray())
	}
	return array.Concatenate(parts, memory.DefaultAllocator)
}

// equal compares a batch with the rows of want from row on, by column name.
func equal(rec, want arrow.RecordBatch, row int64) error {
	n := rec.NumRows()
	if row+n > want.NumRows() {
		return fmt.Errorf("rows %d to %d of %d", row, row+n, want.NumRows())
	}
	for i, c := range rec.Columns() {
		name := rec.ColumnName(i)
		at := want.Schema().FieldIndices(name)
		if len(at) != 1 {
			return fmt.Errorf("unknown column %q", name)
		}
		w := want.Column(at[0])
		if d, ok := c.(*array.Dictionary); ok && w.DataType().ID() != arrow.DICTIONARY {
			var err error
			if c, err = decoded(d); err != nil {
				return fmt.Errorf("column %q: %w", name, err)
			}
			defer c.Release()
		}
		if !arrow.TypeEqual(c.DataType(), w.DataType()) {
			return fmt.Errorf("column %q is %v, want %v", name, c.DataType(), w.DataType())
		}
		if c.Len() != int(n) {
			return fmt.Errorf("column %q has %d rows of %d", name, c.Len(), n)
		}
		if array.SliceEqual(c, 0, n, w, row, row+n) {
			continue
		}
		for k := range n {
			if !array.SliceEqual(c, k, k+1, w, row+k, row+k+1) {
				return fmt.Errorf("row %d, column %q is %s, want %s", row+k, name, c.ValueStr(int(k)), w.ValueStr(int(row+k)))
			}
		}
		return fmt.Errorf("column %q differs", name)
	}
	return nil
}

// starts reads everything, checks that it is want, and returns the first row of
// every split and the end.
func starts(t *testing.T, tab driver.Table, want arrow.RecordBatch) []int64 {
	t.Helper()
	at := []int64{0}
	for i := range tab.Splits() {
		row := at[i]
		err := scan(t.Context(), tab, i, nil, func(b driver.Batch) error {
			if b.Row != row-at[i] {
				return fmt.Errorf("Batch.Row is %d, want %d", b.Row, row-at[i])
			}
			if !b.Record.Schema().Equal(tab.Schema()) {
				return fmt.Errorf("the batch has the schema %v, the table %v", b.Record.Schema(), tab.Schema())
			}
			err := equal(b.Record, want, row)
			row += b.Record.NumRows()
			return err
		})
		if err != nil {
			t.Fatalf("split %s: %v", tab.Splits()[i].ID, err)
		}
		at = append(at, row)
	}
	if at[len(at)-1] != want.NumRows() {
		t.Fatalf("read %d rows, want %d", at[len(at)-1], want.NumRows())
	}
	return at
}

func (s *suite) config(t *testing.T) {
	d := s.make(t)
	if d.src.Kind() == "" {
		t.Error("Kind is empty")
	}
	c, err := d.src.Config()
	if s.Open == nil {
		if fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("Config gives %v, want an Unsupported error", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	src, err := s.Open(c)
	if err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	if src.Kind() != d.src.Kind() {
		t.Errorf("Kind became %q", src.Kind())
	}
	if c2, err := src.Config(); err != nil || !bytes.Equal(c, c2) {
		t.Errorf("Config became %s (%v), was %s", c2, err, c)
	}
	a, b := resolved(t, d.src), resolved(t, src)
	if x, y := s.print(t, a), s.print(t, b); x != y {
		t.Errorf("the fingerprint became %s, was %s", y, x)
	}
	starts(t, b, d.want)
	for _, bad := range []string{`{"no_such_option": 1}`, `[]`, `{`} {
		if _, err := s.Open([]byte(bad)); err == nil {
			t.Errorf("the configuration %s gives no error", bad)
		}
	}
}

// print is the fingerprint, "" where there is none.
func (s *suite) print(t *testing.T, tab driver.Table) string {
	t.Helper()
	f, err := tab.Fingerprint(t.Context())
	if s.NoFingerprint {
		if fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("Fingerprint gives %v, want an Unsupported error", err)
		}
		return ""
	}
	if err != nil || f == "" {
		t.Fatalf("Fingerprint gives %q, %v", f, err)
	}
	return f
}

func (s *suite) resolve(t *testing.T) {
	d := s.make(t)
	a, b := resolved(t, d.src), resolved(t, d.src)
	if x := cmp.Diff(a.Splits(), b.Splits()); x != "" {
		t.Errorf("splits differ the second time:\n%s", x)
	}
	if !a.Schema().Equal(b.Schema()) {
		t.Errorf("the schema is %v the second time, was %v", b.Schema(), a.Schema())
	}
	if x, y := s.print(t, a), s.print(t, b); x != y {
		t.Errorf("the fingerprint is %s the second time, was %s", y, x)
	}
	want := d.want.Schema()
	for i, f := range a.Schema().Fields() {
		typ := f.Type
		if d, ok := typ.(*arrow.DictionaryType); ok && s.Dictionaries {
			typ = d.ValueType
		}
		if i >= want.NumFields() || f.Name != want.Field(i).Name || !arrow.TypeEqual(typ, want.Field(i).Type) {
			t.Fatalf("the schema is %v, want %v", a.Schema(), want)
		}
	}
	ids := map[string]bool{}
	var last driver.Split
	for i, sp := range a.Splits() {
		if sp.ID == "" || ids[sp.ID] {
			t.Errorf("split %d has the ID %q again", i, sp.ID)
		}
		ids[sp.ID] = true
		if i > 0 && (sp.File < last.File || sp.File == last.File && sp.Index <= last.Index) {
			t.Errorf("split %d (%s) comes after %s", i, sp.ID, last.ID)
		}
		if sp.Rows < -1 || s.KnownRows && sp.Rows < 0 {
			t.Errorf("split %s has %d rows", sp.ID, sp.Rows)
		}
		if len(d.paths) > 0 && s.Make == nil && !slices.Contains(d.paths, sp.File) {
			t.Errorf("split %s has the file %q", sp.ID, sp.File)
		}
		last = sp
	}
	at := starts(t, a, d.want)
	for i, sp := range a.Splits() {
		if n := at[i+1] - at[i]; sp.Rows >= 0 && sp.Rows != n {
			t.Errorf("split %s has %d rows, says %d", sp.ID, n, sp.Rows)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if tab, err := d.src.Resolve(ctx, nil); fault.CodeOf(err) != fault.Canceled {
		t.Errorf("Resolve after cancel gives %v", err)
		if err == nil {
			tab.Close()
		}
	}
}

func (s *suite) rows(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	alloc := memtest.New(t)
	var st driver.ScanStats
	var row int64
	for i := range tab.Splits() {
		err := scan(t.Context(), tab, i, &driver.ScanOptions{Alloc: alloc, Stats: &st}, func(b driver.Batch) error {
			err := equal(b.Record, d.want, row)
			row += b.Record.NumRows()
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if row != d.want.NumRows() || st.Rows.Load() != row {
		t.Errorf("read %d rows, counted %d, want %d", row, st.Rows.Load(), d.want.NumRows())
	}
	if s.Make == nil && (st.BytesRead.Load() == 0 || st.Requests.Load() == 0) {
		t.Errorf("counted %d bytes in %d requests", st.BytesRead.Load(), st.Requests.Load())
	}
	if z, ok := tab.(driver.Sizer); ok {
		for i := range tab.Splits() {
			f, dec := z.Size(i, nil)
			f0, dec0 := z.Size(i, []string{})
			if f < 0 || dec < 0 || f0 > f || dec0 > dec {
				t.Errorf("split %d: size %d, %d; without columns %d, %d", i, f, dec, f0, dec0)
			}
		}
	}
}

func (s *suite) projection(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	at := starts(t, tab, d.want)
	alloc := memtest.New(t)
	var all []string
	for _, f := range tab.Schema().Fields() {
		all = append(all, f.Name)
	}
	sets := [][]string{all, {}}
	rng := s.rng(1)
	for range 8 {
		p := slices.Clone(all)
		rng.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
		sets = append(sets, p[:rng.IntN(len(p)+1)])
	}
	for _, cols := range sets {
		for i := range tab.Splits() {
			row := at[i]
			err := scan(t.Context(), tab, i, &driver.ScanOptions{Columns: cols, Alloc: alloc}, func(b driver.Batch) error {
				var got []string
				for _, f := range b.Record.Schema().Fields() {
					got = append(got, f.Name)
				}
				if !slices.Equal(got, cols) {
					return fmt.Errorf("columns are %q, want %q", got, cols)
				}
				if b.Row != row-at[i] {
					return fmt.Errorf("Batch.Row is %d, want %d", b.Row, row-at[i])
				}
				err := equal(b.Record, d.want, row)
				row += b.Record.NumRows()
				return err
			})
			if err != nil {
				t.Fatalf("columns %q, split %d: %v", cols, i, err)
			}
			if row != at[i+1] {
				t.Fatalf("columns %q, split %d: %d rows, want %d", cols, i, row-at[i], at[i+1]-at[i])
			}
		}
	}
	err := scan(t.Context(), tab, 0, &driver.ScanOptions{Columns: []string{"no such column"}, Alloc: alloc}, func(driver.Batch) error { return nil })
	if c := fault.CodeOf(err); c != fault.Invalid && c != fault.NotFound {
		t.Errorf("an unknown column gives %v", err)
	}
}

func (s *suite) batches(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	at := starts(t, tab, d.want)
	alloc := memtest.New(t)
	for _, o := range []driver.ScanOptions{{BatchRows: 1}, {BatchRows: 7}, {BatchRows: 1024}, {BatchBytes: 1}, {BatchBytes: 4096}} {
		o.Alloc = alloc
		var cuts [2][]int64
		for pass := range cuts {
			for i := range tab.Splits() {
				if (o.BatchRows == 1 || o.BatchBytes == 1) && at[i+1]-at[i] > 5000 {
					continue // takes long and shows nothing more
				}
				row := at[i]
				err := scan(t.Context(), tab, i, &o, func(b driver.Batch) error {
					n := b.Record.NumRows()
					cuts[pass] = append(cuts[pass], n)
					if b.Row != row-at[i] {
						return fmt.Errorf("Batch.Row is %d, want %d", b.Row, row-at[i])
					}
					if o.BatchRows > 0 && n > int64(o.BatchRows) || o.BatchBytes == 1 && n > 1 {
						return fmt.Errorf("a batch has %d rows", n)
					}
					if size := bytesOf(b.Record); n > 1 && o.BatchBytes > 1 && size > 2*o.BatchBytes {
						return fmt.Errorf("a batch of %d rows takes %d bytes", n, size)
					}
					err := equal(b.Record, d.want, row)
					row += n
					return err
				})
				if err != nil {
					t.Fatalf("%d rows, %d bytes, split %d: %v", o.BatchRows, o.BatchBytes, i, err)
				}
				if row != at[i+1] {
					t.Fatalf("%d rows, %d bytes, split %d: %d rows, want %d", o.BatchRows, o.BatchBytes, i, row-at[i], at[i+1]-at[i])
				}
			}
		}
		if !slices.Equal(cuts[0], cuts[1]) {
			t.Errorf("%d rows, %d bytes: the second pass was cut differently", o.BatchRows, o.BatchBytes)
		}
	}
}

func (s *suite) fromRow(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	at := starts(t, tab, d.want)
	alloc := memtest.New(t)
	for i := range tab.Splits() {
		rows := at[i+1] - at[i]
		for _, from := range []int64{0, 1, 6, rows / 2, rows - 1, rows, rows + 5} {
			if from < 0 {
				continue
			}
			for _, batch := range []int{0, 7} {
				row := min(from, rows)
				err := scan(t.Context(), tab, i, &driver.ScanOptions{FromRow: from, BatchRows: batch, Alloc: alloc}, func(b driver.Batch) error {
					if b.Row != row {
						return fmt.Errorf("Batch.Row is %d, want %d", b.Row, row)
					}
					err := equal(b.Record, d.want, at[i]+row)
					row += b.Record.NumRows()
					return err
				})
				if err != nil {
					t.Fatalf("split %d from row %d: %v", i, from, err)
				}
				if row != rows {
					t.Fatalf("split %d from row %d ends at %d of %d", i, from, row, rows)
				}
			}
		}
	}
}

func (s *suite) limit(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	at := starts(t, tab, d.want)
	alloc := memtest.New(t)
	for i := range tab.Splits() {
		rows := at[i+1] - at[i]
		for _, limit := range []int64{1, 10, rows, rows + 1} {
			for _, from := range []int64{0, rows / 3} {
				row := from
				err := scan(t.Context(), tab, i, &driver.ScanOptions{Limit: limit, FromRow: from, BatchRows: 64, Alloc: alloc}, func(b driver.Batch) error {
					if b.Row != row {
						return fmt.Errorf("Batch.Row is %d, want %d", b.Row, row)
					}
					err := equal(b.Record, d.want, at[i]+row)
					row += b.Record.NumRows()
					return err
				})
				if err != nil {
					t.Fatalf("split %d, limit %d: %v", i, limit, err)
				}
				if row-from < min(limit, rows-from) {
					t.Fatalf("split %d, limit %d gives %d of %d rows", i, limit, row-from, rows-from)
				}
			}
		}
	}
}

func (s *suite) predicate(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	at := starts(t, tab, d.want)
	alloc := memtest.New(t)
	rng := s.rng(2)
	preds := []driver.Predicate{}
	if len(d.want.Schema().FieldIndices("id")) > 0 {
		preds = append(preds,
			driver.Predicate{{Column: "id", Op: driver.Ge, Values: []any{d.want.NumRows() - 1}}},
			driver.Predicate{{Column: "id", Op: driver.Eq, Values: []any{float64(0.5)}}},
			driver.Predicate{{Column: "id", Op: driver.Lt, Values: []any{int64(1)}}})
	}
	for range 20 {
		preds = append(preds, Predicate(d.want, rng))
	}
	var pruned int
	for k, p := range preds {
		var keep []bool
		if pr, ok := tab.(driver.Pruner); ok {
			var err error
			if keep, err = pr.Keep(t.Context(), p); err != nil || len(keep) != len(tab.Splits()) {
				t.Fatalf("%v: Keep gives %v, %v", p, keep, err)
			}
		}
		o := &driver.ScanOptions{Predicate: p, Alloc: alloc, BatchRows: 100, Gaps: k%2 == 0}
		if k%3 == 1 {
			o.Columns = []string{}
		}
		if k%3 == 2 {
			o.Limit = 5
		}
		for i := range tab.Splits() {
			var matches, next int64 = 0, 0
			err := scan(t.Context(), tab, i, o, func(b driver.Batch) error {
				if keep != nil && !keep[i] {
					return errors.New("the split that Keep excludes yields rows")
				}
				if b.Row < next {
					return fmt.Errorf("Batch.Row is %d after %d", b.Row, next)
				}
				n := b.Record.NumRows()
				if b.Rows != nil && (!o.Gaps || int64(len(b.Rows)) != n || b.Rows[0] != b.Row) {
					return fmt.Errorf("%d rows from %d on are at %v (Gaps: %t)", n, b.Row, b.Rows, o.Gaps)
				}
				for k := range n {
					row := b.Row + k
					if b.Rows != nil {
						row = b.Rows[k]
					}
					for ; next < row; next++ {
						if Match(d.want, int(at[i]+next), p) {
							return fmt.Errorf("row %d matches and is missing", next)
						}
					}
					if next != row {
						return fmt.Errorf("row %d comes after row %d", row, next-1)
					}
					if Match(d.want, int(at[i]+next), p) {
						matches++
					}
					next++
					if b.Rows != nil {
						one := b.Slice(k, k+1)
						err := equal(one.Record, d.want, at[i]+row)
						one.Record.Release()
						if err != nil {
							return err
						}
					}
				}
				if b.Rows != nil {
					return nil
				}
				return equal(b.Record, d.want, at[i]+b.Row)
			})
			if err != nil {
				t.Fatalf("%v, split %d: %v", p, i, err)
			}
			for ; next < at[i+1]-at[i] && (o.Limit == 0 || matches < o.Limit); next++ {
				if Match(d.want, int(at[i]+next), p) {
					t.Fatalf("%v, split %d: row %d matches and is missing (limit %d)", p, i, next, o.Limit)
				}
			}
			if keep != nil && !keep[i] {
				pruned++
			}
		}
	}
	if s.Prunes && pruned == 0 {
		t.Error("no predicate pruned any split")
	}
}

func (s *suite) parallel(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	at := starts(t, tab, d.want)
	alloc := memtest.New(t)
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for k := range tab.Splits() {
				i := k
				if w == 1 {
					i = len(tab.Splits()) - 1 - k
				}
				row := at[i]
				err := scan(t.Context(), tab, i, &driver.ScanOptions{BatchRows: 50 + w, Alloc: alloc}, func(b driver.Batch) error {
					err := equal(b.Record, d.want, row)
					row += b.Record.NumRows()
					return err
				})
				if err != nil || row != at[i+1] {
					t.Errorf("reader %d, split %d: %d rows, %v", w, i, row-at[i], err)
				}
			}
		})
	}
	wg.Wait()
}

// largest is the split with the most rows.
func largest(at []int64) (i int) {
	for k := range len(at) - 1 {
		if at[k+1]-at[k] > at[i+1]-at[i] {
			i = k
		}
	}
	return i
}

func (s *suite) cancel(t *testing.T) {
	d := s.make(t)
	tab := resolved(t, d.src)
	i := largest(starts(t, tab, d.want))
	alloc := memtest.New(t)
	o := &driver.ScanOptions{BatchRows: 2, Alloc: alloc}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begin := time.Now()
	if err := scan(ctx, tab, i, o, func(driver.Batch) error { return errors.New("a batch after cancel") }); fault.CodeOf(err) != fault.Canceled {
		t.Errorf("a scan after cancel gives %v", err)
	}
	for _, batches := range []int{0, 1, 3} {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := tab.Open(ctx, i, o)
		if err != nil {
			t.Fatal(err)
		}
		for range batches {
			b, err := r.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			b.Record.Release()
		}
		cancel()
		b, err := r.Next(ctx)
		if fault.CodeOf(err) != fault.Canceled {
			t.Errorf("Next after %d batches and cancel gives %v", batches, err)
			if err == nil {
				b.Record.Release()
			}
		}
		if _, again := r.Next(t.Context()); fault.CodeOf(again) != fault.Canceled {
			t.Errorf("Next after the canceled one gives %v", again)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if d := time.Since(begin); d > 4*time.Second {
		t.Errorf("four canceled scans took %v", d)
	}
}

func (s *suite) close(t *testing.T) {
	d := s.make(t)
	tab, err := d.src.Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	at := starts(t, tab, d.want)
	alloc := memtest.New(t)
	i := largest(at)
	var kept []driver.Batch
	for batches := range 4 {
		r, err := tab.Open(t.Context(), i, &driver.ScanOptions{BatchRows: 3, Alloc: alloc})
		if err != nil {
			t.Fatal(err)
		}
		for range batches {
			b, err := r.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, b)
		}
		for range 2 {
			if err := r.Close(); err != nil {
				t.Errorf("Close after %d batches: %v", batches, err)
			}
		}
		if _, err := r.Next(t.Context()); err == nil {
			t.Error("Next after Close gives a batch")
		}
	}
	if err := tab.Close(); err != nil {
		t.Error(err)
	}
	for _, b := range kept {
		if err := equal(b.Record, d.want, at[i]+b.Row); err != nil {
			t.Errorf("a record after Close: %v", err)
		}
		b.Record.Release()
	}
}

// bytesOf is the memory of the record's rows alone.
func bytesOf(rec arrow.RecordBatch) (n int64) {
	for _, c := range rec.Columns() {
		n += cut.Bytes(c.Data(), 0, rec.NumRows())
	}
	return n
}
