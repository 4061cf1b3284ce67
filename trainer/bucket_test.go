package trainer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/trainer/store"
	_ "gocloud.dev/blob/s3blob"
)

// A run whose storage is a bucket that fails now and then: it restarts, is canceled, is resumed, and gives the samples of one that was left alone.
func TestBucket(t *testing.T) {
	var want, got book
	fitOK(t, epochLoop(t, &want, 10, nil), quick(t, "want"))
	s := testserver.S3(t)
	s.CreateBucket(t, "runs")
	p := testserver.NewProxy(t, s, testserver.Faults{Seed: 3, Error: 0.01, Reset: 0.01, Truncate: 0.01, Latency: time.Millisecond})
	c := quick(t, "bucket")
	c.Storage = s.Via(p).URL("runs")
	c.Logs = t.TempDir()
	var once sync.Once
	loop := epochLoop(t, &got, 10, func(c *Context, epoch uint64, step int64) (err error) {
		if c.Rank() == 1 && epoch == 0 && step == 25 {
			once.Do(func() { err = fmt.Errorf("step %d fails", step) })
		}
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	first := c
	first.Events.Committed = func(store.Manifest) {
		if n++; n == 5 {
			cancel()
		}
	}
	res, err := New(loop, first).Fit(ctx)
	if res == nil || err == nil || len(res.Failures) == 0 || res.Checkpoint == 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	c.Resume = true
	if res := fitOK(t, loop, c); res.Reports != 8 {
		t.Errorf("%+v", res)
	}
	sameBook(t, &want, &got)
	t.Logf("%d requests: %d errors, %d resets, %d truncated", p.Requests.Load(), p.Errors.Load(), p.Resets.Load(), p.Truncated.Load())
	if p.Errors.Load()+p.Resets.Load()+p.Truncated.Load() == 0 {
		t.Error("the bucket never failed")
	}
}
