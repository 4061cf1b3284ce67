package shard

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/memtest"
)

// checkInfo compares what was said of tensors with a batch; TestCollate calls it with random ones.
func checkInfo(t *testing.T, c *Collator, masked bool, b *Batch) {
	t.Helper()
	infos := c.Tensors(masked)
	if len(infos) != len(b.Tensors()) {
		t.Fatalf("%d tensors, but %d in the batch", len(infos), len(b.Tensors()))
	}
	var sum int64
	all := true
	for i, x := range b.Tensors() {
		info := infos[i]
		want := slices.Clone(info.Shape)
		for k, d := range want {
			switch d {
			case "rows":
				want[k] = strconv.Itoa(b.Rows())
			case "rows+1":
				want[k] = strconv.Itoa(b.Rows() + 1)
			case "longest", "values": // the batch decides
				want[k] = strconv.Itoa(x.Shape[k])
				if info.Bytes >= 0 {
					t.Errorf("%+v: %d bytes a sample, whatever its lists are", info, info.Bytes)
				}
			}
		}
		var have []string
		for _, d := range x.Shape {
			have = append(have, strconv.Itoa(d))
		}
		if info.Name != x.Name || info.DType != x.DType || !slices.Equal(have, want) {
			t.Errorf("%+v, but the tensor is %s %v %v", info, x.Name, x.DType, x.Shape)
		}
		if info.Bytes < 0 {
			all = false
			continue
		}
		sum += info.Bytes
		if n := int64(len(x.Data)); info.Shape[0] == "rows" && n != info.Bytes*int64(b.Rows()) {
			t.Errorf("%+v: %d bytes of %d rows", info, n, b.Rows())
		}
		for _, col := range info.Columns {
			if !c.schema.HasField(col) {
				t.Errorf("%+v comes from no column", info)
			}
		}
	}
	if n, whole := c.SampleBytes(masked); n != sum || whole != all {
		t.Errorf("a sample has %d bytes, %v, want %d, %v", n, whole, sum, all)
	}
}

// What is said of tensors, word for word.
func TestTensors(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64}, {Name: "b\n", Type: arrow.PrimitiveTypes.Float32},
		{Name: "v", Type: arrow.FixedSizeListOf(8, arrow.PrimitiveTypes.Int16)}, {Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)},
		{Name: "m", Type: arrow.ListOf(arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int8))}, {Name: "r", Type: arrow.LargeListOf(arrow.PrimitiveTypes.Uint8)}}, nil)
	c, err := NewCollator(schema, Form{Tensors: true, Columns: map[string]Column{
		"a": {DType: Float32, Scale: 0.5, Offset: -1}, "x": {Stack: []string{"a", "b\n"}, DType: BFloat16}, "v": {},
		"l": {Lists: ListsPad, Multiple: 8, Fill: -1}, "m": {Lists: ListsPad, Length: 5}, "r": {Lists: ListsRagged}}}, memtest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`a float32 [rows] 4 of a (int64), times 0.5, plus -1`,
		`x bfloat16 [rows 2] 4 stack of a, "b\n"`,
		`v int16 [rows 8] 16 of v`,
		`l int32 [rows longest] -1 of l; padded with -1 to the longest list of the rank's batch, rounded up to a multiple of 8`,
		`l.lengths int32 [rows] 4 values of each list`,
		`m int8 [rows 5 2] 10 of m; padded with 0 to 5`,
		`m.lengths int32 [rows] 4 values of each list`,
		`r uint8 [values] -1 of r; ragged: the lists one behind the other`,
		`r.offsets int64 [rows+1] 8 where each list begins, and the end`,
		`mask bool [rows] 1 1 for samples, 0 for pads`,
	}
	infos := c.Tensors(true)
	if len(infos) != len(want) {
		t.Fatalf("%d tensors, want %d", len(infos), len(want))
	}
	for i, x := range infos {
		if got := strings.Join([]string{x.Name, x.DType.String(), "[" + strings.Join(x.Shape, " ") + "]", strconv.FormatInt(x.Bytes, 10), x.How}, " "); got != want[i] {
			t.Errorf("%s, want %s", got, want[i])
		}
	}
	if n, all := c.SampleBytes(true); n != 4+4+16+4+10+4+8+1 || all {
		t.Errorf("%d bytes a sample, %v", n, all)
	}
}

// A sample in Arrow form has the bytes of its columns.
func TestSampleBytesOfRecords(t *testing.T) {
	for _, c := range []struct {
		t    arrow.DataType
		n    int64
		all  bool
		mask bool
	}{
		{arrow.PrimitiveTypes.Int64, 8, true, false},
		{arrow.FixedWidthTypes.Boolean, 1, true, false},
		{arrow.FixedSizeListOf(3, arrow.FixedSizeListOf(4, arrow.PrimitiveTypes.Int16)), 24, true, true},
		{arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Float32}, arrow.Field{Name: "y", Type: arrow.PrimitiveTypes.Int8}), 5, true, false},
		{arrow.StructOf(arrow.Field{Name: "x", Type: arrow.BinaryTypes.String}), 0, false, false},
		{arrow.BinaryTypes.String, 0, false, true},
	} {
		col, err := NewCollator(arrow.NewSchema([]arrow.Field{{Name: "c", Type: c.t}}, nil), Form{}, memtest.New(t))
		if err != nil {
			t.Fatal(err)
		}
		want := c.n
		if c.mask {
			want++
		}
		if n, all := col.SampleBytes(c.mask); n != want || all != c.all || col.Tensors(c.mask) != nil {
			t.Errorf("%v: %d bytes, %v", c.t, n, all)
		}
	}
}
