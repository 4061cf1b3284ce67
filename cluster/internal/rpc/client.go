package rpc

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// Creds say who calls, and how the head is recognised.
type Creds struct {
	holder   *pki.Holder
	pin      func() pki.Pin
	token    pki.Token
	socket   bool
	set      bool
	now      func() time.Time
	protocol int // 0: Protocol
}

// AsNewcomer shows nothing: for Join. The head is known by its pin.
func AsNewcomer(pin pki.Pin) Creds { return Creds{pin: fixed(pin), set: true} }

// AsNode shows the certificate that h holds when a connection is made, to a head of the authority
// that pin says then.
func AsNode(h *pki.Holder, pin func() pki.Pin) Creds { return Creds{holder: h, pin: pin, set: true} }

// AsPerson shows an access token, to the head of the pin that it carries.
func AsPerson(t pki.Token) Creds { return Creds{token: t, pin: fixed(t.Pin), set: true} }

func fixed(pin pki.Pin) func() pki.Pin { return func() pki.Pin { return pin } }

// AtSocket is for the unix socket on the head's machine.
func AtSocket() Creds { return Creds{socket: true, set: true} }

// WithClock is c with another clock than time.Now, for judging the head's certificate.
func (c Creds) WithClock(now func() time.Time) Creds { c.now = now; return c }

// WithProtocol is c of a release with another number than [Protocol].
func (c Creds) WithProtocol(n int) Creds { c.protocol = n; return c }

// Conn is a connection to a head, made again whenever it breaks: calls fail meanwhile ([fault.Unavailable], or [fault.Denied] where the other side was judged and refused). Use it as the connection
// of a pb client. Errors are faults, as the head's handler gave them.
type Conn struct {
	cc       *grpc.ClientConn
	addr     string
	protocol string
	last     lastError
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

const (
	dialTime  = 5 * time.Second // of one try
	pauseMin  = 100 * time.Millisecond
	pauseMax  = 5 * time.Second
	headerMax = 64 << 10 // an error's text is in it
)

// Dial connects to a head: at host:port, or with AtSocket at unix:PATH. It goes on trying until ctx ends, but for what trying again does not mend: a head of another cluster, a clock that is wrong,
// a certificate that is refused. Errors name the address and the last reason. The caller closes the connection.
func Dial(ctx context.Context, addr string, c Creds) (*Conn, error) {
	path, isPath := strings.CutPrefix(addr, "unix:")
	switch {
	case !c.set:
		return nil, fault.New(fault.Internal, "rpc.Dial: no credentials")
	case c.socket != isPath && isPath:
		return nil, fault.New(fault.Invalid, "%s is a socket on this machine: it takes no token and no certificate", addr)
	case c.socket != isPath:
		return nil, fault.New(fault.Invalid, "%s is not a socket (unix:PATH): calling a head over the network needs an access token", addr)
	case !isPath:
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			return nil, fault.New(fault.Invalid, "%q is no address of a head: host:port, or unix:PATH", addr)
		}
	}
	conn := &Conn{addr: addr, protocol: strconv.Itoa(cmp.Or(c.protocol, Protocol))}
	var creds credentials.TransportCredentials = &socketCreds{last: &conn.last}
	network, target := "unix", path
	if !isPath {
		creds = &tlsCreds{tls: credentials.NewTLS(pki.ClientTLS(c.holder, c.pin, c.now)), last: &conn.last}
		network, target = "tcp", addr
	}
	var token credentials.PerRPCCredentials
	if !c.token.IsZero() {
		token = bearer(c.token.Bearer())
	}
	err := conn.open(creds, token, func(ctx context.Context, _ string) (net.Conn, error) {
		conn.last.begin()
		raw, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, network, target)
		if err != nil {
			conn.last.set(err)
		}
		return raw, err
	})
	if err != nil {
		return nil, err
	}
	if err := conn.wait(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// newConn is a connection that dial makes; it is not waited for.
func newConn(addr string, creds credentials.TransportCredentials, token credentials.PerRPCCredentials, dial func(context.Context, string) (net.Conn, error)) (*Conn, error) {
	c := &Conn{addr: addr, protocol: strconv.Itoa(Protocol)}
	return c, c.open(creds, token, dial)
}

func (c *Conn) open(creds credentials.TransportCredentials, token credentials.PerRPCCredentials, dial func(context.Context, string) (net.Conn, error)) (err error) {
	o := []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithContextDialer(dial), grpc.WithAuthority("penstock"),
		grpc.WithNoProxy(), grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: pauseMin, Multiplier: 1.6, Jitter: 0.2, MaxDelay: pauseMax}, MinConnectTimeout: dialTime}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: DefaultLimits.Keepalive, Timeout: DefaultLimits.Keepalive / 2}),
		grpc.WithMaxHeaderListSize(headerMax),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(DefaultLimits.Message), grpc.MaxCallSendMsgSize(DefaultLimits.Message)),
	}
	if token != nil {
		o = append(o, grpc.WithPerRPCCredentials(token))
	}
	c.cc, err = grpc.NewClient("passthrough:///"+c.addr, o...)
	if err != nil {
		return fault.New(fault.Invalid, "the head at %s: %w", c.addr, err)
	}
	return nil
}

var errSilent = errors.New("it does not answer")

// wait returns when the connection is there, or will not be.
func (c *Conn) wait(ctx context.Context) error {
	judged, wake := context.WithCancel(ctx)
	defer wake()
	c.last.onJudgement(wake) // gRPC's state stays the same from the first failure to the first success
	defer c.last.onJudgement(nil)
	c.cc.Connect()
	for state := c.cc.GetState(); state != connectivity.Ready; state = c.cc.GetState() {
		if state == connectivity.Idle {
			c.cc.Connect()
		}
		if c.cc.WaitForStateChange(judged, state) {
			continue
		}
		last, cause := c.last.get(), context.Cause(ctx)
		switch {
		case permanent(last):
			return c.named(last)
		case !errors.Is(cause, context.DeadlineExceeded):
			return fault.New(fault.Canceled, "the head at %s: %w", c.addr, cause)
		case last == nil || errors.Is(last, context.Canceled):
			last = errSilent
		}
		return fault.New(fault.Unavailable, "the head at %s cannot be reached: %w", c.addr, last)
	}
	return nil
}

func (c *Conn) named(err error) error {
	return fault.New(fault.CodeOf(err), "the head at %s: %w", c.addr, err)
}

// Hurry has a connection that is broken tried again at once, whatever its pause between tries has come to: for callers that pause themselves.
func (c *Conn) Hurry() { c.cc.ResetConnectBackoff() }

// Close ends the connection and its calls.
func (c *Conn) Close() error { return c.cc.Close() }

// fault makes a fault of a call's error; where there is no connection it says why.
func (c *Conn) fault(ctx context.Context, err error) error {
	err = fromStatus(ctx, c.addr, err)
	if fault.CodeOf(err) == fault.Unavailable && c.cc.GetState() == connectivity.TransientFailure {
		if last := c.last.get(); permanent(last) {
			return c.named(last)
		}
	}
	return err
}

// says is ctx of a call, with the number of the protocol.
func (c *Conn) says(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, protocolKey, c.protocol)
}

// Invoke is for pb clients.
func (c *Conn) Invoke(ctx context.Context, method string, in, out any, o ...grpc.CallOption) error {
	return c.fault(ctx, c.cc.Invoke(c.says(ctx), method, in, out, o...))
}

// NewStream is for pb clients.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, o ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.cc.NewStream(c.says(ctx), desc, method, o...)
	if err != nil {
		return nil, c.fault(ctx, err)
	}
	return &stream{s, c, ctx}, nil
}

type stream struct {
	grpc.ClientStream
	c   *Conn
	ctx context.Context // the caller's: the stream's own is done when the stream is
}

// SendMsg gives io.EOF where the stream has ended: RecvMsg has the reason.
func (s *stream) SendMsg(m any) error { return s.c.fault(s.ctx, s.ClientStream.SendMsg(m)) }
func (s *stream) RecvMsg(m any) error { return s.c.fault(s.ctx, s.ClientStream.RecvMsg(m)) }
