package shard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/io/textio"
	"github.com/penstock-data/penstock/ops"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Inputs of the graphs below: rows are functions of their id, and no two rows of a graph have the
// same id, so that a sample names the source row that it comes from.

var rowSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "v", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
	{Name: "t", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
}, nil)

func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// word is the text of a row; it is a number in one of four.
func word(id int64) string {
	if h := mix64(uint64(id)); h%4 != 0 {
		return strings.Repeat("xyz"[h%3:][:1], int(h>>8%6)+1)
	}
	return fmt.Sprint(id % 100)
}

// rowsFrom makes the rows id from to from+n-1.
func rowsFrom(from int64, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, rowSchema)
	defer b.Release()
	for id := from; id < from+int64(n); id++ {
		h := mix64(uint64(id) + 77)
		b.Field(0).(*array.Int64Builder).Append(id)
		if h%7 == 0 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.Float64Builder).Append(float64(h%1000) / 4)
		}
		b.Field(2).(*array.StringBuilder).Append(word(id))
		l := b.Field(3).(*array.ListBuilder)
		if h%5 == 0 {
			l.AppendNull()
		} else {
			l.Append(true)
			for k := range h >> 16 % 4 {
				l.ValueBuilder().(*array.Int64Builder).Append(id*10 + int64(k))
			}
		}
		t := b.Field(4).(*array.ListBuilder)
		t.Append(true)
		for k := range h >> 24 % 13 {
			t.ValueBuilder().(*array.Int32Builder).Append(int32(id%1000*16 + int64(k)))
		}
	}
	return b.NewRecordBatch()
}

// pool is files that graphs are made of.
type pool struct {
	dir     string
	parquet map[string][][]string // keys by path and row group
	text    map[string][]line     // of all formats of lines, by path
	kinds   map[string][]string   // paths
}

// line is a row of a file of lines.
type line struct {
	at  int64
	key string // "" where it does not parse
}

const idsPerFile = 100_000

func newPool(t testing.TB) *pool {
	t.Helper()
	p := &pool{dir: t.TempDir(), parquet: map[string][][]string{}, text: map[string][]line{}, kinds: map[string][]string{}}
	rng := rand.New(rand.NewPCG(1, 1))
	next := int64(idsPerFile)
	path := func(kind, ext string) string {
		f := filepath.Join(p.dir, fmt.Sprintf("%s%d.%s", kind, len(p.kinds[kind]), ext))
		p.kinds[kind] = append(p.kinds[kind], f)
		return f
	}
	for i, groups := range [][]int{{3, 0, 17, 1, 40}, {90, 2, 3}, {7, 7, 7, 7, 7, 7, 7, 7}, {0}, {1}, {23, 34, 12, 30}, {250, 200}} {
		f := path("parquet", "parquet")
		p.parquet[f] = writeGroups(t, f, next, groups, i%2 == 0)
		next += idsPerFile
	}
	for i, rows := range []int{40, 1, 0, 70, 25, 30} {
		var txt, csv, jsn, bad strings.Builder
		csv.WriteString("id,s\n")
		ft, fc, fj := path("text", "txt"), path("csv", "csv"), path("json", "jsonl")
		fb := path("bad", "jsonl")
		end := "\n"
		if i%3 == 1 {
			end = "\r\n"
		}
		for k := range rows {
			id := next + int64(k)
			for range max(rng.IntN(6)-4, 0) {
				txt.WriteString(end)
			}
			key := fmt.Sprintf("line %d %s", id+idsPerFile/2, strings.Repeat("-", rng.IntN(30)))
			p.text[ft] = append(p.text[ft], line{int64(txt.Len()), key})
			txt.WriteString(key)
			if k < rows-1 || i%2 == 0 {
				txt.WriteString(end)
			}
			p.text[fc] = append(p.text[fc], line{int64(csv.Len()), fmt.Sprint(id + idsPerFile)})
			fmt.Fprintf(&csv, "%d,%s%s", id+idsPerFile, word(id), end)
			p.text[fj] = append(p.text[fj], line{int64(jsn.Len()), fmt.Sprint(id + 2*idsPerFile)})
			fmt.Fprintf(&jsn, `{"id": %d, "s": %q, "l": [%d, %d]}%s`, id+2*idsPerFile, word(id), id, k, end)
			if l := (line{int64(bad.Len()), fmt.Sprint(id + 3*idsPerFile)}); rng.IntN(9) == 0 {
				l.key = ""
				p.text[fb] = append(p.text[fb], l)
				fmt.Fprintf(&bad, `{"id": "no number", "s": %q}%s`, word(id), end)
			} else {
				p.text[fb] = append(p.text[fb], l)
				fmt.Fprintf(&bad, `{"id": %d, "s": %q}%s`, id+3*idsPerFile, word(id), end)
			}
		}
		next += 4 * idsPerFile
		for f, b := range map[string]*strings.Builder{ft: &txt, fc: &csv, fj: &jsn, fb: &bad} {
			if err := os.WriteFile(f, []byte(b.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p
}

// writeGroups writes a Parquet file with row groups of these many rows.
func writeGroups(t testing.TB, path string, id int64, groups []int, stored bool) (keys [][]string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	var o []pqarrow.WriterOption
	if stored {
		o = append(o, pqarrow.WithStoreSchema())
	}
	props := parquet.NewWriterProperties(parquet.WithDataPageSize(200), parquet.WithBatchSize(7), parquet.WithPageIndexEnabled(stored))
	w, err := pqarrow.NewFileWriter(rowSchema, f, props, pqarrow.NewArrowWriterProperties(o...))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range groups {
		var k []string
		for i := range n {
			k = append(k, fmt.Sprint(id+int64(i)))
		}
		keys = append(keys, k)
		rec := rowsFrom(id, n)
		id += int64(n)
		if n == 0 {
			w.NewBufferedRowGroup()
		} else if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
		rec.Release()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return keys
}

// leaf is a read, with what is in it.
type leaf struct {
	ds      *dataset.Dataset
	splits  []modelSplit
	columns []string
	lines   bool // rows are found by reading
}

type modelSplit struct {
	keys  []string // of the rows
	at    []int64  // bytes at which rows begin, if lines
	bytes int64
}

// chaos is what goes wrong with reads, switched on for some runs of a graph.
type chaos struct {
	mu      sync.Mutex
	rng     *rand.Rand // nil: nothing goes wrong
	failed  map[string]bool
	faults  int
	inSteps int // of those since it was switched on
}

func (c *chaos) on(seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inSteps = 0
	c.rng, c.failed = rand.New(rand.NewPCG(seed, 9)), map[string]bool{}
}

func (c *chaos) off() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rng = nil
}

// wild passes a source through a chaos.
type wild struct {
	driver.Source
	c *chaos
}

func (w wild) Resolve(ctx context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	t, err := w.Source.Resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	return &wildTable{t, w.c}, nil
}

type wildTable struct {
	driver.Table
	c *chaos
}

func (t *wildTable) Offsets(i int) bool {
	o, ok := t.Table.(driver.Offsetter)
	return ok && o.Offsets(i)
}

func (t *wildTable) Size(i int, cols []string) (fetch, decoded int64) {
	if s, ok := t.Table.(driver.Sizer); ok {
		return s.Size(i, cols)
	}
	return t.Splits()[i].Bytes, t.Splits()[i].Bytes
}

func (t *wildTable) Keep(ctx context.Context, p driver.Predicate) ([]bool, error) {
	if k, ok := t.Table.(driver.Pruner); ok {
		return k.Keep(ctx, p)
	}
	keep := make([]bool, len(t.Splits()))
	for i := range keep {
		keep[i] = true
	}
	return keep, nil
}

func (t *wildTable) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	r, err := t.Table.Open(ctx, i, o)
	if err != nil {
		return nil, err
	}
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &wildReader{Reader: r, c: c, fail: -1}
	if c.rng != nil {
		w.slow = c.rng.IntN(3) * c.rng.IntN(40)
		if id := t.Splits()[i].ID; !c.failed[id] && c.rng.IntN(3) == 0 {
			c.failed[id] = true
			w.fail = c.rng.IntN(4)
		}
	}
	return w, nil
}

type wildReader struct {
	driver.Reader
	c    *chaos
	slow int // others go first so often
	fail int // batches until a failure
	err  error
}

func (r *wildReader) Next(ctx context.Context) (driver.Batch, error) {
	if r.err != nil {
		return driver.Batch{}, r.err
	}
	for range r.slow {
		runtime.Gosched()
	}
	if r.fail == 0 {
		r.c.mu.Lock()
		r.c.faults++
		r.c.mu.Unlock()
		r.err = fault.New(fault.Unavailable, "injected")
		return driver.Batch{}, r.err
	}
	r.fail--
	return r.Reader.Next(ctx)
}

// cells is a source of rows in memory in splits of any size.
type cells struct {
	first int64
	rows  []int
}

func (c cells) Kind() string { return "cells" }

func (c cells) Config() (json.RawMessage, error) {
	return json.Marshal(map[string]any{"first": c.first, "rows": c.rows})
}

func (c cells) Resolve(context.Context, *driver.ResolveOptions) (driver.Table, error) {
	return &cellsTable{c}, nil
}

type cellsTable struct{ c cells }

func (t *cellsTable) Schema() *arrow.Schema { return rowSchema }
func (t *cellsTable) Close() error          { return nil }
func (t *cellsTable) Fingerprint(context.Context) (string, error) {
	return fmt.Sprint(t.c.first, t.c.rows), nil
}

func (t *cellsTable) Splits() (s []driver.Split) {
	for i, n := range t.c.rows {
		s = append(s, driver.Split{ID: fmt.Sprintf("cells%d#%d", t.c.first, i), Index: int64(i), Rows: int64(n), Bytes: int64(n) * 11})
	}
	return s
}

func (t *cellsTable) Open(_ context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	first := t.c.first
	for _, n := range t.c.rows[:i] {
		first += int64(n)
	}
	so := o.WithDefaults()
	return &cellsReader{o: so, first: first, n: int64(t.c.rows[i]), at: so.FromRow}, nil
}

type cellsReader struct {
	o            driver.ScanOptions
	first, n, at int64
}

func (r *cellsReader) Close() error { return nil }

func (r *cellsReader) Next(ctx context.Context) (driver.Batch, error) {
	if r.at >= r.n {
		return driver.Batch{}, io.EOF
	}
	if err := context.Cause(ctx); err != nil {
		return driver.Batch{}, fault.WithCode(fault.Canceled, err)
	}
	k := min(r.n-r.at, int64(r.o.BatchRows), max(r.o.BatchBytes/64, 1))
	rec := rowsFrom(r.first+r.at, int(k))
	b := driver.Batch{Record: rec, Row: r.at}
	r.at += k
	if r.o.Columns == nil {
		return b, nil
	}
	var fields []arrow.Field
	var cols []arrow.Array
	for _, c := range r.o.Columns {
		j := rowSchema.FieldIndices(c)[0]
		fields, cols = append(fields, rowSchema.Field(j)), append(cols, rec.Column(j))
	}
	b.Record = array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, k)
	rec.Release()
	return b, nil
}

// pick takes k of the paths of a kind that are not in use yet.
func (p *pool) pick(rng *rand.Rand, kind string, used map[string]bool, k int) (paths []string) {
	for _, i := range rng.Perm(len(p.kinds[kind])) {
		if f := p.kinds[kind][i]; !used[f] && len(paths) < k {
			used[f] = true
			paths = append(paths, f)
		}
	}
	return paths
}

// leaf makes a random read; used is the files and ids of the graph that are taken.
func (p *pool) leaf(rng *rand.Rand, c *chaos, used map[string]bool) (leaf, string) {
	kinds := []string{"cells", "cells", "parquet", "parquet", "text", "csv", "json", "bad", "range"}
	kind := kinds[rng.IntN(len(kinds))]
	if kind == "range" && used["range"] {
		kind = "cells"
	}
	split := int64(30 + rng.IntN(400))
	var src driver.Source
	var l leaf
	var paths []string
	if kind != "cells" && kind != "range" {
		if paths = p.pick(rng, kind, used, 1+rng.IntN(3)); paths == nil {
			kind = "cells"
		}
	}
	o := fileset.Options{Paths: paths}
	switch kind {
	case "range":
		used["range"] = true
		n := rng.IntN(100)
		l.ds, l.columns = dataset.Range(int64(n)), []string{"id"}
		s := modelSplit{bytes: int64(n) * 8}
		for i := range n {
			s.keys = append(s.keys, fmt.Sprint(i))
		}
		if n > 0 {
			l.splits = []modelSplit{s}
		}
		return l, fmt.Sprintf("range(%d)", n)
	case "cells":
		base := int64(1000_000_000)
		for used[fmt.Sprint(base)] {
			base += idsPerFile
		}
		used[fmt.Sprint(base)] = true
		rows := make([]int, rng.IntN(9))
		how := rng.IntN(4)
		for i := range rows {
			switch {
			case how == 0:
				rows[i] = 8
			case how == 1 && i == 0:
				rows[i] = 90
			case how == 1:
				rows[i] = rng.IntN(4)
			default:
				rows[i] = rng.IntN(25)
			}
		}
		l.columns = []string{"id", "v", "s", "l", "t"}
		id := base
		for _, n := range rows {
			s := modelSplit{bytes: int64(n) * 11}
			for range n {
				s.keys = append(s.keys, fmt.Sprint(id))
				id++
			}
			l.splits = append(l.splits, s)
		}
		l.ds = dataset.Read(wild{cells{base, rows}, c})
		return l, fmt.Sprintf("cells(%v)", rows)
	case "parquet":
		src, l.columns = parquetio.New(parquetio.Options{Options: o}), []string{"id", "v", "s", "l", "t"}
	case "text":
		src, l.columns = textio.New(textio.Options{Options: o, SplitBytes: split}), []string{"text"}
	case "csv":
		src, l.columns = csvio.New(csvio.Options{Options: o, SplitBytes: split, Types: map[string]string{"id": "int", "s": "string"}}), []string{"id", "s"}
	case "json":
		src, l.columns = jsonio.New(jsonio.Options{Options: o, SplitBytes: split, Types: map[string]string{"id": "int", "s": "string", "l": "list<int>"}}), []string{"id", "s", "l"}
	case "bad":
		src, l.columns = jsonio.New(jsonio.Options{Options: o, SplitBytes: split, Types: map[string]string{"id": "int", "s": "string"}}), []string{"id", "s"}
	}
	src = wild{src, c}
	l.ds, l.lines = dataset.Read(src), kind != "parquet"
	t, err := src.Resolve(context.Background(), nil)
	if err != nil {
		panic(err)
	}
	defer t.Close()
	from := map[string]int64{} // bytes of splits before, by file
	for _, s := range t.Splits() {
		m := modelSplit{bytes: s.Bytes}
		file := p.file(s.File)
		if !l.lines {
			m.keys = p.parquet[file][s.Index]
			if int64(len(m.keys)) != s.Rows {
				panic(fmt.Sprintf("row group %d of %s has %d rows", s.Index, s.File, s.Rows))
			}
		} else {
			a := from[file]
			for _, x := range p.text[file] {
				if x.at >= a && x.at < a+s.Bytes {
					m.keys, m.at = append(m.keys, x.key), append(m.at, x.at-a)
				}
			}
			from[file] += s.Bytes
		}
		l.splits = append(l.splits, m)
	}
	return l, fmt.Sprintf("%s(%d files, %d splits)", kind, len(paths), len(l.splits))
}

// file is the path of the pool that a name of a split ends with.
func (p *pool) file(name string) string {
	for _, fs := range p.kinds {
		for _, f := range fs {
			if filepath.Base(f) == filepath.Base(name) {
				return f
			}
		}
	}
	panic("unknown file " + name)
}

// Registered functions of the graphs.
var (
	copies = ops.RegisterFlatMap("order_test/copies", "1", func([]byte) (ops.FlatMapFunc, error) { return copyRows, nil })
	echo   = ops.RegisterMap("order_test/echo", "1", func([]byte) (ops.MapFunc, error) { return echoRows, nil })
	faulty = ops.RegisterMap("order_test/faulty", "1", func(graph []byte) (ops.MapFunc, error) { return failRows(string(graph)), nil })
)

// chaoses are those of graphs, by seed: a registered function knows no more of its graph.
var chaoses sync.Map

// failRows passes rows on, and fails at some of them, once each, while the graph's chaos is on.
func failRows(graph string) ops.MapFunc {
	return func(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		x, _ := chaoses.Load(graph)
		c := x.(*chaos)
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range int(in.NumRows()) {
			if c.rng == nil || c.inSteps == 2 { // with a read that fails as often as a task is tried again
				break
			}
			if k := keyOf(in, i); !c.failed[k] && c.rng.IntN(12) == 0 {
				c.failed[k] = true
				c.inSteps++
				c.faults++
				return nil, fault.New(fault.Unavailable, "injected at %s", k)
			}
		}
		in.Retain()
		return in, nil
	}
}

func echoRows(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
	in.Retain()
	return in, nil
}

// copyRows gives each row 0 to 3 times, by its key.
func copyRows(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
	var parents []int32
	var runs []gather.Run
	for i := range int(in.NumRows()) {
		h := uint64(0)
		for _, b := range []byte(keyOf(in, i)) {
			h = mix64(h + uint64(b))
		}
		for range h % 4 {
			parents = append(parents, int32(i))
			runs = append(runs, gather.Run{Row: int32(i), N: 1})
		}
	}
	out, err := gather.Record(memory.DefaultAllocator, in.Schema(), []arrow.RecordBatch{in}, runs)
	return out, parents, err
}

// keyOf names the source row that a row comes from.
func keyOf(rec arrow.RecordBatch, row int) string {
	for _, c := range []string{"id", "text"} {
		if is := rec.Schema().FieldIndices(c); len(is) == 1 && rec.Column(is[0]).IsValid(row) {
			return strings.Clone(rec.Column(is[0]).ValueStr(row)) // it lies in the column
		}
	}
	return ""
}

// textOf renders the columns of a row.
func textOf(rec arrow.RecordBatch, row int) string {
	var parts []string
	for c, f := range rec.Schema().Fields() {
		if f.Name != "mask" {
			parts = append(parts, f.Name+"="+rec.Column(c).ValueStr(row))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
