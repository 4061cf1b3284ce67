package main

import (
	"strings"
	"testing"
	"time"

	_ "gocloud.dev/blob/s3blob"

	"github.com/penstock-data/penstock/bench/internal/kit"
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

// timed is the wall and CPU time of f.
func timed(t testing.TB, f func() error) (wall, used time.Duration) {
	t.Helper()
	begin, before := time.Now(), kit.CPU()
	if err := f(); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin), kit.CPU() - before
}
