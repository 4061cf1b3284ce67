package store

import (
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobio"
)

var hasty = &blobio.Options{Timeout: time.Second}

// Commits, downloads, prunes and metrics over a service that fails now and then: what says that it worked did, and what failed left nothing that is seen.
func TestFaults(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := testserver.S3(t)
	s.CreateBucket(t, "bucket")
	p := testserver.NewProxy(t, s, testserver.Faults{})
	direct := s.URL("bucket")
	c, err := create(t.Context(), s.Via(p).URL("bucket"), Record{Name: "x", Workers: 1}, hasty)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o := openRun(t, direct, "x")
	at := begin(t, c)
	w := c.Metrics(at.Number)
	p.Set(testserver.Faults{Seed: seed, Error: 0.05, Reset: 0.05, Truncate: 0.05, Slow: 0.1, Latency: 5 * time.Millisecond})
	var acked []int
	failed := 0
	for i := int64(1); i <= 6; i++ {
		files := randomFiles(rnd)
		if i == 3 {
			files["large"] = strings.Repeat("large", 4<<20) // of several parts
		}
		if err := w.Append(Row{Report: i, Time: time.Now(), Step: i}); err != nil {
			t.Fatal(err)
		}
		m, err := c.Commit(t.Context(), Commit{Report: i, World: 1, Parts: []Part{{0, tree(t, files)}}})
		if err != nil {
			if failed++; fault.CodeOf(err) != fault.Unavailable {
				t.Fatal(err)
			}
			continue
		}
		acked = append(acked, m.Number)
		if d, err := c.Fetch(t.Context(), m, t.TempDir()); err == nil {
			sameFiles(t, readTree(t, d), files)
		} else if failed++; fault.CodeOf(err) != fault.Unavailable {
			t.Fatal(err)
		}
		if err := c.SetStatus(t.Context(), Status{State: Running, Reports: i}); err != nil && fault.CodeOf(err) != fault.Unavailable {
			t.Fatal(err)
		}
		if err := c.Prune(t.Context(), Policy{KeepLast: 4}); err != nil {
			if failed++; fault.CodeOf(err) != fault.Unavailable {
				t.Fatal(err)
			}
		}
		got := checkWhole(t, o)
		if len(got) == 0 || got[len(got)-1] != m.Number {
			t.Fatalf("%v, and %d was acknowledged", got, m.Number)
		}
	}
	p.Set(testserver.Faults{})
	if err := c.Prune(t.Context(), Policy{KeepLast: 4}); err != nil {
		t.Fatal(err)
	}
	if err := c.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkClean(t, o)
	if rows := history(t, o); len(rows) != 6 {
		t.Fatalf("%d rows of metrics", len(rows))
	}
	t.Logf("%d calls failed, %d commits; %d requests: %d errors, %d resets, %d truncated", failed, len(acked), p.Requests.Load(), p.Errors.Load(), p.Resets.Load(), p.Truncated.Load())
	if p.Errors.Load() == 0 || len(acked) < 4 {
		t.Error("there were no faults, or too many")
	}
}

// The first answer to every PUT is lost, after the service has done what it asked: whoever was first finds that it was itself.
func TestLostAnswers(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "bucket")
	u := &url.URL{Scheme: "http", Host: s.Addr()}
	var lost sync.Map
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(q *httputil.ProxyRequest) { q.SetURL(u); q.Out.Host = q.In.Host },
		ModifyResponse: func(a *http.Response) error {
			if _, again := lost.LoadOrStore(a.Request.URL.Path, true); a.Request.Method == http.MethodPut && !again {
				return errors.New("lost")
			}
			return nil
		},
		ErrorLog:     log.New(io.Discard, "", 0),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	defer proxy.Close()
	proxy.Config.ErrorLog = log.New(io.Discard, "", 0)
	storage := strings.Replace(s.URL("bucket"), s.Addr(), proxy.Listener.Addr().String(), 1)
	r, err := Create(t.Context(), storage, Record{Name: "x", Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	at := begin(t, r)
	if err := r.Metrics(at.Number).Append(Row{Report: 1, Time: time.Now(), Step: 1}); err != nil {
		t.Fatal(err)
	}
	m := commit(t, r, 1, map[string]string{"f": "x"})
	if at2 := begin(t, r); m.Number != 1 || at2.Number != 2 || at2.From.Try != m.Try {
		t.Fatal(m, at2)
	}
	if got := checkWhole(t, r); !slices.Equal(got, []int{1}) || len(history(t, r)) != 1 {
		t.Fatal(got)
	}
	checkClean(t, r)
	for _, key := range []string{runFile, entryName(0), entryName(1), entryName(2), "metrics/000001-000001.jsonl"} {
		if _, ok := lost.Load("/bucket/x/" + key); !ok {
			t.Errorf("the answer for %s was not lost", key)
		}
	}
	if _, err := Create(t.Context(), storage, Record{Name: "x", Workers: 1}); fault.CodeOf(err) != fault.Exists {
		t.Fatal(err)
	}
}

// A manifest whose answer never came turns up later: the next commit takes the number after it.
func TestLateManifest(t *testing.T) {
	r := newRun(t, fmt.Sprintf("mem://store%d/runs", memNumber.Add(1)), "x")
	begin(t, r)
	own := r.own
	m := commit(t, r, 1, map[string]string{"f": "x"})
	r.own = own // as if the commit had failed
	if m2 := commit(t, r, 1, map[string]string{"f": "x"}); m2.Number != 2 || m2.Try == m.Try {
		t.Fatal(m2)
	}
	if got := checkWhole(t, openRun(t, strings.TrimSuffix(r.URL(), "/x"), "x")); !slices.Equal(got, []int{1, 2}) {
		t.Fatal(got)
	}
	if err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkClean(t, r)
	checkWhole(t, r)
}

// A service that may not be used, or is not there.
func TestForbidden(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "bucket")
	storage := s.URL("bucket")
	newRun(t, storage, "x").Close()
	_, err := Create(t.Context(), s.URL("other"), Record{Name: "x", Workers: 1})
	wantErr(t, err, fault.NotFound, "no such bucket")
	_, err = Open(t.Context(), s.URL("other"), "x")
	wantErr(t, err, fault.NotFound, "no such bucket")
	_, err = List(t.Context(), s.URL("other"))
	wantErr(t, err, fault.NotFound, "no such bucket")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	_, err = Create(t.Context(), storage, Record{Name: "y", Workers: 1})
	wantErr(t, err, fault.Denied, "s3://bucket/y/run.json", "credentials")
	_, err = Open(t.Context(), storage, "x")
	wantErr(t, err, fault.Denied)
	_, err = List(t.Context(), storage)
	wantErr(t, err, fault.Denied)
	if errors.Is(err, ErrSuperseded) {
		t.Fatal(err)
	}
}
