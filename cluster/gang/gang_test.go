package gang_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

func TestMain(m *testing.M) {
	if os.Getenv("GANG_TEST_MEMBER") != "" {
		member()
		return
	}
	goleak.VerifyTestMain(m)
}

func accept(t *testing.T, l *gang.Listener) (net.Conn, int) {
	t.Helper()
	c, node, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c, node
}

// Everybody reaches everybody, by number and service; who comes before the service waits for it.
func TestDial(t *testing.T) {
	gs := gangtest.New(t, 3)
	for i, g := range gs {
		if g.Node() != i || g.Nodes() != 3 || g.Job() != "j1" || g.Attempt() != 1 || g.Host(i) != "127.0.0.1" {
			t.Fatalf("%v says that it is node %d of %d", g, g.Node(), g.Nodes())
		}
	}
	early := make(chan net.Conn, 1)
	go func() {
		c, err := gs[2].Dial(t.Context(), 0, "late")
		if err != nil {
			t.Error(err)
		}
		early <- c
	}()
	for from := range gs {
		for to := range gs {
			l, err := gs[to].Listen("x")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := gs[to].Listen("x"); fault.CodeOf(err) != fault.Exists {
				t.Fatalf("a second listener of a service: %v", err)
			}
			c, err := gs[from].Dial(t.Context(), to, "x")
			if err != nil {
				t.Fatal(err)
			}
			d, node := accept(t, l)
			if node != from {
				t.Fatalf("node %d is taken for %d", from, node)
			}
			go func() { io.WriteString(c, "hello"); c.Close() }()
			b, err := io.ReadAll(d)
			if string(b) != "hello" || err != nil {
				t.Fatalf("%q, %v", b, err)
			}
			d.Close()
			l.Close()
		}
	}
	l, err := gs[0].Listen("late")
	if err != nil {
		t.Fatal(err)
	}
	d, node := accept(t, l)
	d.Close()
	(<-early).Close()
	if node != 2 {
		t.Fatal(node)
	}
}

// What is written to a corked connection waits, and goes out in few calls of the system, all of it; what is written to another one does not wait.
func TestCork(t *testing.T) {
	gs := gangtest.New(t, 2)
	l, err := gs[1].Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	c, err := gs[0].Dial(t.Context(), 1, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, _ := accept(t, l)
	defer d.Close()
	came := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(d)
		came <- b
	}()
	calls, cork := gang.Calls(c), c.(gang.Corker)
	var sent []byte
	write := func(pieces, size int) int64 {
		t.Helper()
		before := calls.Load()
		for range pieces {
			b := make([]byte, size)
			for i := range b {
				b[i] = byte(len(sent) + i*7)
			}
			sent = append(sent, b...)
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		return calls.Load() - before
	}
	if n := write(10, 1000); n != 10 {
		t.Errorf("10 pieces took %d calls", n)
	}
	cork.Cork()
	if n := write(10, 1000); n != 0 {
		t.Errorf("10 pieces of a corked connection took %d calls", n)
	}
	before := calls.Load()
	if err := cork.Uncork(); err != nil || calls.Load() != before+1 {
		t.Errorf("what waited took %d calls, %v", calls.Load()-before, err)
	}
	cork.Cork()
	n := write(40, 100_000)
	if err := cork.Uncork(); err != nil || n < 10 || n > 40 {
		t.Errorf("4 MB of a corked connection took %d calls, %v", n, err)
	}
	if n := write(1, 50_000); n != 1 {
		t.Errorf("a large piece took %d calls", n)
	}
	c.(interface{ CloseWrite() error }).CloseWrite()
	if b := <-came; !bytes.Equal(b, sent) {
		t.Errorf("%d bytes came of %d, or others", len(b), len(sent))
	}
}

// A process of another gang, and one that claims to be another member, are refused by both sides.
func TestStrangers(t *testing.T) {
	ours, theirs := gangtest.New(t, 2), gangtest.New(t, 2)
	if _, err := ours[0].Listen("x"); err != nil {
		t.Fatal(err)
	}
	_, err := theirs[1].DialAt(t.Context(), 0, ours[0].Address(), "x")
	if fault.CodeOf(err) != fault.Denied {
		t.Errorf("a stranger dials: %v", err)
	}
	_, err = ours[1].DialAt(t.Context(), 1, ours[0].Address(), "x")
	if fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), "c0/job/j1/1/0") {
		t.Errorf("node 0 where node 1 was expected: %v", err)
	}
	// Without TLS, without a name: nothing is answered, and the gang goes on.
	raw, err := net.Dial("tcp", ours[0].Address())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(raw, "GET / HTTP/1.1\r\n\r\n")
	io.ReadAll(raw)
	raw.Close()
	c, err := ours[1].Dial(t.Context(), 0, "x")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// A member that lies is what its certificate says, whatever it wants: another number, an attempt
// that is over, a number that nobody has, a service by no name, or all connections.
func TestLyingMember(t *testing.T) {
	gs, dirs := gangtest.WithFolders(t, 3)
	l, err := gs[0].Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	// Its folder says that it is node 1: its certificate says 2.
	info := gang.Info{}
	b, err := os.ReadFile(filepath.Join(dirs[2], gang.FileName))
	if err != nil || json.Unmarshal(b, &info) != nil {
		t.Fatal(err)
	}
	lies := func(i gang.Info) error {
		b, err := json.Marshal(i)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dirs[2], gang.FileName), b, 0o600); err != nil {
			t.Fatal(err)
		}
		g, err := gang.AideOf(dirs[2])
		if err == nil {
			g.Close()
		}
		return err
	}
	other := info
	other.Node = 1
	if err := lies(other); fault.CodeOf(err) != fault.Denied {
		t.Errorf("another number: %v", err)
	}
	other = info
	other.Attempt++
	if err := lies(other); fault.CodeOf(err) != fault.Denied {
		t.Errorf("another attempt: %v", err)
	}
	if err := lies(info); err != nil {
		t.Fatal(err)
	}
	// What it says over a connection of its own making.
	c, err := pki.Load(filepath.Join(dirs[2], gang.CertName), pki.Member)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := pki.MemberTLS(pki.NewHolder(c, nil), -1)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(say string) *tls.Conn {
		raw, err := net.Dial("tcp", gs[0].Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { raw.Close() })
		c := tls.Client(raw, cfg)
		io.WriteString(c, say)
		return c
	}
	for _, say := range []string{"\x00", "\x03ab\x00", "\xff" + strings.Repeat("x", 255)} {
		var answer [1]byte
		if n, err := io.ReadFull(dial(say), answer[:]); err == nil && answer[0] == 1 {
			t.Errorf("%q is answered: %d bytes", say, n)
		}
	}
	dial("\x01x")
	if d, node := accept(t, l); node != 2 {
		t.Errorf("it is taken for node %d", node)
	} else {
		d.Close()
	}
	// All connections: those beyond its share are closed, and others come in.
	refused := make(chan struct{}, 80)
	for range 80 {
		c := dial("\x01") // and no more of the name
		go func() {
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
				refused <- struct{}{}
			}
		}()
	}
	at := time.Now()
	for range 80 - 64 {
		<-refused
	}
	if took := time.Since(at); took > 8*time.Second {
		t.Errorf("connections beyond a member's share stay for %v", took)
	}
	d, err := gs[1].Dial(t.Context(), 0, "x")
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	// A number that this gang has not.
	two := info
	two.Node, two.Addresses = 0, info.Addresses[:2]
	if b, err = json.Marshal(two); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dirs[0], gang.FileName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := gang.AideOf(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if l, err = g.Listen("x"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c, err := gs[2].DialAt(ctx, 0, g.Address(), "x"); err == nil {
		_, node, _ := l.Accept(t.Context())
		t.Errorf("node %d of 2 is heard", node)
		c.Close()
	}
}

// crowd is a listener whose first n connections are answered together, or when let is called.
type crowd struct {
	net.Listener
	n    atomic.Int64
	once sync.Once
	open chan struct{}
}

func (c *crowd) let() { c.once.Do(func() { close(c.open) }) }

func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	return &oneOf{conn, c}, err
}

type oneOf struct {
	net.Conn
	c *crowd
}

func (o *oneOf) Write(b []byte) (int, error) {
	if len(b) < 64 { // the answer: the handshake's are longer
		if o.c.n.Add(-1) == 0 {
			o.c.let()
		}
		<-o.c.open
	}
	return o.Conn.Write(b)
}

// However many come at once: whoever is told that it is heard, is.
func TestCrowd(t *testing.T) {
	const n = 100
	gs, dirs := gangtest.WithFolders(t, 2)
	address := gs[0].Address()
	gs[0].Close()
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{Listener: tcp, open: make(chan struct{})}
	c.n.Store(n)
	g, err := gang.Open(dirs[0], c)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	l, err := g.Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	defer time.AfterFunc(2*time.Second, c.let).Stop() // those that came are answered, however slow the others are
	var all sync.WaitGroup
	told := make(chan net.Conn, n)
	for range n {
		all.Go(func() {
			if c, err := gs[1].Dial(ctx, 0, "x"); err == nil {
				told <- c
			}
		})
	}
	all.Wait()
	close(told)
	if len(told) == 0 || len(told) > 64 {
		t.Fatalf("%d were told that they are heard, and 64 can wait", len(told))
	}
	for range len(told) {
		conn, _ := accept(t, l)
		io.WriteString(conn, "heard")
		conn.Close()
	}
	for c := range told {
		if b, err := io.ReadAll(c); err != nil || string(b) != "heard" {
			t.Errorf("%q, %v", b, err)
		}
		c.Close()
	}
}

// A machine that connects and says nothing does not keep others out, and is not kept for long.
func TestSilentMachine(t *testing.T) {
	gs := gangtest.New(t, 2)
	l, err := gs[0].Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	stranger := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	var silent []net.Conn
	for range 300 {
		c, err := stranger.Dial("tcp", gs[0].Address())
		if err != nil && silent == nil {
			memtest.Skip(t, "this system has one address of its own: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	var closed atomic.Int64
	for _, c := range silent {
		go func() {
			c.Read(make([]byte, 1))
			closed.Add(1)
		}()
	}
	at := time.Now()
	c, err := gs[1].Dial(t.Context(), 0, "x")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if took := time.Since(at); took > 5*time.Second || closed.Load() == int64(len(silent)) {
		t.Errorf("another machine waited %v, until %d of %d silent connections were closed", took, closed.Load(), len(silent))
	}
	d, _ := accept(t, l)
	d.Close()
}

// elsewhere is a listener whose n-th connection seems to come from an address.
type elsewhere struct {
	net.Listener
	at func(n int) net.IP
	n  int
}

type from struct {
	net.Conn
	ip net.IP
}

func (c *from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: c.ip, Port: 1} }

func (l *elsewhere) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.n++
	return &from{c, l.at(l.n)}, err
}

// Of IPv6 many machines share a network: a silent one does not keep the others there out, nor does one that takes all its addresses keep out other networks.
func TestSilentNetwork(t *testing.T) {
	in := func(network, host byte, n int) net.IP {
		return net.IP{0x20, 1, 0xd, 0xb8, 0, 0, 0, network, 0, 0, 0, 0, 0, host, byte(n >> 8), byte(n)}
	}
	for name, x := range map[string]struct {
		silent int
		at     func(n int) net.IP
		member net.IP
	}{
		"one machine":         {300, func(int) net.IP { return in(1, 0, 1) }, in(1, 0, 2)},
		"many of a network":   {100, func(n int) net.IP { return in(1, 0, n) }, in(1, 1, 1)},
		"all of a network":    {300, func(n int) net.IP { return in(1, 0, n) }, in(2, 0, 1)},
		"one machine of IPv4": {300, func(int) net.IP { return net.IPv4(192, 0, 2, 1) }, net.IPv4(192, 0, 2, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gs, dirs := gangtest.WithFolders(t, 2)
			address := gs[0].Address()
			gs[0].Close()
			tcp, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			g, err := gang.Open(dirs[0], &elsewhere{Listener: tcp, at: func(n int) net.IP {
				if n > x.silent {
					return x.member
				}
				return x.at(n)
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if _, err := g.Listen("x"); err != nil {
				t.Fatal(err)
			}
			for range x.silent {
				c, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			}
			at := time.Now()
			c, err := gs[1].Dial(t.Context(), 0, "x")
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if took := time.Since(at); took > 5*time.Second {
				t.Errorf("a member waited %v", took)
			}
		})
	}
}

// What cannot be reached ends with the context; closing ends what waits.
func TestEnds(t *testing.T) {
	gs := gangtest.New(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := gs[0].Dial(ctx, 1, "nobody"); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "nobody serves") && !strings.Contains(err.Error(), "not reached") {
		t.Errorf("nobody serves it: %v", err)
	}
	if _, err := gs[0].Dial(t.Context(), 2, "x"); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("node 2 of 2: %v", err)
	}
	waits := make(chan error, 2)
	go func() { _, err := gs[0].Dial(context.Background(), 1, "nobody"); waits <- err }()
	l, err := gs[0].Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _, err := l.Accept(context.Background()); waits <- err }()
	gs[0].Close()
	for range 2 {
		if err := <-waits; fault.CodeOf(err) != fault.Canceled && fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("closed: %v", err)
		}
	}
	if _, err := gs[0].Listen("y"); err == nil {
		t.Error("a closed gang listens")
	}
}

// Where nobody answers at all it is given up, long before the context ends.
func TestAlone(t *testing.T) {
	gs := gangtest.New(t, 2)
	gs[0].SetAlone(50 * time.Millisecond)
	gs[1].Close()
	_, err := gs[0].Dial(t.Context(), 1, "x")
	if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "node 1 of the job") || !strings.Contains(err.Error(), "its process is gone, or the network between the nodes is cut") {
		t.Error(err)
	}
}

// A process with the socket of its agent is the member, one that it starts an aide.
func TestProcesses(t *testing.T) {
	gs, dirs := gangtest.WithFolders(t, 2)
	l, err := gs[0].Listen("hello")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GANG_TEST_MEMBER=1", gang.EnvDir+"="+dirs[1])
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, node := accept(t, l)
	address, _ := io.ReadAll(c)
	c.Close()
	if node != 1 {
		t.Fatal(node)
	}
	d, err := gs[0].DialAt(t.Context(), 1, string(address), "aide")
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

func member() {
	if g, err := gang.Join(); g != nil || fault.CodeOf(err) != fault.Invalid {
		panic("a member without a socket")
	}
	g, err := gang.Aide()
	if err != nil {
		panic(err)
	}
	defer g.Close()
	l, err := g.Listen("aide")
	if err != nil {
		panic(err)
	}
	c, err := g.Dial(context.Background(), 0, "hello")
	if err != nil {
		panic(err)
	}
	io.WriteString(c, g.Address())
	c.Close()
	d, _, err := l.Accept(context.Background())
	if err != nil {
		panic(err)
	}
	d.Close()
}
