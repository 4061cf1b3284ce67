package parquetio

import (
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
)

// TestStopEvery: batches end at every stop, are the same rows in the same order, and are no more than they must be.
func TestStopEvery(t *testing.T) {
	const rows = 5000
	rec := drivertest.Records(drivertest.Schema(), 1, 0, rows)
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "a.parquet")
	writeFile(t, path, &EncodingOptions{RowGroupRows: rows}, nil, rec)
	tab := mustOpen(t, nil, path)
	if s, ok := tab.(driver.Stopper); !ok || !s.Stops() {
		t.Fatal("the table does not say that it stops")
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 40 {
		o := driver.ScanOptions{FromRow: r.Int64N(rows), StopRow: r.Int64N(rows), StopEvery: 1 + r.Int64N(1+int64(r.IntN(3000))), BatchRows: 1 + r.IntN(2000), Alloc: memtest.New(t)}
		rd, err := tab.Open(t.Context(), 0, &o)
		if err != nil {
			t.Fatal(err)
		}
		at, batches, least := o.FromRow, int64(0), int64(0)
		part := func(row int64) int64 { // of the rows between two stops
			d := row - o.StopRow
			if d < 0 {
				d -= o.StopEvery - 1
			}
			return d / o.StopEvery
		}
		for from := at; from < rows; {
			to := min(o.StopRow+(part(from)+1)*o.StopEvery, rows)
			least += (to - from + int64(o.BatchRows) - 1) / int64(o.BatchRows)
			from = to
		}
		for {
			b, err := rd.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n := b.Record.NumRows()
			want := rec.NewSlice(at, at+n)
			same := b.Row == at && array.RecordEqual(b.Record, want)
			want.Release()
			b.Record.Release()
			if !same || part(at) != part(at+n-1) || n > int64(o.BatchRows) {
				t.Fatalf("seed %d, %+v: rows %d to %d", seed, o, b.Row, b.Row+n)
			}
			at += n
			batches++
		}
		if err := rd.Close(); err != nil {
			t.Fatal(err)
		}
		if at != rows || batches != least {
			t.Fatalf("seed %d, %+v: %d rows in %d batches, want %d", seed, o, at, batches, least)
		}
	}
}
