package local_test

import (
	"context"
	"fmt"
	"io"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
)

// A graph is made by exec/plan from a dataset; here it is written by hand.
func Example() {
	ctx := context.Background()
	even := exectest.Filter(func(id int64) bool { return id%2 == 0 })
	g := exectest.Graph(exectest.Cut(5, []*exec.Stage{exectest.ScanStage(0, exectest.NewTable(10, 100), even)}))

	s, err := local.New(nil).Run(ctx, g, &exec.Options{Memory: 64 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	for {
		b, err := s.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(exectest.Ids(b.Batch))
		b.Release()
	}
	// Output:
	// [0 2 4 6]
	// [8]
}
