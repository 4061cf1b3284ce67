package dataset_test

import (
	"context"
	"flag"
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
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/ops"
)

var (
	seedFlag = flag.Uint64("seed", 0, "run the metamorphic test with this seed only")
	// failing seeds are kept here for good.
	keptSeeds = []uint64{1, 2, 3}
)

// The same plan gives the same rows in the same order with every rule on and
// off, any batch size, any number of tasks, any budget, with faults and without.
func TestMetamorphic(t *testing.T) {
	seeds := slices.Clone(keptSeeds)
	n := 60
	if os.Getenv("PENSTOCK_SOAK") != "" {
		n = 3000
	}
	for range n {
		seeds = append(seeds, rand.Uint64())
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	dir := t.TempDir()
	writeInputs(t, dir)
	nonempty := 0
	before := faultsFired.Load()
	for _, seed := range seeds {
		if metamorphic(t, dir, seed) > 0 {
			nonempty++
		}
	}
	if len(seeds) > 10 && (nonempty < len(seeds)/2 || faultsFired.Load() == before) {
		t.Errorf("of %d plans %d gave rows, %d faults fired: the test sees too little", len(seeds), nonempty, faultsFired.Load()-before)
	}
}

// faultsFired counts injected faults.
var faultsFired atomic.Int64

func metamorphic(t *testing.T, dir string, seed uint64) int {
	t.Helper()
	plan := func(faults bool) (*dataset.Dataset, string) {
		g := &planner{rng: rand.New(rand.NewPCG(seed, 1)), dir: dir, faults: faults, seed: seed}
		ds := g.plan(3)
		return ds, strings.Join(g.log, " | ")
	}
	ds, text := plan(false)
	want, err := rowsOf(ds, dataset.RunOptions{Seed: seed})
	if err != nil {
		if fault.CodeOf(err) == fault.RowError {
			return 0 // an overflow: which row is met first is not part of the promise
		}
		t.Fatalf("seed %d: %s: %v", seed, text, err)
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	variants := []struct {
		name   string
		o      dataset.RunOptions
		faults bool
	}{
		{"all rules off", dataset.RunOptions{NoRules: ops.RuleNames()}, false},
		{"rule off", dataset.RunOptions{NoRules: ops.RuleNames()[rng.IntN(len(ops.RuleNames())):][:1], CPUs: 4}, false},
		{"batches of 1", dataset.RunOptions{BatchRows: 1}, false},
		{"batches of 7, 4 tasks", dataset.RunOptions{BatchRows: 7, CPUs: 4}, false},
		{"batches of 1024, tiny budget", dataset.RunOptions{BatchRows: 1024, CPUs: 4, Memory: 64 << 10}, false},
		{"faults", dataset.RunOptions{BatchRows: 100, CPUs: 4}, true},
		{"faults, 1 task, huge budget", dataset.RunOptions{CPUs: 1, Memory: 1 << 30, BatchRows: 50}, true},
	}
	for _, v := range variants {
		ds, _ := plan(v.faults)
		v.o.Seed = seed
		got, err := rowsOf(ds, v.o)
		if err != nil {
			t.Fatalf("seed %d, %s: %s: %v", seed, v.name, text, err)
		}
		if len(got) != len(want) {
			t.Fatalf("seed %d, %s: %s: %d rows, want %d", seed, v.name, text, len(got), len(want))
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("seed %d, %s: %s: row %d is\n  %s\nwant\n  %s", seed, v.name, text, i, got[i], want[i])
			}
		}
	}
	return len(want)
}

// rowsOf renders every row.
func rowsOf(ds *dataset.Dataset, o dataset.RunOptions) ([]string, error) {
	defer ds.Close()
	var out []string
	for rec, err := range ds.Records(context.Background(), &o) {
		if err != nil {
			return nil, err
		}
		for i := range int(rec.NumRows()) {
			var b strings.Builder
			for j := range int(rec.NumCols()) {
				fmt.Fprintf(&b, "%s=%s ", rec.ColumnName(j), rec.Column(j).ValueStr(i))
			}
			out = append(out, b.String())
		}
	}
	return out, nil
}

var inputSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "a", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "f", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
}, nil)

func inputRecord(rng *rand.Rand, from, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, inputSchema)
	defer b.Release()
	for i := from; i < from+n; i++ {
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

// writeInputs makes p/*.parquet, a sorted key across row groups included.
func writeInputs(t *testing.T, dir string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(9, 9))
	for i := range 3 {
		rec := inputRecord(rng, i*1000, 300+200*i)
		_, err := dataset.FromRecords(inputSchema, rec).WriteParquet(context.Background(), filepath.Join(dir, fmt.Sprintf("p/k=%d", i)),
			&dataset.WriteOptions{RunID: "inputs"})
		rec.Release()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// planner makes random, well-typed plans.
type planner struct {
	rng    *rand.Rand
	dir    string
	seed   uint64
	faults bool
	log    []string
	fresh  int
}

type colset map[string]string // name to kind: int, float, text, list

func (g *planner) source() (*dataset.Dataset, colset) {
	cols := colset{"id": "int", "a": "int", "f": "float", "s": "text", "l": "list"}
	var ds *dataset.Dataset
	switch g.rng.IntN(3) {
	case 0:
		g.log = append(g.log, "parquet")
		cols["k"] = "int"
		ds = dataset.ReadParquet(filepath.Join(g.dir, "p"))
		if !g.faults {
			return ds, cols
		}
		ds = dataset.Read(flaky{parquetSource(filepath.Join(g.dir, "p")), g.seed})
	case 1:
		g.log = append(g.log, "range")
		return dataset.Range(int64(g.rng.IntN(2000))), colset{"id": "int"}
	default:
		g.log = append(g.log, "records")
		data := rand.New(rand.NewPCG(g.rng.Uint64(), 3))
		var recs []arrow.RecordBatch
		for i := range 1 + data.IntN(3) {
			recs = append(recs, inputRecord(data, i*500, data.IntN(400)))
		}
		if !g.faults {
			return dataset.FromRecords(inputSchema, recs...), cols
		}
		src, err := memio.Records(inputSchema, recs...)
		if err != nil {
			panic(err)
		}
		ds = dataset.Read(flaky{src, g.seed})
	}
	return ds, cols
}

func (g *planner) plan(depth int) *dataset.Dataset {
	ds, cols := g.source()
	for range g.rng.IntN(6) {
		ds = g.step(ds, cols, depth)
	}
	return ds
}

func (g *planner) pick(cols colset, kind string) string {
	var names []string
	for n, k := range cols {
		if k == kind || kind == "" {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return names[g.rng.IntN(len(names))]
}

func (g *planner) name() string { g.fresh++; return fmt.Sprintf("c%d", g.fresh) }

func (g *planner) step(ds *dataset.Dataset, cols colset, depth int) *dataset.Dataset {
	note := func(format string, args ...any) { g.log = append(g.log, fmt.Sprintf(format, args...)) }
	i, f, s, l := g.pick(cols, "int"), g.pick(cols, "float"), g.pick(cols, "text"), g.pick(cols, "list")
	switch g.rng.IntN(14) {
	case 0, 1, 2:
		var e string
		switch k := g.rng.IntN(6); {
		case k == 0 && f != "":
			e = fmt.Sprintf("%s > %d.5 || is_null(%s)", f, g.rng.IntN(100)-50, f)
		case k == 1 && s != "":
			e = fmt.Sprintf("%s != %q", s, "xyz"[g.rng.IntN(3):][:1])
		case k == 2 && i != "":
			e = fmt.Sprintf("%s %% 3 == %d && %s > -50", i, g.rng.IntN(3), i)
		case k == 3 && i != "":
			e = fmt.Sprintf("%s in [1, 2, 3, 5, 8, 13, 21, 34] || random() < 0.5", i)
		case k == 4 && i != "" && f != "":
			e = fmt.Sprintf("%s < %s + 20", i, f)
		case i != "":
			lo := g.rng.IntN(1500)
			e = fmt.Sprintf("%s >= %d && %s < %d", i, lo-100, i, lo+600)
		default:
			e = "true"
		}
		note("filter %s", e)
		return ds.Filter(e)
	case 3, 4:
		n := g.name()
		var e string
		switch k := g.rng.IntN(5); {
		case k == 0 && i != "":
			e, cols[n] = fmt.Sprintf("%s * 2 + 1", i), "int"
		case k == 1 && f != "":
			e, cols[n] = fmt.Sprintf("%s > 0.0 ? %s : -1.0", f, f), "float"
		case k == 2 && s != "":
			e, cols[n] = fmt.Sprintf("upper(%s) + \"!\"", s), "text"
		case k == 3:
			e, cols[n] = "random()", "float"
		case i != "":
			e, cols[n] = fmt.Sprintf("double(%s) / 7", i), "float"
		default:
			e, cols[n] = "1.5", "float"
		}
		note("with %s = %s", n, e)
		return ds.WithColumns(n + " = " + e)
	case 5:
		if len(cols) < 2 {
			return ds
		}
		drop := g.pick(cols, "")
		delete(cols, drop)
		note("drop %s", drop)
		return ds.Drop(drop)
	case 6:
		var keep []string
		for n := range cols {
			keep = append(keep, n)
		}
		slices.Sort(keep)
		g.rng.Shuffle(len(keep), func(a, b int) { keep[a], keep[b] = keep[b], keep[a] })
		keep = keep[:1+g.rng.IntN(len(keep))]
		for n := range cols {
			if !slices.Contains(keep, n) {
				delete(cols, n)
			}
		}
		note("select %v", keep)
		return ds.Select(keep...)
	case 7:
		old, n := g.pick(cols, ""), g.name()
		cols[n] = cols[old]
		delete(cols, old)
		note("rename %s %s", old, n)
		return ds.Rename(map[string]string{old: n})
	case 8:
		n := g.rng.IntN(1200)
		note("limit %d", n)
		return ds.Limit(int64(n))
	case 9:
		if l == "" {
			return ds
		}
		cols[l] = "int"
		note("explode %s", l)
		return ds.Explode(l)
	case 10:
		note("sample")
		return ds.Sample(0.7, 5)
	case 11:
		note("map")
		return ds.MapBatches(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
			in.Retain()
			return in, nil
		}, nil)
	case 12:
		note("flat map")
		return ds.FlatMapBatches(twice, nil)
	case 13:
		if depth == 0 {
			return ds
		}
		note("union (")
		other := g.plan(depth - 1)
		note(")")
		both := ds.Union(other)
		// Kinds of equal names may differ; keep what both surely agree on.
		if _, err := both.Schema(context.Background()); err != nil {
			note("refused")
			return ds
		}
		return both
	}
	return ds
}

// twice repeats every row whose index is even.
func twice(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
	// Row-wise: every row twice.
	var parents []int32
	var parts []arrow.RecordBatch
	for i := range int(in.NumRows()) {
		parents = append(parents, int32(i), int32(i))
		r := in.NewSlice(int64(i), int64(i+1))
		parts = append(parts, r, r)
	}
	if len(parts) == 0 {
		in.Retain()
		return in, nil, nil
	}
	cols := make([]arrow.Array, in.NumCols())
	for c := range cols {
		arrs := make([]arrow.Array, len(parts))
		for k, p := range parts {
			arrs[k] = p.Column(c)
		}
		var err error
		if cols[c], err = array.Concatenate(arrs, memory.DefaultAllocator); err != nil {
			return nil, nil, err
		}
	}
	for i := 0; i < len(parts); i += 2 {
		parts[i].Release()
	}
	out := array.NewRecordBatch(in.Schema(), cols, int64(len(parts)))
	for _, c := range cols {
		c.Release()
	}
	return out, parents, nil
}

// flaky wraps a source: every split fails once, at a batch that the seed picks.
type flaky struct {
	driver.Source
	seed uint64
}

func (f flaky) Resolve(ctx context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	t, err := f.Source.Resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	return &flakyTable{Table: t, seed: f.seed, failed: map[int]bool{}}, nil
}

type flakyTable struct {
	driver.Table
	seed   uint64
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
	if !t.failed[i] {
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
		faultsFired.Add(1)
		return driver.Batch{}, fault.New(fault.Unavailable, "injected fault")
	}
	r.left--
	return r.Reader.Next(ctx)
}
