package gather

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var flat = []arrow.DataType{
	arrow.Null, arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Int32,
	arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Uint64, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64, arrow.FixedWidthTypes.Float16,
	arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Timestamp_us, arrow.FixedWidthTypes.Duration_ns, arrow.FixedWidthTypes.MonthDayNanoInterval,
	&arrow.Decimal128Type{Precision: 30, Scale: 2}, &arrow.Decimal256Type{Precision: 60, Scale: 2}, &arrow.FixedSizeBinaryType{ByteWidth: 3},
	arrow.BinaryTypes.String, arrow.BinaryTypes.Binary, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.LargeBinary, arrow.BinaryTypes.StringView,
}

// randomType nests up to depth types.
func randomType(rng *rand.Rand, depth int) arrow.DataType {
	if depth == 0 || rng.IntN(3) == 0 {
		return flat[rng.IntN(len(flat))]
	}
	in := func() arrow.DataType { return randomType(rng, depth-1) }
	switch rng.IntN(8) {
	case 0:
		return arrow.ListOf(in())
	case 1:
		return arrow.LargeListOf(in())
	case 2:
		return arrow.FixedSizeListOf(int32(1+rng.IntN(3)), in())
	case 3:
		return arrow.MapOf(arrow.BinaryTypes.String, in())
	case 4:
		storage := in()
		for storage.ID() == arrow.EXTENSION || storage.ID() == arrow.NULL { // array.Concatenate gets these wrong
			storage = in()
		}
		return extensions.NewOpaqueType(storage, "thing", "maker")
	case 5:
		index := []arrow.DataType{arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Int64}
		value := []arrow.DataType{arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64}
		return &arrow.DictionaryType{IndexType: index[rng.IntN(4)], ValueType: value[rng.IntN(2)]}
	}
	fields := make([]arrow.Field, 1+rng.IntN(3))
	for i := range fields {
		fields[i] = arrow.Field{Name: fmt.Sprint("f", i), Type: in(), Nullable: true}
	}
	return arrow.StructOf(fields...)
}

// add appends one random value; null with probability nulls.
func add(rng *rand.Rand, b array.Builder, nulls float64) {
	if rng.Float64() < nulls {
		b.AppendNull()
		return
	}
	v := rng.Int64()
	text := strings.Repeat(fmt.Sprint(v%8), rng.IntN(20))
	switch b := b.(type) {
	case *array.NullBuilder:
		b.AppendNull()
	case *array.BooleanBuilder:
		b.Append(v&1 == 1)
	case *array.Int8Builder:
		b.Append(int8(v))
	case *array.Uint16Builder:
		b.Append(uint16(v))
	case *array.Int32Builder:
		b.Append(int32(v))
	case *array.Int64Builder:
		b.Append(v)
	case *array.Uint64Builder:
		b.Append(uint64(v))
	case *array.Float32Builder:
		b.Append(float32(v))
	case *array.Float64Builder:
		b.Append(float64(v))
	case *array.Float16Builder:
		b.Append(float16.New(float32(v % 1000)))
	case *array.Date32Builder:
		b.Append(arrow.Date32(v % 10000))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v % 1e15))
	case *array.DurationBuilder:
		b.Append(arrow.Duration(v))
	case *array.MonthDayNanoIntervalBuilder:
		b.Append(arrow.MonthDayNanoInterval{Months: int32(v), Days: int32(v >> 32), Nanoseconds: v})
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(v))
	case *array.Decimal256Builder:
		b.Append(decimal256.FromI64(v))
	case *array.FixedSizeBinaryBuilder:
		b.Append([]byte{byte(v), byte(v >> 8), byte(v >> 16)})
	case *array.StringBuilder:
		b.Append(text)
	case *array.LargeStringBuilder:
		b.Append(text)
	case *array.StringViewBuilder:
		b.Append(text)
	case *array.BinaryBuilder: // large ones too
		b.Append([]byte(text))
	case *array.BinaryDictionaryBuilder:
		must(b.AppendString(text[:min(len(text), 2)]))
	case *array.Int64DictionaryBuilder:
		must(b.Append(v % 8))
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			add(rng, b.FieldBuilder(i), nulls)
		}
	case *array.MapBuilder:
		b.Append(true)
		for i := range rng.IntN(4) {
			b.KeyBuilder().(*array.StringBuilder).Append(fmt.Sprint(i))
			add(rng, b.ItemBuilder(), nulls)
		}
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for range b.Type().(*arrow.FixedSizeListType).Len() {
			add(rng, b.ValueBuilder(), nulls)
		}
	case array.ListLikeBuilder:
		b.Append(true)
		for range rng.IntN(4) {
			add(rng, b.ValueBuilder(), nulls)
		}
	case *array.ExtensionBuilder:
		add(rng, b.StorageBuilder(), nulls)
	default:
		panic(fmt.Sprintf("no values for %T", b))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// randomArray has rows rows, cut out of a longer array as often as not.
func randomArray(rng *rand.Rand, alloc memory.Allocator, t arrow.DataType, rows int) arrow.Array {
	b := array.NewBuilder(alloc, t)
	defer b.Release()
	before, after := rng.IntN(2)*rng.IntN(20), rng.IntN(2)*rng.IntN(20)
	nulls := float64(rng.IntN(2)) * 0.3
	for range before + rows + after {
		add(rng, b, nulls)
	}
	whole := b.NewArray()
	defer whole.Release()
	if rng.IntN(2) == 0 {
		return array.NewSlice(whole, int64(before), int64(before+rows))
	}
	d := shifted(alloc, whole.Data())
	defer d.Release()
	s := array.NewSliceData(d, int64(before), int64(before+rows))
	defer s.Release()
	return array.MakeFromData(s)
}

// shifted is the same rows with children that begin at an offset of their own.
func shifted(alloc memory.Allocator, d arrow.ArrayData) arrow.ArrayData {
	if len(d.Children()) == 0 {
		d.Retain()
		return d
	}
	kids := make([]arrow.ArrayData, len(d.Children()))
	for i, c := range d.Children() {
		s := shifted(alloc, c)
		rows := array.MakeFromData(s)
		head := array.NewSlice(rows, 0, int64(min(3, rows.Len())))
		whole, err := array.Concatenate([]arrow.Array{head, rows}, alloc)
		must(err)
		kids[i] = array.NewSliceData(whole.Data(), int64(head.Len()), int64(whole.Len()))
		for _, a := range []interface{ Release() }{s, rows, head, whole} {
			a.Release()
		}
	}
	out := array.NewData(d.DataType(), d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
	for _, k := range kids {
		k.Release()
	}
	return out
}

func randomRuns(rng *rand.Rand, rows []int) []Run {
	runs := make([]Run, rng.IntN(30))
	for i := range runs {
		rec := rng.IntN(len(rows))
		row := rng.IntN(rows[rec] + 1)
		n := min(rng.IntN(2), rows[rec]-row)
		if rng.IntN(3) == 0 {
			n = rng.IntN(rows[rec] - row + 1)
		}
		runs[i] = Run{int32(rec), int32(row), int32(n)}
	}
	return runs
}

// texts is what the rows say, whatever the dictionaries look like.
func texts(a arrow.Array) string {
	var s strings.Builder
	for i := range a.Len() {
		text(&s, a, i)
		s.WriteByte('\n')
	}
	return s.String()
}

func text(s *strings.Builder, a arrow.Array, i int) {
	if a.IsNull(i) {
		s.WriteString("null")
		return
	}
	switch a := a.(type) {
	case array.ExtensionArray:
		text(s, a.Storage(), i)
	case *array.Dictionary:
		text(s, a.Dictionary(), a.GetValueIndex(i))
	case *array.Struct:
		s.WriteByte('{')
		for k := range a.NumField() {
			text(s, a.Field(k), i)
			s.WriteByte(',')
		}
		s.WriteByte('}')
	case array.ListLike:
		from, to := a.ValueOffsets(i)
		s.WriteByte('[')
		for k := from; k < to; k++ {
			text(s, a.ListValues(), int(k))
			s.WriteByte(',')
		}
		s.WriteByte(']')
	default:
		fmt.Fprintf(s, "%q", a.ValueStr(i))
	}
}

// Every type, cut anywhere: the same as taking the rows one by one.
func TestRowByRow(t *testing.T) {
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		alloc := memtest.New(t)
		fields := make([]arrow.Field, 1+rng.IntN(3))
		for i := range fields {
			fields[i] = arrow.Field{Name: fmt.Sprint("c", i), Type: randomType(rng, 3), Nullable: true}
		}
		if int(seed) < len(flat) { // each flat type for certain
			fields[0].Type = flat[seed]
		}
		schema := arrow.NewSchema(fields, nil)
		recs := make([]arrow.RecordBatch, 1+rng.IntN(4))
		rows := make([]int, len(recs))
		for i := range recs {
			rows[i] = rng.IntN(40)
			cols := make([]arrow.Array, len(fields))
			for k, f := range fields {
				cols[k] = randomArray(rng, alloc, f.Type, rows[i])
			}
			recs[i] = array.NewRecordBatch(schema, cols, int64(rows[i]))
			for _, c := range cols {
				c.Release()
			}
		}
		runs := randomRuns(rng, rows)
		got, err := Record(alloc, schema, recs, runs)
		if err != nil {
			t.Fatalf("seed %d, %v: %v", seed, schema, err)
		}
		if int(got.NumRows()) != Count(runs) {
			t.Fatalf("seed %d: %d rows, want %d", seed, got.NumRows(), Count(runs))
		}
		for k, f := range fields {
			var want strings.Builder
			var one []arrow.Array
			for _, r := range runs {
				for i := range int64(r.N) {
					s := array.NewSlice(recs[r.Rec].Column(k), int64(r.Row)+i, int64(r.Row)+i+1)
					want.WriteString(texts(s))
					one = append(one, s)
				}
			}
			col := got.Column(k)
			if have := texts(col); have != want.String() || col.Len() != len(one) {
				t.Errorf("seed %d, %s, runs %v: got\n%swant\n%s", seed, f.Type, runs, have, &want)
			}
			if len(one) > 0 && !strings.Contains(f.Type.String(), "dictionary") {
				whole, err := array.Concatenate(one, alloc)
				if err != nil {
					t.Fatalf("seed %d, %s: %v", seed, f.Type, err)
				}
				if !array.Equal(whole, col) {
					t.Errorf("seed %d, %s, runs %v: got %v, want %v", seed, f.Type, runs, col, whole)
				}
				if len(runs) > 1 && whole.NullN() != col.NullN() {
					t.Errorf("seed %d, %s: %d nulls, want %d", seed, f.Type, col.NullN(), whole.NullN())
				}
				whole.Release()
			}
			checkLengths(t, recs, k, runs, col)
			for _, s := range one {
				s.Release()
			}
		}
		got.Release()
		for _, r := range recs {
			r.Release()
		}
		if t.Failed() {
			return
		}
		alloc.AssertSize(t, 0)
	}
}

func checkLengths(t *testing.T, recs []arrow.RecordBatch, k int, runs []Run, col arrow.Array) {
	t.Helper()
	cols := make([]arrow.Array, len(recs))
	for i, r := range recs {
		cols[i] = r.Column(k)
	}
	n := make([]int64, col.Len())
	err := Lengths(n, cols, runs)
	switch c := col.(type) {
	case array.ListLike:
		if _, ok := col.(*array.FixedSizeList); ok {
			break
		}
		for i := range n {
			if a, b := c.ValueOffsets(i); err != nil || n[i] != b-a {
				t.Fatalf("row %d of %s has length %d, want %d (%v)", i, col.DataType(), n[i], b-a, err)
			}
		}
	case *array.String:
		for i := range n {
			if err != nil || int(n[i]) != len(c.Value(i)) {
				t.Fatalf("row %d has length %d, want %d (%v)", i, n[i], len(c.Value(i)), err)
			}
		}
	case *array.Int64:
		if fault.CodeOf(err) != fault.Internal {
			t.Fatalf("lengths of int64: %v", err)
		}
	}
}

func column1(t *testing.T, alloc memory.Allocator, typ arrow.DataType, values ...string) arrow.RecordBatch {
	t.Helper()
	b := array.NewBuilder(alloc, typ)
	defer b.Release()
	for _, v := range values {
		if err := b.AppendValueFromString(v); err != nil {
			t.Fatal(err)
		}
	}
	a := b.NewArray()
	defer a.Release()
	return array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "c", Type: typ}}, nil), []arrow.Array{a}, int64(a.Len()))
}

func TestOneRunIsNoCopy(t *testing.T) {
	alloc := memtest.New(t)
	rec := column1(t, alloc, arrow.PrimitiveTypes.Int64, "1", "2", "3", "4")
	defer rec.Release()
	before := alloc.CurrentAlloc()
	got, err := Record(alloc, rec.Schema(), []arrow.RecordBatch{rec}, []Run{{0, 1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	if alloc.CurrentAlloc() != before || got.Column(0).String() != "[2 3]" {
		t.Errorf("got %v with %d bytes more", got.Column(0), alloc.CurrentAlloc()-before)
	}
}

func TestNoRecords(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "c", Type: arrow.ListOf(arrow.PrimitiveTypes.Int8)}}, nil)
	got, err := Record(memtest.New(t), schema, nil, nil)
	if err != nil || got.NumRows() != 0 || !got.Schema().Equal(schema) {
		t.Fatalf("got %v, %v", got, err)
	}
	got.Release()
}

func TestOtherTypes(t *testing.T) {
	alloc := memtest.New(t)
	a, b := column1(t, alloc, arrow.PrimitiveTypes.Int64, "1"), column1(t, alloc, arrow.PrimitiveTypes.Int32, "1")
	defer a.Release()
	defer b.Release()
	if _, err := Record(alloc, a.Schema(), []arrow.RecordBatch{a, b}, []Run{{0, 0, 1}, {1, 0, 1}}); fault.CodeOf(err) != fault.Internal {
		t.Errorf("got %v", err)
	}
}

// More than 2 GiB of strings in one column is an error before they are copied.
func TestOffsetsOverflow(t *testing.T) {
	alloc := memtest.New(t)
	rec := column1(t, alloc, arrow.BinaryTypes.String, strings.Repeat("x", 1<<20))
	defer rec.Release()
	runs := make([]Run, 2048)
	for i := range runs {
		runs[i].N = 1
	}
	_, err := Record(alloc, rec.Schema(), []arrow.RecordBatch{rec}, runs)
	if fault.CodeOf(err) != fault.Exhausted || !strings.Contains(fmt.Sprint(err), "make batches smaller") {
		t.Errorf("got %v", err)
	}
}

// A merged dictionary that the index type cannot name.
func TestDictionaryOverflow(t *testing.T) {
	alloc := memtest.New(t)
	typ := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	recs := make([]arrow.RecordBatch, 2)
	for i := range recs {
		var values []string
		for k := range 100 {
			values = append(values, fmt.Sprint(i, " ", k))
		}
		recs[i] = column1(t, alloc, typ, values...)
		defer recs[i].Release()
	}
	_, err := Record(alloc, recs[0].Schema(), recs, []Run{{0, 0, 1}, {1, 0, 1}})
	if fault.CodeOf(err) != fault.Exhausted {
		t.Errorf("got %v", err)
	}
	got, err := Record(alloc, recs[0].Schema(), recs, []Run{{1, 7, 1}, {1, 0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	if want := "\"1 7\"\n\"1 0\"\n"; texts(got.Column(0)) != want {
		t.Errorf("got %q", texts(got.Column(0)))
	}
}

// Rows of any width come as they are, in portions or not, and nothing is written behind them.
func TestRows(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for width := 1; width < 3000; width += 1 + rng.IntN(width) {
		srcs := make([][]byte, 1+rng.IntN(3))
		for i := range srcs {
			srcs[i] = make([]byte, width*(1+rng.IntN(40)))
			for k := range srcs[i] {
				srcs[i][k] = byte(rng.Uint32())
			}
		}
		var runs []Run
		var want []byte
		n := 1 + rng.IntN(700)
		half, halfBytes := rng.IntN(n+1), 0
		for i := range n {
			if i == half {
				halfBytes = len(want)
			}
			r := Run{Rec: int32(rng.IntN(len(srcs))), N: 1}
			rows := len(srcs[r.Rec]) / width
			r.Row = int32(rng.IntN(rows))
			if rng.IntN(20) == 0 {
				r.N = int32(rng.IntN(rows - int(r.Row) + 1))
			}
			runs = append(runs, r)
			want = append(want, srcs[r.Rec][int(r.Row)*width:int(r.Row+r.N)*width]...)
		}
		if half == n {
			halfBytes = len(want)
		}
		got := bytes.Repeat([]byte{0xa5}, len(want)+64)
		check := func(what string) {
			if !bytes.Equal(got[:len(want)], want) || !bytes.Equal(got[len(want):], bytes.Repeat([]byte{0xa5}, 64)) {
				t.Fatalf("%s: %d runs of rows of %d bytes differ", what, n, width)
			}
		}
		Fixed(got[:len(want)], width, srcs, runs)
		check("Fixed")
		clear(got[:len(want)])
		Ahead(got[:halfBytes], width, srcs, runs, half)
		Ahead(got[halfBytes:len(want)], width, srcs, runs[half:], n-half)
		check("Ahead")
		if width >= minRow {
			from := make([]unsafe.Pointer, 50)
			for i := range from {
				from[i] = row(srcs, &runs[i%n], width)
			}
			a, b := make([]byte, 40*width), make([]byte, 40*width)
			copyRows(a, from, width, min(width, fetchRow))
			copyRowsGo(b, from, width, 0)
			if !bytes.Equal(a, b) {
				t.Fatalf("rows of %d bytes: the kernel differs", width)
			}
		}
	}
}

// Values of any width at any address, single rows and longer runs.
func TestFixed(t *testing.T) {
	for _, width := range []int{1, 2, 3, 4, 8, 16, 17} {
		for shift := range 4 {
			rng := rand.New(rand.NewPCG(uint64(width), uint64(shift)))
			srcs := make([][]byte, 3)
			for i := range srcs {
				srcs[i] = make([]byte, shift+50*width)[shift:]
				for k := range srcs[i] {
					srcs[i][k] = byte(rng.Uint32())
				}
			}
			runs := randomRuns(rng, []int{50, 50, 50})
			var want []byte
			for _, r := range runs {
				want = append(want, srcs[r.Rec][int(r.Row)*width:int(r.Row+r.N)*width]...)
			}
			dst := make([]byte, shift+len(want))[shift:]
			Fixed(dst, width, srcs, runs)
			if !bytes.Equal(dst, want) {
				t.Errorf("width %d, shifted by %d, runs %v: got %x, want %x", width, shift, runs, dst, want)
			}
		}
	}
}

// Types that go through slices, alone and inside of a struct, and one that cannot.
func TestOtherLayouts(t *testing.T) {
	alloc := memtest.New(t)
	runs := []Run{{0, 3, 1}, {0, 0, 2}, {0, 2, 0}, {1, 1, 1}, {0, 3, 1}}
	gatherAll := func(typ arrow.DataType, fill func(array.Builder, int)) (string, string, error) {
		recs := make([]arrow.Array, 2)
		for i := range recs {
			b := array.NewBuilder(alloc, arrow.StructOf(arrow.Field{Name: "x", Type: typ, Nullable: true}))
			for k := range 6 {
				b.(*array.StructBuilder).Append(true)
				fill(b.(*array.StructBuilder).FieldBuilder(0), 10*i+k)
			}
			whole := b.NewArray()
			recs[i] = array.NewSlice(whole, 1, 6)
			whole.Release()
			b.Release()
			defer recs[i].Release()
		}
		var want strings.Builder
		for _, r := range runs {
			for k := range r.N {
				want.WriteString(recs[r.Rec].ValueStr(int(r.Row+k)) + "\n")
			}
		}
		a, err := Column(alloc, recs, runs)
		if err != nil {
			return "", "", err
		}
		defer a.Release()
		var got strings.Builder
		for i := range a.Len() {
			got.WriteString(a.ValueStr(i) + "\n")
		}
		return got.String(), want.String(), nil
	}
	ints := arrow.PrimitiveTypes.Int64
	got, want, err := gatherAll(arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int32, ints), func(b array.Builder, v int) {
		b.(*array.RunEndEncodedBuilder).Append(1)
		b.(*array.RunEndEncodedBuilder).ValueBuilder().(*array.Int64Builder).Append(int64(v / 2))
	})
	if err != nil || got != want {
		t.Errorf("run-end encoded: got\n%swant\n%s%v", got, want, err)
	}
	got, want, err = gatherAll(arrow.ListViewOf(ints), func(b array.Builder, v int) {
		b.(*array.ListViewBuilder).AppendWithSize(v != 3, v%3)
		for range v % 3 {
			b.(*array.ListViewBuilder).ValueBuilder().(*array.Int64Builder).Append(int64(v))
		}
	})
	if err != nil || got != want {
		t.Errorf("list view: got\n%swant\n%s%v", got, want, err)
	}
	union := arrow.SparseUnionOf([]arrow.Field{{Name: "i", Type: ints}}, []arrow.UnionTypeCode{0})
	_, _, err = gatherAll(union, func(b array.Builder, v int) {
		b.(*array.SparseUnionBuilder).Append(0)
		b.(*array.SparseUnionBuilder).Child(0).(*array.Int64Builder).Append(int64(v))
	})
	if fault.CodeOf(err) != fault.Unsupported {
		t.Errorf("union: got %v", err)
	}
}
