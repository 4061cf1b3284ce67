package shard_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/io/textio"
	"github.com/penstock-data/penstock/shard"
)

// pool is files that graphs are made of.
type pool struct {
	dir   string
	rows  map[string][][]string // keys by path and split, of formats whose rows have numbers
	text  map[string][]line     // of all formats of lines, by path
	kinds map[string][]string   // paths
}

// line is a row of a file of lines.
type line struct {
	at  int64
	key string // "" where it does not parse
}

const idsPerFile = 100_000

// textKinds are those of which bytes stand for rows, and countedKinds those whose rows are counted before they are read.
var (
	textKinds    = []string{"text", "csv", "json", "bad"}
	countedKinds = []string{"textgz", "csvgz", "jsongz", "badgz", "stream"}
)

func newPool(t testing.TB) *pool {
	t.Helper()
	p := &pool{dir: t.TempDir(), rows: map[string][][]string{}, text: map[string][]line{}, kinds: map[string][]string{}}
	next := int64(idsPerFile)
	for i, groups := range [][]int{{3, 0, 17, 1, 40}, {90, 2, 3}, {7, 7, 7, 7, 7, 7, 7, 7}, {0}, {1}, {23, 34, 12, 30}, {250, 200}} {
		f := p.path("parquet", "parquet")
		p.rows[f] = writeGroups(t, f, next, groups, i%2 == 0)
		next += idsPerFile
	}
	for _, groups := range [][]int{{300, 0, 120}, {150}, {90, 200}} {
		f := p.path("dense", "parquet")
		p.rows[f] = writeDense(t, f, next, groups)
		next += idsPerFile
	}
	for _, frames := range [][]int{{5, 0, 19, 2}, {60, 40}, {1, 1, 1, 1, 30}} {
		f, s := p.path("ipc", "arrow"), p.path("stream", "arrows")
		p.rows[f] = writeFrames(t, f, next, frames)
		p.rows[s] = [][]string{slices.Concat(writeFrames(t, s, next+idsPerFile, frames)...)} // a stream is one split
		next += 2 * idsPerFile
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for i, rows := range []int{40, 1, 0, 70, 25, 30} {
		p.lines(t, rng, i, rows, next, "")
		next += 4 * idsPerFile
		p.lines(t, rng, i, rows, next, "gz")
		next += 4 * idsPerFile
	}
	return p
}

// path names a new file.
func (p *pool) path(kind, ext string) string {
	f := filepath.Join(p.dir, fmt.Sprintf("%s%d.%s", kind, len(p.kinds[kind]), ext))
	p.kinds[kind] = append(p.kinds[kind], f)
	return f
}

// lines writes a file of each format of lines, with four times idsPerFile ids from next on.
func (p *pool) lines(t testing.TB, rng *rand.Rand, i, rows int, next int64, gz string) {
	t.Helper()
	var txt, csv, jsn, bad bytes.Buffer
	csv.WriteString("id,s\n")
	ext := ""
	if gz != "" {
		ext = ".gz"
	}
	ft, fc, fj, fb := p.path("text"+gz, "txt"+ext), p.path("csv"+gz, "csv"+ext), p.path("json"+gz, "jsonl"+ext), p.path("bad"+gz, "jsonl"+ext)
	end := "\n"
	if i%3 == 1 {
		end = "\r\n"
	}
	add := func(f string, at int, key string) { p.text[f] = append(p.text[f], line{int64(at), key}) }
	for k := range rows {
		id := next + int64(k)
		for range max(rng.IntN(6)-4, 0) {
			txt.WriteString(end)
		}
		key := fmt.Sprintf("line %d %s", id+idsPerFile/2, strings.Repeat("-", rng.IntN(30)))
		add(ft, txt.Len(), key)
		txt.WriteString(key)
		if k < rows-1 || i%2 == 0 {
			txt.WriteString(end)
		}
		add(fc, csv.Len(), fmt.Sprint(id+idsPerFile))
		fmt.Fprintf(&csv, "%d,%s%s", id+idsPerFile, word(id), end)
		add(fj, jsn.Len(), fmt.Sprint(id+2*idsPerFile))
		fmt.Fprintf(&jsn, `{"id": %d, "s": %q, "l": [%d, %d]}%s`, id+2*idsPerFile, word(id), id, k, end)
		if rng.IntN(9) == 0 {
			add(fb, bad.Len(), "")
			fmt.Fprintf(&bad, `{"id": "no number", "s": %q}%s`, word(id), end)
		} else {
			add(fb, bad.Len(), fmt.Sprint(id+3*idsPerFile))
			fmt.Fprintf(&bad, `{"id": %d, "s": %q}%s`, id+3*idsPerFile, word(id), end)
		}
	}
	for f, b := range map[string]*bytes.Buffer{ft: &txt, fc: &csv, fj: &jsn, fb: &bad} {
		data := b.Bytes()
		if gz != "" {
			var z bytes.Buffer
			w := gzip.NewWriter(&z)
			if _, err := w.Write(data); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			data = z.Bytes()
		}
		if err := os.WriteFile(f, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// keysFrom are the keys of n rows.
func keysFrom(id int64, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint(id+int64(i)))
	}
	return keys
}

// writeGroups writes a Parquet file with row groups of these many rows.
func writeGroups(t testing.TB, path string, id int64, groups []int, stored bool) (keys [][]string) {
	t.Helper()
	var o []pqarrow.WriterOption
	if stored {
		o = append(o, pqarrow.WithStoreSchema())
	}
	props := parquet.NewWriterProperties(parquet.WithDataPageSize(200), parquet.WithBatchSize(7), parquet.WithPageIndexEnabled(stored))
	return writeParquet(t, path, id, groups, rowSchema, rowsFrom, props, o...)
}

// writeDense writes a Parquet file of ids that take less than a byte each.
func writeDense(t testing.TB, path string, id int64, groups []int) (keys [][]string) {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	rows := func(from int64, n int) arrow.RecordBatch {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		defer b.Release()
		for i := range n {
			b.Field(0).(*array.Int64Builder).Append(from + int64(i))
		}
		return b.NewRecordBatch()
	}
	props := parquet.NewWriterProperties(parquet.WithDictionaryDefault(false), parquet.WithEncoding(parquet.Encodings.DeltaBinaryPacked), parquet.WithStats(false))
	return writeParquet(t, path, id, groups, schema, rows, props)
}

func writeParquet(t testing.TB, path string, id int64, groups []int, schema *arrow.Schema, rows func(int64, int) arrow.RecordBatch, props *parquet.WriterProperties, o ...pqarrow.WriterOption) (keys [][]string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pqarrow.NewFileWriter(schema, f, props, pqarrow.NewArrowWriterProperties(o...))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range groups {
		keys = append(keys, keysFrom(id, n))
		rec := rows(id, n)
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

// writeFrames writes an Arrow file, or a stream where the path says so, of record batches of these many rows.
func writeFrames(t testing.TB, path string, id int64, frames []int) (keys [][]string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var w interface {
		Write(arrow.RecordBatch) error
		Close() error
	} = ipc.NewWriter(f, ipc.WithSchema(rowSchema))
	if filepath.Ext(path) == ".arrow" {
		if w, err = ipc.NewFileWriter(f, ipc.WithSchema(rowSchema)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range frames {
		keys = append(keys, keysFrom(id, n))
		rec := rowsFrom(id, n)
		id += int64(n)
		if err := w.Write(rec); err != nil {
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
	kind    string
	splits  []modelSplit
	columns []string
	lines   bool // rows are lines
}

type modelSplit struct {
	keys  []string // of the rows
	at    []int64  // bytes at which rows begin, if lines of text that can be entered
	bytes int64
	place shard.Place // of row 0; the graph knows the source
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

// leaf makes a read of a kind, "" for any; used is the files and ids of the graph that are taken.
func (p *pool) leaf(rng *rand.Rand, c *chaos, used map[string]bool, kind string) (leaf, string) {
	if kind == "" {
		kinds := []string{"cells", "cells", "cells", "parquet", "parquet", "parquet", "ipc", "range", "dense"}
		kinds = append(append(append(kinds, textKinds...), textKinds[:3]...), countedKinds...)
		kind = kinds[rng.IntN(len(kinds))]
	}
	var paths []string
	switch {
	case kind == "range" && !used["range"]:
		return rangeLeaf(rng, used)
	case kind != "cells" && kind != "range":
		paths = p.pick(rng, kind, used, 1+rng.IntN(3))
	}
	if paths == nil {
		return cellsLeaf(rng, c, used)
	}
	o := fileset.Options{Paths: paths}
	split := int64(30 + rng.IntN(400))
	l := leaf{kind: kind, columns: []string{"id", "v", "s", "l", "t"}}
	var src driver.Source
	types := map[string]string{"id": "int", "s": "string"}
	switch strings.TrimSuffix(kind, "gz") {
	case "parquet":
		src = parquetio.New(parquetio.Options{Options: o})
	case "dense":
		src, l.columns = parquetio.New(parquetio.Options{Options: o}), []string{"id"}
	case "ipc", "stream":
		src = ipcio.New(ipcio.Options{Options: o, NoMap: rng.IntN(2) == 0})
	case "text":
		src, l.columns = textio.New(textio.Options{Options: o, SplitBytes: split}), []string{"text"}
	case "csv":
		o.Types = types
		src, l.columns = csvio.New(csvio.Options{Options: o, SplitBytes: split}), []string{"id", "s"}
	case "json":
		types["l"] = "list<int>"
		o.Types = types
		src, l.columns = jsonio.New(jsonio.Options{Options: o, SplitBytes: split}), []string{"id", "s", "l"}
	case "bad":
		o.Types = types
		src, l.columns = jsonio.New(jsonio.Options{Options: o, SplitBytes: split}), []string{"id", "s"}
	}
	src = wild{src, c}
	l.ds = dataset.Read(src)
	t, err := src.Resolve(context.Background(), nil)
	if err != nil {
		panic(err)
	}
	defer t.Close()
	from := map[string]int64{} // bytes of splits before, by file
	for _, s := range t.Splits() {
		m := modelSplit{bytes: s.Bytes, place: shard.Place{File: s.File, RowGroup: s.Index}}
		file := p.file(s.File)
		if rows, ok := p.rows[file]; ok {
			m.keys = rows[s.Index]
			if kind == "stream" != (s.Rows < 0) || s.Rows >= 0 && int64(len(m.keys)) != s.Rows {
				panic(fmt.Sprintf("split %d of %s has %d rows", s.Index, s.File, s.Rows))
			}
		} else {
			l.lines = true
			a, end := from[file], from[file]+s.Bytes
			if strings.HasSuffix(kind, "gz") {
				end = 1 << 62 // one split
			}
			for _, x := range p.text[file] {
				if x.at >= a && x.at < end {
					m.keys, m.at = append(m.keys, x.key), append(m.at, x.at-a)
				}
			}
			from[file] += s.Bytes
		}
		l.splits = append(l.splits, m)
	}
	return l, fmt.Sprintf("%s(%d files, %d splits)", kind, len(paths), len(l.splits))
}

func rangeLeaf(rng *rand.Rand, used map[string]bool) (leaf, string) {
	used["range"] = true
	n := rng.IntN(100)
	l := leaf{ds: dataset.Range(int64(n)), kind: "range", columns: []string{"id"}}
	if n > 0 {
		l.splits = []modelSplit{{keys: keysFrom(0, n), bytes: int64(n) * 8, place: shard.Place{File: "range#0"}}}
	}
	return l, fmt.Sprintf("range(%d)", n)
}

func cellsLeaf(rng *rand.Rand, c *chaos, used map[string]bool) (leaf, string) {
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
	l := leaf{ds: dataset.Read(wild{cells{base, rows}, c}), kind: "cells", columns: []string{"id", "v", "s", "l", "t"}}
	id := base
	for i, n := range rows {
		l.splits = append(l.splits, modelSplit{keys: keysFrom(id, n), bytes: int64(n) * 11,
			place: shard.Place{File: fmt.Sprintf("cells%d#%d", base, i), RowGroup: int64(i)}})
		id += int64(n)
	}
	return l, fmt.Sprintf("cells(%v)", rows)
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
