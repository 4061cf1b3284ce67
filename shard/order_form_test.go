package shard_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/float16"

	"github.com/penstock-data/penstock/shard"
)

// modelColumn is a column of numbers, or of lists of numbers, of a graph's rows.
type modelColumn struct {
	name  string
	index int // in modelRow.nums
	dtype shard.DType
	list  bool
}

// numeric finds the columns of numbers.
func (g *graph) numeric(schema *arrow.Schema) {
	g.scalar = true
	for _, f := range schema.Fields() {
		if slices.Contains(g.hidden, f.Name) {
			continue
		}
		t := f.Type
		l, list := t.(*arrow.ListType)
		if list {
			t = l.Elem()
		}
		dtype, ok := map[arrow.Type]shard.DType{arrow.INT16: shard.Int16, arrow.INT32: shard.Int32, arrow.INT64: shard.Int64,
			arrow.FLOAT32: shard.Float32, arrow.FLOAT64: shard.Float64}[t.ID()]
		if g.scalar = g.scalar && ok && !list; ok {
			g.solid = append(g.solid, modelColumn{f.Name, len(g.solid), dtype, list})
		}
	}
}

// values of a row; nil: null.
func (c *modelColumn) values(rec arrow.RecordBatch, row int) []float64 {
	a := rec.Column(rec.Schema().FieldIndices(c.name)[0])
	if a.IsNull(row) {
		return nil
	}
	from, to := int64(row), int64(row+1)
	if l, ok := a.(*array.List); ok {
		from, to = l.ValueOffsets(row)
		a = l.ListValues()
	}
	out := []float64{}
	for i := int(from); i < int(to); i++ {
		switch a := a.(type) {
		case *array.Int16:
			out = append(out, float64(a.Value(i)))
		case *array.Int32:
			out = append(out, float64(a.Value(i)))
		case *array.Int64:
			out = append(out, float64(a.Value(i)))
		case *array.Float32:
			out = append(out, float64(a.Value(i)))
		case *array.Float64:
			out = append(out, a.Value(i))
		}
	}
	return out
}

// pickSolid keeps the columns that are null in no row of any epoch, as tensors must have them.
func (g *graph) pickSolid() {
	all := len(g.solid)
	g.solid = slices.DeleteFunc(g.solid, func(c modelColumn) bool {
		return !g.allRows(func(r *modelRow) bool { return r.nums[c.index] != nil })
	})
	g.scalar = g.scalar && len(g.solid) == all
}

// allRows reports whether ok holds for the rows of all epochs.
func (g *graph) allRows(ok func(*modelRow) bool) bool {
	for _, epoch := range g.plain {
		for _, rows := range epoch {
			for _, r := range rows {
				if !ok(r) {
					return false
				}
			}
		}
	}
	return true
}

// scaled is a value of a tensor before its cast.
func scaled(o shard.Column, v float64) float64 {
	if o.Scale != 0 {
		v *= o.Scale
	}
	return v + o.Offset
}

var intRanges = map[shard.DType][2]float64{
	shard.Int8: {math.MinInt8, math.MaxInt8}, shard.Int16: {math.MinInt16, math.MaxInt16}, shard.Int32: {math.MinInt32, math.MaxInt32}, shard.Int64: {-1 << 53, 1 << 53},
	shard.Uint8: {0, math.MaxUint8}, shard.Uint16: {0, math.MaxUint16}, shard.Uint32: {0, math.MaxUint32}, shard.Uint64: {0, 1 << 53},
}

// fits reports whether dtype can hold the values of a column, and a model need not know how they are rounded to halves.
func (g *graph) fits(c modelColumn, o shard.Column, dtype shard.DType) bool {
	return g.allRows(func(r *modelRow) bool {
		for _, v := range r.nums[c.index] {
			v = scaled(o, v)
			ok := true
			switch dtype {
			case shard.Float16:
				ok = math.Abs(v) < 500 && v*4 == math.Trunc(v*4)
			case shard.BFloat16:
				ok = math.Abs(v) < 60 && v*4 == math.Trunc(v*4)
			case shard.Bool, shard.Float32, shard.Float64:
			default:
				at := intRanges[dtype]
				ok = v >= at[0] && v <= at[1]
			}
			if !ok {
				return false
			}
		}
		return true
	})
}

// castTo is a value as a tensor has it.
func castTo(dtype shard.DType, v float64) float64 {
	switch dtype {
	case shard.Bool:
		if v != 0 {
			return 1
		}
		return 0
	case shard.Float32:
		return float64(float32(v))
	case shard.Float16, shard.BFloat16, shard.Float64:
		return v
	}
	return math.Trunc(v)
}

// newForm draws tensors of unpacked rows; Arrow form where there are no columns for them.
func (g *graph) newForm(rng *rand.Rand) (f shard.Form) {
	if len(g.solid) == 0 {
		return f
	}
	f.Tensors = true
	if g.scalar && rng.IntN(5) == 0 {
		return f // all columns, as they are
	}
	f.Columns = map[string]shard.Column{}
	draw := func(cols []modelColumn) (o shard.Column) {
		if rng.IntN(3) == 0 {
			o.Scale, o.Offset = 0.5, 3
		}
		good := func(d shard.DType) bool {
			for _, c := range cols {
				if !g.fits(c, o, d) {
					return false
				}
			}
			return true
		}
		for range 3 {
			d := shard.DType(1 + rng.IntN(int(shard.Float64)))
			if good(d) {
				o.DType = d
				return o
			}
		}
		if d := commonType(cols); !good(d) {
			o.DType = shard.Float64
		}
		return o
	}
	var scalars []modelColumn
	for _, c := range g.solid {
		if !c.list {
			scalars = append(scalars, c)
		}
		if rng.IntN(2) == 0 {
			continue
		}
		o := shard.Column{}
		if rng.IntN(2) == 0 {
			o = draw([]modelColumn{c})
		}
		if c.list {
			o.Lists = []shard.Lists{shard.ListsPad, shard.ListsPadGlobal, shard.ListsRagged}[rng.IntN(3)]
			if o.Lists != shard.ListsRagged {
				o.Fill = float64(rng.IntN(2))
				switch rng.IntN(3) {
				case 0:
					o.Length = 13 // no list is longer
				case 1:
					o.Multiple = 1 + rng.IntN(5)
				}
			}
		}
		f.Columns[c.name] = o
	}
	if len(scalars) > 0 && (rng.IntN(2) == 0 || len(f.Columns) == 0) {
		rng.Shuffle(len(scalars), func(i, j int) { scalars[i], scalars[j] = scalars[j], scalars[i] })
		of := scalars[:1+rng.IntN(len(scalars))]
		o := draw(of)
		for _, c := range of {
			o.Stack = append(o.Stack, c.name)
		}
		f.Columns["stack"] = o
	}
	if len(f.Columns) == 0 {
		return shard.Form{}
	}
	return f
}

// commonType is the type of a stack of columns, where none is given.
func commonType(cols []modelColumn) shard.DType {
	same, short := true, true
	for _, c := range cols {
		same = same && c.dtype == cols[0].dtype
		short = short && (c.dtype == shard.Int16 || c.dtype == shard.Float32)
	}
	switch {
	case same:
		return cols[0].dtype
	case short:
		return shard.Float32
	}
	return shard.Float64
}

// modelTensor is a tensor of the reference.
type modelTensor struct {
	dtype  shard.DType
	shape  []int
	values []float64
}

// tensors are those of a batch of rows, by name.
func (w *modelBatch) tensors(solid []modelColumn, f shard.Form, tail shard.Tail) map[string]modelTensor {
	out := map[string]modelTensor{}
	column := func(name string) modelColumn {
		return solid[slices.IndexFunc(solid, func(c modelColumn) bool { return c.name == name })]
	}
	if tail == shard.TailPad {
		mask := modelTensor{shard.Bool, []int{w.full}, make([]float64, w.full)}
		for i := range w.rows {
			mask.values[i] = 1
		}
		out["mask"] = mask
	}
	columns := f.Columns
	if columns == nil {
		columns = map[string]shard.Column{}
		for _, c := range solid {
			columns[c.name] = shard.Column{}
		}
	}
	for name, o := range columns {
		names, shape := []string{name}, []int{w.full}
		if o.Stack != nil {
			names, shape = o.Stack, []int{w.full, len(o.Stack)}
		}
		var cols []modelColumn
		for _, n := range names {
			cols = append(cols, column(n))
		}
		if o.DType == shard.Auto {
			o.DType = commonType(cols)
		}
		if cols[0].list {
			w.lists(name, cols[0], o, out)
			continue
		}
		t := modelTensor{o.DType, shape, make([]float64, w.full*len(cols))}
		for i, r := range w.rows {
			for k, c := range cols {
				t.values[i*len(cols)+k] = castTo(o.DType, scaled(o, r.nums[c.index][0]))
			}
		}
		out[name] = t
	}
	return out
}

// lists are the tensors of a column of lists.
func (w *modelBatch) lists(name string, c modelColumn, o shard.Column, out map[string]modelTensor) {
	t := modelTensor{dtype: o.DType}
	second := modelTensor{dtype: shard.Int32, shape: []int{w.full}}
	if o.Lists == shard.ListsRagged {
		second = modelTensor{dtype: shard.Int64, shape: []int{w.full + 1}, values: []float64{0}}
	}
	among := w.rows
	if o.Lists == shard.ListsPadGlobal {
		among = w.step
	}
	longest := 0
	for _, r := range among {
		longest = max(longest, len(r.nums[c.index]))
	}
	if o.Length > 0 {
		longest = o.Length
	}
	for o.Multiple > 0 && longest%o.Multiple != 0 {
		longest++
	}
	for i := range w.full {
		var row []float64
		if i < len(w.rows) {
			row = w.rows[i].nums[c.index]
		}
		for _, v := range row {
			t.values = append(t.values, castTo(o.DType, scaled(o, v)))
		}
		if o.Lists == shard.ListsRagged {
			second.values = append(second.values, float64(len(t.values)))
			continue
		}
		second.values = append(second.values, float64(len(row)))
		for range longest - len(row) {
			t.values = append(t.values, castTo(o.DType, o.Fill))
		}
	}
	if t.shape = []int{w.full, longest}; o.Lists == shard.ListsRagged {
		t.shape = []int{len(t.values)}
		out[name+".offsets"] = second
	} else {
		out[name+".lengths"] = second
	}
	out[name] = t
}

// sameTensors compares the tensors of a batch of unpacked rows with the reference's.
func (w *modelBatch) sameTensors(b *shard.Batch, solid []modelColumn, f shard.Form, tail shard.Tail) error {
	want := w.tensors(solid, f, tail)
	if len(b.Tensors()) != len(want) {
		return fmt.Errorf("%d tensors, want %d", len(b.Tensors()), len(want))
	}
	for _, t := range b.Tensors() {
		x, ok := want[t.Name]
		if got := tensorValues(t); !ok || t.DType != x.dtype || !slices.Equal(t.Shape, x.shape) || !slices.Equal(got, x.values) {
			return fmt.Errorf("samples %v: tensor %s is %v %v\n  %v\nwant %v %v\n  %v", w.n, t.Name, t.DType, t.Shape, got, x.dtype, x.shape, x.values)
		}
	}
	return nil
}

// tensorValues are the values of any tensor.
func tensorValues(t shard.Tensor) []float64 {
	out := make([]float64, len(t.Data)/t.DType.Size())
	for i := range out {
		switch t.DType {
		case shard.Bool, shard.Uint8:
			out[i] = float64(t.Data[i])
		case shard.Int8:
			out[i] = float64(int8(t.Data[i]))
		case shard.Int16:
			out[i] = float64(shard.Values[int16](t)[i])
		case shard.Int32:
			out[i] = float64(shard.Values[int32](t)[i])
		case shard.Int64:
			out[i] = float64(shard.Values[int64](t)[i])
		case shard.Uint16:
			out[i] = float64(shard.Values[uint16](t)[i])
		case shard.Uint32:
			out[i] = float64(shard.Values[uint32](t)[i])
		case shard.Uint64:
			out[i] = float64(shard.Values[uint64](t)[i])
		case shard.Float16:
			out[i] = float64(float16.FromBits(shard.Values[uint16](t)[i]).Float32())
		case shard.BFloat16:
			out[i] = float64(math.Float32frombits(uint32(shard.Values[uint16](t)[i]) << 16))
		case shard.Float32:
			out[i] = float64(shard.Values[float32](t)[i])
		case shard.Float64:
			out[i] = shard.Values[float64](t)[i]
		}
	}
	return out
}

// tensorText renders a row of packed tensors as textOf does.
func tensorText(b *shard.Batch, row int) string {
	var parts []string
	for _, t := range b.Tensors() {
		if t.Name == "mask" {
			continue
		}
		width := t.Shape[1]
		row := shard.Tensor{DType: t.DType, Data: t.Data[row*width*t.DType.Size():][:width*t.DType.Size()]}
		var vals []string
		for _, v := range tensorValues(row) {
			vals = append(vals, fmt.Sprint(int64(v)))
		}
		parts = append(parts, t.Name+"=["+strings.Join(vals, ",")+"]")
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
