package parquetio

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// What encoders say to hold outside the allocator is about what the Go heap has more, and little of it where little is
// asked for; the rows are the same.
func TestOutside(t *testing.T) {
	const files, batches, rows = 40, 12, 1024
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "x", Type: arrow.PrimitiveTypes.Float64}, {Name: "y", Type: arrow.PrimitiveTypes.Float64},
		{Name: "few", Type: arrow.PrimitiveTypes.Int64}, {Name: "half", Type: arrow.PrimitiveTypes.Int32},
		{Name: "list", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32)}, {Name: "text", Type: arrow.BinaryTypes.String},
	}, nil)
	fill := func(rng *rand.Rand, b *array.RecordBuilder) arrow.RecordBatch {
		for range rows {
			b.Field(0).(*array.Int64Builder).Append(rng.Int64())
			b.Field(1).(*array.Float64Builder).Append(rng.Float64())
			b.Field(2).(*array.Float64Builder).Append(rng.Float64())
			b.Field(3).(*array.Int64Builder).Append(rng.Int64N(50))
			b.Field(4).(*array.Int32Builder).Append(rng.Int32N(20_000))
			l := b.Field(5).(*array.ListBuilder)
			l.Append(true)
			for range 3 {
				l.ValueBuilder().(*array.Float32Builder).Append(rng.Float32())
			}
			b.Field(6).(*array.StringBuilder).Append(fmt.Sprintf("%064x", rng.Uint64()))
		}
		return b.NewRecordBatch()
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // pools
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		return int64(ms.HeapAlloc)
	}
	normal := int64(0)
	for _, most := range []int64{0, 100 << 10} {
		enc, err := NewEncoding(nil)
		if err != nil {
			t.Fatal(err)
		}
		var use driver.Encoding = enc
		if most > 0 {
			use = enc.Frugal(most)
		}
		pool := mem.New(1 << 30)
		rng := rand.New(rand.NewPCG(1, 2))
		b := array.NewRecordBuilder(pool, schema)
		recs := make([]arrow.RecordBatch, batches)
		for i := range recs {
			recs[i] = fill(rng, b)
		}
		before := heap()
		open := make([]driver.Encoder, files)
		said := int64(0)
		for i := range open {
			if open[i], err = use.NewEncoder(io.Discard, schema, pool); err != nil {
				t.Fatal(err)
			}
			for _, r := range recs {
				if err := open[i].Write(r); err != nil {
					t.Fatal(err)
				}
			}
			said += open[i].(driver.Cutter).Outside()
			if held := open[i].(driver.Cutter).Held(); held < open[i].(driver.Cutter).Outside() {
				t.Fatalf("%d bytes are held, less than outside", held)
			}
		}
		have := heap() - before
		t.Logf("at most %d: %d KiB per encoder on the Go heap, %d KiB by its word", most, have/files>>10, said/files>>10)
		if float64(have) > 1.5*float64(said) || float64(said) > 3*float64(have) {
			t.Errorf("%d bytes on the Go heap, %d by the encoders' word", have, said)
		}
		if most == 0 {
			normal = have
		} else if have > normal/2 {
			t.Errorf("with pages for %d bytes an encoder has %d, without %d", most, have/files, normal/files)
		}
		for i := range open {
			if err := open[i].Close(); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range recs {
			r.Release()
		}
		b.Release()
		if n := pool.Live(); n != 0 {
			t.Errorf("%d bytes leak", n)
		}
		pool.Close()
	}
}

// Closing a file of twice as many row groups is about twice the work, counted in allocations: not four times.
func TestManyRowGroups(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "few", Type: arrow.PrimitiveTypes.Int64}}, nil)
	enc, err := NewEncoding(&EncodingOptions{RowGroupRows: 1})
	if err != nil {
		t.Fatal(err)
	}
	work := func(groups int64) float64 {
		alloc := memtest.New(t)
		b := array.NewRecordBuilder(alloc, schema)
		defer b.Release()
		for i := range groups {
			b.Field(0).(*array.Int64Builder).Append(i)
			b.Field(1).(*array.Int64Builder).Append(i % 3)
		}
		rec := b.NewRecordBatch()
		defer rec.Release()
		e, err := enc.NewEncoder(io.Discard, schema, alloc)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Write(rec); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs - before.Mallocs)
	}
	if one, two := work(1000), work(2000); two > 3*one {
		t.Errorf("closing 1,000 row groups takes %.0f allocations, 2,000 take %.0f", one, two)
	}
}
