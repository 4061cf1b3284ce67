package memio_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"testing"
	"testing/synctest"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/memio"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func flat(files [][]arrow.RecordBatch) (recs []arrow.RecordBatch) {
	for _, f := range files {
		recs = append(recs, f...)
	}
	return recs
}

func TestConformanceRange(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Make: func(t testing.TB, files [][]arrow.RecordBatch) driver.Source {
			var n int64
			for _, r := range flat(files) {
				n += r.NumRows()
			}
			return memio.Range(n)
		},
		Open:      memio.Format().Open,
		Schema:    drivertest.IDs(),
		FileRows:  []int64{memio.SplitRows + 900},
		KnownRows: true,
		Prunes:    true,
	}, 0)
}

func TestConformanceRecords(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Make: func(t testing.TB, files [][]arrow.RecordBatch) driver.Source {
			s, err := memio.Records(drivertest.Schema(), flat(files)...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Release)
			return s
		},
		KnownRows:     true,
		NoFingerprint: true,
		Shares:        true,
	}, 0)
}

func TestConformanceRecordsSplits(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Make: func(t testing.TB, files [][]arrow.RecordBatch) driver.Source {
			s, err := memio.Records(drivertest.IDs(), flat(files)...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Release)
			return s
		},
		Schema:        drivertest.IDs(),
		FileRows:      []int64{memio.SplitRows - 10, 700},
		KnownRows:     true,
		NoFingerprint: true,
		Shares:        true,
	}, 0)
}

func TestConformanceGenerator(t *testing.T) {
	for _, known := range []bool{false, true} {
		drivertest.Run(t, drivertest.Harness{
			Make: func(t testing.TB, files [][]arrow.RecordBatch) driver.Source {
				o := &memio.GeneratorOptions{Splits: len(files)}
				if known {
					for _, f := range files {
						var n int64
						for _, r := range f {
							n += r.NumRows()
						}
						o.Rows = append(o.Rows, n)
					}
				}
				s, err := memio.Generator(drivertest.Schema(), replay(files), o)
				if err != nil {
					t.Fatal(err)
				}
				return s
			},
			KnownRows:     known,
			NoFingerprint: true,
			Shares:        true,
		}, 0)
	}
}

// replay yields the records of a file, as slices that are released at once.
func replay(files [][]arrow.RecordBatch) memio.GenerateFunc {
	return func(ctx context.Context, split int) iter.Seq2[arrow.RecordBatch, error] {
		return func(yield func(arrow.RecordBatch, error) bool) {
			for _, r := range files[split] {
				s := r.NewSlice(0, r.NumRows())
				ok := yield(s, nil)
				s.Release()
				if !ok {
					return
				}
			}
		}
	}
}

func ids(t *testing.T, n int64) arrow.RecordBatch {
	r := drivertest.Records(drivertest.IDs(), 1, 0, n)
	t.Cleanup(r.Release)
	return r
}

func drain(t *testing.T, src driver.Source, o *driver.ScanOptions) (rows int64, err error) {
	t.Helper()
	tab, err := src.Resolve(t.Context(), nil)
	if err != nil {
		return 0, err
	}
	defer tab.Close()
	for i := range tab.Splits() {
		r, err := tab.Open(t.Context(), i, o)
		if err != nil {
			return rows, err
		}
		defer r.Close()
		for {
			b, err := r.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				return rows, err
			}
			rows += b.Record.NumRows()
			b.Record.Release()
		}
	}
	return rows, nil
}

func TestGeneratorErrors(t *testing.T) {
	boom := errors.New("boom")
	one := ids(t, 10)
	other := drivertest.Records(drivertest.Schema(), 1, 0, 3)
	defer other.Release()
	for _, c := range []struct {
		name string
		rec  arrow.RecordBatch
		err  error
		rows []int64
		ok   bool
	}{
		{"as stated", one, nil, []int64{10}, true},
		{"fewer", one, nil, []int64{11}, false},
		{"more", one, nil, []int64{9}, false},
		{"error", nil, boom, nil, false},
		{"schema", other, nil, nil, false},
	} {
		src, err := memio.Generator(drivertest.IDs(), func(context.Context, int) iter.Seq2[arrow.RecordBatch, error] {
			return func(yield func(arrow.RecordBatch, error) bool) { yield(c.rec, c.err) }
		}, &memio.GeneratorOptions{Rows: c.rows})
		if err != nil {
			t.Fatal(err)
		}
		_, err = drain(t, src, nil)
		if (err == nil) != c.ok || err != nil && fault.CodeOf(err) != fault.UserCode {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: the cause is lost: %v", c.name, err)
		}
	}
}

// A function that waits is woken by the end of the context, and leaves nothing.
func TestGeneratorWaits(t *testing.T) {
	src, err := memio.Generator(drivertest.IDs(), func(ctx context.Context, _ int) iter.Seq2[arrow.RecordBatch, error] {
		return func(yield func(arrow.RecordBatch, error) bool) {
			<-ctx.Done()
			yield(nil, context.Cause(ctx))
		}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := src.Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	r, err := tab.Open(t.Context(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if _, err := r.Next(ctx); fault.CodeOf(err) != fault.Canceled {
		t.Errorf("got %v", err)
	}
}

// A read whose context ends while the function works is canceled, whatever the function does as it ends: yields a
// record after all, returns, or fails. No later read finds a function that was told to end.
func TestGeneratorEndsWithContext(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, rec arrow.RecordBatch, yield func(arrow.RecordBatch, error) bool){
		"yields": func(_ context.Context, rec arrow.RecordBatch, yield func(arrow.RecordBatch, error) bool) {
			yield(rec, nil)
		},
		"returns": func(context.Context, arrow.RecordBatch, func(arrow.RecordBatch, error) bool) {},
		"fails": func(_ context.Context, _ arrow.RecordBatch, yield func(arrow.RecordBatch, error) bool) {
			yield(nil, errors.New("boom"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			alloc := memtest.New(t)
			b := array.NewRecordBuilder(alloc, drivertest.IDs())
			defer b.Release()
			b.Field(0).(*array.Int64Builder).AppendValues([]int64{1, 2, 3}, nil)
			rec := b.NewRecordBatch()
			defer rec.Release()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				why := errors.New("enough")
				src, err := memio.Generator(drivertest.IDs(), func(gctx context.Context, _ int) iter.Seq2[arrow.RecordBatch, error] {
					return func(yield func(arrow.RecordBatch, error) bool) {
						if !yield(rec, nil) {
							return
						}
						cancel(why)
						<-gctx.Done()
						end(gctx, rec, yield)
					}
				}, &memio.GeneratorOptions{Rows: []int64{6}})
				if err != nil {
					t.Fatal(err)
				}
				tab, err := src.Resolve(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer tab.Close()
				r, err := tab.Open(t.Context(), 0, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				first, err := r.Next(ctx)
				if err != nil {
					t.Fatal(err)
				}
				first.Record.Release()
				for _, ctx := range []context.Context{ctx, t.Context()} {
					if x, err := r.Next(ctx); fault.CodeOf(err) != fault.Canceled && !errors.Is(err, why) {
						t.Errorf("%v, %v", x.Record, err)
						if err == nil {
							x.Record.Release()
						}
					}
					synctest.Wait()
				}
			})
		})
	}
}

func TestRecordsRelease(t *testing.T) {
	alloc := memtest.New(t)
	b := array.NewRecordBuilder(alloc, drivertest.IDs())
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues([]int64{1, 2, 3}, nil)
	rec := b.NewRecordBatch()
	src, err := memio.Records(drivertest.IDs(), rec)
	if err != nil {
		t.Fatal(err)
	}
	rec.Release()
	if n, err := drain(t, src, nil); n != 3 || err != nil {
		t.Errorf("%d rows, %v", n, err)
	}
	tab, err := src.Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	src.Release()
	src.Release()
	if alloc.CurrentAlloc() == 0 {
		t.Error("the table does not hold the records")
	}
	tab.Close()
	if _, err := src.Resolve(t.Context(), nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("Resolve after Release gives %v", err)
	}
}

func TestEmpty(t *testing.T) {
	src, err := memio.Records(drivertest.IDs())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []driver.Source{src, memio.Range(0)} {
		if n, err := drain(t, s, nil); n != 0 || err != nil {
			t.Errorf("%s: %d rows, %v", s.Kind(), n, err)
		}
	}
	if _, err := memio.Range(-1).Resolve(t.Context(), nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a negative range gives %v", err)
	}
	if _, err := memio.Format().Open(json.RawMessage(`{"n": 5} x`)); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("trailing text gives %v", err)
	}
	if _, err := memio.Records(drivertest.Schema(), ids(t, 1)); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a record of another schema gives %v", err)
	}
}

func BenchmarkRange(b *testing.B) {
	tab, err := memio.Range(memio.SplitRows).Resolve(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tab.Close()
	b.SetBytes(memio.SplitRows * 8)
	b.ReportAllocs()
	for b.Loop() {
		r, err := tab.Open(b.Context(), 0, nil)
		if err != nil {
			b.Fatal(err)
		}
		for {
			x, err := r.Next(b.Context())
			if err != nil {
				break
			}
			x.Record.Release()
		}
		r.Close()
	}
}
