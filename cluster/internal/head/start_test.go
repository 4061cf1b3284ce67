package head

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/internal/etcdtest"
	"github.com/penstock-data/penstock/internal/fault"
)

// envEtcd is the folder of an external store: this program is one.
const envEtcd = "HEAD_TEST_ETCD"

func TestMain(m *testing.M) {
	dir := os.Getenv(envEtcd)
	if dir == "" {
		goleak.VerifyTestMain(m)
		return
	}
	e, err := etcdtest.Start(context.Background(), dir, "", "")
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(e.Clients[0].Addr().String() + "\n")
	io.Copy(io.Discard, os.Stdin) // until the parent is gone
	e.Close()
}

// etcd starts an external store, and gives its address.
func etcd(t *testing.T) (p *os.Process, address string) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), envEtcd+"="+t.TempDir())
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
		in.Close()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return c.Process, strings.TrimSpace(line)
}

// onLine calls f at the first line that has a text.
type onLine struct {
	text string
	f    func()
}

func (w *onLine) Write(b []byte) (int, error) {
	if w.f != nil && bytes.Contains(b, []byte(w.text)) {
		w.f()
		w.f = nil
	}
	return len(b), nil
}

// What a head writes as it starts waits for its store, and not for ever: where its claim is lost meanwhile, or nobody waits for it any more, it does not start, and says why.
func TestStartEnds(t *testing.T) {
	process, address := etcd(t)
	ctx := t.Context()
	other, err := records.Open(ctx, records.Options{Endpoints: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	nodes := records.In[nodeRecord](other, "nodes")
	if _, err := nodes.Put(ctx, records.Record[nodeRecord]{ID: "n1", Value: nodeRecord{State: core.Alive}}); err != nil { // its lease has ended: that is to be written
		t.Fatal(err)
	}
	dir := shortDir(t)
	start := func(ctx context.Context, then func()) error {
		log := slog.New(slog.NewTextHandler(&onLine{"node n1 () is lost", then}, nil))
		h, err := Start(ctx, Config{Dir: dir, Lease: 2 * time.Second, Log: log, Store: records.Options{Endpoints: []string{address}, Timeout: time.Second}})
		if err == nil {
			h.Stop(0)
		}
		return err
	}
	claims := records.In[records.Holder](other, "claim")
	err = start(ctx, func() {
		r, err := claims.Get(ctx, "holder")
		if err == nil {
			err = claims.Delete(ctx, r.ID, r.Revision)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "removed the claim of this head") {
		t.Errorf("its claim was lost: %v", err)
	}
	asked, cancel := context.WithCancel(ctx)
	err = start(asked, func() {
		if err := process.Signal(syscall.SIGSTOP); err != nil {
			t.Error(err)
		}
		cancel()
	})
	if fault.CodeOf(err) != fault.Canceled {
		t.Errorf("nobody waits for it: %v", err)
	}
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := start(ctx, nil); err != nil {
		t.Error(err)
	}
}
