package dataset_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

var inputSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "a", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "f", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
}, nil)

// idsFrom are those of n rows, ascending or not.
func idsFrom(rng *rand.Rand, from, n int, sorted bool) []int {
	out := rng.Perm(n)
	if sorted {
		slices.Sort(out)
	}
	for i := range out {
		out[i] += from
	}
	return out
}

func inputRecord(rng *rand.Rand, ids []int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, inputSchema)
	defer b.Release()
	for _, i := range ids {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		if rng.IntN(10) == 0 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.Int32Builder).Append(int32(rng.IntN(200) - 100))
		}
		switch rng.IntN(12) {
		case 0:
			b.Field(2).AppendNull()
		case 1:
			b.Field(2).(*array.Float64Builder).Append(math.NaN())
		default:
			b.Field(2).(*array.Float64Builder).Append(math.Round(rng.NormFloat64() * 100))
		}
		if rng.IntN(8) == 0 {
			b.Field(3).AppendNull()
		} else {
			b.Field(3).(*array.StringBuilder).Append(strings.Repeat("xyz"[rng.IntN(3):][:1], rng.IntN(5)))
		}
		l := b.Field(4).(*array.ListBuilder)
		if rng.IntN(7) == 0 {
			l.AppendNull()
		} else {
			l.Append(true)
			for k := range rng.IntN(4) {
				l.ValueBuilder().(*array.Int64Builder).Append(int64(i*10 + k))
			}
		}
	}
	return b.NewRecordBatch()
}

// writeInputs makes p/*/*.parquet, of small row groups and pages with an index, so that conditions exclude
// some of both. The id ascends within the files but the first.
func writeInputs(t *testing.T, dir string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(9, 9))
	for i := range 3 {
		rec := inputRecord(rng, idsFrom(rng, i*700, 300+200*i, i > 0))
		var out bytes.Buffer
		w, err := pqarrow.NewFileWriter(inputSchema, &out, parquet.NewWriterProperties(parquet.WithDictionaryDefault(false), parquet.WithPageIndexEnabled(true),
			parquet.WithMaxRowGroupLength(int64(120+40*i)), parquet.WithBatchSize(8), parquet.WithDataPageSize(100)), pqarrow.DefaultWriterProps())
		if err == nil {
			err = w.WriteBuffered(rec)
		}
		if err == nil {
			err = w.Close()
		}
		folder := filepath.Join(dir, fmt.Sprintf("p/k=%d", i))
		if err == nil {
			err = os.MkdirAll(folder, 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "rows.parquet"), out.Bytes(), 0o600)
		}
		rec.Release()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// watched wraps the Parquet source: it counts what its tables leave out, and hides nothing that they can do.
type watched struct{ driver.Source }

func (w watched) Resolve(ctx context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	t, err := w.Source.Resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	return watchedTable{t.(parquetTable)}, nil
}

type parquetTable interface {
	driver.Table
	driver.Pruner
	driver.Sizer
	driver.Seeker
	driver.Stopper
	driver.Partitioned
	driver.Remote
}

type watchedTable struct{ parquetTable }

func (t watchedTable) Keep(ctx context.Context, p driver.Predicate) ([]bool, error) {
	inFiles := slices.DeleteFunc(slices.Clone(p), func(t driver.Term) bool { return t.Column == "k" })
	if keep, err := t.parquetTable.Keep(ctx, inFiles); err == nil && slices.Contains(keep, false) {
		seen.groups.Add(1)
	}
	return t.parquetTable.Keep(ctx, p)
}

// Open opens the split twice: what the page index excludes is known before the first row is read.
func (t watchedTable) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	if len(o.Predicate) > 0 {
		probe := *o
		probe.Stats = new(driver.ScanStats)
		if r, err := t.parquetTable.Open(ctx, i, &probe); err == nil {
			if n := probe.Stats.Pruned.Load(); n > 0 && n < t.Splits()[i].Rows-o.FromRow {
				seen.pages.Add(1)
			}
			r.Close()
		}
	}
	return t.parquetTable.Open(ctx, i, o)
}

// flaky wraps a source: every split fails once, at a batch that the seed picks, while left lasts.
type flaky struct {
	driver.Source
	seed uint64
	left *atomic.Int64 // faults of a plan that are still to come
}

func (f flaky) Resolve(ctx context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	t, err := f.Source.Resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	ft := &flakyTable{Table: t, seed: f.seed, left: f.left, failed: map[int]bool{}}
	if pt, ok := t.(parquetTable); ok {
		return flakyParquet{pt, ft}, nil
	}
	return ft, nil
}

// flakyParquet leaves out what the table leaves out, too.
type flakyParquet struct {
	parquetTable
	flaky *flakyTable
}

func (t flakyParquet) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	return t.flaky.Open(ctx, i, o)
}

type flakyTable struct {
	driver.Table
	seed   uint64
	left   *atomic.Int64
	mu     sync.Mutex
	failed map[int]bool
}

func (t *flakyTable) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	r, err := t.Table.Open(ctx, i, o)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fail := -1
	if !t.failed[i] && t.left.Add(-1) >= 0 {
		t.failed[i] = true
		fail = rand.New(rand.NewPCG(t.seed, uint64(i))).IntN(6)
	}
	return &flakyReader{Reader: r, left: fail}, nil
}

type flakyReader struct {
	driver.Reader
	left int // batches until the fault; -1: none
}

func (r *flakyReader) Next(ctx context.Context) (driver.Batch, error) {
	if r.left == 0 {
		seen.faults.Add(1)
		return driver.Batch{}, fault.New(fault.Unavailable, "injected fault")
	}
	r.left--
	return r.Reader.Next(ctx)
}
