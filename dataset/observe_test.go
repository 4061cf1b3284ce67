package dataset_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// TestWriteStats: every number of a run has its place in the table.
func TestWriteStats(t *testing.T) {
	st := exec.Stats{RowsIn: 10, RowsOut: 4, BytesRead: 5 << 20, PeakBytes: 6 << 20, Elapsed: 90 * time.Second, Retries: 2, Skipped: 3, Bottleneck: "filter", Ops: []exec.OpStats{
		{Name: "scan", RowsOut: 10, BytesOut: 3 << 20, Busy: 1500 * time.Millisecond, WaitOut: 2 * time.Minute, PeakBytes: 1 << 20},
		{Name: "filter", RowsIn: 10, RowsOut: 4, BytesOut: 1 << 19, Busy: time.Minute, WaitMem: 12 * time.Millisecond, PeakBytes: 1 << 21},
		{Name: "consumer", RowsIn: 4, Busy: 3 * time.Microsecond, WaitIn: 89 * time.Second},
	}}
	var text strings.Builder
	dataset.WriteStats(&text, st)
	var got []string
	for l := range strings.Lines(text.String()) {
		got = append(got, strings.Join(strings.Fields(l), " "))
	}
	want := []string{
		"operator rows in rows out MiB out busy wait in wait out wait mem peak MiB",
		"scan 0 10 3.0 1.5s - 2m0s - 1.0",
		"filter 10 4 0.5 1m0s - - 12ms 2.0",
		"consumer 4 0 0.0 3µs 1m29s - - 0.0",
		"10 rows in, 4 out, 5.0 MiB read, 1m30s, peak 6.0 MiB of the budget, 2 retries, 3 rows skipped",
		"bottleneck: filter",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s", &text)
	}
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
