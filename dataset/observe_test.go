package dataset_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/testserver"
)

// Whoever observes a run sees which tasks are at what, and none when it is over.
func ExampleRunOptions_observe() {
	var stats func() exec.Stats
	slow := func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		if in.NumRows() > 0 { // not where it is asked for its columns
			for _, task := range stats().Inflight { // a program would look from another goroutine, now and then
				fmt.Println("at work:", task.Origin.Split, "in", task.State)
			}
		}
		in.Retain()
		return in, nil
	}
	ds := dataset.Range(5).MapBatches(slow, nil)
	_, err := ds.Drain(context.Background(), &dataset.RunOptions{Observe: func(f func() exec.Stats) { stats = f }})
	fmt.Println(len(stats().Inflight), "at the end,", err)
	// Output:
	// at work: range#0 in map (closure)
	// 0 at the end, <nil>
}

// What storage had to be asked again for is told, and what a task held most.
func TestStorageRetries(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "data")
	p := testserver.NewProxy(t, s, testserver.Faults{})
	base, query, _ := strings.Cut(s.Via(p).URL("data"), "?")
	path := base + "/r?" + query
	ctx := t.Context()
	if _, err := dataset.Range(10_000).WithColumns("x = random()").WriteParquet(ctx, path, nil); err != nil {
		t.Fatal(err)
	}
	ds := dataset.ReadParquet(path)
	defer ds.Close()
	if _, err := ds.Schema(ctx); err != nil {
		t.Fatal(err)
	}
	var gets atomic.Int64
	p.Set(testserver.Faults{Truncate: 1, Only: func(r *http.Request) bool { return r.Method == http.MethodGet && gets.Add(1) <= 2 }})
	st, err := ds.Drain(ctx, nil)
	if err != nil || st.StorageRetries != 2 || st.Retries != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	var text strings.Builder
	dataset.WriteStats(&text, st)
	if !strings.Contains(text.String(), "  requests to storage made again after an error: 2\n") || !strings.Contains(text.String(), "peak MiB") || st.Ops[0].PeakBytes == 0 {
		t.Errorf("%+v\n%s", st.Ops[0], &text)
	}
	if st, err = ds.Drain(ctx, nil); err != nil || st.StorageRetries != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}
