package expr_test

import (
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/ops/expr"
)

func Example() {
	mem := memory.DefaultAllocator
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "fare", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "tip", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	}, nil)
	rec, _, err := array.RecordFromJSON(mem, schema, strings.NewReader(`[{"fare": 10, "tip": 1}, {"fare": 0, "tip": 0}, {"fare": 8, "tip": 2}]`))
	if err != nil {
		panic(err)
	}
	defer rec.Release()

	keep, err := expr.MustParse("fare > 0").Bind(schema, 0)
	if err != nil {
		panic(err)
	}
	mask, err := keep.Eval(rec, nil, mem)
	if err != nil {
		panic(err)
	}
	defer mask.Release()
	rows := expr.Select(mask.(*array.Boolean))
	out, err := expr.Filter(rec, rows, mem)
	if err != nil {
		panic(err)
	}
	defer out.Release()
	fmt.Println("rows", rows.Rows())

	rate, err := expr.MustParse("tip / fare").Bind(schema, 0)
	if err != nil {
		panic(err)
	}
	col, err := rate.Eval(out, nil, mem)
	if err != nil {
		panic(err)
	}
	defer col.Release()
	fmt.Println(rate.Type(), col)

	_, err = expr.MustParse("fere > 0").Bind(schema, 0)
	fmt.Println(err)
	// Output:
	// rows [0 2]
	// float64 [0.1 0.25]
	// unknown column "fere"; did you mean "fare"?; have fare, tip
}
