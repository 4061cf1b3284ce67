package rpc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// Server is the head's.
type Server struct {
	grpc   *grpc.Server
	gate   *gate
	log    *slog.Logger
	limits Limits
	failed chan error
	local  *localListener
	conns  *conns // of all TCP listeners
	ca     *pki.CA
	socket *counter
	wg     sync.WaitGroup
}

// NewServer makes a server of the services that register registers (pb.RegisterNodeServer and its like). It listens nowhere yet; Stop ends it, also then.
func NewServer(cfg ServerConfig, register func(grpc.ServiceRegistrar)) (*Server, error) {
	if cfg.CA == nil || cfg.Holder == nil || cfg.Tokens == nil || cfg.Log == nil {
		return nil, fault.New(fault.Internal, "rpc.NewServer: CA, Holder, Tokens and Log are needed")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l := cfg.Limits.orDefault()
	g := newGate(cfg, l)
	s := &Server{gate: g, ca: cfg.CA, log: cfg.Log, limits: l, failed: make(chan error, 1), conns: newConns(l.Connections, l.Strangers, cfg.Now), socket: &counter{max: l.Connections}}
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()),
		grpc.Creds(newServerCreds(pki.ServerTLS(cfg.Holder, cfg.CA), cfg.CA, g)),
		grpc.InTapHandle(g.tap),
		grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream),
		grpc.ConnectionTimeout(l.Handshake),
		grpc.MaxRecvMsgSize(l.Message), grpc.MaxSendMsgSize(l.Message), grpc.MaxConcurrentStreams(l.Streams), grpc.MaxHeaderListSize(l.Header),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: l.Keepalive, Timeout: l.Keepalive / 2, MaxConnectionIdle: l.Idle}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	register(s.grpc)
	if err := check(s.grpc.GetServiceInfo()); err != nil {
		s.grpc.Stop()
		return nil, err
	}
	s.local = newLocalListener()
	s.serve(s.local)
	return s, nil
}

// minPing is how often a client may ask whether the server is there.
const minPing = 4 * time.Second

// Listen takes a TCP address (host:port; port 0 takes a free one) for [Server.ServeTLS]; who connects waits for that. Exists: another has it.
func Listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch code := listenCode(err); {
	case err == nil:
		return l, nil
	case code == fault.Exists:
		return nil, fault.New(code, "cannot listen at %s: %w: give another port with --listen", addr, err)
	default:
		return nil, fault.New(code, "cannot listen at %s: %w", addr, err)
	}
}

// ListenTLS begins to serve at a TCP address, and returns it.
func (s *Server) ListenTLS(addr string) (net.Addr, error) {
	l, err := Listen(addr)
	if err != nil {
		return nil, err
	}
	s.ServeTLS(l)
	return l.Addr(), nil
}

// ServeTLS begins to serve where l listens, and takes it over.
func (s *Server) ServeTLS(l net.Listener) {
	s.serve(&listener{Listener: l, most: s.conns.max, gate: s.gate, add: func(c net.Conn) net.Conn {
		if x := s.conns.add(c.(*net.TCPConn), s.limits.Unproved); x != nil {
			return x
		}
		return nil
	}})
}

// Cut closes the connections that were made with a certificate of an authority that is believed no
// more: who has one of another makes them again.
func (s *Server) Cut() { s.conns.cut(s.ca) }

// maxSocket is the most bytes of a socket's path that all systems take.
const maxSocket = 100

// ListenUnix begins to serve at a unix socket, whose folder must be private (mode 0700). A socket that nobody serves any more is replaced; one that is served is an error ([fault.Exists]).
func (s *Server) ListenUnix(path string) error {
	at := fault.Place{File: path}
	if len(path) > maxSocket {
		return fault.New(fault.Invalid, "the path of a socket has at most %d bytes, this one %d: take a shorter folder", maxSocket, len(path)).At(at)
	}
	if err := pki.Private(filepath.Dir(path)); err != nil {
		return err
	}
	if fi, err := os.Lstat(path); err == nil {
		if fi.Mode().Type() != os.ModeSocket {
			return fault.New(fault.Exists, "is there and is no socket").At(at)
		}
		if c, err := net.DialTimeout("unix", path, s.limits.Handshake); err == nil {
			c.Close()
			return fault.New(fault.Exists, "another head serves this socket").At(at)
		}
		if err := os.Remove(path); err != nil {
			return fault.Wrap(err, at)
		}
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return fault.New(listenCode(err), "cannot listen: %w", err).At(at)
	}
	s.serve(&listener{Listener: l, most: s.socket.max, gate: s.gate, add: func(c net.Conn) net.Conn {
		if !s.socket.add() {
			return nil
		}
		return &unixConn{UnixConn: c.(*net.UnixConn), done: sync.OnceFunc(s.socket.done)}
	}})
	return nil
}

// Node connects the agent that is in the head's own process, as the node id. The caller closes the connection.
func (s *Server) Node(id pki.Identity) (*Conn, error) {
	return newConn("this process", &localCreds{}, nil, func(ctx context.Context, _ string) (net.Conn, error) { return s.local.dial(ctx, id) })
}

// Failed gives the error of a listener that ended by itself.
func (s *Server) Failed() <-chan error { return s.failed }

// Stop takes no new connections and calls, and waits for those that are there; when ctx ends they are cut off. It returns when all handlers have.
func (s *Server) Stop(ctx context.Context) {
	stop := context.AfterFunc(ctx, s.grpc.Stop)
	s.grpc.GracefulStop()
	stop()
	s.wg.Wait()
}

func (s *Server) serve(l net.Listener) {
	s.wg.Go(func() {
		if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.log.Error("a listener ended", "address", l.Addr().String(), "error", err)
			select {
			case s.failed <- err:
			default:
			}
		}
	})
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
	defer func() { resp, err = s.end(ctx, info.FullMethod, req, resp, recover(), err) }()
	if err := admitted(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	if err := awaitedOf(ctx).came(); err != nil {
		return nil, err
	}
	return h(ctx, req)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
	defer func() { _, err = s.end(ss.Context(), info.FullMethod, nil, nil, recover(), err) }()
	if err := admitted(ss.Context(), info.FullMethod); err != nil {
		return err
	}
	p := PeerOf(ss.Context())
	ss = &paced{ServerStream: ss, call: awaitedOf(ss.Context()), upload: info.IsClientStream && !info.IsServerStream}
	if p.Kind != Person {
		return h(srv, ss)
	}
	ctx, cancel := context.WithCancelCause(ss.Context())
	var watch sync.WaitGroup
	watch.Go(func() { s.gate.watch(ctx, p, cancel) })
	err = h(srv, &judged{ss, ctx})
	if cause := context.Cause(ctx); cause != nil && ss.Context().Err() == nil {
		err = cause // the token ended: not what the handler made of it
	}
	cancel(nil)
	watch.Wait()
	return err
}

// end turns a panic into an error, and errors into what travels.
func (s *Server) end(ctx context.Context, method string, req, resp any, panicked any, err error) (any, error) {
	if panicked != nil {
		s.log.Error("a handler panicked", "method", method, "peer", PeerOf(ctx).String(), "panic", panicked, "stack", string(debug.Stack()))
		resp, err = nil, fault.New(fault.Internal, "the head failed in %s: a bug in Penstock; its log has the stack", method)
	}
	if err != nil {
		err = s.gate.answered(PeerOf(ctx), method, err)
		s.gate.tell(PeerOf(ctx), method, req, err)
	}
	return resp, toStatus(err)
}

// paced is a stream whose first message, and of an upload each one, has its time.
type paced struct {
	grpc.ServerStream
	call   *awaited
	upload bool
	begun  bool
}

func (p *paced) RecvMsg(m any) error {
	if p.begun && p.upload {
		p.call.wait()
	}
	err := p.ServerStream.RecvMsg(m)
	if !p.begun || p.upload {
		p.begun = true
		err = cmp.Or(err, p.call.came())
	}
	return err
}

// judged is a stream that ends with its token.
type judged struct {
	grpc.ServerStream
	ctx context.Context
}

func (j *judged) Context() context.Context { return j.ctx }

func (j *judged) SendMsg(m any) error {
	if j.ctx.Err() != nil {
		return context.Cause(j.ctx)
	}
	return j.ServerStream.SendMsg(m)
}

func (j *judged) RecvMsg(m any) error {
	if j.ctx.Err() != nil {
		return context.Cause(j.ctx)
	}
	return j.ServerStream.RecvMsg(m)
}

// listener closes connections that there is no room for.
type listener struct {
	net.Listener
	most int
	gate *gate
	add  func(net.Conn) net.Conn // nil: there is no room for it
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if x := l.add(c); x != nil {
			return x, nil
		}
		l.gate.logLimited("a connection was refused: too many are open", "address", c.RemoteAddr().String(), "most", l.most)
		c.Close()
	}
}

type counter struct {
	mu     sync.Mutex
	n, max int
}

func (c *counter) add() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == c.max {
		return false
	}
	c.n++
	return true
}

func (c *counter) done() {
	c.mu.Lock()
	c.n--
	c.mu.Unlock()
}

// The other kinds of connections that a server has; credentials go by them.
type (
	unixConn struct {
		*net.UnixConn
		done func()
	}
	localConn struct {
		net.Conn
		id pki.Identity
	}
)

func (c *unixConn) Close() error { defer c.done(); return c.UnixConn.Close() }

// localListener hands over connections within the process.
type localListener struct {
	conns chan net.Conn
	end   chan struct{}
	once  sync.Once
}

func newLocalListener() *localListener {
	return &localListener{conns: make(chan net.Conn), end: make(chan struct{})}
}

func (l *localListener) dial(ctx context.Context, id pki.Identity) (net.Conn, error) {
	here, there, err := pair()
	if err != nil {
		return nil, err
	}
	select {
	case l.conns <- &localConn{there, id}:
		return here, nil
	case <-l.end:
		err = io.ErrClosedPipe
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	here.Close()
	there.Close()
	return nil, err
}

func (l *localListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.end:
		return nil, net.ErrClosed
	}
}

func (l *localListener) Close() error   { l.once.Do(func() { close(l.end) }); return nil }
func (l *localListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func listenCode(err error) fault.Code {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fault.Exists
	case errors.Is(err, fs.ErrPermission):
		return fault.Denied
	}
	return fault.Invalid
}
