package expr

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// rare makes columns of the types that are decoded before use, four rows each.
func rare(t *testing.T, mem memory.Allocator) arrow.RecordBatch {
	t.Helper()
	var fields []arrow.Field
	var cols []arrow.Array
	add := func(name string, arr arrow.Array) {
		fields = append(fields, arrow.Field{Name: name, Type: arr.DataType(), Nullable: true})
		cols = append(cols, arr)
	}
	fromJSON := func(dt arrow.DataType, text string) arrow.Array {
		arr, _, err := array.FromJSON(mem, dt, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return arr
	}
	// A dictionary with a null among its values.
	codes := fromJSON(arrow.PrimitiveTypes.Uint8, `[0, 1, null, 2]`)
	dict := fromJSON(arrow.BinaryTypes.String, `["x", null, "z"]`)
	add("dict", array.NewDictionaryArray(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Uint8, ValueType: arrow.BinaryTypes.String}, codes, dict))
	codes.Release()
	dict.Release()
	ends := fromJSON(arrow.PrimitiveTypes.Int32, `[2, 3, 4]`)
	vals := fromJSON(arrow.PrimitiveTypes.Int64, `[7, null, 9]`)
	add("runs", array.NewRunEndEncodedArray(ends, vals, 4, 0))
	ends.Release()
	vals.Release()
	sv := array.NewStringViewBuilder(mem)
	sv.AppendValues([]string{"a", "a string of more than twelve bytes", "", "d"}, []bool{true, true, false, true})
	add("view", sv.NewArray())
	sv.Release()
	hb := array.NewFloat16Builder(mem)
	hb.AppendValues([]float16.Num{float16.New(1), float16.New(2.5), float16.New(0), float16.New(-1)}, []bool{true, true, false, true})
	add("half", hb.NewArray())
	hb.Release()
	xb := extensions.NewBool8Type()
	storage := fromJSON(arrow.PrimitiveTypes.Int8, `[1, 0, null, 1]`)
	add("ext", array.NewExtensionArrayWithStorage(xb, storage))
	storage.Release()
	add("nothing", array.NewNull(4))
	add("fsb", fromJSON(&arrow.FixedSizeBinaryType{ByteWidth: 2}, `["YWI=", "Y2Q=", null, "ZWY="]`))
	add("ms", fromJSON(arrow.FixedWidthTypes.Date64, `["2024-01-01", "1969-12-31", null, "1970-01-01"]`))
	add("ns", fromJSON(arrow.FixedWidthTypes.Time64ns, `["01:02:03.000000004", "00:00:00", null, "23:59:59"]`))
	add("map", fromJSON(arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32), `[[{"key": "a", "value": 1}], [], null, [{"key": "b", "value": 2}, {"key": "c", "value": null}]]`))
	add("deep", fromJSON(arrow.ListOf(arrow.StructOf(arrow.Field{Name: "v", Type: arrow.ListOf(arrow.PrimitiveTypes.Int16), Nullable: true})), `[[{"v": [1, 2]}, null], [], null, [{"v": null}, {"v": [3]}]]`))
	add("st", fromJSON(arrow.StructOf(arrow.Field{Name: "d", Type: arrow.BinaryTypes.String, Nullable: true}, arrow.Field{Name: "n", Type: arrow.Null, Nullable: true}), `[{"d": "p"}, {"d": null}, null, {"d": "q"}]`))
	add("big", fromJSON(&arrow.Decimal256Type{Precision: 50, Scale: 1}, `["1.5", "2.5", null, "3.5"]`))
	ub := array.NewDenseUnionBuilder(mem, arrow.DenseUnionOf([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}, []arrow.UnionTypeCode{0, 1}))
	ub.Append(0)
	ub.Child(0).(*array.Int32Builder).Append(5)
	ub.Append(1)
	ub.Child(1).(*array.StringBuilder).Append("u")
	ub.AppendNull()
	ub.Append(1)
	ub.Child(1).(*array.StringBuilder).Append("w")
	add("union", ub.NewArray())
	ub.Release()
	codes = fromJSON(arrow.PrimitiveTypes.Int8, `[0, 1, 0, 1]`)
	i32, str := fromJSON(arrow.PrimitiveTypes.Int32, `[1, 2, null, 4]`), fromJSON(arrow.BinaryTypes.String, `["a", "b", "c", null]`)
	su, err := array.NewSparseUnionFromArrays(codes, []arrow.Array{i32, str})
	if err != nil {
		t.Fatal(err)
	}
	add("sparse", su)
	codes.Release()
	i32.Release()
	str.Release()
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, 4)
}

func TestRareTypes(t *testing.T) {
	mem := memtest.New(t)
	all := rare(t, mem)
	defer all.Release()
	rec := all.NewSlice(1, 4)
	defer rec.Release()
	for text, want := range map[string]string{
		`dict == "z"`:                "null, null, true: bool",
		`is_null(dict)`:              "true, true, false: bool",
		`coalesce(dict, "?")`:        `"?", "?", "z": string`,
		`runs + 1`:                   "8, null, 10: int64",
		`is_null(runs)`:              "false, true, false: bool",
		`size(view)`:                 "34, null, 1: int64",
		`upper(view)`:                `"A STRING OF MORE THAN TWELVE BYTES", null, "D": string`,
		`view < "b"`:                 "true, null, false: bool",
		`half * 2.0`:                 "5, null, -2: float",
		`cast(half + 1, "float16")`:  "3.5, null, 0: float16",
		`cast(runs, "float16")`:      "7, null, 9: float16",
		`ext == 1`:                   "false, null, true: bool",
		`nothing == 1`:               "null, null, null: bool",
		`coalesce(nothing, 3)`:       "3, 3, 3: int64",
		`is_not_null(nothing)`:       "false, false, false: bool",
		`nothing`:                    "(null), (null), (null): null",
		`cast(nothing, "list<int>")`: "null, null, null: list<int64>",
		`fsb == b"cd"`:               "true, null, false: bool",
		`string(binary(fsb))`:        `"cd", null, "ef": string`,
		`fsb in [b"ef", b"toolong"]`: "false, null, true: bool",
		`fsb + b"!"`:                 `"cd!", null, "ef!": binary`,
		`cast("xy", "fixed_size_binary(2)") == fsb`:      "false, null, false: bool",
		`try_cast("xyz", "fixed_size_binary(2)") == fsb`: "null, null, null: bool",
		`try_cast("-0", "uint16")`:                       "0, 0, 0: uint16",
		`try_cast("-1", "uint16")`:                       "null, null, null: uint16",
		`try_cast("-", "uint8")`:                         "null, null, null: uint8",
		`size(fsb)`:                                      "2, null, 2: int64",
		`ms < "1970-01-01"`:                              "true, null, false: bool",
		`ms == date(ms)`:                                 "true, null, true: bool",
		`year(ms)`:                                       "1969, null, 1970: int64",
		`string(ns)`:                                     `"00:00:00", null, "23:59:59": string`,
		`cast(ns, "time32[s]")`:                          "00:00:00, null, 23:59:59: time32[s]",
		`ns > "00:00:00"`:                                "false, null, true: bool",
		`size(map)`:                                      "0, null, 2: int64",
		`deep[0].v`:                                      "null, null, null: list<int16>",
		`deep[-1].v[0]`:                                  "null, null, 3: int16",
		`size(deep)`:                                     "0, null, 2: int64",
		`st.d`:                                           `null, null, "q": string`,
		`st.n`:                                           "(null), (null), (null): null",
		`st.d == "q"`:                                    "null, null, true: bool",
		`is_null(union)`:                                 "false, true, false: bool",
		`is_null(sparse)`:                                "false, true, true: bool",
		`is_null(big)`:                                   "false, true, false: bool",
		`is_null(map) ? deep : slice(deep, 1)`:           "",
		`min(fsb, b"cc")`:                                `"cc", "cc", "cc": binary`,
		`max(ns, ns)`:                                    "00:00:00.000000000, null, 23:59:59.000000000: time64[ns]",
		`hash(fsb) == hash(binary(fsb))`:                 "true, true, true: bool",
	} {
		got, err := eval(t, rec, mem, text)
		if err != nil || got != want && want != "" {
			t.Errorf("%s: %s (%v), want %s", text, got, err, want)
		}
	}
	for i, f := range rec.Schema().Fields() { // a cast to the same type is none
		p, err := Cast(Col(f.Name), f.Type).Bind(rec.Schema(), 0)
		if err != nil {
			t.Errorf("cast of %s: %v", f.Name, err)
			continue
		}
		arr, err := p.Eval(rec, nil, mem)
		if err != nil || show(arr) != show(rec.Column(i)) {
			t.Errorf("cast of %s: %v", f.Name, err)
		}
		if arr != nil {
			arr.Release()
		}
	}
	for _, text := range []string{"big + 1", "big > 1", "map == map", "union == 1", "hash(big)", "hash(map)", `cast(map, "string")`, `cast(big, "double")`} {
		if _, err := eval(t, rec, mem, text); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestTake compares gathering with picking values one by one, for every type, on
// whole and sliced batches.
func TestTake(t *testing.T) {
	mem := memtest.New(t)
	for name, whole := range map[string]arrow.RecordBatch{"table": table(t, mem), "rare": rare(t, mem)} {
		defer whole.Release()
		n := whole.NumRows()
		for _, part := range [][2]int64{{0, n}, {1, n}, {n, n}} {
			rec := whole.NewSlice(part[0], part[1])
			for _, idx := range [][]int32{{}, {0}, {1, 1, 0}, {1, 0}, {0, 1}, {0, 1, 0, 1, 0, 1, 0, 1, 0, 1}, {-1, 1, -1}} {
				if rec.NumRows() < 2 && len(idx) > 0 {
					continue
				}
				out, err := Take(rec, idx, mem)
				if name == "rare" && slices.Contains(idx, -1) { // unions have no nulls of their own
					if fault.CodeOf(err) != fault.Unsupported {
						t.Errorf("nulls of a union: %v", err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				for c := range rec.NumCols() {
					for j, i := range idx {
						want := "null"
						if i >= 0 {
							want = value(rec.Column(int(c)), int(i))
						}
						if got := value(out.Column(int(c)), j); got != want {
							t.Errorf("%s of %s, row %d: %s, want %s", name, rec.ColumnName(int(c)), i, got, want)
						}
					}
				}
				out.Release()
			}
			rec.Release()
		}
	}
	rec := table(t, mem)
	defer rec.Release()
	for _, idx := range [][]int32{{3}, {-2}} {
		if _, err := Take(rec, idx, mem); fault.CodeOf(err) != fault.Internal {
			t.Errorf("take %v: %v", idx, err)
		}
	}
}

func TestFilterEdges(t *testing.T) {
	mem := memtest.New(t)
	rec := table(t, mem)
	defer rec.Release()
	mask := func(text string) *array.Boolean {
		p, err := MustParse(text).Bind(rec.Schema(), 0)
		if err != nil {
			t.Fatal(err)
		}
		arr, err := p.Eval(rec, nil, mem)
		if err != nil {
			t.Fatal(err)
		}
		return arr.(*array.Boolean)
	}
	for text, want := range map[string]string{"true": "all", "false": "[]", "null || ok": "[0]", "!ok": "[1]", "is_null(ok)": "[2]"} {
		m := mask(text)
		sel := Select(m)
		out, err := Filter(rec, sel, mem)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(sel.Rows())
		if sel.All() {
			got = "all"
		}
		if got != want || out.NumRows() != int64(sel.Len()) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
		out.Release()
		m.Release()
	}
	short := rec.NewSlice(0, 2)
	defer short.Release()
	m := mask("ok")
	defer m.Release()
	if _, err := Filter(short, Select(m), mem); err == nil {
		t.Error("mask of another length is accepted")
	}
}

// TestLargeFilter crosses the words and blocks that Filter works in.
func TestLargeFilter(t *testing.T) {
	mem := memtest.New(t)
	b := array.NewRecordBuilder(mem, arrow.NewSchema([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, {Name: "b", Type: boolType}, {Name: "s", Type: arrow.BinaryTypes.String}}, nil))
	defer b.Release()
	const n = 1000
	for i := range n + 3 {
		if i%7 == 5 {
			b.Field(0).AppendNull()
		} else {
			b.Field(0).(*array.Int64Builder).Append(int64(i))
		}
		b.Field(1).(*array.BooleanBuilder).Append(i%3 == 0)
		b.Field(2).(*array.StringBuilder).Append(fmt.Sprint("s", i))
	}
	all := b.NewRecordBatch()
	defer all.Release()
	rec := all.NewSlice(3, n+3)
	defer rec.Release()
	for _, keep := range []func(i int) bool{
		func(i int) bool { return i >= 100 && i < 900 }, func(i int) bool { return i%2 == 0 }, func(i int) bool { return i%50 != 3 }, func(i int) bool { return i == 999 },
	} {
		mb := array.NewBooleanBuilder(mem)
		var want []int32
		for i := range n {
			mb.Append(keep(i))
			if keep(i) {
				want = append(want, int32(i))
			}
		}
		mask := mb.NewBooleanArray()
		sel := Select(mask)
		idx := sel.Rows()
		out, err := Filter(rec, sel, mem)
		if err != nil {
			t.Fatal(err)
		}
		for j, i := range want {
			if idx[j] != i {
				t.Fatalf("index %d is %d, want %d", j, idx[j], i)
			}
			for c := range 3 {
				if got, want := out.Column(c).ValueStr(j), rec.Column(c).ValueStr(int(i)); got != want {
					t.Fatalf("column %d, row %d: %s, want %s", c, i, got, want)
				}
			}
		}
		out.Release()
		mask.Release()
		mb.Release()
	}
}

// TestConcurrent runs one program from several goroutines.
func TestConcurrent(t *testing.T) {
	mem := memtest.New(t)
	rec := table(t, mem)
	defer rec.Release()
	p, err := MustParse(`fare > 0 && id in [1, 2, 3] && hour(local) < 23 && matches(name, "A") || upper(city) == string(fare) || random() < 0.0`).Bind(rec.Schema(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				arr, err := p.Eval(rec, nil, mem)
				if err != nil {
					t.Error(err)
					return
				}
				if got := show(arr); got != "true, false, null: bool" {
					t.Error(got)
				}
				arr.Release()
			}
		})
	}
	wg.Wait()
}
