package dataset_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
)

// TestExecFewChildren: a task that waits for memory keeps no child that the task wants which memory waits for.
func TestExecFewChildren(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ds := dataset.Range(400_000).WithColumns(`s = "a rather long text that takes place, number " + string(id)`).
				Exec(dataset.ExecOptions{Command: []string{"cat"}, Workers: workers, BatchRows: 500})
			rows := int64(0)
			for rec, err := range ds.Records(ctx, &dataset.RunOptions{CPUs: 4, Memory: 1 << 20}) {
				if err != nil {
					t.Fatalf("after %d rows: %v", rows, err)
				}
				rows += rec.NumRows()
			}
			if rows != 400_000 {
				t.Errorf("%d rows", rows)
			}
		})
	}
}

// TestExecAnswersEarly: cat answers a batch while it reads it, of more than pipes take.
func TestExecAnswersEarly(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ds := dataset.Range(100_000).WithColumns(`s = "a rather long text that takes place, number " + string(id)`).
		Exec(dataset.ExecOptions{Command: []string{"cat"}, BatchRows: 20_000})
	if n, err := ds.Count(ctx, nil); err != nil || n != 100_000 {
		t.Errorf("%d rows, %v", n, err)
	}
}
