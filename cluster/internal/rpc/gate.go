package rpc

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
)

// gate judges who may call what.
type gate struct {
	tokens    Tokens
	log       *slog.Logger
	now       func() time.Time
	newcomers *lobby
	body      time.Duration // that a call's message may take
	refused   func(p Peer, method string, request any, err error)
	hosts     *meter        // failures by host
	lines     *meter        // of the log
	again     time.Duration // between two looks at the token of a call that goes on
	mu        sync.Mutex
	silent    int // lines left out since the last
}

const (
	failures    = 20 // of a host, before it has to wait
	perSecond   = 2  // how many of them are forgotten in a second
	logLines    = 20 // of refusals at once; then one each half second
	lookupTime  = 2 * time.Second
	judgeAgain  = 30 * time.Second // a token whose call goes on
	bearerLabel = "Bearer "
)

func newGate(cfg ServerConfig, l Limits) *gate {
	return &gate{tokens: cfg.Tokens, log: cfg.Log, now: cfg.Now, refused: cfg.Refused, newcomers: &lobby{max: l.Newcomers}, body: l.Body, hosts: newMeter(failures, perSecond), lines: newMeter(logLines, perSecond), again: judgeAgain}
}

// tap runs before anything of a call is read but its headers. The context that it returns is the handler's.
func (g *gate) tap(ctx context.Context, info *tap.Info) (_ context.Context, err error) {
	defer func() {
		if p := recover(); p != nil {
			g.log.Error("judging a call panicked", "method", info.FullMethodName, "panic", p, "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, "the head failed: a bug in Penstock; its log has the stack")
		}
		err = toStatus(err)
	}()
	var a authInfo
	if at, ok := peer.FromContext(ctx); ok {
		a, _ = at.AuthInfo.(authInfo)
	}
	if err := spoken(info.Header[protocolKey]); err != nil {
		g.logLimited("a call of "+a.peer.String()+" was refused", "method", info.FullMethodName, "peer", a.peer.String(), "why", err)
		return nil, statusAs(codes.FailedPrecondition, err)
	}
	p, err := g.identify(ctx, a, info.Header["authorization"])
	if err != nil && fault.CodeOf(err) == fault.Denied {
		err = g.failed(p, err)
	}
	if err == nil {
		pol, ok := policies[info.FullMethodName]
		if !ok {
			err = fault.New(fault.Unsupported, "the head knows no call %.100q: both sides must be of the same version of Penstock", info.FullMethodName)
		} else {
			err = pol.admits(p)
		}
		if err == nil {
			ctx, err = g.await(ctx, p, a.conn)
		}
	}
	if err != nil {
		g.logLimited("a call of "+p.String()+" was refused", "method", info.FullMethodName, "peer", p.String(), "why", err)
		g.tell(p, info.FullMethodName, nil, err)
		return nil, err
	}
	return context.WithValue(ctx, peerKey{}, p), nil
}

// admitted is the second look, in the handler's own goroutine: whatever way a call came, its peer was judged for this method.
func admitted(ctx context.Context, method string) error {
	pol, ok := policies[method]
	p := PeerOf(ctx)
	if !ok || p.Kind == Nobody {
		return fault.New(fault.Denied, "nobody may call %.100q", method)
	}
	return pol.admits(p)
}

// spoken refuses a caller that does not speak this head's protocol, by the header in which it says which.
func spoken(says []string) error {
	said := strings.Join(says, ",")
	n, err := strconv.Atoi(said)
	older := "on the caller's machine"
	switch {
	case err == nil && n == Protocol:
		return nil
	case err == nil && n > Protocol:
		older = "on the head's machine"
	case said == "":
		said = "0 (it says none, as releases before protocol 3)"
	case err != nil:
		said = strconv.Quote(said[:min(len(said), 20)])
	}
	return fault.New(fault.Unsupported, "the caller speaks protocol %s of clusters and the head protocol %d: update Penstock %s, where the release is the older one (penstock version, on both, says which it is)", said, Protocol, older)
}

func (g *gate) identify(ctx context.Context, a authInfo, authorization []string) (Peer, error) {
	p := a.peer
	switch {
	case p.Kind == Nobody:
		return p, fault.New(fault.Denied, "the connection was not judged")
	case len(authorization) == 0:
		return p, nil
	case p.Kind != Newcomer:
		return p, fault.New(fault.Denied, "an access token was shown by a caller that is known otherwise (%s): one of both", p)
	case len(authorization) > 1:
		return p, fault.New(fault.Denied, "more than one access token was shown")
	}
	bearer, ok := strings.CutPrefix(authorization[0], bearerLabel)
	if !ok {
		return p, fault.New(fault.Denied, "the authorization is not of the form Bearer ID.SECRET")
	}
	id, hash, err := pki.ParseBearer(bearer)
	if err != nil {
		return p, err
	}
	r, err := g.judge(ctx, id, hash, true)
	if err != nil {
		return p, err
	}
	if a.conn != nil {
		if err := a.conn.provedToken(id); err != nil {
			return p, err
		}
	}
	p.Kind, p.Token, p.Scope, p.Owner, p.Project = Person, id, r.Scope, r.Owner, r.Project
	return p, nil
}

// judge looks a token up. Only to those who know the secret it says why the token is good no more.
func (g *gate) judge(ctx context.Context, id string, h pki.Hash, secret bool) (Record, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	r, err := g.tokens.Lookup(ctx, id)
	if err != nil && fault.CodeOf(err) != fault.NotFound {
		g.log.Warn("a token could not be looked up", "token", id, "error", err)
		return Record{}, fault.New(fault.Unavailable, "the head cannot look tokens up now: try again")
	}
	if same := h.Equal(r.Hash); err != nil || secret && !same {
		return Record{}, fault.New(fault.Denied, "the head does not know this access token (%s)", id)
	}
	if err := r.Good(id, g.now()); err != nil {
		return Record{}, err
	}
	return r, nil
}

// Good is why the access token of an id is good no more; nil: it is.
func (r Record) Good(id string, now time.Time) error {
	switch {
	case r.Revoked:
		return fault.New(fault.Denied, "access token %s was revoked: have another made (penstock token create)", id)
	case r.Replaced:
		return fault.New(fault.Denied, "access token %s is of an authority that the cluster has replaced (penstock ca): have another made (penstock token create)", id)
	case !r.Ends.IsZero() && !now.Before(r.Ends):
		return fault.New(fault.Denied, "access token %s ended at %s: have another made (penstock token create)", id, r.Ends.UTC().Format(time.RFC3339))
	case r.Scope < Read || r.Scope > Admin:
		return fault.New(fault.Denied, "access token %s has no scope", id)
	}
	return nil
}

// watch ends a call whose token ends, is revoked, or loses its scope.
func (g *gate) watch(ctx context.Context, p Peer, cancel context.CancelCauseFunc) {
	t := time.NewTicker(g.again)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		r, err := g.judge(ctx, p.Token, pki.Hash{}, false)
		if err == nil && r.Scope < p.Scope {
			err = fault.New(fault.Denied, "access token %s has scope %s now", p.Token, r.Scope)
		}
		if err != nil && fault.CodeOf(err) == fault.Denied {
			cancel(err)
			return
		}
	}
}

// failed counts a call with a wrong token, and returns its error: after some in a row from one
// network, only to wait. A good token is not looked at more slowly for the wrong ones beside it,
// nor refused with them: what others do from the same address is nothing that its owner could mend.
func (g *gate) failed(p Peer, err error) error {
	if g.hosts.over(network(p.Host), g.now()) {
		err = fault.New(fault.Unavailable, "too many calls with wrong tokens from %s: wait a few seconds", p.Host)
	}
	g.hosts.add(network(p.Host), g.now())
	return err
}

// answered sees what a handler refused, a newcomer whose token is wrong, and returns its error.
func (g *gate) answered(p Peer, method string, err error) error {
	if p.Kind != Newcomer || fault.CodeOf(err) != fault.Denied {
		return err
	}
	g.logLimited("a "+p.String()+" was refused", "method", method, "peer", p.String(), "why", err) // a newcomer at HOST
	return g.failed(p, err)
}

// tell says what was refused to who keeps a record of it.
func (g *gate) tell(p Peer, method string, request any, err error) {
	if g.refused == nil {
		return
	}
	failed, code := audits[method], fault.CodeOf(err)
	failed = failed && code != fault.Unavailable && code != fault.Canceled && code != fault.Internal // not what was asked is the reason
	if code == fault.Denied || failed {
		g.refused(p, method, request, err)
	}
}

// logLimited writes a line, unless there were many lately; then the next says how many were left out.
func (g *gate) logLimited(msg string, args ...any) {
	g.mu.Lock()
	n := g.silent
	if g.lines.over("", g.now()) {
		g.silent++
		g.mu.Unlock()
		return
	}
	g.lines.add("", g.now())
	g.silent = 0
	g.mu.Unlock()
	if n > 0 {
		args = append(args, "left_out", n)
	}
	g.log.Warn(msg, args...)
}

// meter counts what happens by key, and forgets some of it each second.
type meter struct {
	most, perSecond float64
	mu              sync.Mutex
	keys            map[string]*level
}

type level struct {
	n  float64
	at time.Time
}

// maxKeys is how many keys a meter knows: for one more, any other is forgotten. So nobody is
// counted with others, and whoever comes from more networks than that is counted less: what it
// costs is answers, not places.
const maxKeys = 1024

func newMeter(most, perSecond float64) *meter {
	return &meter{most: most, perSecond: perSecond, keys: map[string]*level{}}
}

func (m *meter) level(key string, now time.Time) *level {
	l := m.keys[key]
	if l == nil {
		return nil
	}
	l.n = max(0, l.n-max(0, now.Sub(l.at).Seconds())*m.perSecond)
	l.at = now
	return l
}

// over says that key has reached the most.
func (m *meter) over(key string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.level(key, now)
	return l != nil && l.n > m.most-1
}

func (m *meter) add(key string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.level(key, now)
	if l == nil {
		for k := range m.keys {
			if len(m.keys) < maxKeys {
				break
			}
			delete(m.keys, k)
		}
		l = &level{at: now}
		m.keys[key] = l
	}
	l.n = min(l.n+1, m.most)
}

// hostOf is the address of a peer without its port and zone.
func hostOf(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return ""
	}
	return t.AddrPort().Addr().Unmap().WithZone("").String()
}

// network is what one machine can have of addresses, by which failures are counted: of IPv6 a /64.
func network(host string) string {
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.Is6() || ip.IsLoopback() {
		return host
	}
	return netip.PrefixFrom(ip, 64).Masked().String()
}
