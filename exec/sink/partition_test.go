package sink

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain-1.5_x": "plain-1.5_x", "": "", "a b": "a%20b", "a/b": "a%2Fb", "..": "..", "é": "%C3%A9", "\x00\xff": "%00%FF",
		"100%": "100%25", "x=y": "x%3Dy", hiveNull: "%5F_HIVE_DEFAULT_PARTITION__", "*?:": "%2A%3F%3A",
	} {
		got := escapeValue(in)
		if back, err := url.PathUnescape(got); got != want || err != nil || back != in {
			t.Errorf("%q becomes %q, want %q (back %q, %v)", in, got, want, back, err)
		}
	}
	if got := escape(".x", true); got != "%2Ex" {
		t.Errorf("hidden name becomes %q", got)
	}
}

// all types that may partition, each with values and their folders.
func TestPartitionValues(t *testing.T) {
	alloc := memtest.New(t)
	ts := arrow.Timestamp(time.Date(2021, 2, 3, 4, 5, 6, 7000, time.UTC).UnixMicro())
	day := arrow.Date32(time.Date(1969, 12, 30, 0, 0, 0, 0, time.UTC).Unix() / 86400)
	for _, tc := range []struct {
		typ  arrow.DataType
		fill func(b array.Builder)
		want []string
	}{
		{arrow.PrimitiveTypes.Int8, func(b array.Builder) { b.(*array.Int8Builder).AppendValues([]int8{-128, 127}, nil) }, []string{"-128", "127"}},
		{arrow.PrimitiveTypes.Int16, func(b array.Builder) { b.(*array.Int16Builder).AppendValues([]int16{-1, 5}, nil) }, []string{"-1", "5"}},
		{arrow.PrimitiveTypes.Int32, func(b array.Builder) { b.(*array.Int32Builder).AppendValues([]int32{-1, 5}, nil) }, []string{"-1", "5"}},
		{arrow.PrimitiveTypes.Int64, func(b array.Builder) { b.(*array.Int64Builder).AppendValues([]int64{-1 << 63, 5}, nil) }, []string{"-9223372036854775808", "5"}},
		{arrow.PrimitiveTypes.Uint8, func(b array.Builder) { b.(*array.Uint8Builder).AppendValues([]uint8{255, 5}, nil) }, []string{"255", "5"}},
		{arrow.PrimitiveTypes.Uint16, func(b array.Builder) { b.(*array.Uint16Builder).AppendValues([]uint16{65535, 5}, nil) }, []string{"65535", "5"}},
		{arrow.PrimitiveTypes.Uint32, func(b array.Builder) { b.(*array.Uint32Builder).AppendValues([]uint32{7, 5}, nil) }, []string{"7", "5"}},
		{arrow.PrimitiveTypes.Uint64, func(b array.Builder) { b.(*array.Uint64Builder).AppendValues([]uint64{1<<64 - 1, 5}, nil) }, []string{"18446744073709551615", "5"}},
		{arrow.FixedWidthTypes.Boolean, func(b array.Builder) { b.(*array.BooleanBuilder).AppendValues([]bool{true, false}, nil) }, []string{"true", "false"}},
		{arrow.BinaryTypes.String, func(b array.Builder) { b.(*array.StringBuilder).AppendValues([]string{"x y", ""}, nil) }, []string{"x%20y", ""}},
		{arrow.BinaryTypes.LargeString, func(b array.Builder) { b.(*array.LargeStringBuilder).AppendValues([]string{"x y", ""}, nil) }, []string{"x%20y", ""}},
		{arrow.FixedWidthTypes.Date32, func(b array.Builder) { b.(*array.Date32Builder).AppendValues([]arrow.Date32{day, 0}, nil) }, []string{"1969-12-30", "1970-01-01"}},
		{arrow.FixedWidthTypes.Date64, func(b array.Builder) { b.(*array.Date64Builder).AppendValues([]arrow.Date64{-1, 5}, nil) }, []string{"1969-12-31", "1970-01-01"}},
		{arrow.FixedWidthTypes.Timestamp_us, func(b array.Builder) { b.(*array.TimestampBuilder).AppendValues([]arrow.Timestamp{ts, 0}, nil) }, []string{"2021-02-03T04%3A05%3A06.000007Z", "1970-01-01T00%3A00%3A00Z"}},
		{&arrow.TimestampType{Unit: arrow.Microsecond}, func(b array.Builder) { b.(*array.TimestampBuilder).AppendValues([]arrow.Timestamp{ts, 0}, nil) }, []string{"2021-02-03T04%3A05%3A06.000007", "1970-01-01T00%3A00%3A00"}},
		{&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, func(b array.Builder) {
			b.(*array.BinaryDictionaryBuilder).AppendString("u")
			b.(*array.BinaryDictionaryBuilder).AppendString("v")
		}, []string{"u", "v"}},
		{arrow.Null, func(b array.Builder) { b.AppendNulls(2) }, []string{hiveNull, hiveNull}},
	} {
		schema := arrow.NewSchema([]arrow.Field{{Name: "c d", Type: tc.typ, Nullable: true}, {Name: "x", Type: arrow.PrimitiveTypes.Int64}}, nil)
		p, err := newPartitioning(schema, []string{"c d"})
		if err != nil {
			t.Fatal(err)
		}
		b := array.NewRecordBuilder(alloc, schema)
		tc.fill(b.Field(0))
		b.Field(0).AppendNull()
		b.Field(1).(*array.Int64Builder).AppendValues([]int64{0, 1, 2}, nil)
		rec := b.NewRecordBatch()
		b.Release()
		ids, keys, err := p.assign(rec)
		rec.Release()
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range append(slices.Clone(tc.want), hiveNull) {
			if got := keys[ids[i]]; got != "c%20d="+want+"/" {
				t.Errorf("%s row %d: %q, want %q", tc.typ, i, got, want)
			}
		}
	}
	for _, typ := range []arrow.DataType{arrow.PrimitiveTypes.Float64, arrow.ListOf(arrow.PrimitiveTypes.Int8), &arrow.Decimal128Type{Precision: 5}} {
		_, err := newPartitioning(arrow.NewSchema([]arrow.Field{{Name: "c", Type: typ}, {Name: "x", Type: typ}}, nil), []string{"c"})
		if fault.CodeOf(err) != fault.Unsupported || fault.PlaceOf(err).Column != "c" {
			t.Errorf("%s: %v", typ, err)
		}
	}
	_, err := newPartitioning(arrow.NewSchema([]arrow.Field{{Name: "c", Type: arrow.PrimitiveTypes.Int8},
		{Name: "v", Type: arrow.SparseUnionOf([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int8, Nullable: true}}, []arrow.UnionTypeCode{0})}}, nil), []string{"c"})
	if fault.CodeOf(err) != fault.Unsupported || fault.PlaceOf(err).Column != "v" {
		t.Errorf("a column that cannot be picked: %v", err)
	}
}

// Dates and times of years that have no four digits are errors, where a row has them.
func TestPartitionYears(t *testing.T) {
	day := func(year int) int64 { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Unix() / 86400 }
	for year, good := range map[int]bool{-1: false, 0: true, 1: true, 9999: true, 10000: false, 290000: false, -290000: false} {
		for name, fill := range map[string]func(b array.Builder){
			"date32":       func(b array.Builder) { b.(*array.Date32Builder).Append(arrow.Date32(day(year))) },
			"date64":       func(b array.Builder) { b.(*array.Date64Builder).Append(arrow.Date64(day(year) * 86_400_000)) },
			"timestamp[s]": func(b array.Builder) { b.(*array.TimestampBuilder).Append(arrow.Timestamp(day(year) * 86400)) },
			"dictionary":   func(b array.Builder) { _ = b.(*array.Date32DictionaryBuilder).Append(arrow.Date32(day(year))) },
		} {
			typ := map[string]arrow.DataType{"date32": arrow.FixedWidthTypes.Date32, "date64": arrow.FixedWidthTypes.Date64, "timestamp[s]": &arrow.TimestampType{Unit: arrow.Second},
				"dictionary": &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.FixedWidthTypes.Date32}}[name]
			schema := arrow.NewSchema([]arrow.Field{{Name: "d", Type: typ, Nullable: true}, {Name: "x", Type: arrow.PrimitiveTypes.Int64}}, nil)
			p, err := newPartitioning(schema, []string{"d"})
			if err != nil {
				t.Fatal(err)
			}
			b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
			fill(b.Field(0))
			b.Field(0).AppendNull()
			b.Field(1).(*array.Int64Builder).AppendValues([]int64{1, 2}, nil)
			_, keys, err := p.assign(b.NewRecordBatch())
			b.Release()
			if good && err != nil || !good && (fault.CodeOf(err) != fault.Invalid || fault.PlaceOf(err).Column != "d" || !strings.Contains(err.Error(), "years 0 to 9999")) {
				t.Errorf("%s of year %d: %v, %v", name, year, keys, err)
			}
		}
	}
}

// Whatever text a row has, its folder is one folder below the output, that no reader hides and that no other text has.
func TestPartitionText(t *testing.T) {
	b := array.NewRecordBuilder(memory.DefaultAllocator, dataSchema)
	defer b.Release()
	texts := []string{"", ".", "..", "/", "../x", "a/../b", hiveNull, "%5F_HIVE_DEFAULT_PARTITION__", "_x", ".x", " ", " x ", "\n", "\x00", "\\", "a=b", "%", "%41", "A", "é", "e\u0301", "北",
		"?x=1", "*", "[a]", "{a,b}", strings.Repeat("y", 250), "con", "a.", "~"}
	for i, text := range texts {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append(text)
		b.Field(2).AppendNull()
		b.Field(3).(*array.StringBuilder).Append("")
	}
	b.Field(0).(*array.Int64Builder).Append(0)
	b.Field(1).AppendNull()
	b.Field(2).AppendNull()
	b.Field(3).(*array.StringBuilder).Append("")
	p, err := newPartitioning(dataSchema, []string{"p"})
	if err != nil {
		t.Fatal(err)
	}
	ids, keys, err := p.assign(b.NewRecordBatch())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, id := range ids {
		value, ok := strings.CutPrefix(keys[id], "p=")
		value, slash := strings.CutSuffix(value, "/")
		if !ok || !slash || strings.ContainsAny(value, "/\\*?[{ \n\x00") || checkPath(keys[id]+"x") != nil || hidden(keys[id]+"x") || seen[keys[id]] {
			t.Errorf("row %d: folder %q", i, keys[id])
		}
		seen[keys[id]] = true
		if i == len(texts) {
			if value != hiveNull {
				t.Errorf("null is %q", value)
			}
		} else if back, err := url.PathUnescape(value); err != nil || back != texts[i] || value == hiveNull {
			t.Errorf("%q comes back as %q, %v", texts[i], back, err)
		}
	}
}

func TestPartitionTooLong(t *testing.T) {
	p, err := newPartitioning(dataSchema, []string{"text"})
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, dataSchema)
	b.Field(0).(*array.Int64Builder).Append(1)
	b.Field(1).AppendNull()
	b.Field(2).AppendNull()
	b.Field(3).(*array.StringBuilder).Append(strings.Repeat("x", 300))
	if _, _, err = p.assign(b.NewRecordBatch()); fault.CodeOf(err) != fault.Invalid || fault.PlaceOf(err).Column != "text" {
		t.Errorf("%v", err)
	}
}

// Grouping random rows of nested types, slices of them too, keeps every row
// whole, in its partition, in order.
func TestGroupRows(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	alloc := memtest.New(t)
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "a", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "list", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
		{Name: "b", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int16, ValueType: arrow.BinaryTypes.String}, Nullable: true},
		{Name: "struct", Type: arrow.StructOf(arrow.Field{Name: "f", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
			arrow.Field{Name: "d", Type: &arrow.Decimal128Type{Precision: 10, Scale: 2}, Nullable: true}), Nullable: true},
		{Name: "map", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.FixedWidthTypes.Boolean), Nullable: true},
		{Name: "fixed", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Uint8), Nullable: true},
		{Name: "bin", Type: arrow.BinaryTypes.LargeBinary, Nullable: true},
	}, nil)
	p, err := newPartitioning(schema, []string{"b", "a"})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		n := 1 + rnd.IntN(200)
		b := array.NewRecordBuilder(alloc, schema)
		card := 1 + rnd.IntN(5)
		for i := range n {
			null := func() bool { return rnd.IntN(5) == 0 }
			if a := b.Field(0).(*array.Int32Builder); null() {
				a.AppendNull()
			} else {
				a.Append(int32(rnd.IntN(card)))
			}
			b.Field(1).(*array.Int64Builder).Append(int64(i))
			l := b.Field(2).(*array.ListBuilder)
			if l.Append(!null()); l.IsNull(i) == false {
				for range rnd.IntN(3) {
					l.ValueBuilder().(*array.StringBuilder).Append(fmt.Sprint("s", i))
				}
			}
			if d := b.Field(3).(*array.BinaryDictionaryBuilder); null() {
				d.AppendNull()
			} else {
				d.AppendString(fmt.Sprint("v", rnd.IntN(card)))
			}
			if s := b.Field(4).(*array.StructBuilder); null() {
				s.AppendNull()
			} else {
				s.Append(true)
				s.FieldBuilder(0).(*array.Float64Builder).Append(float64(i) / 2)
				s.FieldBuilder(1).(*array.Decimal128Builder).Append(decimal128.FromI64(int64(i)))
			}
			if m := b.Field(5).(*array.MapBuilder); null() {
				m.AppendNull()
			} else {
				m.Append(true)
				m.KeyBuilder().(*array.StringBuilder).Append(fmt.Sprint("k", i))
				m.ItemBuilder().(*array.BooleanBuilder).Append(i%2 == 0)
			}
			if f := b.Field(6).(*array.FixedSizeListBuilder); null() {
				f.AppendNull()
			} else {
				f.Append(true)
				f.ValueBuilder().(*array.Uint8Builder).AppendValues([]uint8{uint8(i), 1}, nil)
			}
			b.Field(7).(*array.BinaryBuilder).Append([]byte(strings.Repeat("b", i%7)))
		}
		whole := b.NewRecordBatch()
		b.Release()
		from := rnd.Int64N(int64(n))
		rec := whole.NewSlice(from, from+1+rnd.Int64N(int64(n)-from))
		whole.Release()
		g, copied, err := p.group(alloc, rec)
		if err != nil {
			t.Fatal(err)
		}
		if !copied {
			if err := g.copyRows(alloc); err != nil {
				t.Fatal(err)
			}
		}
		if g.rec.NumRows() != rec.NumRows() || g.ends[len(g.ends)-1] != rec.NumRows() || len(g.keys) != len(g.ends) {
			t.Fatalf("%d rows, ends %v", g.rec.NumRows(), g.ends)
		}
		ids := g.rec.Column(0).(*array.Int64).Int64Values()
		first := rec.Column(1).(*array.Int64).Value(0)
		row, seen := int64(0), map[string]bool{}
		for k, key := range g.keys {
			if seen[key] {
				t.Fatalf("partition %q is there twice", key)
			}
			seen[key] = true
			for last := int64(-1); row < g.ends[k]; row++ {
				src := ids[row] - first
				if ids[row] <= last {
					t.Fatal("order changed")
				}
				last = ids[row]
				text := func(c int) string {
					if rec.Column(c).IsNull(int(src)) {
						return hiveNull
					}
					return rec.Column(c).ValueStr(int(src))
				}
				if want := "b=" + text(3) + "/a=" + text(0) + "/"; key != want {
					t.Fatalf("row %d in %q, want %q", ids[row], key, want)
				}
				for i, c := range p.rest {
					if got, want := g.rec.Column(i).ValueStr(int(row)), rec.Column(c).ValueStr(int(src)); got != want {
						t.Fatalf("row %d column %s: %s, want %s", ids[row], schema.Field(c).Name, got, want)
					}
				}
			}
		}
		g.rec.Release()
		rec.Release()
	}
}

// With more partitions than files may be open, the number of files stays near
// that of partitions.
func TestManyPartitions(t *testing.T) {
	dir := t.TempDir()
	d := data{Splits: 10, Rows: 1000, Bad: -1}
	s := newFiles(t, Options{Path: dir, TargetBytes: 20 << 20, PartitionBy: []string{"k"}})
	if err := (runSpec{Data: d, Workers: 1, Batch: 500, Alloc: memtest.New(t)}).run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	exact(t, dir, d)
	if n := s.Result().Files; n < 503 || n > 503+maxOpen {
		t.Errorf("%d files of 503 partitions", n)
	}
	if es, _ := filepath.Glob(filepath.Join(dir, "k=*")); len(es) != 503 {
		t.Errorf("%d folders", len(es))
	}
}

func BenchmarkGroup(b *testing.B) {
	for _, card := range []int32{1, 50, 5000} {
		b.Run(fmt.Sprint(card), func(b *testing.B) {
			schema := arrow.NewSchema([]arrow.Field{{Name: "k", Type: arrow.PrimitiveTypes.Int32}, {Name: "v", Type: arrow.PrimitiveTypes.Float64},
				{Name: "s", Type: arrow.BinaryTypes.String}}, nil)
			rb := array.NewRecordBuilder(memory.DefaultAllocator, schema)
			rnd := rand.New(rand.NewPCG(1, 2))
			for range 16384 {
				rb.Field(0).(*array.Int32Builder).Append(rnd.Int32N(card))
				rb.Field(1).(*array.Float64Builder).Append(rnd.Float64())
				rb.Field(2).(*array.StringBuilder).Append("some text")
			}
			rec := rb.NewRecordBatch()
			p, err := newPartitioning(schema, []string{"k"})
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(16384 * 25)
			b.ReportAllocs()
			for b.Loop() {
				g, _, err := p.group(memory.DefaultAllocator, rec)
				if err != nil {
					b.Fatal(err)
				}
				g.rec.Release()
			}
		})
	}
}
