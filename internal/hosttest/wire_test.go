//go:build linux

package hosttest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/internal/memtest"
)

// on runs f on a node: sockets that it makes are there. It must return.
func (w *Wire) on(node string, f func() error) {
	w.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		w.t.Fatal(err)
	}
	defer here.Close()
	there, err := os.Open("/run/netns/" + w.space(node))
	if err != nil {
		w.t.Fatal(err)
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		w.t.Fatal(err)
	}
	failed := f()
	if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
		panic(err) // a thread that is nowhere
	}
	if failed != nil {
		w.t.Fatal(failed)
	}
}

// recorder has the errors that a test should have.
type recorder struct {
	testing.TB
	said []string
}

func (e *recorder) Errorf(format string, args ...any) {
	e.said = append(e.said, fmt.Sprintf(format, args...))
}

// A fault that hit nothing fails its test, each by itself, also where nobody heals it.
func TestNoFault(t *testing.T) {
	e := &recorder{TB: t}
	t.Cleanup(func() { // after those of the wire
		if len(e.said) != 1 {
			t.Errorf("nobody healed: %q", e.said)
		}
	})
	faults := map[string]func(*Wire){
		"to head": func(w *Wire) { w.ToHead("a") },
		"to node": func(w *Wire) { w.ToNode("a") },
		"between": func(w *Wire) { w.Between("a", "b") },
		"lossy":   func(w *Wire) { w.Lossy("a", 99) },
		"delay":   func(w *Wire) { w.Delay("a", 0, 0) },
		"nothing": func(*Wire) {},
	}
	w := New(t)
	w.t = e
	w.Plug("a")
	w.Plug("b")
	for name, fault := range faults {
		for try := 1; ; try++ { // the machine may say something to the network just then
			e.said = nil
			fault(w)
			if w.Heal(); len(e.said) == 1 {
				break
			}
			if try == 5 {
				t.Errorf("%s: %q", name, e.said)
				break
			}
		}
	}
	e.said = nil
	w.Lossy("a", 99) // and the test ends
}

// Who has a network has the machine.
func TestNewAlone(t *testing.T) {
	New(t)
	f, err := os.Open(aloneFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("another test can have the machine: %v", err)
	}
}

// Of the packets of a lossy cable some come, and some do not; when it is healed all come.
func TestLossy(t *testing.T) {
	w := New(t)
	w.Plug("a")
	var node net.PacketConn
	w.on("a", func() (err error) {
		node, err = net.ListenPacket("udp4", w.Addr("a")+":0")
		return err
	})
	defer node.Close()
	heard := make(chan int)
	var answers atomic.Int64
	go func() {
		buf, n := make([]byte, 100), 0
		for {
			k, from, err := node.ReadFrom(buf)
			if err != nil || string(buf[:k]) == "end" {
				heard <- n
				return
			}
			n++
			_, _ = node.WriteTo(buf[:k], from)
			answers.Add(1)
		}
	}()
	host, err := net.Dial("udp4", node.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	say := func(text string) {
		t.Helper()
		if _, err := host.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	const all = 200
	w.Lossy("a", 40)
	for range all {
		say("on")
	}
	if !memtest.Poll(time.Minute, func() bool { return answers.Load() > all/5 }) { // of about 120: some of them are lost, too
		t.Fatalf("%d answers", answers.Load())
	}
	w.Heal()
	say("end")
	there := <-heard
	if _, err := node.WriteTo([]byte("end"), host.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	back := 0
	for buf := make([]byte, 100); ; back++ {
		k, err := host.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if string(buf[:k]) == "end" {
			break
		}
	}
	t.Logf("of %d packets %d came there, %d back", all, there, back)
	if there == 0 || there == all || back == 0 || back == there {
		t.Error("not some were lost each way")
	}
}

// What goes through a cable that is late comes late, whole and in order, and so does the end of one direction; connections outlive the delay, and it is none of other nodes.
func TestDelay(t *testing.T) {
	w := New(t)
	for _, node := range []string{"a", "b", "c"} {
		w.Plug(node)
	}
	var l net.Listener
	w.on("a", func() (err error) {
		l, err = net.Listen("tcp4", w.Addr("a")+":0")
		return err
	})
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // until the other side has said all
				_, _ = io.WriteString(c, "end")
			}()
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	var conns []net.Conn
	conns = append(conns, dial())
	for _, node := range []string{"b", "c"} {
		w.on(node, func() error {
			conns = append(conns, dial())
			return nil
		})
	}
	echo := func(c net.Conn) time.Duration {
		t.Helper()
		began := time.Now()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	const least = 20 * time.Millisecond
	w.Delay("a", least, least)
	w.Delay("b", least, 0)
	for i, atLeast := range []time.Duration{2 * least, 4 * least, 2 * least} {
		if took := echo(conns[i]); took < atLeast {
			t.Errorf("connection %d: %v, not %v", i, took, atLeast)
		}
	}
	began := time.Now()
	c := dial().(*net.TCPConn)
	if took := time.Since(began); took < 2*least {
		t.Errorf("a new connection: %v", took)
	}
	data := make([]byte, 2<<20)
	_, _ = rand.Read(data)
	go func() {
		_, _ = c.Write(data)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, append(data, "end"...)) {
		t.Errorf("%d bytes came back of %d: %v", len(got), len(data), err)
	}
	c.Close()
	w.Heal()
	for _, c := range conns {
		echo(c)
		c.Close()
	}
	if out, _ := command("ip", "-o", "link"); strings.Contains(out, w.id+"d") {
		t.Errorf("devices are left: %s", out)
	}
}
