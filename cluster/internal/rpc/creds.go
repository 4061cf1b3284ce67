package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc/credentials"
)

// authInfo is what is known of a connection.
type authInfo struct {
	credentials.CommonAuthInfo
	peer Peer
	conn *tcpConn // nil: it is of this machine
}

func (authInfo) AuthType() string { return "penstock" }

func info(level credentials.SecurityLevel, p Peer) authInfo {
	return authInfo{credentials.CommonAuthInfo{SecurityLevel: level}, p, nil}
}

// serverCreds judges connections by where they came from; one that none of our listeners made is refused.
type serverCreds struct {
	tls  credentials.TransportCredentials
	ca   *pki.CA
	gate *gate
}

func newServerCreds(c *tls.Config, ca *pki.CA, g *gate) *serverCreds {
	return &serverCreds{credentials.NewTLS(c), ca, g}
}

func (c *serverCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	switch conn := raw.(type) {
	case *tcpConn:
		host := hostOf(conn.RemoteAddr())
		secure, a, err := c.tls.ServerHandshake(raw)
		if err != nil {
			if !errors.Is(err, io.EOF) { // somebody looked whether the port is open
				c.gate.logLimited("a handshake failed", "address", conn.RemoteAddr().String(), "why", err)
			}
			return nil, nil, err
		}
		p := Peer{Kind: Newcomer, Host: host, Here: hostOf(conn.LocalAddr())}
		if state := a.(credentials.TLSInfo).State; len(state.PeerCertificates) > 0 {
			if p.Node, err = pki.PeerNode(state); err != nil {
				secure.Close()
				return nil, nil, err
			}
			p.Kind = Node
			conn.shown.Store(state.PeerCertificates[0])
			if !conn.believed(c.ca) { // no more, since the handshake began
				secure.Close()
				return nil, nil, fault.New(fault.Denied, "the authority of the certificate of %s was replaced", p)
			}
			if err := conn.provedNode(p.Node.Node); err != nil {
				c.gate.logLimited("a connection was refused", "address", conn.RemoteAddr().String(), "why", err)
				secure.Close()
				return nil, nil, err
			}
		}
		i := info(credentials.PrivacyAndIntegrity, p)
		i.conn = conn
		return secure, i, nil
	case *unixConn:
		uid, err := peerUID(conn.UnixConn)
		if err == nil && uid != os.Geteuid() && uid != 0 {
			err = fault.New(fault.Denied, "user %d may not use the socket of user %d", uid, os.Geteuid())
		}
		if err != nil {
			c.gate.logLimited("a caller at the socket was refused", "why", err)
			raw.Close()
			return nil, nil, err
		}
		return raw, info(credentials.PrivacyAndIntegrity, Peer{Kind: Local, Scope: Admin, UID: uid}), nil
	case *localConn:
		return raw, info(credentials.PrivacyAndIntegrity, Peer{Kind: Node, Node: conn.id}), nil
	}
	raw.Close()
	return nil, nil, fault.New(fault.Internal, "a connection of type %T came from no listener of package rpc", raw)
}

func (c *serverCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fault.New(fault.Internal, "these are a server's credentials")
}
func (c *serverCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "penstock"}
}
func (c *serverCreds) Clone() credentials.TransportCredentials { return c }
func (c *serverCreds) OverrideServerName(string) error         { return nil }

// clientSide is what the credentials of clients have in common.
type clientSide struct{}

func (clientSide) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fault.New(fault.Internal, "these are a client's credentials")
}
func (clientSide) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "penstock"}
}
func (clientSide) OverrideServerName(string) error { return nil }

// tlsCreds remembers why the last handshake failed: gRPC keeps the text only.
type tlsCreds struct {
	clientSide
	tls  credentials.TransportCredentials
	last *lastError
}

func (c *tlsCreds) Clone() credentials.TransportCredentials { return c }

func (c *tlsCreds) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, a, err := c.tls.ClientHandshake(ctx, authority, raw)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fault.New(fault.Unavailable, "%w in the TLS handshake", errSilent)
		} else if remoteAlert(err) {
			err = fault.New(fault.Denied, "TLS: %w: at this address is no head of this version of Penstock", err)
		} else if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			err = fault.New(fault.Unavailable, "the connection was closed in the TLS handshake: the head has too many connections, or there is no head at this address")
		}
		if re, ok := errors.AsType[tls.RecordHeaderError](err); ok {
			err = fault.New(fault.Denied, "there is no TLS at this address, so no head: %w", re)
		}
		c.last.set(err)
		return nil, nil, err
	}
	return &watched{Conn: secure, last: c.last}, a, nil
}

// remoteAlert says that the other side refused the handshake.
func remoteAlert(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// watched sees a server refuse the client's certificate, which in TLS 1.3 comes after the handshake.
type watched struct {
	net.Conn
	last *lastError
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	switch {
	case err != nil && remoteAlert(err):
		w.last.set(fault.New(fault.Denied, "the head refuses this machine's certificate (%w): it has ended, or is of another cluster; join again", err))
	case err != nil:
		w.last.set(fault.New(fault.Unavailable, "the connection ended: %w", err))
	}
	return n, err
}

// socketCreds are for the unix socket: the server must be this user's, or root's.
type socketCreds struct {
	clientSide
	last *lastError
}

func (c *socketCreds) Clone() credentials.TransportCredentials { return c }

func (c *socketCreds) ClientHandshake(_ context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	uid, err := peerUID(raw.(*net.UnixConn))
	if err == nil && uid != os.Geteuid() && uid != 0 && os.Geteuid() != 0 {
		err = fault.New(fault.Denied, "the socket is served by user %d, who is not you", uid)
	}
	if err != nil {
		c.last.set(err)
		return nil, nil, err
	}
	return raw, info(credentials.PrivacyAndIntegrity, Peer{}), nil
}

// localCreds are for connections within the process.
type localCreds struct{ clientSide }

func (c *localCreds) Clone() credentials.TransportCredentials { return c }
func (c *localCreds) ClientHandshake(_ context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return raw, info(credentials.PrivacyAndIntegrity, Peer{}), nil
}

// bearer shows an access token with every call, over TLS only.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": bearerLabel + string(b)}, nil
}
func (bearer) RequireTransportSecurity() bool { return true }

// lastError is why there is no connection. What was said in an earlier try stands until the next one says something; within a try nothing takes the place of a judgement.
type lastError struct {
	mu    sync.Mutex
	err   error
	stale bool
	wake  func() // called at a judgement
}

// begin starts a try.
func (l *lastError) begin() {
	l.mu.Lock()
	l.stale = true
	l.mu.Unlock()
}

func (l *lastError) set(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stale && permanent(l.err) {
		return
	}
	l.err, l.stale = err, false
	if permanent(err) && l.wake != nil {
		l.wake()
	}
}

func (l *lastError) get() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *lastError) onJudgement(wake func()) {
	l.mu.Lock()
	l.wake = wake
	l.mu.Unlock()
}
