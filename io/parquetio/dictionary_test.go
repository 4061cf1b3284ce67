package parquetio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

func dictionaryOf(t arrow.DataType) *arrow.DictionaryType {
	return &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: t}
}

// allDictionaries is s with every column that can be one as a dictionary.
func allDictionaries(s *fileSchema) *fileSchema {
	types := map[string]*arrow.DictionaryType{}
	for _, f := range s.arrow.Fields() {
		if indexable(f.Type) {
			types[f.Name] = dictionaryOf(f.Type)
		}
	}
	return s.withDictionaries(types)
}

// undone returns the values of a's rows if it is a dictionary, whose indexes must all be in range.
func undone(t testing.TB, a arrow.Array) arrow.Array {
	t.Helper()
	d, ok := a.(*array.Dictionary)
	if !ok {
		a.Retain()
		return a
	}
	if err := validateArray(d.Dictionary()); err != nil {
		t.Fatal(err)
	}
	for i, x := range d.Indices().(*array.Int32).Int32Values() {
		if n := d.Dictionary().Len(); x < 0 || int(x) >= n && (d.IsValid(i) || x != 0) {
			t.Fatalf("row %d has index %d of %d entries", i, x, n)
		}
	}
	out, err := compute.TakeArray(context.Background(), d.Dictionary(), d.Indices())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestDictionaryValues: columns read as dictionaries have the values that they have otherwise, whatever
// the encodings, also where a batch begins in pages with a dictionary and ends in others, in
// slices, with little memory, with pages that columns share; and all memory is given back.
func TestDictionaryValues(t *testing.T) {
	shared, own, mixed, retried, ahead := 0, 0, 0, 0, 0
	for seed := range uint64(*oracleSeeds) {
		rng := rand.New(rand.NewPCG(seed, 78))
		bt := arrow.BinaryTypes
		types := []arrow.DataType{bt.String, bt.Binary, bt.LargeString, bt.LargeBinary}
		var fs []arrow.Field
		for i := range 1 + rng.IntN(4) {
			fs = append(fs, arrow.Field{Name: fmt.Sprint("c", i), Type: types[rng.IntN(4)], Nullable: rng.IntN(4) > 0})
		}
		fs = append(fs, randomField(rng, "other", 2))
		sc := arrow.NewSchema(fs, nil)
		rb := array.NewRecordBuilder(memory.DefaultAllocator, sc)
		nulls, few := []int{0, 1, 8, 16}[rng.IntN(4)], []int{1, 3, 300, 1 << 20}[rng.IntN(4)]
		for range 1 + rng.IntN(6000) {
			for i, f := range fs {
				appendRandom(rng, rb.Field(i), f.Nullable, nulls, few)
			}
		}
		rec := rb.NewRecordBatch()
		out, what, err := randomFile(t, rng, rec)
		name := fmt.Sprintf("seed %d, %v: %s", seed, sc, what)
		if err != nil {
			t.Logf("%s: arrow-go cannot write this: %v", name, err)
			continue
		}
		b := out.Bytes()
		ft, err := readFooter(t.Context(), bytesBlob(b), make([]byte, tailBytes), new(schemaCache))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var all []int
		for i := range fs {
			all = append(all, i)
		}
		s := allDictionaries(ft.schema)
		for gi := range ft.groups {
			g := ft.group(gi)
			plain, err := newDecoder(ft.schema, g, all, bytesWindows(b, ft.schema, g, all, memory.DefaultAllocator, 1<<20), nil, memory.DefaultAllocator)
			if err != nil {
				t.Fatal(err)
			}
			want, err := plain.read(t.Context(), 0, int(g.rows), 1<<30)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			plain.close()
			for try := range 3 {
				alloc := memtest.New(t)
				fields := rng.Perm(len(fs))[:1+rng.IntN(len(fs))]
				var pages map[int][]pageLoc
				if try == 1 {
					if pages, _, err = g.indexes(t.Context(), &input{blob: bytesBlob(b)}, ft.schema, all, false); err != nil {
						t.Fatal(err)
					}
				}
				d, err := newDecoder(s, g, fields, bytesWindows(b, s, g, fields, alloc, int64(64<<rng.IntN(16))), pages, alloc)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if rng.IntN(3) == 0 {
					d.keep = int64(rng.IntN(20 << 10))
				}
				most := 1 + rng.IntN([]int{10, 300, 6000}[rng.IntN(3)])
				var kept []arrow.Array // beyond the decoder
				for row := int64(0); row < g.rows; {
					if rng.IntN(4) == 0 {
						row += rng.Int64N(g.rows - row)
					}
					n := int(min(int64(1+rng.IntN(most)), g.rows-row))
					limit := int64(1 << 30)
					if rng.IntN(8) == 0 {
						limit = int64(rng.IntN(20 << 10))
					}
					got, err := d.read(t.Context(), row, n, limit)
					if errors.As(err, new(errTooLarge)) {
						retried++
						n = max(1, n/4)
						got, err = d.read(t.Context(), row, n, 1<<30)
					}
					if err != nil {
						t.Fatalf("%s: group %d, fields %v, rows %d to %d: %v", name, gi, fields, row, row+int64(n), err)
					}
					for k, i := range fields {
						if err := validateArray(got[k]); err != nil {
							t.Fatalf("%s: group %d, column %d: %v", name, gi, i, err)
						}
						if dict, ok := got[k].(*array.Dictionary); ok {
							if c := d.fields[k].cols[0]; d.shares(dict.Data().Dictionary()) {
								shared++
							} else if own++; c.dict != nil && c.row < g.rows {
								mixed++
							}
						} else if indexable(fs[i].Type) {
							t.Fatalf("%s: column %d is %v", name, i, got[k].DataType())
						}
						have := undone(t, got[k])
						w := array.NewSlice(want[i], row, row+int64(n))
						if !array.Equal(have, w) {
							t.Fatalf("%s: group %d, column %d, rows %d to %d, index %t:\n%v, want\n%v", name, gi, i, row, row+int64(n), pages != nil, have, w)
						}
						have.Release()
						w.Release()
						if rng.IntN(4) == 0 {
							kept = append(kept, got[k])
						} else {
							got[k].Release()
						}
					}
					for _, c := range d.cols {
						ahead += len(c.ready)
					}
					row += int64(n)
				}
				d.close()
				for _, a := range kept {
					undone(t, a).Release()
					a.Release()
				}
				alloc.AssertSize(t, 0)
			}
			releaseAll(want)
		}
		rec.Release()
		rb.Release()
	}
	t.Logf("%d batches shared a dictionary, %d had their own, %d of them beside a dictionary page, %d reads repeated, %d pieces decoded ahead", shared, own, mixed, retried, ahead)
	if shared == 0 || own == 0 || mixed == 0 || retried == 0 || ahead == 0 {
		t.Error("not all was tested")
	}
}

// textColumn writes a file with column s of these values, nil being null, and returns its path.
func textColumn(t testing.TB, dir, name string, typ arrow.DataType, values []*string, props ...parquet.WriterProperty) string {
	t.Helper()
	b := array.NewBuilder(memory.DefaultAllocator, typ)
	defer b.Release()
	for _, v := range values {
		if v == nil {
			b.AppendNull()
		} else if err := b.AppendValueFromString(*v); err != nil {
			t.Fatal(err)
		}
	}
	a := b.NewArray()
	defer a.Release()
	rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "s", Type: typ, Nullable: true}}, nil), []arrow.Array{a}, int64(len(values)))
	defer rec.Release()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pqarrow.NewFileWriter(rec.Schema(), f, parquet.NewWriterProperties(props...), pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
	if err == nil {
		err = w.Write(rec)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func texts2(n int, of func(i int) string) []*string {
	out := make([]*string, n)
	for i := range out {
		s := of(i)
		out[i] = &s
	}
	return out
}

// TestDictionaryFallsBack: a column chunk whose writer gave up its dictionary: batches share the page's
// dictionary as long as they can, then each has entries of its own, one per value, none twice.
func TestDictionaryFallsBack(t *testing.T) {
	const rows = 40_000
	value := func(i int) string { return fmt.Sprint("value ", i*7919%9000) }
	path := textColumn(t, t.TempDir(), "f.parquet", arrow.BinaryTypes.String, texts2(rows, value),
		parquet.WithDictionaryPageSizeLimit(20<<10), parquet.WithDataPageSize(8<<10))
	tab := mustOpen(t, &Options{Dictionary: Dictionary{Columns: []string{"s"}}}, path)
	defer tab.Close()
	if want := dictionaryOf(arrow.BinaryTypes.String); !arrow.TypeEqual(tab.Schema().Field(0).Type, want) {
		t.Fatalf("the column is %v, want %v", tab.Schema().Field(0).Type, want)
	}
	var first arrow.ArrayData
	shared, own, row := 0, 0, 0
	alloc := memtest.New(t)
	err := readAll(t.Context(), tab, 0, &driver.ScanOptions{BatchRows: 1000, Alloc: alloc}, func(b driver.Batch) {
		d := b.Record.Column(0).(*array.Dictionary)
		if dict := d.Data().Dictionary(); first == nil {
			first = dict
		} else if dict == first {
			shared++
		} else if own++; dict.Len() != 1000 {
			t.Errorf("rows from %d: %d entries, want one per value", row, dict.Len())
		}
		for i := range d.Len() {
			if got := d.ValueStr(i); got != value(row) {
				t.Fatalf("row %d is %q, want %q", row, got, value(row))
			}
			row++
		}
	})
	if err != nil || row != rows || shared == 0 || own == 0 {
		t.Fatalf("%d rows, %d batches shared the dictionary of the first, %d had their own: %v", row, shared, own, err)
	}
}

// TestDictionaryOfPlainPages: each value is one entry, in every encoding.
func TestDictionaryOfPlainPages(t *testing.T) {
	const rows = 100_000
	for _, distinct := range []int{1, 5, 1000, 30_000, rows} {
		value := func(i int) string { return fmt.Sprint("value ", i*7919%distinct) }
		for _, enc := range []parquet.Encoding{parquet.Encodings.Plain, parquet.Encodings.DeltaByteArray, parquet.Encodings.DeltaLengthByteArray} {
			path := textColumn(t, t.TempDir(), "f.parquet", arrow.BinaryTypes.String, texts2(rows, value), parquet.WithDictionaryDefault(false), parquet.WithEncoding(enc))
			tab := mustOpen(t, &Options{Dictionary: Dictionary{All: true}}, path)
			alloc := memtest.New(t)
			row := 0
			err := readAll(t.Context(), tab, 0, &driver.ScanOptions{BatchRows: rows, BatchBytes: 1 << 30, Alloc: alloc}, func(b driver.Batch) {
				d := b.Record.Column(0).(*array.Dictionary)
				if got := d.Dictionary().Len(); got != distinct {
					t.Errorf("%v: %d entries, want %d", enc, got, distinct)
				}
				for i := range d.Len() {
					if got := d.ValueStr(i); got != value(row) {
						t.Fatalf("%v: row %d is %q, want %q", enc, row, got, value(row))
					}
					row++
				}
			})
			if err != nil || row != rows {
				t.Errorf("%v: %d rows, %v", enc, row, err)
			}
			tab.Close()
			alloc.AssertSize(t, 0)
		}
	}
}

// TestLookup: what is found does not depend on hashes, and the table does not grow without bound.
func TestLookup(t *testing.T) {
	l := new(lookup)
	for _, c := range []struct{ n, want int }{{0, 128}, {1, 128}, {64, 128}, {65, 256}, {16384, 32768}, {1 << 30, maxSlots}} {
		l.reset(c.n)
		if len(l.slots) != c.want {
			t.Errorf("%d values have %d slots, want %d", c.n, len(l.slots), c.want)
		}
	}
	read := func(values, distinct int) (entries int) {
		d := &decoder{acct: account{alloc: memory.DefaultAllocator, limit: 1 << 40}}
		c, o := &column{d: d}, &leafOut{own: true}
		d.lookup.reset(values)
		for i := range values {
			v := fmt.Sprint(i * 7919 % distinct)
			e, err := c.entry(o, []byte(v))
			offs := castTo[int32](o.entryOffs)
			if err != nil || string(o.entryData[offs[e]:offs[e+1]]) != v {
				t.Fatalf("%q is entry %d: %v", v, e, err)
			}
		}
		return o.entries
	}
	for _, distinct := range []int{1, 100, maxSlots / 2} {
		if got := read(300_000, distinct); got != distinct {
			t.Errorf("%d entries, want %d", got, distinct)
		}
	}
	// With more than the table holds those behind are entries every time.
	if got, want := read(300_000, maxSlots/2+1000), maxSlots/2+4*1000; got < maxSlots/2+1000 || got > want+1000 {
		t.Errorf("%d entries, want about %d", got, want)
	}
}

// TestDictionaryOption: what it may name, how it is written, and what columns of several files become.
func TestDictionaryOption(t *testing.T) {
	dir := t.TempDir()
	bt := arrow.BinaryTypes
	abc := func(n int) []*string { return texts2(n, func(i int) string { return string(rune('a' + i%3)) }) }
	textColumn(t, dir, "k=1/a.parquet", bt.String, abc(10))
	textColumn(t, dir, "k=1/b.parquet", bt.LargeString, append(abc(10), nil))
	for _, c := range []struct {
		o    Dictionary
		want string
	}{
		{Dictionary{Columns: []string{"text"}}, `dictionary: unknown column "text"; have s, k`},
		{Dictionary{Columns: []string{"k"}}, `column "k": dictionary: the column is not read from the files; leave it out`},
		{Dictionary{All: true, Columns: []string{"s"}}, `dictionary: all columns and some by name; leave one of them out`},
	} {
		_, err := open(t, &Options{Dictionary: c.o}, dir)
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.o, err, c.want)
		}
	}
	numbers := textColumn(t, t.TempDir(), "n.parquet", arrow.PrimitiveTypes.Int64, texts2(3, func(i int) string { return fmt.Sprint(i) }))
	_, err := open(t, &Options{Dictionary: Dictionary{Columns: []string{"s"}}}, numbers)
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `column "s": dictionary: the column is int64, and only strings and binary can be`) {
		t.Errorf("a column of numbers: %v", err)
	}
	if tab := mustOpen(t, &Options{Dictionary: Dictionary{All: true}}, numbers); tab.Schema().Field(0).Type.ID() != arrow.INT64 {
		t.Errorf("a column of numbers is %v", tab.Schema())
	}

	// One file has the column with 32-bit offsets, one with 64, one nulls only, one not at all.
	textColumn(t, dir, "k=2/c.parquet", arrow.Null, make([]*string, 7))
	other := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "other", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil), []arrow.Array{array.MakeArrayOfNull(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64, 5)}, 5)
	writeWith(t, filepath.Join(dir, "k=2", "d.parquet"), other)
	other.Release()
	plain, coded := mustOpen(t, nil, dir), mustOpen(t, &Options{Dictionary: Dictionary{All: true}}, dir)
	defer plain.Close()
	defer coded.Close()
	if want := dictionaryOf(bt.LargeString); !arrow.TypeEqual(coded.Schema().Field(0).Type, want) {
		t.Errorf("the column is %v, want %v", coded.Schema().Field(0).Type, want)
	}
	alloc := memtest.New(t)
	read := func(tab driver.Table) (out []string) {
		for i := range tab.Splits() {
			err := readAll(t.Context(), tab, i, &driver.ScanOptions{Alloc: alloc, BatchRows: 4}, func(b driver.Batch) {
				if !b.Record.Schema().Equal(tab.Schema()) {
					t.Fatalf("a batch has %v, the table %v", b.Record.Schema(), tab.Schema())
				}
				a := undone(t, b.Record.Column(0))
				out = append(out, text(a)...)
				a.Release()
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	if got, want := read(coded), read(plain); !slices.Equal(got, want) || len(got) != 33 {
		t.Errorf("read %q, want %q", got, want)
	}
	a, _ := plain.Fingerprint(t.Context())
	b, _ := coded.Fingerprint(t.Context())
	if a == b {
		t.Error("the fingerprints are the same")
	}

	for _, c := range []struct{ in, out string }{
		{`{"paths":["p"]}`, `{"paths":["p"]}`},
		{`{"paths":["p"],"dictionary":true}`, `{"paths":["p"],"dictionary":true}`},
		{`{"paths":["p"],"dictionary":false}`, `{"paths":["p"]}`},
		{`{"paths":["p"],"dictionary":["a","b"]}`, `{"paths":["p"],"dictionary":["a","b"]}`},
		{`{"paths":["p"],"dictionary":"a"}`, `dictionary: want true or a list of columns, not "a"`},
		{`{"paths":["p"],"dictionary":[1]}`, `dictionary: want true or a list of columns, not [1]`},
	} {
		src, err := Format().Open([]byte(c.in))
		if err != nil {
			if !strings.Contains(err.Error(), c.out) || fault.CodeOf(err) != fault.Invalid {
				t.Errorf("%s: %v", c.in, err)
			}
			continue
		}
		if got, err := src.Config(); string(got) != c.out || err != nil || !json.Valid(got) {
			t.Errorf("%s becomes %s, %v", c.in, got, err)
		}
	}
}

// TestDictionaryComesBack: pages that use the dictionary may also follow others, in one batch.
func TestDictionaryComesBack(t *testing.T) {
	values := texts2(3000, func(i int) string { return fmt.Sprint("value ", i*7919%900) })
	for i := 0; i < len(values); i += 7 {
		values[i] = nil
	}
	path := textColumn(t, t.TempDir(), "f.parquet", arrow.BinaryTypes.String, values,
		parquet.WithDictionaryPageSizeLimit(4<<10), parquet.WithDataPageSize(1<<10), parquet.WithBatchSize(100))
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ft, err := readFooter(t.Context(), bytesBlob(b), make([]byte, tailBytes), new(schemaCache))
	if err != nil {
		t.Fatal(err)
	}
	decoder := func(s *fileSchema) *decoder {
		g := ft.group(0)
		d, err := newDecoder(s, g, []int{0}, bytesWindows(b, s, g, []int{0}, memory.DefaultAllocator, 1<<20), nil, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	// The pages of data in reverse order.
	var pages [][]byte
	d := decoder(ft.schema)
	c := d.cols[0]
	begin := int64(0)
	kinds := map[int32]int{}
	for {
		ok, err := c.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		if len(pages) == 0 {
			begin = c.page.pos
		}
		kinds[c.hdr.enc]++
		pages = append(pages, slices.Clone(b[c.page.pos:c.pos]))
	}
	d.close()
	slices.Reverse(pages)
	if n := copy(b[begin:], slices.Concat(pages...)); len(kinds) != 2 || n == 0 {
		t.Fatalf("pages of encodings %v", kinds)
	}
	d, coded := decoder(ft.schema), decoder(allDictionaries(ft.schema))
	defer d.close()
	defer coded.close()
	for row := int64(0); row < 3000; row += 500 {
		want, err := d.read(t.Context(), row, 500, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		got, err := coded.read(t.Context(), row, 500, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if have := undone(t, got[0]); !array.Equal(have, want[0]) {
			t.Errorf("rows from %d: %v, want %v", row, have, want[0])
		}
	}
}
