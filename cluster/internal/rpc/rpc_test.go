package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Every code and its text come through both kinds of calls, with the place in the text.
func TestFaultsTravel(t *testing.T) {
	h := start(t)
	var next error
	h.drain = func(context.Context, *pb.DrainRequest) (*pb.Empty, error) { return nil, next }
	h.watch = func(grpc.ServerStreamingServer[pb.Cluster]) error { return next }
	c := pb.NewControlClient(h.dial(AtSocket()))
	text := "no node \"n9\": ä\nsecond line, 100%"
	for code := fault.Unknown; code.Known(); code++ {
		next = fault.New(code, "%s", text).At(fault.Place{Node: "n7"})
		want, wantCode := next.Error(), code
		if code == fault.Canceled {
			wantCode = fault.Unavailable // not this caller's
		}
		for kind, call := range map[string]func() error{
			"unary": func() error { _, err := c.Drain(t.Context(), &pb.DrainRequest{}); return err },
			"stream": func() error {
				s, err := c.Watch(t.Context(), &pb.WatchRequest{})
				if err != nil {
					return err
				}
				_, err = s.Recv()
				return err
			},
		} {
			if err := call(); fault.CodeOf(err) != wantCode || err.Error() != want {
				t.Errorf("%s %v: %v %q", kind, code, fault.CodeOf(err), err)
			}
		}
	}
	next = errors.New("plain")
	_, err := c.Drain(t.Context(), &pb.DrainRequest{})
	if fault.CodeOf(err) != fault.Unknown || err.Error() != "plain" {
		t.Errorf("%v", err)
	}
	next = fmt.Errorf("wrapped: %w", fault.New(fault.NotFound, "inner"))
	_, err = c.Drain(t.Context(), &pb.DrainRequest{})
	wants(t, err, fault.NotFound, "wrapped: inner")
	next = fault.New(fault.Invalid, "\xff%s", strings.Repeat("ü%\n", 1<<18))
	_, err = c.Drain(t.Context(), &pb.DrainRequest{})
	wants(t, err, fault.Invalid, `\xffü`, " ...")
	if n := len(err.Error()); n < maxText || n > maxText+10 {
		t.Errorf("%d bytes of text", n)
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("gRPC's code is %v", status.Code(err))
	}
}

func TestPeer(t *testing.T) {
	h := start(t)
	var got Peer
	h.drain = func(ctx context.Context, _ *pb.DrainRequest) (*pb.Empty, error) {
		got = PeerOf(ctx)
		return &pb.Empty{}, nil
	}
	h.renew = func(ctx context.Context, _ *pb.RenewRequest) (*pb.RenewReply, error) {
		got = PeerOf(ctx)
		return &pb.RenewReply{}, nil
	}
	h.attach = func(s grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error {
		got = PeerOf(s.Context())
		return nil
	}
	must(pb.NewControlClient(h.dial(AtSocket())).Drain(t.Context(), &pb.DrainRequest{}))
	if got.Kind != Local || got.UID != os.Geteuid() || got.Scope != Admin || got.Host != "" {
		t.Errorf("%+v", got)
	}
	must(pb.NewControlClient(h.dial(AsPerson(h.token("t4", Admin)))).Drain(t.Context(), &pb.DrainRequest{}))
	if got.Kind != Person || got.Token != "t4" || got.Scope != Admin || got.Host != "127.0.0.1" || got.String() != "token t4 at 127.0.0.1" {
		t.Errorf("%+v", got)
	}
	conn := h.dial(AsNode(node(t, h.ca, "n7", 3), h.ca.Pin))
	must(pb.NewNodeClient(conn).Renew(t.Context(), &pb.RenewRequest{}))
	if got.Kind != Node || got.Node.Node != "n7" || got.Node.Epoch != 3 || got.Node.Cluster != "c1" {
		t.Errorf("%+v", got)
	}
	got = Peer{}
	if _, err := must(pb.NewNodeClient(conn).Attach(t.Context())).Recv(); err != io.EOF || got.Node.Node != "n7" {
		t.Errorf("%v %+v", err, got)
	}
	if p := PeerOf(t.Context()); p.Kind != Nobody {
		t.Errorf("elsewhere: %+v", p)
	}
}

func TestPanics(t *testing.T) {
	h := start(t)
	h.drain = func(context.Context, *pb.DrainRequest) (*pb.Empty, error) { panic("oh dear") }
	h.watch = func(grpc.ServerStreamingServer[pb.Cluster]) error { panic(errors.New("nil map")) }
	c := pb.NewControlClient(h.dial(AtSocket()))
	_, err := c.Drain(t.Context(), &pb.DrainRequest{})
	wants(t, err, fault.Internal, "Control/Drain", "a bug in Penstock")
	_, err = must(c.Watch(t.Context(), &pb.WatchRequest{})).Recv()
	wants(t, err, fault.Internal, "Control/Watch")
	for _, s := range []string{"oh dear", "nil map", "rpc_test.go", "user "} {
		if !strings.Contains(h.log.String(), s) {
			t.Errorf("the log does not say %q", s)
		}
	}
	if strings.Contains(err.Error(), "nil map") {
		t.Errorf("the caller sees the inside: %v", err)
	}
}

func TestLimits(t *testing.T) {
	h := start(t, func(c *ServerConfig) { c.Limits = Limits{Streams: 3, Connections: 4, Message: 64 << 10} })
	entered := make(chan struct{}, 16)
	h.watch = func(s grpc.ServerStreamingServer[pb.Cluster]) error {
		entered <- struct{}{}
		<-s.Context().Done()
		return s.Context().Err()
	}
	h.drain = func(context.Context, *pb.DrainRequest) (*pb.Empty, error) { return &pb.Empty{}, nil }
	tok := h.token("t1", Admin)
	conn := h.dial(AsPerson(tok))
	c := pb.NewControlClient(conn)

	_, err := c.Drain(t.Context(), &pb.DrainRequest{Node: strings.Repeat("n", 65<<10)})
	wants(t, err, fault.Invalid, "larger than max")
	_, err = c.Drain(t.Context(), &pb.DrainRequest{Node: strings.Repeat("n", 5<<20)})
	wants(t, err, fault.Invalid, "larger than max")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := c.Drain(metadata.AppendToOutgoingContext(ctx, "x", strings.Repeat("h", 20<<10)), &pb.DrainRequest{}); err == nil || ctx.Err() != nil {
		t.Errorf("headers of 20 KiB: %v", err)
	}

	streams, end := context.WithCancel(t.Context())
	for range 3 {
		must(c.Watch(streams, &pb.WatchRequest{}))
		<-entered
	}
	short, cancelShort := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancelShort()
	if _, err := c.Drain(short, &pb.DrainRequest{}); fault.CodeOf(err) != fault.Canceled {
		t.Errorf("a fourth call at once: %v", err)
	}
	end()
	must(c.Drain(t.Context(), &pb.DrainRequest{}))

	// Connections beyond the fourth are closed; when one ends another may come.
	var raw []net.Conn
	for range 3 {
		raw = append(raw, must(tls.Dial("tcp", h.addr, pki.ClientTLS(nil, h.ca.Pin, nil))))
	}
	short2, cancel2 := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel2()
	_, err = Dial(short2, h.addr, AsPerson(tok))
	wants(t, err, fault.Unavailable, h.addr, "too many connections")
	if !strings.Contains(h.log.String(), "too many are open") {
		t.Error("not in the log")
	}
	for _, r := range raw {
		r.Close()
	}
	must(pb.NewControlClient(h.dial(AsPerson(tok))).Drain(t.Context(), &pb.DrainRequest{}))
	must(c.Drain(t.Context(), &pb.DrainRequest{}))
}

// Connections that say nothing, or not TLS, are closed after the handshake's time.
func TestSilentConnections(t *testing.T) {
	h := start(t, func(c *ServerConfig) { c.Limits = Limits{Handshake: 100 * time.Millisecond} })
	for what, say := range map[string]string{"nothing": "", "HTTP": "GET / HTTP/1.1\r\n\r\n", "HTTP/2 without TLS": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} {
		c := must(net.Dial("tcp", h.addr))
		io.WriteString(c, say)
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		b, err := io.ReadAll(c)
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			t.Errorf("%s: the connection stays", what)
		}
		if strings.Contains(string(b), "SETTINGS") || len(b) > 100 {
			t.Errorf("%s: answered %q", what, b)
		}
		c.Close()
	}
}

// A connection over which nobody is known is closed, however alive it is; a node's and a person's stay.
func TestUnprovedConnections(t *testing.T) {
	h := start(t, func(c *ServerConfig) { c.Limits = Limits{Unproved: 100 * time.Millisecond} })
	h.join = func(ctx context.Context, _ *pb.JoinRequest) (*pb.JoinReply, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	wait := make(chan struct{})
	h.watch = func(s grpc.ServerStreamingServer[pb.Cluster]) error { <-wait; return nil }
	h.attach = func(s grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error { <-wait; return nil }
	person := must(pb.NewControlClient(h.dial(AsPerson(h.token("t1", Read)))).Watch(t.Context(), &pb.WatchRequest{}))
	agent := must(pb.NewNodeClient(h.dial(AsNode(node(t, h.ca, "n7", 1), h.ca.Pin))).Attach(t.Context()))
	_, err := pb.NewJoinClient(h.dial(AsNewcomer(h.ca.Pin()))).Join(t.Context(), &pb.JoinRequest{})
	wants(t, err, fault.Unavailable)
	close(wait) // both were there for longer than the newcomer
	if _, err := person.Recv(); err != io.EOF {
		t.Errorf("a person: %v", err)
	}
	if _, err := agent.Recv(); err != io.EOF {
		t.Errorf("a node: %v", err)
	}
}

// What nobody judged is not read: a message that comes with a wrong token is never decoded, and the handler not entered.
func TestRefusedBeforeItIsRead(t *testing.T) {
	h := start(t)
	h.put = func(grpc.ClientStreamingServer[pb.Chunk, pb.Empty]) error { t.Error("entered"); return nil }
	bad := must(pki.NewToken(pki.Access, "t1", h.ca.Pin()))
	c := pb.NewControlClient(h.dial(AsPerson(bad)))
	s, err := c.PutPack(t.Context())
	for range 100 {
		if err != nil {
			break
		}
		err = s.Send(&pb.Chunk{Data: make([]byte, 1<<20)})
	}
	if err == io.EOF {
		_, err = s.CloseAndRecv()
	}
	wants(t, err, fault.Denied, "does not know this access token")
}

func TestFailuresAreLimited(t *testing.T) {
	var late atomic.Int64
	h := start(t, func(c *ServerConfig) { c.Now = func() time.Time { return time.Now().Add(time.Duration(late.Load())) } })
	h.join = func(context.Context, *pb.JoinRequest) (*pb.JoinReply, error) {
		return nil, fault.New(fault.Denied, "no such join token")
	}
	h.drain = func(context.Context, *pb.DrainRequest) (*pb.Empty, error) { return &pb.Empty{}, nil }
	bad := must(pki.NewToken(pki.Access, "t1", h.ca.Pin()))
	good := h.token("good", Admin)
	try := func(tok pki.Token) error {
		_, err := pb.NewControlClient(h.dial(AsPerson(tok))).Drain(t.Context(), &pb.DrainRequest{})
		return err
	}
	newcomer := pb.NewJoinClient(h.dial(AsNewcomer(h.ca.Pin())))
	join := func() error { _, err := newcomer.Join(t.Context(), &pb.JoinRequest{}); return err }
	c := pb.NewControlClient(h.dial(AsPerson(bad)))
	denied := 0
	for range 200 {
		_, err := c.Drain(t.Context(), &pb.DrainRequest{})
		if fault.CodeOf(err) == fault.Denied {
			denied++
		}
	}
	if denied < failures || denied > failures+20 {
		t.Errorf("%d of 200 wrong tokens were looked at", denied)
	}
	wants(t, try(bad), fault.Unavailable, "too many")
	wants(t, join(), fault.Unavailable, "too many")
	if err := try(good); err != nil { // whose token is good does not pay for the wrong ones beside it
		t.Errorf("a good token from the same address: %v", err)
	}
	if n := strings.Count(h.log.String(), "\n"); n > logLines+30 {
		t.Errorf("%d lines of log", n)
	}
	late.Add(int64(time.Minute))
	if err := try(good); err != nil {
		t.Errorf("after a minute: %v", err)
	}
	if !strings.Contains(h.log.String(), "why=") {
		t.Error("nothing in the log")
	}
	// Wrong join tokens count too: the handler refuses them.
	for range failures {
		join()
	}
	wants(t, join(), fault.Unavailable, "too many")
	wants(t, try(bad), fault.Unavailable, "too many")
	// Nobody else pays for it, and the socket never does.
	if h.srv.gate.hosts.over("10.0.0.9", h.srv.gate.now()) {
		t.Error("another host is refused")
	}
	must(pb.NewControlClient(h.dial(AtSocket())).Drain(t.Context(), &pb.DrainRequest{}))
	late.Add(int64(time.Minute))
	wants(t, try(bad), fault.Denied)
	if !strings.Contains(h.log.String(), "left_out=") {
		t.Error("the log does not say how much it left out")
	}
}

func TestTokensThatCannotBeLookedUp(t *testing.T) {
	h := start(t)
	tok := h.token("t1", Admin)
	h.store.err = fault.New(fault.Internal, "etcd said something private")
	_, err := pb.NewControlClient(h.dial(AsPerson(tok))).Drain(t.Context(), &pb.DrainRequest{})
	wants(t, err, fault.Unavailable, "try again")
	if strings.Contains(err.Error(), "private") || !strings.Contains(h.log.String(), "private") {
		t.Errorf("%v", err)
	}
}

// A call that goes on ends when its token does.
func TestTokensThatEndMeanwhile(t *testing.T) {
	for what, change := range map[string]func(*Record){
		"revoked": func(r *Record) { r.Revoked = true },
		"ended":   func(r *Record) { r.Ends = time.Now() },
		"scope":   func(r *Record) { r.Scope = Read },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{m: map[string]Record{"t1": {Scope: Submit}}}
			g := &gate{tokens: s, now: time.Now, again: judgeAgain, log: slog.New(slog.DiscardHandler)}
			ctx, cancel := context.WithCancelCause(t.Context())
			go g.watch(ctx, Peer{Kind: Person, Token: "t1", Scope: Submit}, cancel)
			time.Sleep(time.Hour)
			synctest.Wait()
			if ctx.Err() != nil {
				t.Fatal("it ended by itself")
			}
			s.mu.Lock()
			s.err = fault.New(fault.Unavailable, "store away")
			s.mu.Unlock()
			time.Sleep(time.Hour)
			s.mu.Lock()
			s.err = nil
			s.mu.Unlock()
			if ctx.Err() != nil {
				t.Fatal("a store that is away ended it")
			}
			s.set("t1", change)
			time.Sleep(judgeAgain)
			synctest.Wait()
			if err := context.Cause(ctx); fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), what) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
}

// What the token's end makes of a stream: it cannot send or receive any more, and the caller hears why, whatever the handler says.
func TestStreamsThatAreEnded(t *testing.T) {
	h := start(t)
	h.srv.gate.again = time.Millisecond
	sent := make(chan error, 1)
	h.watch = func(s grpc.ServerStreamingServer[pb.Cluster]) error {
		s.Send(&pb.Cluster{})
		<-s.Context().Done()
		sent <- s.Send(&pb.Cluster{})
		return nil
	}
	s := must(pb.NewControlClient(h.dial(AsPerson(h.token("t1", Read)))).Watch(t.Context(), &pb.WatchRequest{}))
	must(s.Recv())
	h.store.set("t1", func(r *Record) { r.Revoked = true })
	_, err := s.Recv()
	wants(t, err, fault.Denied, "access token t1 was revoked")
	wants(t, <-sent, fault.Denied, "revoked")
}

func TestDialErrors(t *testing.T) {
	h := start(t)
	other := newCA(t, nil)
	nobody := must(net.Listen("tcp", "127.0.0.1:0"))
	free := nobody.Addr().String()
	nobody.Close()
	tok := h.token("t1", Read)
	stolen := must(h.ca.IssueHead("x"))
	future := pki.NewHolder(must(h.ca.IssueHead("x")), nil)
	for _, c := range []struct {
		name, addr string
		creds      Creds
		code       fault.Code
		text       string
		quick      bool
	}{
		{"nobody listens", free, AsPerson(tok), fault.Unavailable, "refused", false},
		{"another cluster's pin", h.addr, AsNewcomer(other.Pin()), fault.Denied, "authority's hash differs", true},
		{"another cluster's token", h.addr, AsPerson(must(pki.NewToken(pki.Access, "t1", other.Pin()))), fault.Denied, "authority's hash differs", true},
		{"no TLS", foreign(t, nil), AsPerson(tok), fault.Denied, "no TLS at this address", true},
		{"old TLS", foreign(t, &tls.Config{Certificates: []tls.Certificate{*stolen}, MaxVersion: tls.VersionTLS12}), AsPerson(tok), fault.Denied, "TLS", true},
		{"a node that serves", foreign(t, &tls.Config{Certificates: []tls.Certificate{*node(t, h.ca, "n7", 1).Certificate()}}), AsPerson(tok), fault.Denied, "not good", true},
		{"my clock is behind", h.addr, AsPerson(tok).WithClock(func() time.Time { return time.Now().Add(-time.Hour) }), fault.Denied, "behind the head's", true},
		{"my clock is ahead", h.addr, AsNode(future, h.ca.Pin).WithClock(func() time.Time { return time.Now().Add(72 * time.Hour) }), fault.Denied, "48h0m ahead of the head's", true},
		{"no port", "10.0.0.1", AsPerson(tok), fault.Invalid, "no address of a head", true},
		{"a socket with a token", "unix:" + h.sock, AsPerson(tok), fault.Invalid, "takes no token", true},
		{"TCP without a token", h.addr, AtSocket(), fault.Invalid, "needs an access token", true},
		{"no socket", "unix:" + h.sock + "x", AtSocket(), fault.Unavailable, "no such file", false},
		{"no credentials", h.addr, Creds{}, fault.Internal, "no credentials", true},
	} {
		limit := 20 * time.Second
		if !c.quick {
			limit = 300 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		conn, err := Dial(ctx, c.addr, c.creds)
		if err == nil {
			conn.Close()
		}
		if c.quick && ctx.Err() != nil {
			t.Errorf("%s: it went on trying", c.name)
		}
		cancel()
		wants(t, err, c.code, c.text)
		if c.code != fault.Internal && !strings.Contains(err.Error(), strings.TrimPrefix(c.addr, "unix:")) {
			t.Errorf("%s: the error does not name the address: %v", c.name, err)
		}
		if strings.Contains(err.Error(), strings.Split(tok.Bearer(), ".")[1]) {
			t.Errorf("%s: the secret is in the error", c.name)
		}
	}
}

// Whoever gives up is heard at once: while dialling into nothing, and in calls that wait.
func TestContexts(t *testing.T) {
	silent := must(net.Listen("tcp", "127.0.0.1:0")) // takes connections in the kernel only
	defer silent.Close()
	ca := newCA(t, nil)
	errStop := errors.New("stop")
	for what, addr := range map[string]string{"silent": silent.Addr().String()} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var err error
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err = Dial(ctx, addr, AsNewcomer(ca.Pin()))
		})
		began := time.Now()
		cancel(errStop)
		wg.Wait()
		took := time.Since(began)
		if fault.CodeOf(err) != fault.Canceled || !errors.Is(err, errStop) || took > time.Second {
			t.Errorf("%s: %v after %v", what, err, took)
		}
	}
	short, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer end()
	_, err := Dial(short, silent.Addr().String(), AsNewcomer(ca.Pin()))
	wants(t, err, fault.Unavailable, silent.Addr().String(), "does not answer")
	h := start(t)
	entered := make(chan struct{})
	h.drain = func(ctx context.Context, _ *pb.DrainRequest) (*pb.Empty, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c := pb.NewControlClient(h.dial(AtSocket()))
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _, err = c.Drain(ctx, &pb.DrainRequest{}) })
	<-entered
	cancel(errStop)
	wg.Wait()
	if fault.CodeOf(err) != fault.Canceled || !errors.Is(err, errStop) {
		t.Errorf("%v", err)
	}
}

func TestSockets(t *testing.T) {
	h := start(t)
	wants(t, h.srv.ListenUnix(h.sock), fault.Exists, "another head serves this socket")
	dir := filepath.Dir(h.sock)
	wants(t, h.srv.ListenUnix(filepath.Join(dir, strings.Repeat("x", 120))), fault.Invalid, "at most 100 bytes")
	os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)
	wants(t, h.srv.ListenUnix(filepath.Join(dir, "file")), fault.Exists, "is no socket")
	os.Mkdir(filepath.Join(dir, "open"), 0o755)
	wants(t, h.srv.ListenUnix(filepath.Join(dir, "open", "s")), fault.Denied, "chmod 700")
	if m := must(os.Stat(h.sock)).Mode().Perm(); m != 0o600 {
		t.Errorf("mode %o", m)
	}
	// What a head that was killed left is replaced.
	left := filepath.Join(dir, "left")
	l := must(net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"}))
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := h.srv.ListenUnix(left); err != nil {
		t.Error(err)
	}
	_, err := h.srv.ListenTLS(h.addr)
	wants(t, err, fault.Exists, h.addr)
	_, err = h.srv.ListenTLS("no such host.invalid:1")
	wants(t, err, fault.Invalid, "cannot listen")
}

// A connection that none of the listeners made is refused, whatever it is.
func TestOnlyOurConnections(t *testing.T) {
	h := start(t)
	a, b := net.Pipe()
	defer b.Close()
	_, _, err := newServerCreds(pki.ServerTLS(h.holder, h.ca), h.ca, h.srv.gate).ServerHandshake(a)
	wants(t, err, fault.Internal, "no listener of package rpc")
}

func TestStop(t *testing.T) {
	h := start(t)
	entered := make(chan struct{})
	h.watch = func(s grpc.ServerStreamingServer[pb.Cluster]) error {
		close(entered)
		<-s.Context().Done()
		return s.Context().Err()
	}
	s := must(pb.NewControlClient(h.dial(AtSocket())).Watch(t.Context(), &pb.WatchRequest{}))
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.srv.Stop(ctx)
	_, err := s.Recv()
	wants(t, err, fault.Unavailable)
	if _, err := os.Stat(h.sock); err == nil {
		t.Error("the socket is still there")
	}
	conn := must(h.srv.Node(pki.Identity{Cluster: "c1", Role: pki.Node, Node: "n1"}))
	defer conn.Close()
	_, err = pb.NewNodeClient(conn).Renew(t.Context(), &pb.RenewRequest{})
	wants(t, err, fault.Unavailable)
	h.srv.Stop(ctx)
}

// A head that went away and came back: the same connection works again, with a certificate that was renewed meanwhile.
func TestReconnect(t *testing.T) {
	h := start(t)
	h.renew = func(ctx context.Context, _ *pb.RenewRequest) (*pb.RenewReply, error) {
		return &pb.RenewReply{Chain: [][]byte{{byte(PeerOf(ctx).Node.Epoch)}}}, nil
	}
	holder := node(t, h.ca, "n7", 1)
	c := pb.NewNodeClient(h.dial(AsNode(holder, h.ca.Pin)))
	must(c.Renew(t.Context(), &pb.RenewRequest{}))
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	h.srv.Stop(stopped)
	_, err := c.Renew(t.Context(), &pb.RenewRequest{})
	wants(t, err, fault.Unavailable, h.addr)
	holder.Set(node(t, h.ca, "n7", 2).Certificate())
	h.srv = must(NewServer(ServerConfig{CA: h.ca, Holder: h.holder, Tokens: h.store, Log: h.srv.log}, h.register))
	must(h.srv.ListenTLS(h.addr))
	ctx, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	r, err := c.Renew(ctx, &pb.RenewRequest{}, grpc.WaitForReady(true))
	if err != nil || r.Chain[0][0] != 2 {
		t.Errorf("%v %v", r, err)
	}
}

// The other side is silent, its machine gone: the server sees it by itself.
func TestHalfOpen(t *testing.T) {
	h := start(t, func(c *ServerConfig) { c.Limits = Limits{Keepalive: time.Second} })
	ended := make(chan struct{})
	h.attach = func(s grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error {
		defer close(ended)
		s.Send(&pb.FromHead{})
		<-s.Context().Done()
		return s.Context().Err()
	}
	frozen, addr := make(chan struct{}), h.addr
	proxy := must(net.Listen("tcp", "127.0.0.1:0"))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer proxy.Close()
	wg.Go(func() {
		in, err := proxy.Accept()
		if err != nil {
			return
		}
		defer in.Close()
		out := must(net.Dial("tcp", addr))
		defer out.Close()
		wg.Go(func() { io.Copy(in, out) })
		b := make([]byte, 64<<10)
		for {
			n, err := in.Read(b)
			if err != nil {
				return
			}
			select {
			case <-frozen: // swallowed
			default:
				out.Write(b[:n])
			}
		}
	})
	h.addr = proxy.Addr().String()
	conn := h.dial(AsNode(node(t, h.ca, "n7", 1), h.ca.Pin))
	defer conn.Close()
	s := must(pb.NewNodeClient(conn).Attach(t.Context()))
	must(s.Recv())
	close(frozen)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the server does not see that the other side is gone")
	}
}

func TestMeter(t *testing.T) {
	m := newMeter(3, 1)
	now := time.Unix(1000, 0)
	for i := range 3 {
		if m.over("a", now) {
			t.Fatalf("over after %d", i)
		}
		m.add("a", now)
	}
	if !m.over("a", now) || m.over("b", now) || !m.over("a", now.Add(900*time.Millisecond)) || m.over("a", now.Add(1100*time.Millisecond)) {
		t.Error("not 3, forgotten by one a second")
	}
	if m.over("a", now.Add(-time.Hour)); m.over("b", now.Add(-time.Hour)) {
		t.Error("a clock that goes back")
	}
	for i := range 3 * maxKeys {
		m.add(fmt.Sprint(i), now.Add(time.Hour))
	}
	if len(m.keys) > maxKeys {
		t.Errorf("%d keys", len(m.keys))
	}
	if m.over("never seen", now.Add(time.Hour)) {
		t.Error("where there are too many, one that comes pays for others")
	}
	for in, want := range map[string]string{"10.0.0.1:5": "10.0.0.1", "[fd00::1:2]:5": "fd00::1:2 fd00::/64", "[::1]:5": "::1", "[::ffff:10.0.0.1]:5": "10.0.0.1", "[fe80::1%eth0]:5": "fe80::1 fe80::/64"} {
		host, net, two := strings.Cut(want, " ")
		if !two {
			net = host
		}
		if got := hostOf(tcpAddr(in)); got != host || network(got) != net {
			t.Errorf("%s is %s of %s, want %s", in, got, network(got), want)
		}
	}
}

func tcpAddr(s string) net.Addr { return must(net.ResolveTCPAddr("tcp", s)) }
