package gather

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/memtest"
)

// Nulls of any type, those that hold type null among them, are null and can be read, compared and gathered.
func TestNulls(t *testing.T) {
	null := arrow.Field{Name: "b", Type: arrow.Null, Nullable: true}
	holder := arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, null)
	types := []arrow.DataType{
		holder, arrow.StructOf(arrow.Field{Name: "in", Type: holder, Nullable: true}), arrow.ListOf(holder), arrow.LargeListOf(holder), arrow.ListViewOf(holder),
		arrow.FixedSizeListOf(2, arrow.Null), arrow.FixedSizeListOf(3, holder), arrow.MapOf(arrow.BinaryTypes.String, arrow.Null), arrow.MapOf(arrow.BinaryTypes.String, holder),
		&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.Null}, &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Uint8, ValueType: holder},
		arrow.SparseUnionOf([]arrow.Field{null, {Name: "s", Type: holder, Nullable: true}}, []arrow.UnionTypeCode{5, 7}),
		arrow.DenseUnionOf([]arrow.Field{null, {Name: "s", Type: holder, Nullable: true}}, []arrow.UnionTypeCode{0, 7}),
		arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String), extensions.NewOpaqueType(holder, "thing", "maker"),
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		types = append(types, randomType(rng, 3))
	}
	for _, typ := range types {
		for _, n := range []int{0, 1, 13} {
			t.Run(fmt.Sprint(typ, " ", n), func(t *testing.T) {
				alloc := memtest.New(t)
				a := Nulls(alloc, typ, n)
				defer a.Release()
				if a.Len() != n || !arrow.TypeEqual(a.DataType(), typ) {
					t.Fatalf("got %d of %s", a.Len(), a.DataType())
				}
				id := layout(typ).ID()
				if hidden := id == arrow.RUN_END_ENCODED || arrow.IsUnion(id); !hidden && a.NullN() != n {
					t.Errorf("%d of %d are null", a.NullN(), n)
				}
				if _, err := a.MarshalJSON(); err != nil {
					t.Error(err)
				}
				if !array.Equal(a, a) {
					t.Error("not equal to itself")
				}
				if arrow.IsUnion(id) || n == 0 {
					return
				}
				got, err := Column(alloc, []arrow.Array{a}, []Run{{0, int32(n - 1), 1}, {0, 0, 1}})
				if err != nil || got.Len() != 2 {
					t.Fatal(got, err)
				}
				got.Release()
			})
		}
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "c", Type: holder}}, nil)
	got, err := Record(memtest.New(t), schema, nil, nil)
	if err != nil || got.NumRows() != 0 {
		t.Fatal(got, err)
	}
	got.Release()
}

// Nulls of lists of wide structs cost what their fields do: a schema of a small file may have many.
func TestNullsOfManyFields(t *testing.T) {
	cost := func(fields int) float64 {
		fs := make([]arrow.Field, fields)
		for i := range fs {
			fs[i] = arrow.Field{Name: strconv.Itoa(i), Type: arrow.PrimitiveTypes.Int64, Nullable: true}
		}
		list := arrow.ListOf(arrow.MapOf(arrow.BinaryTypes.String, arrow.StructOf(fs...)))
		var bytes runtime.MemStats
		runtime.ReadMemStats(&bytes)
		was := bytes.TotalAlloc
		Nulls(memory.DefaultAllocator, list, 1).Release()
		runtime.ReadMemStats(&bytes)
		return float64(bytes.TotalAlloc-was) / float64(fields)
	}
	if few, many := cost(100), cost(10_000); many > 3*few {
		t.Errorf("%.0f bytes a field of 10,000, %.0f of 100", many, few)
	}
}
