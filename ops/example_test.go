package ops_test

import (
	"context"
	"fmt"

	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// A plan is built step by step, checked as it is built, and rewritten by rules.
func Example() {
	ctx := context.Background()
	read, err := ops.Resolve(ctx, memio.Range(1_000_000), nil, 0, ops.Meta{}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ops.Close(read)

	squares, err := ops.WithColumns(read, []string{"square = double(id) * double(id)"}, ops.Meta{Pos: 1, Verb: "with_columns"})
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := expr.Parse("id < 10 * 10 && square > 25.0")
	if err != nil {
		fmt.Println(err)
		return
	}
	some, err := ops.NewFilter(squares, e, ops.Meta{Pos: 2, Verb: "filter"})
	if err != nil {
		fmt.Println(err)
		return
	}
	best, applied, err := ops.Optimize(some, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(ops.Format(best))
	for _, a := range applied {
		fmt.Printf("%s: %s: %s\n", a.Rule, a.Step, a.What)
	}

	_, err = ops.Select(some, []string{"id", "sqare"}, ops.Meta{Pos: 3, Verb: "select"})
	fmt.Println(err)

	// Output:
	// filter square > 25.0    [step 2 (filter)]
	//   project id, square = double(id) * double(id)    [step 1 (with_columns)]
	//     filter id < 100    [step 2 (filter)]
	//       read range {"n":1000000} where id < 100    [source (range)]
	// fold: step 2 (filter): id < 100 && square > 25.0
	// filter: step 2 (filter): id < 100 runs before step 1 (with_columns)
	// predicate: step 2 (filter): id < 100 is known to source (range)
	// step 3 (select): unknown column "sqare"; did you mean "square"?; have id, square
}
