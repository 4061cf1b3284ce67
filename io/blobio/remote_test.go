package blobio_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobio"
	_ "gocloud.dev/blob/azureblob"
	_ "gocloud.dev/blob/gcsblob"
	_ "gocloud.dev/blob/s3blob"
)

func bucketURL(t *testing.T, s *testserver.Server) string {
	t.Helper()
	s.CreateBucket(t, "penstock-test")
	return s.URL("penstock-test")
}

func TestS3(t *testing.T) {
	s := testserver.S3(t)
	suite(t, bucketURL(t, s), 17<<20)
	// Uploads that were aborted or lost are gone, with their parts: each would be a
	// folder in one of its key.
	left, err := filepath.Glob(filepath.Join(s.Dir(), "penstock-test", ".sgwtmp", "multipart", "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestGCS(t *testing.T)   { suite(t, bucketURL(t, testserver.GCS(t)), 17<<20) }
func TestAzure(t *testing.T) { suite(t, bucketURL(t, testserver.Azure(t)), 9<<20) }

// Settings that name no place to send requests to are no failure of the network.
func TestNoRegion(t *testing.T) {
	for k, v := range map[string]string{"AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
		"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"} {
		t.Setenv(k, v)
	}
	for _, url := range []string{"s3://penstock-test", "s3://penstock-test?region=eu%20west"} {
		b, err := blobio.Open(t.Context(), url, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		_, err = b.Stat(t.Context(), "k")
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "AWS_REGION") || strings.Contains(err.Error(), "tries") {
			t.Errorf("%s: error %v", url, err)
		}
	}
}

// isRead picks ranged reads, the requests that blobio repairs by itself.
func isRead(r *http.Request) bool { return r.Method == "GET" && r.Header.Get("Range") != "" }

// Under every kind of fault, reads give the same bytes.
func TestFaults(t *testing.T) {
	const size = 2 << 20
	want := randomBytes(2, size)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, start := range map[string]func(testing.TB) *testserver.Server{"s3": testserver.S3, "gcs": testserver.GCS} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			info := put(t, open(t, bucketURL(t, s), nil), "k", want)
			t.Run("reads", func(t *testing.T) {
				for _, c := range []struct {
					name  string
					f     testserver.Faults
					fired func(*testserver.Proxy) int64 // how often each kind of fault has come at least
				}{
					{"slow", testserver.Faults{Slow: 0.1, Latency: 100 * time.Millisecond}, func(p *testserver.Proxy) int64 { return p.Slow.Load() }},
					{"503", testserver.Faults{Error: 0.2}, func(p *testserver.Proxy) int64 { return p.Errors.Load() }},
					{"reset", testserver.Faults{Reset: 0.2}, func(p *testserver.Proxy) int64 { return p.Resets.Load() }},
					{"truncate", testserver.Faults{Truncate: 0.3}, func(p *testserver.Proxy) int64 { return p.Truncated.Load() }},
					{"stall", testserver.Faults{Stall: 0.2}, func(p *testserver.Proxy) int64 { return p.Stalled.Load() }},
					{"hang", testserver.Faults{Hang: 0.1}, func(p *testserver.Proxy) int64 { return p.Hung.Load() }},
					{"all", testserver.Faults{Slow: 0.05, Latency: 50 * time.Millisecond, Error: 0.05, Reset: 0.05, Truncate: 0.1, Stall: 0.05, Hang: 0.05},
						func(p *testserver.Proxy) int64 {
							return min(p.Slow.Load(), p.Errors.Load(), p.Resets.Load(), p.Truncated.Load(), p.Stalled.Load(), p.Hung.Load())
						}},
				} {
					c.f.Seed, c.f.Only = seed, isRead
					p := testserver.NewProxy(t, s, c.f)
					b := open(t, s.Via(p).URL("penstock-test"), &blobio.Options{MaxRequest: 1 << 18, Retries: 30, Timeout: 500 * time.Millisecond})
					t.Run(c.name, func(t *testing.T) {
						t.Parallel() // they mostly wait
						var st blobio.Stats
						for again := uint64(0); c.fired(p) == 0; again++ {
							readAll(t, b.Object(info, &st), want, seed+again)
						}
						t.Logf("%d faults; %v", c.fired(p), &st)
					})
				}
			})
			// A server that hangs is left within a second.
			p := testserver.NewProxy(t, s, testserver.Faults{Hang: 1})
			b := open(t, s.Via(p).URL("penstock-test"), &blobio.Options{Timeout: time.Hour})
			for name, f := range map[string]func(context.Context) error{
				"read": func(ctx context.Context) error {
					_, err := b.Object(info, nil).ReadAt(ctx, make([]byte, size), 0)
					return err
				},
				"stat": func(ctx context.Context) error { _, err := b.Stat(ctx, "k"); return err },
				"list": func(ctx context.Context) error {
					for _, err := range b.List(ctx, "") {
						return err
					}
					return nil
				},
				"put":    func(ctx context.Context) error { return b.Put(ctx, "new", want, nil) },
				"delete": func(ctx context.Context) error { return b.Delete(ctx, "k") },
				"create": func(ctx context.Context) error {
					w, err := b.Create(ctx, "new", nil)
					if err != nil {
						return err
					}
					defer w.Abort()
					if _, err := w.Write(make([]byte, 10<<20)); err != nil {
						return err
					}
					return w.Close()
				},
			} {
				ctx, cancel := context.WithCancel(t.Context())
				hung := p.Hung.Load()
				var canceled time.Time
				go func() {
					for p.Hung.Load() == hung && t.Context().Err() == nil {
						runtime.Gosched()
					}
					canceled = time.Now()
					cancel()
				}()
				err := f(ctx)
				t.Logf("%s: ended %v after it was canceled", name, time.Since(canceled))
				if took := time.Since(canceled); fault.CodeOf(err) != fault.Canceled || took > time.Second {
					t.Errorf("%s: %v after %v", name, err, took)
				}
			}
		})
	}
}

// A service that is down is Unavailable. (The SDK retries too; the limit on time
// without progress covers that.)
func TestDown(t *testing.T) {
	s := testserver.S3(t)
	p := testserver.NewProxy(t, s, testserver.Faults{Error: 1})
	b := open(t, s.Via(p).URL("penstock-test"), &blobio.Options{Retries: 1, Timeout: 200 * time.Millisecond})
	_, err := b.Stat(t.Context(), "k")
	wantCode(t, err, fault.Unavailable, "s3://penstock-test/k")
	if n := p.Errors.Load(); n < 2 {
		t.Errorf("%d requests", n)
	}
}

// Who is not let in learns what to check, whatever he does, and is not sent away to try again.
func TestDenied(t *testing.T) {
	s := testserver.S3(t)
	b := open(t, bucketURL(t, s), nil)
	info := put(t, b, "dir/k", randomBytes(1, 1000))
	everything := func(b *blobio.Bucket) map[string]error {
		ctx, got := t.Context(), map[string]error{}
		_, got["stat"] = b.Stat(ctx, "dir/k")
		_, got["read"] = b.Object(info, nil).ReadAt(ctx, make([]byte, 10), 0)
		for _, got["list"] = range b.List(ctx, "") {
		}
		for _, got["dir"] = range b.ListDir(ctx, "dir/") {
		}
		got["put"] = b.Put(ctx, "new", []byte("x"), nil)
		got["large put"] = b.Put(ctx, "new", make([]byte, 17<<20), nil)
		got["delete"] = b.Delete(ctx, "dir/k")
		return got
	}
	for what, set := range map[string]map[string]string{
		"secret": {"AWS_SECRET_ACCESS_KEY": "wrong"},
		"key":    {"AWS_ACCESS_KEY_ID": "nobody"},
		"none":   {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
	} {
		t.Run(what, func(t *testing.T) {
			for k, v := range set {
				t.Setenv(k, v)
			}
			got := everything(open(t, s.URL("penstock-test"), nil))
			if len(got) != 7 { // a list that ends without a word is none
				t.Errorf("%d answers: %v", len(got), got)
			}
			for op, err := range got {
				if what == "key" && (op == "stat" || op == "delete") {
					continue // this server says that there is no such thing, and not that it means the user
				}
				if fault.CodeOf(err) != fault.Denied || fault.CodeOf(err).Retryable() || strings.Contains(err.Error(), "tries") {
					t.Errorf("%s: %v: %v", op, fault.CodeOf(err), err)
					continue
				}
				want := []string{"s3://penstock-test/", "AWS_ACCESS_KEY_ID", "s3:GetObject", "AWS_REGION", "access denied"}
				if what == "none" {
					want[4] = "no credentials"
				}
				for _, w := range want {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%s: no %q in: %v", op, w, err)
					}
				}
			}
		})
	}
	if got, err := b.ReadAll(t.Context(), "dir/k", 1000); err != nil || !bytes.Equal(got, randomBytes(1, 1000)) {
		t.Errorf("what nobody may delete: %v", err)
	}
	for _, err := range everything(b) {
		if err != nil {
			t.Error(err)
		}
	}
}

// A bucket that was never made is named, where the service says that it is what is missing.
func TestNoBucket(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *testserver.Server{"s3": testserver.S3, "gs": testserver.GCS} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.CreateBucket(t, "there")
			b := open(t, s.URL("penstock-tset"), nil)
			said := map[string]int{}
			check := func(op string, err error) {
				t.Helper()
				said[op]++
				if fault.CodeOf(err) != fault.NotFound || !strings.Contains(err.Error(), "no such bucket as "+name+"://penstock-tset:") {
					t.Errorf("%s: %v: %v", op, fault.CodeOf(err), err)
				}
			}
			for _, err := range b.List(t.Context(), "") {
				check("list", err)
			}
			for _, err := range b.ListDir(t.Context(), "x/") {
				check("dir", err)
			}
			if said["list"] != 1 || said["dir"] != 1 {
				t.Errorf("lists say it %v times", said)
			}
			if name == "s3" {
				check("put", b.Put(t.Context(), "k", nil, nil))
				_, err := b.Object(blobio.Info{Key: "k", Size: 5}, nil).ReadAt(t.Context(), make([]byte, 5), 0)
				check("read", err)
			}
			_, err := b.Stat(t.Context(), "k") // a HEAD request does not tell
			wantCode(t, err, fault.NotFound, name+"://penstock-tset/k")
			b = open(t, s.URL("there"), nil)
			_, err = b.Stat(t.Context(), "k")
			if wantCode(t, err, fault.NotFound, name+"://there/k"); strings.Contains(err.Error(), "bucket as") {
				t.Error(err)
			}
			if got := keys(t, b.List(t.Context(), "")); len(got) > 0 {
				t.Error(got)
			}
		})
	}
}

// Small writes are repaired too: they are sent again.
func TestPutUnderFaults(t *testing.T) {
	s := testserver.S3(t)
	url := bucketURL(t, s)
	p := testserver.NewProxy(t, s, testserver.Faults{Seed: 1, Error: 0.2, Reset: 0.2, Only: func(r *http.Request) bool { return r.Method == "PUT" }})
	b := open(t, s.Via(p).URL("penstock-test"), &blobio.Options{Retries: 30, Timeout: 50 * time.Millisecond}) // else the SDK waits for seconds
	direct := open(t, url, nil)
	for round := 0; p.Errors.Load() == 0 || p.Resets.Load() == 0; round++ {
		data := func(i int) (string, []byte) { return fmt.Sprint(round, "/", i), randomBytes(uint64(i), 1000*i) }
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				k, want := data(i)
				if err := b.Put(t.Context(), k, want, nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i := range 10 {
			k, want := data(i)
			if got, err := direct.ReadAll(t.Context(), k, 1<<20); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %v", k, err)
			}
		}
	}
}

// Slow answers of a real server are hedged, and the bytes are right.
func TestHedgeServer(t *testing.T) {
	s := testserver.GCS(t)
	want := randomBytes(3, 1<<16)
	info := put(t, open(t, bucketURL(t, s), nil), "k", want)
	p := testserver.NewProxy(t, s, testserver.Faults{Seed: 2, Slow: 0.03, Latency: 300 * time.Millisecond, Only: isRead})
	var st blobio.Stats
	o := open(t, s.Via(p).URL("penstock-test"), nil).Object(info, &st)
	for i := range 400 {
		got := make([]byte, 1000)
		if _, err := o.ReadAt(t.Context(), got, int64(i)); err != nil || !bytes.Equal(got, want[i:i+1000]) {
			t.Fatal(err)
		}
	}
	t.Logf("%d slow answers; %v", p.Slow.Load(), &st)
	if h := st.Hedges.Load(); h == 0 || h > 12 || st.Requests.Load() != 400+h {
		t.Error(&st)
	}
}
