package testserver

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gone waits until nothing listens on addr.
func gone(t *testing.T, addr string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return
		}
		c.Close()
	}
	t.Errorf("something still listens on %s", addr)
}

func TestServersEndWithTheTest(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *Server{"s3": S3, "gcs": GCS, "azure": Azure} {
		var s *Server
		t.Run(name, func(t *testing.T) {
			s = start(t)
			s.CreateBucket(t, "penstock-test")
			c, err := net.Dial("tcp", s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		})
		if s != nil {
			gone(t, s.Addr())
		}
	}
}

// Even a test process that is killed leaves no server behind.
func TestServersDieWithTheProcess(t *testing.T) {
	if os.Getenv("PENSTOCK_TESTSERVER_CHILD") == "1" {
		fmt.Println("addr", S3(t).Addr())
		io.Copy(io.Discard, os.Stdin) // until killed
		return
	}
	S3(t) // builds it or skips
	c := exec.Command(os.Args[0], "-test.run=^TestServersDieWithTheProcess$", "-test.v")
	c.Env = append(os.Environ(), "PENSTOCK_TESTSERVER_CHILD=1", "TMPDIR="+t.TempDir())
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	addr := ""
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
		addr, _ = strings.CutPrefix(lines.Text(), "addr ")
		if addr == lines.Text() {
			addr = ""
		}
	}
	c.Process.Kill()
	c.Wait()
	if addr == "" {
		t.Fatal("the child gave no address")
	}
	gone(t, addr)
}

var body = bytes.Repeat([]byte("0123456789"), 10_000)

// plain is a server without faults for a proxy to stand before.
func plain(t *testing.T) *Server {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.Write(body)
	}))
	t.Cleanup(h.Close)
	addr := strings.TrimPrefix(h.URL, "http://")
	return &Server{t: t, kind: "gs", addr: addr, own: addr}
}

func get(t *testing.T, p *Proxy, limit time.Duration) (status, n int, err error) {
	t.Helper()
	c := http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + p.Addr() + "/x")
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if !bytes.HasPrefix(body, b) && resp.StatusCode == 200 {
		t.Error("other bytes")
	}
	return resp.StatusCode, len(b), err
}

func TestProxy(t *testing.T) {
	s := plain(t)
	t.Run("none", func(t *testing.T) {
		p := NewProxy(t, s, Faults{})
		if status, n, err := get(t, p, 0); status != 200 || n != len(body) || err != nil || p.Requests.Load() != 1 {
			t.Error(status, n, err)
		}
	})
	t.Run("slow", func(t *testing.T) {
		p := NewProxy(t, s, Faults{Slow: 1, Latency: 50 * time.Millisecond})
		begin := time.Now()
		if _, n, err := get(t, p, 0); n != len(body) || err != nil || time.Since(begin) < 50*time.Millisecond || p.Slow.Load() != 1 {
			t.Error(n, err, time.Since(begin))
		}
	})
	t.Run("base", func(t *testing.T) {
		p := NewProxy(t, s, Faults{Base: 50 * time.Millisecond})
		begin := time.Now()
		if _, n, err := get(t, p, 0); n != len(body) || err != nil || time.Since(begin) < 50*time.Millisecond || p.Slow.Load() != 0 {
			t.Error(n, err, time.Since(begin))
		}
	})
	t.Run("error", func(t *testing.T) {
		p := NewProxy(t, s, Faults{Error: 1})
		if status, _, err := get(t, p, 0); status != 503 || err != nil || p.Errors.Load() != 1 {
			t.Error(status, err)
		}
	})
	t.Run("reset", func(t *testing.T) {
		p := NewProxy(t, s, Faults{Reset: 1})
		if _, _, err := get(t, p, 0); err == nil || p.Resets.Load() == 0 {
			t.Error(err)
		}
	})
	t.Run("truncate", func(t *testing.T) {
		p := NewProxy(t, s, Faults{Truncate: 1})
		if _, n, err := get(t, p, 0); n >= len(body) || !errors.Is(err, io.ErrUnexpectedEOF) || p.Truncated.Load() != 1 {
			t.Error(n, err)
		}
	})
	t.Run("stall", func(t *testing.T) {
		p := NewProxy(t, s, Faults{Stall: 1})
		if _, n, err := get(t, p, 100*time.Millisecond); n >= len(body) || !os.IsTimeout(err) || p.Stalled.Load() != 1 {
			t.Error(n, err)
		}
	})
	t.Run("hang", func(t *testing.T) {
		p := NewProxy(t, s, Faults{Hang: 1})
		if _, _, err := get(t, p, 100*time.Millisecond); !os.IsTimeout(err) || p.Hung.Load() != 1 {
			t.Error(err)
		}
	})
	t.Run("only", func(t *testing.T) {
		p := NewProxy(t, s, Faults{Error: 1, Only: func(r *http.Request) bool { return r.URL.Path != "/x" }})
		if status, _, _ := get(t, p, 0); status != 200 || p.Errors.Load() != 0 {
			t.Error(status)
		}
	})
	t.Run("seed", func(t *testing.T) {
		draw := func(seed uint64) (s string) {
			p := NewProxy(t, plain(t), Faults{Seed: seed, Error: 0.5})
			for range 40 {
				status, _, _ := get(t, p, 0)
				s += strconv.Itoa(status) + " "
			}
			return s
		}
		a, b, c := draw(1), draw(1), draw(2)
		if a != b || a == c {
			t.Errorf("%s\n%s\n%s", a, b, c)
		}
	})
}

// This test program imports no driver, which is what the user is told.
func TestDriverIsNotImported(t *testing.T) {
	for scheme, pkg := range map[string]string{"s3": "s3blob", "gs": "gcsblob", "azblob": "azureblob"} {
		_, err := blobio.Open(t.Context(), scheme+"://b", nil)
		if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), `import _ "gocloud.dev/blob/`+pkg+`"`) {
			t.Errorf("%s: %v", scheme, err)
		}
	}
}
