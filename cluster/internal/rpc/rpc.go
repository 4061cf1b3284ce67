// Package rpc makes the gRPC servers and connections of a cluster; nothing else does.
//
// A [Server] judges every call before it reads a byte of its message: who calls (a node's certificate, an access token, the unix socket, nothing), and whether the method's policy admits that
// peer. What has no policy is refused, and a server with such a method does not start. There is TLS 1.3 on every TCP port; the interface has no way to open one without.
//
// Errors travel as fault codes with their text. A handler sees who calls in its context ([PeerOf]).
package rpc

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pki"
)

// Protocol is the version of what heads, agents and people say to each other. Every call has it, and a head refuses those of another before it looks at anything else: so it must be the same on all machines of a cluster,
// and on those that people ask from.
//
// Raise it whenever two releases could misunderstand each other: a message or field that one of them has to know, the meaning of one that there is, what may follow what. A field that can be left out, and left unread, needs no
// other number.
const Protocol = 3

// protocolKey is the header with the number.
const protocolKey = "penstock-protocol"

// Record is what a store has of an access token.
type Record struct {
	Hash     pki.Hash
	Scope    Scope
	Ends     time.Time // zero: never
	Revoked  bool
	Replaced bool   // it names an authority that is believed no more
	Owner    string // whose jobs are those that it submits
	Project  string // the only one that it is for; "": all
}

// Tokens knows the access tokens. Lookup gives the record of an id, [fault.NotFound] where there is none; join tokens are none. It is called for every call that shows a token, while the connection
// of the caller waits: it answers from memory.
type Tokens interface {
	Lookup(ctx context.Context, id string) (Record, error)
}

// Limits of a server. Zero fields are those of [DefaultLimits].
type Limits struct {
	Message     int           // bytes
	Streams     uint32        // calls at once, of a connection
	Connections int           // at once, on all TCP ports together; and as many again on unix sockets
	Strangers   int           // of them, those from one network that have not proved who calls
	Newcomers   int           // calls of newcomers at once
	Header      uint32        // bytes of a call's headers
	Handshake   time.Duration // from accepting a connection to its first frame
	Unproved    time.Duration // after which a TCP connection is closed that has shown neither a node's certificate nor a good token
	Body        time.Duration // from a call's headers to its message, and from one part of an upload to the next
	Idle        time.Duration // of a connection without calls, which is then closed
	Keepalive   time.Duration // silence after which the other side is asked whether it is there; half of it later the connection is lost
}

// DefaultLimits are what docs/design/0005-cluster.md says.
var DefaultLimits = Limits{
	Message: 4 << 20, Streams: 64, Connections: 1000, Strangers: 256, Newcomers: 32, Header: 16 << 10, Handshake: 5 * time.Second, Unproved: 30 * time.Second, Body: 20 * time.Second, Idle: 5 * time.Minute, Keepalive: 10 * time.Second,
}

func (l Limits) orDefault() Limits {
	d := DefaultLimits
	l.Message = cmp.Or(l.Message, d.Message)
	l.Streams = cmp.Or(l.Streams, d.Streams)
	l.Connections = cmp.Or(l.Connections, d.Connections)
	l.Strangers = cmp.Or(l.Strangers, d.Strangers)
	l.Newcomers = cmp.Or(l.Newcomers, d.Newcomers)
	l.Header = cmp.Or(l.Header, d.Header)
	l.Handshake = cmp.Or(l.Handshake, d.Handshake)
	l.Unproved = cmp.Or(l.Unproved, d.Unproved)
	l.Body = cmp.Or(l.Body, d.Body)
	l.Idle = cmp.Or(l.Idle, d.Idle)
	l.Keepalive = cmp.Or(l.Keepalive, d.Keepalive)
	return l
}

// ServerConfig is what a server needs.
type ServerConfig struct {
	CA     *pki.CA     // whose nodes are believed
	Holder *pki.Holder // the head's certificate
	Tokens Tokens
	Limits Limits
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now

	// Refused gets calls that were denied, and those of audited methods that failed because of what
	// they asked; request is nil where none was read. It must not wait. nil: nobody does.
	Refused func(p Peer, method string, request any, err error)
}

type peerKey struct{}

// PeerOf is who calls, in the context of a handler; elsewhere Nobody.
func PeerOf(ctx context.Context) Peer {
	p, _ := ctx.Value(peerKey{}).(Peer)
	return p
}
