package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	_ "gocloud.dev/blob/s3blob"
	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/internal/testserver"
)

// s3 is a server with a bucket.
type s3 struct {
	*testserver.Server
	proxy *testserver.Proxy
}

func start(t testing.TB) *s3 {
	srv := testserver.S3(t)
	srv.CreateBucket(t, "bench")
	return &s3{srv, testserver.NewProxy(t, srv, testserver.Faults{})}
}

func (s *s3) url(proxy bool) string {
	if proxy {
		return s.Via(s.proxy).URL("bench")
	}
	return s.URL("bench")
}

func (s *s3) path(proxy bool, key string) string {
	base, query, _ := strings.Cut(s.url(proxy), "?")
	return base + "/" + key + "?" + query
}

// late adds latency to every request.
func (s *s3) late(d time.Duration) { s.proxy.Set(testserver.Faults{Base: d}) }

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// timed is the wall and CPU time of f.
func timed(t testing.TB, f func() error) (wall, used time.Duration) {
	t.Helper()
	begin, before := time.Now(), cpu()
	if err := f(); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin), cpu() - before
}

func median(ds []time.Duration) time.Duration {
	ds = slices.Clone(ds)
	slices.Sort(ds)
	return ds[len(ds)/2]
}
