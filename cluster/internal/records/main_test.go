package records

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/internal/etcdtest"
)

// The test binary is also what tests start: an external etcd, and processes that are killed.
const envChild = "RECORDS_CHILD"

func TestMain(m *testing.M) {
	if mode := os.Getenv(envChild); mode != "" {
		children[mode]()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var children = map[string]func(){"etcd": childEtcd, "writer": childWriter, "open": childOpen, "full": childFull, "read": childRead, "memory": childMemory, "claim": childClaim}

// say tells the parent something.
func say(format string, args ...any) { os.Stdout.WriteString(fmt.Sprintf(format, args...) + "\n") }

// child is a process of a test.
type child struct {
	*exec.Cmd
	Lines *bufio.Scanner
	stdin interface{ Close() error }
	ended bool
}

// start starts a child; it is killed at the end of the test. args are KEY=value.
func start(t testing.TB, mode string, args ...string) *child {
	t.Helper()
	c := &child{Cmd: exec.Command(os.Args[0])}
	c.Env = append(os.Environ(), envChild+"="+mode)
	c.Env = append(c.Env, args...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.stdin, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	c.Lines = bufio.NewScanner(out)
	c.Lines.Buffer(nil, 1<<20)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	if !c.ended {
		c.ended = true
		c.Process.Kill()
		c.Wait()
		c.stdin.Close()
	}
}

// line is the next line that the child says.
func (c *child) line(t testing.TB) string {
	t.Helper()
	if !c.Lines.Scan() {
		t.Fatalf("the child ended: %v", c.Lines.Err())
	}
	return c.Lines.Text()
}

// childEtcd is an external etcd with the usual settings, on the socket RECORDS_SOCKET or, without, or where RECORDS_TLS is a folder with certificates, on a port of its own.
func childEtcd() {
	e, err := etcdtest.Start(context.Background(), os.Getenv("RECORDS_DIR"), os.Getenv("RECORDS_SOCKET"), os.Getenv("RECORDS_TLS"))
	if err != nil {
		say("error %v", err)
		return
	}
	say("%s", e.Clients[0].Addr())
	bufio.NewReader(os.Stdin).ReadByte() // until the parent is gone
	e.Close()
}

// external starts an etcd, and gives its endpoint.
func external(t testing.TB, dir string) (*child, string) {
	t.Helper()
	socket := filepath.Join(shortDir(t), "s")
	c := start(t, "etcd", "RECORDS_DIR="+dir, "RECORDS_SOCKET="+socket)
	if got := c.line(t); got != socket {
		t.Fatalf("etcd says %q", got)
	}
	return c, "unix://" + socket
}

// onPort starts an etcd without TLS.
func onPort(t testing.TB) (*child, string) {
	t.Helper()
	c := start(t, "etcd", "RECORDS_DIR="+t.TempDir())
	return c, c.line(t)
}

// shortDir is a folder for sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rec")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func open(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// within is the context of a test's waits: nothing here takes that long.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

type thing struct {
	Name string
	N    int
}

func has(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Fatalf("error %v: does not say %q", err, s)
		}
	}
}
