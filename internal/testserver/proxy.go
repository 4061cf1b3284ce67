package testserver

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Faults that a Proxy injects, each with a probability per request. A request has
// one fault at most.
type Faults struct {
	Seed uint64        // the same seed and order of requests give the same faults
	Base time.Duration // every answer comes that much later, no fault

	Slow     float64       // the answer comes after Latency
	Latency  time.Duration // of slow answers
	Error    float64       // Status without reaching the server
	Status   int           // of errors; 0: 503
	Reset    float64       // the connection is reset instead of an answer
	Truncate float64       // the connection ends somewhere in the body
	Stall    float64       // the body stops somewhere, the connection stays
	Hang     float64       // no answer, the connection stays

	Only func(*http.Request) bool // nil: all requests may fail
}

// Proxy is an HTTP reverse proxy with faults. Its counters say what happened.
type Proxy struct {
	Requests, Slow, Errors, Resets, Truncated, Stalled, Hung atomic.Int64

	addr   string
	hang   chan struct{} // closed at the end, to free what hangs
	mu     sync.Mutex
	rnd    *rand.Rand
	faults Faults
}

// NewProxy starts a proxy before s for the rest of the test.
func NewProxy(t testing.TB, s *Server, f Faults) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{addr: l.Addr().String(), hang: make(chan struct{})}
	p.Set(f)
	discard := log.New(io.Discard, "", 0)
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	rp := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: s.own})
			if s.kind == "s3" || s.kind == "azblob" {
				r.Out.Host = r.In.Host // is part of the signature
			}
		},
		Transport:      transport,
		ModifyResponse: p.spoil,
		ErrorLog:       discard,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	var wg sync.WaitGroup
	srv := &http.Server{ErrorLog: discard, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wg.Add(1)
		defer wg.Done()
		p.serve(rp, w, r)
	})}
	wg.Go(func() { srv.Serve(l) })
	t.Cleanup(func() {
		close(p.hang)
		srv.Close()
		wg.Wait()
		transport.CloseIdleConnections()
	})
	return p
}

// Addr is host:port of the proxy.
func (p *Proxy) Addr() string { return p.addr }

// Set changes the faults.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.rnd = f, rand.New(rand.NewPCG(f.Seed, 0))
}

const (
	faultSlow = iota + 1
	faultError
	faultReset
	faultTruncate
	faultStall
	faultHang
)

// draw decides the fate of a request, and how much of its body (0 to 1) comes.
func (p *Proxy) draw(r *http.Request) (fault int, part float64, f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f = p.faults
	if f.Only != nil && !f.Only(r) {
		return 0, 1, f
	}
	x, part := p.rnd.Float64(), p.rnd.Float64()
	for i, prob := range []float64{f.Slow, f.Error, f.Reset, f.Truncate, f.Stall, f.Hang} {
		if x < prob {
			return i + 1, part, f
		}
		x -= prob
	}
	return 0, 1, f
}

type spoilKey struct{}

type spoiled struct {
	fault int
	part  float64
}

func (p *Proxy) serve(rp *httputil.ReverseProxy, w http.ResponseWriter, r *http.Request) {
	p.Requests.Add(1)
	fault, part, f := p.draw(r)
	wait := f.Base
	if fault == faultSlow {
		p.Slow.Add(1)
		wait += f.Latency
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		case <-p.hang:
			return
		}
	}
	switch fault {
	case faultError:
		p.Errors.Add(1)
		http.Error(w, "injected", cmp.Or(f.Status, http.StatusServiceUnavailable))
		return
	case faultReset:
		p.Resets.Add(1)
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			if tc, ok := c.(*net.TCPConn); ok {
				tc.SetLinger(0)
			}
			c.Close()
		}
		return
	case faultHang:
		p.Hung.Add(1)
		select {
		case <-r.Context().Done():
		case <-p.hang:
		}
		return
	case faultTruncate, faultStall:
		r = r.WithContext(context.WithValue(r.Context(), spoilKey{}, spoiled{fault, part}))
	}
	rp.ServeHTTP(w, r)
}

// spoil shortens the body of an answer.
func (p *Proxy) spoil(resp *http.Response) error {
	s, ok := resp.Request.Context().Value(spoilKey{}).(spoiled)
	if !ok || resp.ContentLength < 2 || strings.EqualFold(resp.Request.Method, "HEAD") {
		return nil
	}
	keep := int64(s.part * float64(resp.ContentLength))
	b := &shortBody{ReadCloser: resp.Body, left: keep, end: func() error { return errCut }}
	if s.fault == faultTruncate {
		p.Truncated.Add(1)
	} else {
		p.Stalled.Add(1)
		done := resp.Request.Context().Done()
		b.end = func() error {
			select {
			case <-done:
			case <-p.hang:
			}
			return errCut
		}
	}
	resp.Body = b
	return nil
}

var errCut = errors.New("injected end of the body")

type shortBody struct {
	io.ReadCloser
	left int64
	end  func() error
}

func (b *shortBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, b.end()
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
