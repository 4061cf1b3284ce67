package feed

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"golang.org/x/sys/unix"
)

func TestListen(t *testing.T) {
	path := socket(t)
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	_, err = Listen(path)
	wantError(t, err, fault.Exists, "another process serves this socket")
	l.SetUnlinkOnClose(false) // as if killed
	l.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	if l, err = Listen(path); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Listen(path)
	wantError(t, err, fault.Exists, "no socket")
	_, err = Listen(path + "/s")
	wantError(t, err, fault.Invalid, "no socket can be made here", "take another folder")
	_, err = Listen("@abstract")
	wantError(t, err, fault.Invalid)
	_, err = Listen(filepath.Dir(path) + "/" + strings.Repeat("x", 100))
	wantError(t, err, fault.Invalid, "at most 103 bytes")
	dir := filepath.Join(filepath.Dir(path), "new", "folder")
	if l, err = Listen(dir + "/s"); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	_, err = Listen(dir + "/s")
	wantError(t, err, fault.Invalid, "closed to others", "0750")
}

func TestUnmade(t *testing.T) {
	for errno, code := range map[syscall.Errno]fault.Code{unix.EACCES: fault.Denied, unix.EPERM: fault.Denied, unix.ENOSPC: fault.Exhausted, unix.EDQUOT: fault.Exhausted, unix.EMFILE: fault.Exhausted, unix.EROFS: fault.Invalid} {
		wantError(t, unmade(&os.PathError{Op: "open", Path: "s", Err: errno}), code, "open s", errno.Error())
	}
}

// Several that find the same stale socket: one gets it.
func TestListenRace(t *testing.T) {
	for range 20 {
		path := socket(t)
		l, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		var all sync.WaitGroup
		var mu sync.Mutex
		var got []net.Listener
		for range 8 {
			all.Go(func() {
				if l, err := Listen(path); err == nil {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, l)
				} else {
					wantError(t, err, fault.Exists)
				}
			})
		}
		all.Wait()
		if len(got) != 1 {
			t.Fatalf("%d processes serve one socket", len(got))
		}
		got[0].Close()
	}
}

// What is not a unix socket, and what does not speak the feed, is refused.
func TestStrangers(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	its, err := dataset.Range(1000).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 10}})
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, Serve(t.Context(), tcp, its, nil), fault.Invalid, "unix sockets only, not on tcp")
	tcp.Close()

	g := newGroup(t, t.Context(), 1, nil, false)
	for _, c := range []struct{ hello, answer string }{
		{"GET / HTTP/1.1\r\n\r\n", "no consumer of a feed"},
		{"penstock\x07\x00\x00\x00\x00\x00", "version 7"},
	} {
		conn, err := net.Dial("unix", g.path)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, c.hello)
		b, _ := io.ReadAll(conn)
		if !strings.HasPrefix(string(b), "penstock\x03\x00") || !strings.Contains(string(b), c.answer) {
			t.Errorf("%q is answered with %q", c.hello, b)
		}
		conn.Close()
	}
	// One that says nothing, or nonsense once it has a rank.
	idle, err := net.Dial("unix", g.path)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	c := dialTest(t, g.path, 0, nil)
	must(t, c.send(frameTensors, nil))
	wantError(t, drain(t, c), fault.Corrupt, "at the wrong time")
	c = dialTest(t, g.path, 0, nil)
	b, err := c.Next(t.Context())
	must(t, err)
	b.Release()
	must(t, c.send(frameBegin, nil))
	wantError(t, g.wait(), fault.WorkerLost, "at the wrong time")
}

// What a consumer does not hold it cannot free: not twice, not beside a batch, not before it begins.
func TestFreeWrong(t *testing.T) {
	free := func(c *Client, at uint64) { must(t, c.send(frameFree, binary.LittleEndian.AppendUint64(nil, at))) }
	g := newGroup(t, t.Context(), 1, nil, true)
	free(g.all[0], 0)
	wantError(t, drain(t, g.all[0]), fault.Corrupt, "at the wrong time") // nothing was asked for: the rank is free again
	for i := range 3 {
		c := dialTest(t, g.path, 0, nil)
		b, err := c.Next(t.Context())
		must(t, err)
		switch i {
		case 0:
			free(c, 64)
		case 1:
			free(c, 1<<63)
		case 2:
			free(c, 0) // the first batch lies there
			free(c, 0)
		}
		wantError(t, g.wait(), fault.WorkerLost, "at the wrong time")
		b.Release()
		g = newGroup(t, t.Context(), 1, nil, false)
	}
	must(t, dialTest(t, g.path, 0, nil).Close())
	must(t, g.wait())
}

// Dial waits for a data process that comes later, and for no longer than it is told to.
func TestDialWaits(t *testing.T) {
	path := socket(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := Dial(ctx, path, 0, nil)
		got <- err
	}()
	cancel()
	wantError(t, <-got, fault.Canceled)

	l, err := Listen(path) // nobody accepts yet
	must(t, err)
	defer l.Close()
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, path, 0, nil)
	wantError(t, err, fault.Canceled)

	go func() {
		c, err := Dial(t.Context(), path, 0, nil)
		if err == nil {
			_, err = c.Next(t.Context())
			c.Close()
		}
		got <- err
	}()
	// Two groups one after the other on one listener; the one who gave up above is in nobody's way.
	for i := range 2 {
		its, err := dataset.Range(10).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 100, Epochs: 1}})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		if i == 0 {
			cancel()
		}
		if err := Serve(ctx, l, its, nil); (err == nil) != (i == 1) {
			t.Errorf("group %d: %v", i, err)
		}
		cancel()
	}
	if err := <-got; err != io.EOF {
		t.Error(err)
	}
}
