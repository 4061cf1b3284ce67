package trainer

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
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

// A bucket that forbids is no failure that another start mends: before a run begins its name stays free; later the run ends with what was kept, and goes on once it may write.
func TestBucketForbidden(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "runs")
	p := testserver.NewProxy(t, s, testserver.Faults{Error: 1, Status: http.StatusForbidden, Only: func(r *http.Request) bool { return r.Method == http.MethodPut }})
	c := quick(t, "forbidden")
	c.Storage, c.Logs = s.Via(p).URL("runs"), t.TempDir()
	loop := func(text string) func(*Context) error {
		return func(k *Context) error {
			if err := save(k, text); err != nil || text == "more" {
				return err
			}
			if k.Rank() == 0 {
				p.Set(testserver.Faults{Error: 1, Status: http.StatusForbidden, Only: func(r *http.Request) bool {
					return r.Method == http.MethodPut && !strings.Contains(r.URL.Path, "/status/")
				}})
			}
			if err := k.Barrier(); err != nil {
				return err
			}
			return save(k, "two")
		}
	}
	if res := refused(t, New(loop("one"), c), fault.Denied, "s3://runs/forbidden/run.json", "credentials"); res != nil {
		t.Errorf("%+v", res)
	}
	p.Set(testserver.Faults{})
	res := refused(t, New(loop("one"), c), fault.Denied, "the checkpoint of report 2", "credentials")
	if res == nil || res.Attempts != 1 || res.Checkpoint == 0 || res.Reports != 2 {
		t.Fatalf("%+v", res)
	}
	p.Set(testserver.Faults{})
	c.Resume = true
	if again := fitOK(t, loop("more"), c); again.Reports != 2 || len(again.Checkpoints) != 2 || again.Checkpoints[0].Number != res.Checkpoint {
		t.Errorf("%+v", again)
	}
}
