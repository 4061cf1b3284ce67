package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/memtest"
)

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
	checkInfo(t, c, o.Masked, b)
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
