package exec_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
)

// TestSizeOf: slices sum up to about the whole (offsets and bitmaps are rounded per slice),
// and known columns have known sizes.
func TestSizeOf(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "i", Type: arrow.PrimitiveTypes.Int32},
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean},
		{Name: "s", Type: arrow.BinaryTypes.String},
		{Name: "ls", Type: arrow.BinaryTypes.LargeString},
		{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)},
		{Name: "f", Type: arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32)},
		{Name: "st", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.BinaryTypes.String, Nullable: true})},
		{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int8)},
		{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int16, ValueType: arrow.BinaryTypes.String}, Nullable: true},
		{Name: "v", Type: arrow.BinaryTypes.StringView},
		{Name: "n", Type: arrow.Null, Nullable: true},
	}, nil)
	var js strings.Builder
	const n = 400
	js.WriteString("[")
	r := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		if i > 0 {
			js.WriteString(",")
		}
		s := strings.Repeat("a", r.IntN(20))
		js.WriteString(`{"i":1,"b":true,"s":"` + s + `","ls":"` + s + `","l":[1,2],"f":[1,2,3],"st":{"x":"` + s + `"},"m":[{"key":"` + s + `","value":1}],"d":"x","v":"` + s + `"}`)
	}
	js.WriteString("]")
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(js.String()))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	for c := range int(rec.NumCols()) {
		name := rec.ColumnName(c)
		col := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{schema.Field(c)}, nil), []arrow.Array{rec.Column(c)}, n)
		whole := exec.SizeOf(col)
		var sum int64
		const parts = 4
		for i := int64(0); i < n; i += n / parts {
			s := col.NewSlice(i, i+n/parts)
			sum += exec.SizeOf(s)
			e := s.NewSlice(0, 0)
			if exec.SizeOf(e) != 0 {
				t.Errorf("%s: an empty slice has %d bytes", name, exec.SizeOf(e))
			}
			e.Release()
			s.Release()
		}
		lo, hi := whole-64, whole+64
		switch name {
		case "d", "v": // dictionary and views count in full
			hi = parts*whole + 64
		}
		if sum < lo || sum > hi {
			t.Errorf("%s: %d bytes, its slices %d", name, whole, sum)
		}
		if want := map[string]int64{"i": n*4 + n/8, "l": (n+1)*4 + 2*n*8 + n/8 + 2*n/8, "f": 12*n + n/8 + 3*n/8}[name]; want != 0 && whole != want {
			t.Errorf("%s: %d bytes, want %d", name, whole, want)
		}
		col.Release()
	}
}
