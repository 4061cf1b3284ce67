package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/internal/memtest"
)

var leaves = []arrow.DataType{arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32,
	arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64,
	arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64, arrow.FixedWidthTypes.Timestamp_us, arrow.FixedWidthTypes.Date32}

// testColumn is a random column: its values by record and row are the model.
type testColumn struct {
	field  arrow.Field
	leaf   arrow.DataType
	inner  []int
	width  int
	varies bool
	rows   [][][]float64
}

func randomColumn(rng *rand.Rand, name string, sizes []int) *testColumn {
	c := &testColumn{leaf: leaves[rng.IntN(len(leaves))], width: 1, varies: rng.IntN(2) == 0}
	t := c.leaf
	for range rng.IntN(3) {
		w := 1 + rng.IntN(4)
		if c.width == 1 && rng.IntN(40) == 0 {
			w = 1100 // with 8 bytes each larger than a tile
		}
		t = arrow.FixedSizeListOf(int32(w), t)
		c.inner = append([]int{w}, c.inner...)
		c.width *= w
	}
	if c.varies && rng.IntN(2) == 0 {
		t = arrow.LargeListOf(t)
	} else if c.varies {
		t = arrow.ListOf(t)
	}
	c.field = arrow.Field{Name: name, Type: t, Nullable: rng.IntN(2) == 0}
	for _, n := range sizes {
		rows := make([][]float64, n)
		for i := range rows {
			items := 1
			if c.varies {
				items = rng.IntN(6)
			}
			for range items * c.width {
				v := float64(rng.IntN(101))
				if c.leaf.ID() == arrow.BOOL {
					v = float64(rng.IntN(2))
				}
				rows[i] = append(rows[i], v)
			}
		}
		c.rows = append(c.rows, rows)
	}
	return c
}

// put appends the values of a row.
func (c *testColumn) put(b array.Builder, row []float64) {
	var walk func(b array.Builder)
	walk = func(b array.Builder) {
		if l, ok := b.(*array.FixedSizeListBuilder); ok {
			l.Append(true)
			for range l.Type().(*arrow.FixedSizeListType).Len() {
				walk(l.ValueBuilder())
			}
			return
		}
		if err := b.AppendValueFromString(leafText(c.leaf, row[0])); err != nil {
			panic(err)
		}
		row = row[1:]
	}
	if l, ok := b.(array.ListLikeBuilder); ok && c.varies {
		l.Append(true)
		for len(row) > 0 {
			walk(l.ValueBuilder())
		}
		return
	}
	walk(b)
}

func leafText(t arrow.DataType, v float64) string {
	switch t.ID() {
	case arrow.BOOL:
		return fmt.Sprint(v != 0)
	case arrow.TIMESTAMP:
		return arrow.Timestamp(v).ToTime(arrow.Microsecond).Format("2006-01-02 15:04:05.000000Z")
	case arrow.DATE32:
		return arrow.Date32(v).ToTime().Format("2006-01-02")
	}
	return fmt.Sprint(v)
}

// array of one record, in a layout that has offsets everywhere.
func (c *testColumn) array(alloc memory.Allocator, rec int) arrow.Array {
	b := array.NewBuilder(alloc, c.field.Type)
	defer b.Release()
	for _, row := range c.rows[rec] {
		c.put(b, row)
	}
	a := b.NewArray()
	defer a.Release()
	d := shifted(alloc, a.Data())
	defer d.Release()
	return array.MakeFromData(d)
}

// shifted has the same values, each level of it behind others that do not belong to it.
func shifted(alloc memory.Allocator, d arrow.ArrayData) arrow.ArrayData {
	a := array.MakeFromData(d)
	defer a.Release()
	n := min(3, a.Len())
	junk := array.NewSlice(a, int64(a.Len()-n), int64(a.Len()))
	defer junk.Release()
	all, err := array.Concatenate([]arrow.Array{junk, a}, alloc)
	if err != nil {
		panic(err)
	}
	defer all.Release()
	kids := make([]arrow.ArrayData, len(d.Children()))
	for i, k := range all.Data().Children() {
		kids[i] = shifted(alloc, k)
		defer kids[i].Release()
	}
	return array.NewData(d.DataType(), d.Len(), all.Data().Buffers(), kids, a.NullN(), n)
}

func randomRuns(rng *rand.Rand, sizes []int) []gather.Run {
	var runs []gather.Run
	for range rng.IntN(40) {
		r := rng.IntN(len(sizes))
		if sizes[r] == 0 {
			continue
		}
		row := rng.IntN(sizes[r])
		n := 1
		if rng.IntN(4) == 0 {
			n = rng.IntN(sizes[r] - row + 1)
		}
		runs = append(runs, gather.Run{Rec: int32(r), Row: int32(row), N: int32(n)})
	}
	return runs
}

func randomForm(rng *rand.Rand, cols []*testColumn) Form {
	f := Form{Tensors: true, Columns: map[string]Column{}}
	for _, c := range cols {
		o := Column{}
		if rng.IntN(2) == 0 {
			o.DType = DType(1 + rng.IntN(len(dtypes)-1))
		}
		if rng.IntN(3) == 0 {
			o.Scale, o.Offset = 0.5, 3
		}
		if c.varies {
			o.Lists = []Lists{ListsPad, ListsPadGlobal, ListsRagged}[rng.IntN(3)]
			if o.Lists != ListsRagged {
				o.Fill = float64(rng.IntN(2))
				switch rng.IntN(3) {
				case 0:
					o.Length = 7
				case 1:
					o.Multiple = 4
				}
			}
		}
		if rng.IntN(5) > 0 {
			f.Columns[c.field.Name] = o
		}
	}
	for i := range rng.IntN(3) {
		var names []string
		for _, c := range cols {
			if c.field.Type == c.leaf && rng.IntN(3) > 0 {
				names = append(names, c.field.Name)
			}
		}
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		if len(names) > 0 {
			f.Columns[fmt.Sprint("stack", i)] = Column{Stack: names, DType: DType(1 + rng.IntN(len(dtypes)-1)), Offset: float64(rng.IntN(2))}
		}
	}
	return f
}

// numbers are the values of any tensor.
func numbers(t Tensor) []float64 {
	if len(t.Data) == 0 {
		return nil
	}
	out := make([]float64, len(t.Data)/t.DType.Size())
	for i := range out {
		switch t.DType {
		case Bool, Uint8:
			out[i] = float64(t.Data[i])
		case Int8:
			out[i] = float64(int8(t.Data[i]))
		case Int16:
			out[i] = float64(Values[int16](t)[i])
		case Int32:
			out[i] = float64(Values[int32](t)[i])
		case Int64:
			out[i] = float64(Values[int64](t)[i])
		case Uint16:
			out[i] = float64(Values[uint16](t)[i])
		case Uint32:
			out[i] = float64(Values[uint32](t)[i])
		case Uint64:
			out[i] = float64(Values[uint64](t)[i])
		case Float16:
			out[i] = float64(float16.FromBits(Values[uint16](t)[i]).Float32())
		case BFloat16:
			out[i] = float64(math.Float32frombits(uint32(Values[uint16](t)[i]) << 16))
		case Float32:
			out[i] = float64(Values[float32](t)[i])
		case Float64:
			out[i] = Values[float64](t)[i]
		}
	}
	return out
}

type testTensor struct {
	name   string
	dtype  DType
	shape  []int
	values []float64
}

// model is what a batch must be, value by value.
func model(cols []*testColumn, f Form, runs []gather.Run, o BatchShape) []testTensor {
	var out []testTensor
	for _, c := range cols {
		if opt, ok := f.Columns[c.field.Name]; ok {
			out = append(out, modelColumn(c, opt, runs, o)...)
		}
		for i := range 2 {
			name := fmt.Sprint("stack", i)
			opt, ok := f.Columns[name]
			if !ok || opt.Stack[0] != c.field.Name {
				continue
			}
			t := testTensor{name: name, dtype: opt.DType, shape: []int{o.Rows, len(opt.Stack)}, values: make([]float64, o.Rows*len(opt.Stack))}
			for k, member := range opt.Stack {
				c := cols[slices.IndexFunc(cols, func(c *testColumn) bool { return c.field.Name == member })]
				for row, v := range modelColumn(c, Column{DType: opt.DType, Scale: 1, Offset: opt.Offset}, runs, o)[0].values {
					t.values[row*len(opt.Stack)+k] = v
				}
			}
			out = append(out, t)
		}
	}
	if o.Masked {
		m := testTensor{name: "mask", dtype: Bool, shape: []int{o.Rows}}
		for i := range o.Rows {
			v := 0.0
			if i < gather.Count(runs) {
				v = 1
			}
			m.values = append(m.values, v)
		}
		out = append(out, m)
	}
	return out
}

// modelColumn is the tensors of one column.
func modelColumn(c *testColumn, opt Column, runs []gather.Run, o BatchShape) []testTensor {
	dtype := opt.DType
	if dtype == Auto {
		dtype, _ = dtypeOf(c.leaf)
	}
	cast := func(v float64) float64 {
		switch {
		case dtype == Bool && v != 0:
			return 1
		case dtype < Float16:
			return math.Trunc(v)
		}
		return v
	}
	var rows [][]float64
	longest := 0
	for _, r := range runs {
		for i := range r.N {
			var row []float64
			for _, v := range c.rows[r.Rec][r.Row+i] {
				if opt.Scale != 0 {
					v = v*opt.Scale + opt.Offset
				}
				row = append(row, cast(v))
			}
			rows = append(rows, row)
			longest = max(longest, len(row)/c.width)
		}
	}
	t := testTensor{name: c.field.Name, dtype: dtype}
	switch {
	case !c.varies:
		t.shape = append([]int{o.Rows}, c.inner...)
		for _, row := range rows {
			t.values = append(t.values, row...)
		}
		for len(t.values) < o.Rows*c.width {
			t.values = append(t.values, 0)
		}
		return []testTensor{t}
	case opt.Lists == ListsRagged:
		offs := testTensor{name: t.name + ".offsets", dtype: Int64, shape: []int{o.Rows + 1}, values: []float64{0}}
		for i := range o.Rows {
			if i < len(rows) {
				t.values = append(t.values, rows[i]...)
			}
			offs.values = append(offs.values, float64(len(t.values)/c.width))
		}
		t.shape = append([]int{len(t.values) / c.width}, c.inner...)
		return []testTensor{t, offs}
	default:
		if n, ok := o.Lengths[t.name]; ok {
			longest = n
		}
		if opt.Length > 0 {
			longest = opt.Length
		}
		if opt.Multiple > 0 {
			for longest%opt.Multiple != 0 {
				longest++
			}
		}
		lens := testTensor{name: t.name + ".lengths", dtype: Int32, shape: []int{o.Rows}}
		for i := range o.Rows {
			var row []float64
			if i < len(rows) {
				row = rows[i]
			}
			lens.values = append(lens.values, float64(len(row)/c.width))
			t.values = append(t.values, row...)
			for range longest*c.width - len(row) {
				t.values = append(t.values, cast(opt.Fill))
			}
		}
		t.shape = append([]int{o.Rows, longest}, c.inner...)
		return []testTensor{t, lens}
	}
}

// Random rows of random columns in random forms are what the model says, tensor by
// tensor and in Arrow form, with pads and masks; one collator makes many batches.
func TestCollate(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 80 {
		alloc := memtest.New(t)
		sizes := make([]int, 1+rng.IntN(5))
		for i := range sizes {
			sizes[i] = rng.IntN(30)
		}
		var cols []*testColumn
		var fields []arrow.Field
		for i := range 1 + rng.IntN(4) {
			c := randomColumn(rng, fmt.Sprintf("c%d", i), sizes)
			cols = append(cols, c)
			fields = append(fields, c.field)
		}
		schema := arrow.NewSchema(fields, nil)
		recs := make([]arrow.RecordBatch, len(sizes))
		for i := range recs {
			arrs := make([]arrow.Array, len(cols))
			for j, c := range cols {
				arrs[j] = c.array(alloc, i)
				defer arrs[j].Release()
			}
			recs[i] = array.NewRecordBatch(schema, arrs, int64(sizes[i]))
			defer recs[i].Release()
		}
		f := randomForm(rng, cols)
		tensors, err := NewCollator(schema, f, alloc)
		if err != nil {
			t.Fatal(err)
		}
		arrows, err := NewCollator(schema, Form{}, alloc)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			runs := randomRuns(rng, sizes)
			o := BatchShape{Rows: gather.Count(runs), Masked: rng.IntN(2) == 0, Lengths: tensors.Longest(recs, runs)}
			for k := range o.Lengths {
				o.Lengths[k] += rng.IntN(3)
			}
			if rng.IntN(2) == 0 {
				o.Rows += rng.IntN(5)
			}
			want := model(cols, f, runs, o)
			checkTensors(t, tensors, recs, runs, o, want)
			checkPacked(t, rng, tensors, recs, runs, o, want)
			checkArrow(t, arrows, cols, schema, recs, runs, o)
		}
		if t.Failed() {
			return
		}
	}
}

func checkTensors(t *testing.T, c *Collator, recs []arrow.RecordBatch, runs []gather.Run, o BatchShape, want []testTensor) {
	t.Helper()
	b, err := c.Batch(recs, runs, o)
	if err != nil {
		t.Fatal(err)
	}
	checkBatch(t, b, runs, o, want)
}

// checkPacked makes the same batch of records some of which are packed, and gone where nothing else needs them.
func checkPacked(t *testing.T, rng *rand.Rand, c *Collator, recs []arrow.RecordBatch, runs []gather.Run, o BatchShape, want []testTensor) {
	t.Helper()
	if c.Layout() == nil {
		return
	}
	srcs := make([]Rows, len(recs))
	for i, rec := range recs {
		srcs[i].Rec = rec
		if rng.IntN(3) == 0 {
			continue
		}
		srcs[i].Packed = make([]byte, int(rec.NumRows())*c.Layout().Size)
		if !c.Layout().Pack(srcs[i].Packed, rec, nil) {
			t.Fatal("does not pack")
		}
		if !c.Layout().Rest {
			srcs[i].Rec = nil
		}
	}
	if l := c.LongestOf(srcs, runs); (l == nil) != (o.Lengths == nil) {
		t.Fatalf("longest lists %v", l)
	}
	b, err := c.BatchOf(srcs, runs, o)
	if err != nil {
		t.Fatal(err)
	}
	checkBatch(t, b, runs, o, want)
}

func checkBatch(t *testing.T, b *Batch, runs []gather.Run, o BatchShape, want []testTensor) {
	t.Helper()
	defer b.Release()
	if b.Rows() != o.Rows || b.Real() != gather.Count(runs) || len(b.Tensors()) != len(want) {
		t.Fatalf("%d rows, %d real, %d tensors", b.Rows(), b.Real(), len(b.Tensors()))
	}
	for i, got := range b.Tensors() {
		w := want[i]
		if got.Name != w.name || got.DType != w.dtype || !slices.Equal(got.Shape, w.shape) {
			t.Fatalf("tensor %s %v %v, want %s %v %v", got.Name, got.DType, got.Shape, w.name, w.dtype, w.shape)
		}
		if !slices.Equal(numbers(got), w.values) {
			t.Fatalf("%s (%v): %v, want %v", w.name, w.dtype, numbers(got), w.values)
		}
		if len(got.Data) > 0 && uintptr(unsafe.Pointer(&got.Data[0]))%64 != 0 {
			t.Fatalf("%s is not aligned", w.name)
		}
	}
}

func checkArrow(t *testing.T, c *Collator, cols []*testColumn, schema *arrow.Schema, recs []arrow.RecordBatch, runs []gather.Run, o BatchShape) {
	t.Helper()
	b, err := c.Batch(recs, runs, o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	fields := schema.Fields()
	if o.Masked {
		fields = append(fields, arrow.Field{Name: "mask", Type: arrow.FixedWidthTypes.Boolean})
	}
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer rb.Release()
	for i, c := range cols {
		for _, r := range runs {
			for k := range r.N {
				c.put(rb.Field(i), c.rows[r.Rec][r.Row+k])
			}
		}
		for range o.Rows - gather.Count(runs) {
			if c.field.Nullable {
				rb.Field(i).AppendNull()
			} else {
				rb.Field(i).AppendEmptyValue()
			}
		}
	}
	if o.Masked {
		for i := range o.Rows {
			rb.Field(len(cols)).(*array.BooleanBuilder).Append(i < gather.Count(runs))
		}
	}
	want := rb.NewRecordBatch()
	defer want.Release()
	if !b.Record().Schema().Equal(want.Schema()) || !array.RecordEqual(b.Record(), want) {
		t.Fatalf("runs %v, shape %v: %v, want %v", runs, o, b.Record(), want)
	}
}

// What cannot be is refused with the column's name and what to do.
func TestCollatorRefuses(t *testing.T) {
	str := arrow.BinaryTypes.String
	ints := arrow.ListOf(arrow.PrimitiveTypes.Int32)
	for _, c := range []struct {
		t    arrow.DataType
		f    Form
		want string
	}{
		{str, Form{Tensors: true}, "Arrow form"},
		{str, Form{Columns: map[string]Column{}}, "Arrow form"},
		{str, Form{Tensors: true, Columns: map[string]Column{"labl": {}}}, `did you mean "label"?; have label, other`},
		{ints, Form{Tensors: true}, "set lists to pad"},
		{ints, form(Column{Lists: "stack"}), "pad, pad_global, ragged"},
		{arrow.ListOf(ints), form(Column{Lists: ListsPad}), "no tensor form"},
		{arrow.ListOf(str), form(Column{Lists: ListsRagged}), "no tensor form"},
		{arrow.FixedSizeListOf(2, ints), form(Column{Lists: ListsPad}), "varying length"},
		{ints, form(Column{Lists: ListsRagged, Length: 3}), "padded lists"},
		{ints, form(Column{Lists: ListsPad, Length: 3, Multiple: 2}), "one of them"},
		{ints, form(Column{Lists: ListsPad, Length: -3}), "negative"},
		{ints, form(Column{Lists: ListsPad, DType: Uint8, Fill: -100}), "fill -100 does not fit uint8"},
		{arrow.PrimitiveTypes.Int8, form(Column{Lists: ListsPad}), "leave it out"},
		{arrow.PrimitiveTypes.Int8, form(Column{Fill: 1}), "padded lists"},
		{arrow.PrimitiveTypes.Int8, form(Column{DType: 99}), "no dtype 99"},
		{arrow.PrimitiveTypes.Int8, form(Column{Scale: math.Inf(1)}), "finite"},
		{str, form(Column{Stack: []string{}}), "name some"},
		{str, form(Column{Stack: []string{"othr"}}), `did you mean "other"`},
		{str, form(Column{Stack: []string{"other", "othr"}}), `did you mean "other"`},
		{str, form(Column{Stack: []string{"other", "label"}}), "a stack takes one number of each column"},
		{arrow.FixedSizeListOf(1, arrow.PrimitiveTypes.Int8), form(Column{Stack: []string{"label"}}), "a stack takes one number of each column"},
		{arrow.PrimitiveTypes.Int8, form(Column{Stack: []string{"label"}, Lists: ListsPad}), "leave them out"},
		{arrow.PrimitiveTypes.Int8, form(Column{Stack: []string{"label"}, Scale: math.NaN()}), "finite"},
	} {
		s := arrow.NewSchema([]arrow.Field{{Name: "label", Type: c.t}, {Name: "other", Type: arrow.PrimitiveTypes.Int8}}, nil)
		_, err := NewCollator(s, c.f, memory.DefaultAllocator)
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%v %v: %v, want %q", c.t, c.f, err, c.want)
		}
	}
	s := arrow.NewSchema([]arrow.Field{{Name: "label", Type: arrow.PrimitiveTypes.Int8}, {Name: "other", Type: arrow.PrimitiveTypes.Int8}}, nil)
	two := Form{Tensors: true, Columns: map[string]Column{"label": {}, "x": {Stack: []string{"label", "other"}}, "other": {Stack: []string{"other"}}}}
	if _, err := NewCollator(s, two, memory.DefaultAllocator); err != nil {
		t.Errorf("a column alone and in two stacks, one of which has a column's name: %v", err)
	}
	clash := arrow.NewSchema([]arrow.Field{{Name: "x", Type: ints}, {Name: "x.lengths", Type: arrow.PrimitiveTypes.Int8}}, nil)
	f := Form{Tensors: true, Columns: map[string]Column{"x": {Lists: ListsPad}, "x.lengths": {}}}
	if _, err := NewCollator(clash, f, memory.DefaultAllocator); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("two tensors of one name: %v", err)
	}
	delete(f.Columns, "x.lengths")
	if _, err := NewCollator(clash, f, memory.DefaultAllocator); err != nil {
		t.Errorf("a column that is left out clashes: %v", err)
	}
}

// A stack of no given type has that of its columns, or one that holds them all.
func TestStackType(t *testing.T) {
	for _, c := range []struct {
		of   []arrow.DataType
		want DType
	}{
		{[]arrow.DataType{arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Int64}, Int64},
		{[]arrow.DataType{arrow.FixedWidthTypes.Boolean}, Bool},
		{[]arrow.DataType{arrow.PrimitiveTypes.Int16, arrow.FixedWidthTypes.Float16, arrow.FixedWidthTypes.Boolean}, Float32},
		{[]arrow.DataType{arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Float32}, Float32},
		{[]arrow.DataType{arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Int32}, Float64},
		{[]arrow.DataType{arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64}, Float64},
	} {
		var fields []arrow.Field
		o := Column{}
		for i, d := range c.of {
			fields = append(fields, arrow.Field{Name: fmt.Sprint("c", i), Type: d})
			o.Stack = append(o.Stack, fields[i].Name)
		}
		col, err := NewCollator(arrow.NewSchema(fields, nil), Form{Tensors: true, Columns: map[string]Column{"x": o}}, memtest.New(t))
		if err != nil {
			t.Fatal(err)
		}
		b, err := col.Batch(nil, nil, BatchShape{Rows: 2})
		if err != nil {
			t.Fatal(err)
		}
		if x := b.Tensors()[0]; x.DType != c.want || !slices.Equal(x.Shape, []int{2, len(c.of)}) {
			t.Errorf("%v: %v %v, want %v", c.of, x.DType, x.Shape, c.want)
		}
		b.Release()
	}
}

func form(c Column) Form { return Form{Tensors: true, Columns: map[string]Column{"label": c}} }

// A column called mask is in the way of padded batches, and only of those.
func TestMaskNameTaken(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "mask", Type: arrow.PrimitiveTypes.Int8}}, nil)
	for _, f := range []Form{{}, {Tensors: true}} {
		c, err := NewCollator(s, f, memtest.New(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Batch(nil, nil, BatchShape{Rows: 1, Masked: true}); fault.CodeOf(err) != fault.Invalid || fault.PlaceOf(err).Column != "mask" {
			t.Errorf("%v", err)
		}
		b, err := c.Batch(nil, nil, BatchShape{Rows: 1})
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
}

// A null, a value too large and a list too long are RowErrors of their column,
// found wherever they lie, and only in rows that the batch has.
func TestCollateBadRows(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	fsl := arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int16)
	for _, c := range []struct {
		t    arrow.DataType
		o    Column
		good string
		bad  string
		want string
	}{
		{arrow.PrimitiveTypes.Int16, Column{}, `1`, `null`, "null has no"},
		{fsl, Column{}, `[1, 2]`, `null`, "null has no"},
		{fsl, Column{}, `[1, 2]`, `[1, null]`, "null in a list"},
		{arrow.ListOf(fsl), Column{Lists: ListsPad}, `[[1, 2]]`, `null`, "null has no"},
		{arrow.ListOf(fsl), Column{Lists: ListsPad}, `[[1, 2]]`, `[[1, 2], null]`, "null in a list"},
		{arrow.LargeListOf(fsl), Column{Lists: ListsRagged}, `[[1, 2]]`, `[[1, 2], [3, null]]`, "null in a list"},
		{arrow.FixedWidthTypes.Boolean, Column{}, `true`, `null`, "null has no"},
		{arrow.PrimitiveTypes.Int16, Column{DType: Int8}, `1`, `1234`, "1234 does not fit int8"},
		{arrow.PrimitiveTypes.Int16, Column{DType: Int8, Stack: []string{"label", "label"}}, `1`, `1234`, "1234 does not fit int8"},
		{arrow.PrimitiveTypes.Int16, Column{Stack: []string{"label", "label"}}, `1`, `null`, "null has no"},
		{arrow.PrimitiveTypes.Int16, Column{DType: Int8, Scale: 2}, `1`, `64`, "64, scaled, does not fit int8"},
		{fsl, Column{DType: Uint8}, `[1, 2]`, `[3, -4]`, "-4 does not fit uint8"},
		{arrow.ListOf(fsl), Column{DType: Uint8, Lists: ListsPad}, `[[1, 2]]`, `[[5, 6], [7, 888]]`, "888 does not fit uint8"},
		{arrow.LargeListOf(fsl), Column{DType: Uint8, Lists: ListsRagged}, `[[1, 2]]`, `[[5, 6], [7, 888]]`, "888 does not fit uint8"},
		{arrow.FixedWidthTypes.Timestamp_us, Column{DType: Int32}, `1`, `"2024-01-02T00:00:00Z"`, "2024-01-02T00:00:00Z does not fit int32"},
		{arrow.ListOf(arrow.PrimitiveTypes.Int16), Column{Lists: ListsPad, Length: 2}, `[1]`, `[1, 2, 3]`, "longer than 2"},
	} {
		alloc := memtest.New(t)
		s := arrow.NewSchema([]arrow.Field{{Name: "label", Type: c.t, Nullable: true}}, nil)
		for range 10 {
			n := 1 + rng.IntN(40)
			at := rng.IntN(n)
			rows := make([]string, n)
			for i := range rows {
				rows[i] = `{"label": ` + c.good + `}`
			}
			rows[at] = `{"label": ` + c.bad + `}`
			rec, _, err := array.RecordFromJSON(alloc, s, strings.NewReader("["+strings.Join(rows, ",")+"]"))
			if err != nil {
				t.Fatal(err)
			}
			d := shifted(alloc, rec.Column(0).Data())
			arr := array.MakeFromData(d)
			d.Release()
			rec.Release()
			rec = array.NewRecordBatch(s, []arrow.Array{arr}, int64(n))
			arr.Release()
			col, err := NewCollator(s, form(c.o), alloc)
			if err != nil {
				t.Fatal(err)
			}
			var runs []gather.Run
			for i := range n {
				if i != at {
					runs = append(runs, gather.Run{Row: int32(i), N: 1})
				}
			}
			rng.Shuffle(len(runs), func(i, j int) { runs[i], runs[j] = runs[j], runs[i] })
			recs := []arrow.RecordBatch{rec}
			b, err := col.Batch(recs, runs, BatchShape{Rows: len(runs)})
			if err != nil {
				t.Fatalf("%v: %v", c.t, err)
			}
			b.Release()
			runs = slices.Insert(runs, rng.IntN(len(runs)+1), gather.Run{Row: int32(at), N: 1})
			for _, runs := range [][]gather.Run{runs, {{N: int32(n)}}} {
				_, err = col.Batch(recs, runs, BatchShape{Rows: n})
				if fault.CodeOf(err) != fault.RowError || fault.PlaceOf(err).Column != "label" || !strings.Contains(fmt.Sprint(err), c.want) {
					t.Errorf("%v: %v, want %q", c.t, err, c.want)
				}
				if l := col.Layout(); l != nil {
					if l.Pack(make([]byte, n*l.Size), rec, nil) {
						t.Errorf("%v: packed", c.t)
					}
					// Beside rows that are packed the error is the same.
					good := make([]byte, l.Size)
					mixed := append([]gather.Run{{Rec: 1, N: 1}}, runs...)
					_, perr := col.BatchOf([]Rows{{Rec: rec}, {Packed: good}}, mixed, BatchShape{Rows: n + 1})
					if fmt.Sprint(perr) != fmt.Sprint(err) {
						t.Errorf("%v: %v, want %v", c.t, perr, err)
					}
				}
			}
			rec.Release()
		}
	}
}

// One list that would blow a batch up is refused before anything is allocated.
func TestCollateHuge(t *testing.T) {
	alloc := memtest.New(t)
	s := arrow.NewSchema([]arrow.Field{{Name: "label", Type: arrow.ListOf(arrow.PrimitiveTypes.Int8)}}, nil)
	c, err := NewCollator(s, form(Column{Lists: ListsPadGlobal}), alloc)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Batch(nil, nil, BatchShape{Rows: 1 << 20, Lengths: map[string]int{"label": math.MaxInt}})
	if fault.CodeOf(err) != fault.Exhausted || fault.PlaceOf(err).Column != "label" {
		t.Errorf("%v", err)
	}
}

// shuffledRecords are 64 records of 4 float32 columns and a label, and a batch of
// 1024 rows from anywhere in them.
func shuffledRecords(alloc memory.Allocator) ([]arrow.RecordBatch, []gather.Run) {
	rng := rand.New(rand.NewPCG(1, 2))
	var fields []arrow.Field
	for i := range 4 {
		fields = append(fields, arrow.Field{Name: fmt.Sprint("f", i), Type: arrow.PrimitiveTypes.Float32})
	}
	schema := arrow.NewSchema(append(fields, arrow.Field{Name: "label", Type: arrow.PrimitiveTypes.Int64}), nil)
	b := array.NewRecordBuilder(alloc, schema)
	defer b.Release()
	recs := make([]arrow.RecordBatch, 64)
	for i := range recs {
		for range 16384 {
			for k := range 4 {
				b.Field(k).(*array.Float32Builder).Append(rng.Float32())
			}
			b.Field(4).(*array.Int64Builder).Append(rng.Int64())
		}
		recs[i] = b.NewRecordBatch()
	}
	runs := make([]gather.Run, 1024)
	for i := range runs {
		runs[i] = gather.Run{Rec: int32(rng.IntN(64)), Row: int32(rng.IntN(16384)), N: 1}
	}
	return recs, runs
}

// BenchmarkCollate takes rows from 25 MB: more than the caches hold, as windows are.
func BenchmarkCollate(b *testing.B) {
	pool := mem.New(1 << 30)
	defer pool.Close()
	recs, base := shuffledRecords(pool)
	defer func() {
		for _, r := range recs {
			r.Release()
		}
	}()
	all := Form{Tensors: true}
	half := Form{Tensors: true, Columns: map[string]Column{"label": {}}}
	scaled := Form{Tensors: true, Columns: map[string]Column{"label": {}}}
	for i := range 4 {
		half.Columns[fmt.Sprint("f", i)] = Column{DType: BFloat16}
		scaled.Columns[fmt.Sprint("f", i)] = Column{Scale: 2, Offset: -1}
	}
	for _, c := range []struct {
		name string
		form Form
	}{{"same", all}, {"bfloat16", half}, {"scaled", scaled}, {"arrow", Form{}}} {
		b.Run(c.name, func(b *testing.B) {
			col, err := NewCollator(recs[0].Schema(), c.form, pool)
			if err != nil {
				b.Fatal(err)
			}
			runs := slices.Clone(base)
			b.SetBytes(1024 * (4*4 + 8))
			b.ReportAllocs()
			for b.Loop() {
				for i := range runs { // other rows of the same windows, as in a run
					runs[i].Row = (runs[i].Row + 97) & 16383
				}
				batch, err := col.Batch(recs, runs, BatchShape{Rows: len(runs)})
				if err != nil {
					b.Fatal(err)
				}
				batch.Release()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1024, "ns/row")
		})
	}
}
