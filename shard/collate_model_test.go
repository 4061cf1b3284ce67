package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/gather"
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
