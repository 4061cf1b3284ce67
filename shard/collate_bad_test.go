package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/memtest"
)

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
