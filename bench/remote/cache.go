package main

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobcache"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/parquetio"
)

// cached measures what the cache costs in the first epoch and gives in the second.
func cached(t testing.TB, r *report, small int64) {
	s := start(t)
	ctx := t.Context()
	enc := must(parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: "none", RowGroupBytes: 16 << 20}))(t)
	written := must(dataset.Range(4_000_000/small).WithColumns("a = random()", "b = random()", "c = random()", "d = random()", "e = random()").
		Write(ctx, s.path(false, "data"), enc, &dataset.WriteOptions{TargetBytes: 48 << 20}))(t)
	var requests atomic.Int64
	s.proxy.Set(testserver.Faults{Base: 20 * time.Millisecond, Only: func(q *http.Request) bool {
		if q.Header.Get("Range") != "" {
			requests.Add(1)
		}
		return false
	}})
	epoch := func(c *blobcache.Cache) (time.Duration, int64) {
		ds := dataset.Read(parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{s.path(true, "data")}, Blob: &blobio.Options{Cache: c}}}))
		defer ds.Close()
		before := requests.Load()
		w, _ := timed(t, func() error { return drain(ctx, ds, written.Rows) })
		return w, requests.Load() - before
	}
	var none, one, two []time.Duration
	var again int64
	for range 3 {
		w, _ := epoch(nil)
		none = append(none, w)
		c := must(blobcache.New(blobcache.Options{Dir: t.TempDir(), Max: 1 << 30}))(t)
		w, _ = epoch(c)
		one = append(one, w)
		w, n := epoch(c)
		two, again = append(two, w), again+n
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	r.add("cache, 20 ms: GETs of the second epoch", "0", "%d", again)
	r.add("cache, 20 ms: time of an epoch without it, of the first and of the second with it", "", "%.2f, %.2f, %.2f s", kit.Median(none).Seconds(), kit.Median(one).Seconds(), kit.Median(two).Seconds())
}
