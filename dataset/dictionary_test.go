package dataset_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

// dictionaryFiles writes files with columns id, kind (few values, nulls), word (a dictionary that is
// given up), note (without one), tag (all null).
func dictionaryFiles(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	s := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "kind", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "word", Type: arrow.BinaryTypes.String},
		{Name: "note", Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: "tag", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil)
	rng := rand.New(rand.NewPCG(5, 5))
	id := int64(0)
	for f := range 3 {
		b := array.NewRecordBuilder(memory.DefaultAllocator, s)
		for range 5000 {
			b.Field(0).(*array.Int64Builder).Append(id)
			if id++; rng.IntN(10) == 0 {
				b.Field(1).AppendNull()
			} else {
				b.Field(1).(*array.StringBuilder).Append(fmt.Sprint("kind ", f+rng.IntN(4)))
			}
			b.Field(2).(*array.StringBuilder).Append(fmt.Sprint("word ", rng.IntN(700)))
			b.Field(3).(*array.BinaryBuilder).Append(fmt.Appendf(nil, "note, %d", rng.IntN(50)))
			b.Field(4).AppendNull()
		}
		rec := b.NewRecordBatch()
		var out bytes.Buffer
		w, err := pqarrow.NewFileWriter(s, &out, parquet.NewWriterProperties(parquet.WithDictionaryFor("note", false), parquet.WithDictionaryPageSizeLimit(3000),
			parquet.WithDataPageSize(2000), parquet.WithMaxRowGroupLength(2000)), pqarrow.DefaultWriterProps())
		if err == nil {
			err = w.WriteBuffered(rec)
		}
		if err == nil {
			err = w.Close()
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, fmt.Sprint(f, ".parquet")), out.Bytes(), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		rec.Release()
		b.Release()
	}
	return dir
}

func readDictionaries(dir string, d parquetio.Dictionary) *dataset.Dataset {
	return dataset.Read(parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{dir}}, Dictionary: d}))
}

// texts are the rows of ds, columns in the order of names.
func texts(t *testing.T, ds *dataset.Dataset, o *dataset.RunOptions) (out []string) {
	t.Helper()
	for rec, err := range ds.Records(t.Context(), o) {
		if err != nil {
			t.Fatal(err)
		}
		for r := range int(rec.NumRows()) {
			var row []string
			for c, a := range rec.Columns() {
				v := "null"
				if a.IsValid(r) {
					v = a.ValueStr(r)
				}
				row = append(row, rec.ColumnName(c)+"="+v)
			}
			out = append(out, strings.Join(row, " "))
		}
	}
	return out
}

// TestDictionaryColumns: steps give the same rows whether columns are read as dictionaries or not.
func TestDictionaryColumns(t *testing.T) {
	dir := dictionaryFiles(t)
	plain, coded := readDictionaries(dir, parquetio.Dictionary{}), readDictionaries(dir, parquetio.Dictionary{All: true})
	schema, err := coded.Schema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range schema.Fields() {
		if got := f.Type.ID() == arrow.DICTIONARY; got != (i > 0) {
			t.Errorf("column %s is %v", f.Name, f.Type)
		}
	}
	type step func(*dataset.Dataset) *dataset.Dataset
	for name, f := range map[string]step{
		"nothing":     func(d *dataset.Dataset) *dataset.Dataset { return d },
		"filter":      func(d *dataset.Dataset) *dataset.Dataset { return d.Filter(`kind == "kind 3" && id % 3 == 0`) },
		"null":        func(d *dataset.Dataset) *dataset.Dataset { return d.Filter(`is_null(kind) && word > "word 5"`) },
		"in":          func(d *dataset.Dataset) *dataset.Dataset { return d.Filter(`word in ["word 7", "word 77", "kind 1"]`) },
		"none":        func(d *dataset.Dataset) *dataset.Dataset { return d.Filter(`tag == "x"`) },
		"two columns": func(d *dataset.Dataset) *dataset.Dataset { return d.Filter(`kind < word && word != kind`) },
		"functions": func(d *dataset.Dataset) *dataset.Dataset {
			return d.WithColumns(`n = size(word)`, `u = word + "!"`, `k = coalesce(kind, tag, word)`, `h = hash(word, kind)`, `c = id % 2 == 0 ? kind : word`,
				`b = string(note)`, `x = word.startsWith("word 1")`)
		},
		"cast": func(d *dataset.Dataset) *dataset.Dataset {
			return d.Cast(map[string]string{"kind": "string", "tag": "int", "note": "string"})
		},
		"cast fun": func(d *dataset.Dataset) *dataset.Dataset {
			return d.WithColumns(`kind = cast(kind, "string")`, `word = cast(word, "large_string")`)
		},
		"select": func(d *dataset.Dataset) *dataset.Dataset { return d.Select("word", "tag") },
		"limit":  func(d *dataset.Dataset) *dataset.Dataset { return d.Limit(7777) },
		"sample": func(d *dataset.Dataset) *dataset.Dataset { return d.Sample(0.3, 4) },
		"split": func(d *dataset.Dataset) *dataset.Dataset {
			return d.Split(dataset.SplitOptions{Fractions: []float64{0.5, 0.5}, Key: []string{"word"}})[1]
		},
		"union": func(d *dataset.Dataset) *dataset.Dataset { return d.Union(d.Filter(`id < 100`)) },
		"rename": func(d *dataset.Dataset) *dataset.Dataset {
			return d.Rename(map[string]string{"kind": "sort"}).Drop("note")
		},
		"rows": func(d *dataset.Dataset) *dataset.Dataset {
			type in struct {
				ID   int64
				Kind *string
				Word string
				Note []byte
			}
			type out struct{ X string }
			return dataset.MapRows(d, func(r in) (out, error) {
				k := "none"
				if r.Kind != nil {
					k = *r.Kind
				}
				return out{fmt.Sprint(r.ID, k, r.Word, string(r.Note))}, nil
			})
		},
	} {
		for _, o := range []*dataset.RunOptions{nil, {CPUs: 1, Memory: 4 << 20, BatchRows: 300}} {
			want, got := texts(t, f(plain), o), texts(t, f(coded), o)
			if !slices.Equal(got, want) || len(want) == 0 != (name == "none") {
				i := 0
				for i < min(len(got), len(want)) && got[i] == want[i] {
					i++
				}
				t.Errorf("%s: %d rows, want %d; from %d: %.3q, want %.3q", name, len(got), len(want), i, got[min(i, len(got)):min(i+2, len(got))], want[min(i, len(want)):min(i+2, len(want))])
			}
		}
	}
}

// TestDictionarySinks: files written of dictionary columns hold what those of plain columns do.
func TestDictionarySinks(t *testing.T) {
	dir := dictionaryFiles(t)
	ctx := context.Background()
	encodings := map[string]func() (driver.Encoding, error){
		"parquet": func() (driver.Encoding, error) { return parquetio.NewEncoding(nil) },
		"pq2": func() (driver.Encoding, error) {
			return parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 777, PageBytes: 1 << 10, Bloom: []string{"word"}})
		},
		"ipc":    func() (driver.Encoding, error) { return ipcio.NewEncoding(nil) },
		"stream": func() (driver.Encoding, error) { return ipcio.NewEncoding(&ipcio.EncodingOptions{Layout: "stream"}) },
		"csv":    func() (driver.Encoding, error) { return csvio.NewEncoding(nil) },
		"json":   func() (driver.Encoding, error) { return jsonio.NewEncoding(nil) },
	}
	for name, encoding := range encodings {
		for _, by := range [][]string{nil, {"kind"}} {
			var rows [2][]string
			for i, d := range []parquetio.Dictionary{{}, {All: true}} {
				enc, err := encoding()
				if err != nil {
					t.Fatal(err)
				}
				out := t.TempDir()
				if _, err := readDictionaries(dir, d).Write(ctx, out, enc, &dataset.WriteOptions{PartitionBy: by}); err != nil {
					t.Errorf("%s, %v, dictionaries %t: %v", name, by, d.All, err)
					continue
				}
				var back *dataset.Dataset
				switch name {
				case "parquet", "pq2":
					back = dataset.ReadParquet(out)
				case "ipc", "stream":
					back = dataset.ReadIPC(out)
				case "csv":
					back = dataset.ReadCSV(out)
				case "json":
					back = dataset.ReadJSON(out)
				}
				rows[i] = texts(t, back, nil)
				slices.Sort(rows[i])
			}
			if len(rows[0]) != 15000 || !slices.Equal(rows[0], rows[1]) {
				t.Errorf("%s, by %v: %d rows, and %d of dictionaries, or they differ", name, by, len(rows[0]), len(rows[1]))
			}
		}
	}
}

// TestDictionaryBatches: batches, shuffled ones too, hold the same rows; tensors are refused with the
// way out; what is collected is of no run's memory.
func TestDictionaryBatches(t *testing.T) {
	dir := dictionaryFiles(t)
	plain, coded := readDictionaries(dir, parquetio.Dictionary{}), readDictionaries(dir, parquetio.Dictionary{All: true})
	show := func(rec arrow.RecordBatch) string {
		var b strings.Builder
		for r := range int(rec.NumRows()) {
			for _, c := range rec.Columns() {
				if c.IsNull(r) {
					b.WriteString("null ")
				} else {
					b.WriteString(c.ValueStr(r) + " ")
				}
			}
		}
		return b.String()
	}
	batches := func(d *dataset.Dataset) (out []string) {
		for b, err := range d.IterBatches(t.Context(), &dataset.BatchOptions{Rows: 999}) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, show(b.Record()))
		}
		return out
	}
	if got, want := batches(coded), batches(plain); !slices.Equal(got, want) || len(want) != 16 {
		t.Errorf("%d batches, want %d, or they differ", len(got), len(want))
	}
	shards := func(d *dataset.Dataset, mem int64) (out []string) {
		its, err := d.Shards(t.Context(), 2, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 64, Shuffle: &shard.Shuffle{Lanes: 3, WindowRows: 1500}}, RunOptions: dataset.RunOptions{Seed: 7, Memory: mem}})
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range its {
			defer it.Close()
		}
		for i := range 120 {
			b, err := its[i%2].Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprint(i, show(b.Record())))
			b.Release()
		}
		return out
	}
	for _, mem := range []int64{0, 3 << 20} {
		if got, want := shards(coded, mem), shards(plain, mem); !slices.Equal(got, want) {
			t.Errorf("shuffled batches differ (memory %d)", mem)
		}
	}
	refused := 0
	for _, err := range coded.IterBatches(t.Context(), &dataset.BatchOptions{Tensors: true}) {
		if refused++; fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `column "kind"`) {
			t.Errorf("tensors: %v", err)
		}
	}
	if refused != 1 {
		t.Errorf("tensors: refused %d times", refused)
	}
	want, err := plain.Collect(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer want.Release()
	got, err := coded.Collect(t.Context(), &dataset.RunOptions{Memory: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	if got.NumRows() != want.NumRows() {
		t.Errorf("%d rows, want %d", got.NumRows(), want.NumRows())
	}
	rec, err := coded.Take(t.Context(), 6000, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	wantRec, err := plain.Take(t.Context(), 6000, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer wantRec.Release()
	if show(rec) != show(wantRec) {
		t.Error("rows taken differ")
	}
}

// TestDictionaryCollect: what is collected may be larger than the run's memory, of which it keeps nothing: it is on the Go
// heap. Batches that shared a dictionary share its copy.
func TestDictionaryCollect(t *testing.T) {
	dir := t.TempDir()
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: "none"})
	if err != nil {
		t.Fatal(err)
	}
	const rows = 200_000
	ds := dataset.Range(rows).WithColumns(`text = "a text of some length that no other row has, with the number " + string(id)`, `kind = id % 2 == 0 ? "even" : "odd"`)
	if _, err := ds.Write(t.Context(), dir, enc, nil); err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	got, err := readDictionaries(dir, parquetio.Dictionary{All: true}).Collect(t.Context(), &dataset.RunOptions{Memory: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	after := heap()
	var size uint64
	kinds, texts := map[arrow.ArrayData]bool{}, map[arrow.ArrayData]bool{}
	for i, c := range got.Column(1).Data().Chunks() {
		if d := c.Data().Dictionary(); !texts[d] {
			size += d.(*array.Data).SizeInBytes()
			texts[d] = true
		}
		kinds[got.Column(2).Data().Chunk(i).Data().Dictionary()] = true
	}
	if got.NumRows() != rows || size < 8<<20 || len(kinds) >= len(got.Column(2).Data().Chunks()) {
		t.Errorf("%d rows, %d bytes, %d dictionaries of %d chunks", got.NumRows(), size, len(kinds), len(got.Column(2).Data().Chunks()))
	}
	if after < before+size {
		t.Errorf("the heap grew by %d bytes, and %d were collected", after-before, size)
	}
}

// Dictionaries of types for which arrow has no builder go through steps and functions as others do.
func TestDictionaryOfLargeText(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "kind", Type: arrow.BinaryTypes.LargeString, Nullable: true},
		{Name: "word", Type: arrow.BinaryTypes.LargeString}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for i := range 100 {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.LargeStringBuilder).Append(fmt.Sprint("kind ", i%3))
		b.Field(2).(*array.LargeStringBuilder).Append(fmt.Sprint("word ", i%7))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	file := filepath.Join(t.TempDir(), "a.parquet")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pqarrow.NewFileWriter(s, f, nil, pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	ds := dataset.Read(parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{file}}, Dictionary: parquetio.Dictionary{All: true}})).Filter(`id > 9 && kind != "kind 1"`).
		MapBatches(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) { in.Retain(); return in, nil }, nil)
	if n, err := ds.Count(t.Context(), nil); err != nil || n != 60 {
		t.Fatalf("%d rows, %v", n, err)
	}
	rows := 0
	for rec, err := range ds.Records(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := rec.Schema().Field(2).Type.(*arrow.DictionaryType); !ok || d.ValueType.ID() != arrow.LARGE_STRING {
			t.Errorf("word is %v", rec.Schema().Field(2).Type)
		}
		for i := range int(rec.NumRows()) {
			if id := rec.Column(0).(*array.Int64).Value(i); rec.Column(2).ValueStr(i) != fmt.Sprint("word ", id%7) {
				t.Errorf("row %d has %s", id, rec.Column(2).ValueStr(i))
			}
			rows++
		}
	}
	if rows != 60 {
		t.Errorf("%d rows", rows)
	}
}
