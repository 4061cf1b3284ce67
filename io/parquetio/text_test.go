package parquetio

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// TestNamesOfOtherBytes: a column whose name is not UTF-8 is an error that says which, in which file.
func TestNamesOfOtherBytes(t *testing.T) {
	f := handFile{columns: []handColumn{{name: "a", physical: pInt32, pages: [][]*string{le32(1)}}, {name: "pr\xe9nom", physical: pInt32, pages: [][]*string{le32(1)}}}}
	_, err := open(t, nil, f.write(t))
	if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), `column 1, "pr\xe9nom", is not UTF-8`) || !strings.Contains(err.Error(), "hand.parquet") {
		t.Errorf("got %v", err)
	}
}

// texts are values for a column of each shape, made by a function of the strings of a row.
var textShapes = []struct {
	name string
	typ  arrow.DataType
	put  func(b array.Builder, vs []string)
}{
	{"flat", arrow.BinaryTypes.String, func(b array.Builder, vs []string) { putText(b, vs) }},
	{"large", arrow.BinaryTypes.LargeString, func(b array.Builder, vs []string) { putText(b, vs) }},
	{"struct", arrow.StructOf(arrow.Field{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}), func(b array.Builder, vs []string) {
		sb := b.(*array.StructBuilder)
		sb.Append(true)
		putText(sb.FieldBuilder(0), vs)
	}},
	{"list", arrow.ListOf(arrow.BinaryTypes.String), func(b array.Builder, vs []string) {
		lb := b.(*array.ListBuilder)
		lb.Append(true)
		for i := range vs {
			putText(lb.ValueBuilder(), vs[i:i+1])
		}
	}},
	{"large list", arrow.LargeListOf(arrow.BinaryTypes.String), func(b array.Builder, vs []string) {
		lb := b.(*array.LargeListBuilder)
		lb.Append(true)
		for i := range vs {
			putText(lb.ValueBuilder(), vs[i:i+1])
		}
	}},
	{"lists of lists", arrow.ListOf(arrow.ListOf(arrow.BinaryTypes.String)), func(b array.Builder, vs []string) {
		lb := b.(*array.ListBuilder)
		lb.Append(true)
		for i := range vs {
			in := lb.ValueBuilder().(*array.ListBuilder)
			in.Append(true)
			putText(in.ValueBuilder(), vs[i:i+1])
			in.Append(i%2 == 0) // empty, or null
		}
	}},
	{"map", arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.String), func(b array.Builder, vs []string) {
		mb := b.(*array.MapBuilder)
		mb.Append(true)
		for i := range vs {
			mb.KeyBuilder().(*array.StringBuilder).Append("k")
			putText(mb.ItemBuilder(), vs[i:i+1])
		}
	}},
}

// putText appends the first value; null if there is none, or it is "-".
func putText(b array.Builder, vs []string) {
	if len(vs) == 0 || vs[0] == "-" {
		b.AppendNull()
		return
	}
	b.(array.StringLikeBuilder).Append(vs[0])
}

// badTexts writes a file of row groups of 200 rows of a shape, and says which of its rows have bytes that are not UTF-8.
func badTexts(t testing.TB, rng *rand.Rand, shape int, props ...parquet.WriterProperty) (path string, bad []int64, rows int64) {
	s := textShapes[shape]
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "x", Type: s.typ, Nullable: true},
		{Name: "m", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer rb.Release()
	rows = 1000
	rate := []int{3, 50, 400}[rng.IntN(3)]
	good := []string{"a", "", "-", "plain words of ASCII that are longer than a word of the processor", "caf\u00e9", "\u6f22\u5b57", "\U0001f600 and more"}
	wrong := []string{"caf\xe9", "\xff", "ok \xed\xa0\x80", "a\xc3", "\x80"} // the last two are one character, side by side
	for i := range rows {
		rb.Field(0).(*array.Int64Builder).Append(i)
		var vs []string
		isBad := false
		for range 1 + rng.IntN(3) {
			if rng.IntN(rate) == 0 {
				vs = append(vs, wrong[rng.IntN(len(wrong))])
				isBad = isBad || len(vs) == 1 || s.typ.ID() != arrow.STRING && s.typ.ID() != arrow.LARGE_STRING && s.typ.ID() != arrow.STRUCT
			} else {
				vs = append(vs, good[rng.IntN(len(good))])
			}
		}
		s.put(rb.Field(1), vs)
		rb.Field(2).(*array.Int64Builder).AppendNull()
		if isBad {
			bad = append(bad, i)
		}
	}
	rec := rb.NewRecordBatch()
	defer rec.Release()
	path = filepath.Join(t.TempDir(), "texts.parquet")
	var out bytes.Buffer
	props = append(props, parquet.WithMaxRowGroupLength(200), parquet.WithDataPageSize(512), parquet.WithBatchSize(32), parquet.WithStats(false), parquet.WithPageIndexEnabled(rng.IntN(2) == 0))
	w, err := pqarrow.NewFileWriter(schema, &out, parquet.NewWriterProperties(props...), pqarrow.DefaultWriterProps())
	if err == nil {
		err = w.Write(rec)
	}
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = os.WriteFile(path, out.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path, bad, rows
}

// TestTextsOfOtherBytes: in every shape and encoding, whether rows are judged before or not, a text that is not UTF-8 is an error that
// says where, and where rows may be left out, exactly the rows that have one are.
func TestTextsOfOtherBytes(t *testing.T) {
	encodings := map[string][]parquet.WriterProperty{
		"dictionary":   {parquet.WithDictionaryDefault(true)},
		"plain":        {parquet.WithDictionaryDefault(false)},
		"delta length": {parquet.WithDictionaryDefault(false), parquet.WithEncoding(parquet.Encodings.DeltaLengthByteArray)},
		"delta bytes":  {parquet.WithDictionaryDefault(false), parquet.WithEncoding(parquet.Encodings.DeltaByteArray)},
	}
	for name, props := range encodings {
		for shape, s := range textShapes {
			if strings.HasPrefix(name, "delta") { // of the column alone: integers have other encodings
				col := map[string]string{"struct": "x.s", "list": "x.list.element", "large list": "x.list.element", "lists of lists": "x.list.element.list.element", "map": "x.key_value.value"}[s.name]
				if col == "" {
					col = "x"
				}
				enc := parquet.Encodings.DeltaLengthByteArray
				if name == "delta bytes" {
					enc = parquet.Encodings.DeltaByteArray
				}
				props = []parquet.WriterProperty{parquet.WithDictionaryDefault(false), parquet.WithEncodingFor(col, enc)}
			}
			for seed := range uint64(2) {
				rng := rand.New(rand.NewPCG(seed, uint64(shape)))
				path, bad, rows := badTexts(t, rng, shape, props...)
				for _, dict := range []bool{false, true} {
					where := fmt.Sprintf("%s, %s, seed %d, dictionary %v", name, s.name, seed, dict)
					tab := mustOpen(t, &Options{Dictionary: Dictionary{All: dict}}, path)
					checkBadTexts(t, where, tab, rng, bad, rows)
				}
			}
		}
	}
}

func checkBadTexts(t *testing.T, where string, tab driver.Table, rng *rand.Rand, bad []int64, rows int64) {
	t.Helper()
	later := driver.Predicate{{Column: "n", Op: driver.Ge, Values: []any{int64(rows / 2)}}}
	for _, o := range []driver.ScanOptions{{}, {Gaps: true, Predicate: later}, {Predicate: later}, {Columns: []string{"x"}, Predicate: driver.Predicate{{Column: "x", Op: driver.Ne, Values: []any{"zz"}}}},
		{Columns: []string{"m", "n"}}} {
		from := int64(0)
		if len(o.Predicate) > 0 && o.Predicate[0].Column == "n" {
			from = rows / 2
		}
		all := o.Columns != nil && o.Columns[0] == "m"
		o.BatchRows, o.Alloc = 1+rng.IntN(100), memtest.New(t)
		var got, want, told []int64
		for i, split := range tab.Splits() {
			begin := int64(i) * 200
			o.OnBadRow = func(err error) error {
				row, ok := fault.PlaceOf(err).Row.Get()
				p := fault.PlaceOf(err)
				if !ok || fault.CodeOf(err) != fault.Corrupt || p.RowGroup != fault.N(int64(i)) || p.File == "" || p.Column != "x" {
					t.Fatalf("%s: %v", where, err)
				}
				told = append(told, begin+row)
				return nil
			}
			if err := readAll(t.Context(), tab, i, &o, func(b driver.Batch) {
				for k := range b.Record.NumRows() {
					row := b.Row + k
					if b.Rows != nil {
						row = b.Rows[k]
					}
					got = append(got, begin+row)
				}
			}); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			first := slices.IndexFunc(bad, func(r int64) bool { return r >= max(begin, from) && r < begin+split.Rows })
			o.OnBadRow = nil
			err := readAll(t.Context(), tab, i, &o, nil)
			switch p := fault.PlaceOf(err); {
			case all || first < 0 && from == 0:
				if err != nil {
					t.Fatalf("%s: %v", where, err)
				}
			case from > 0 && err == nil: // rows before are judged, or read with others
			case fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "not UTF-8"):
				t.Fatalf("%s, row group %d: %v of code %v", where, i, err, fault.CodeOf(err))
			case from == 0 && p.Row != fault.N(bad[first]-begin):
				t.Fatalf("%s, row group %d: %v, want row %d", where, i, err, bad[first]-begin)
			}
		}
		for r := range rows {
			if all || !slices.Contains(bad, r) {
				want = append(want, r)
			}
		}
		if from > 0 { // what the predicate leaves out may be there
			got = slices.DeleteFunc(got, func(r int64) bool { return r < from })
			want = slices.DeleteFunc(want, func(r int64) bool { return r < from })
			told = slices.DeleteFunc(told, func(r int64) bool { return r < from })
		}
		if !slices.Equal(got, want) || !all && len(told) != len(slices.DeleteFunc(slices.Clone(bad), func(r int64) bool { return r < from })) {
			t.Fatalf("%s, %+v: %d rows, want %d; %d are bad, told %d", where, o, len(got), len(want), len(bad), len(told))
		}
	}
}

// An entry of a dictionary page that no row has is no error, and is not handed out either.
func TestUnusedTextOfDictionary(t *testing.T) {
	d := dictionary{n: 3}
	offs, data := []int32{0, 2, 4, 6}, []byte("ok\xffxhi")
	d.checkTexts(offs, data)
	if string(data) != "ok??hi" || d.check([]uint32{0, 2, 2}) != nil {
		t.Errorf("%q, %v", data, d.check([]uint32{0, 2, 2}))
	}
	if r, ok := d.check([]uint32{0, 1}).(refusal); !ok || r.at != 1 {
		t.Error(d.check([]uint32{0, 1}))
	}
}

// TestTextsAsBytes: a column of text that is to be read as bytes need not be UTF-8, and filters on other columns and on it see all rows.
func TestTextsAsBytes(t *testing.T) {
	for _, props := range [][]parquet.WriterProperty{{parquet.WithDictionaryDefault(true)}, {parquet.WithDictionaryDefault(false)}} {
		for shape := range 2 {
			var path string
			var bad []int64
			var rows int64
			for seed := uint64(0); len(bad) == 0; seed++ {
				path, bad, rows = badTexts(t, rand.New(rand.NewPCG(seed, uint64(shape))), shape, props...)
			}
			tab := mustOpen(t, &Options{Options: fileset.Options{Types: map[string]string{"x": "binary"}}}, path)
			for _, o := range []driver.ScanOptions{{}, {Predicate: driver.Predicate{{Column: "n", Op: driver.Ge, Values: []any{int64(0)}}}}} {
				o.Alloc = memtest.New(t)
				n, wrong := int64(0), 0
				for i := range tab.Splits() {
					if err := readAll(t.Context(), tab, i, &o, func(b driver.Batch) {
						n += b.Record.NumRows()
						x := b.Record.Column(1).(*array.Binary)
						for k := range x.Len() {
							if x.IsValid(k) && !utf8.Valid(x.Value(k)) {
								wrong++
							}
						}
					}); err != nil {
						t.Fatal(textShapes[shape].name, err)
					}
				}
				if n != rows || wrong != len(bad) {
					t.Errorf("%s: %d rows, %d of them no text, want %d and %d", textShapes[shape].name, n, wrong, rows, len(bad))
				}
			}
		}
	}
}
