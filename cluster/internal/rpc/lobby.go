package rpc

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// lobby has the calls of newcomers: a place for each, from its headers on. Whose message does not
// come has to go when another needs the place, the one first that has waited longest where most
// wait; so calls without a message, however many, keep nobody out whose message comes with its
// headers. A newcomer whose call is being answered keeps its place.
type lobby struct {
	max  int // calls at once; a quarter of them may wait for messages from one network, an eighth on one connection
	mu   sync.Mutex
	here []*guest // the oldest first
}

// guest is a call in the lobby.
type guest struct {
	network string
	conn    *tcpConn
	came    bool // its message has: it is being answered
	leave   context.CancelFunc
}

// enter gives a newcomer a place, or says that all are of others that are being answered. leave
// ends a call.
func (l *lobby) enter(network string, conn *tcpConn, leave context.CancelFunc) (*guest, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := &guest{network: network, conn: conn, leave: leave}
	waits := map[string]int{}
	onConn := 0
	for _, x := range l.here {
		if !x.came {
			waits[x.network]++
			if x.conn == conn {
				onConn++
			}
		}
	}
	var goes func(*guest) bool // who has to go; nil: nobody
	switch {
	case onConn >= max(l.max/8, 1):
		goes = func(x *guest) bool { return x.conn == conn }
	case waits[network] >= max(l.max/4, 1):
		goes = func(x *guest) bool { return x.network == network }
	case len(l.here) >= l.max:
		most := 0
		for _, n := range waits {
			most = max(most, n)
		}
		goes = func(x *guest) bool { return waits[x.network] == most }
	}
	if goes != nil {
		i := slices.IndexFunc(l.here, func(x *guest) bool { return !x.came && goes(x) })
		if i < 0 {
			return nil, fault.New(fault.Unavailable, "%d machines are joining already: try again", l.max)
		}
		l.here[i].leave()
		l.here = slices.Delete(l.here, i, i+1)
	}
	l.here = append(l.here, g)
	return g, nil
}

// answers says that a guest's message has come. False: it had to go.
func (l *lobby) answers(g *guest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	g.came = slices.Contains(l.here, g)
	return g.came
}

// done gives a place back.
func (l *lobby) done(g *guest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.here = slices.DeleteFunc(l.here, func(x *guest) bool { return x == g })
}

// awaited is what a server knows of a call until its message has come, in the context of its
// handler.
type awaited struct {
	gate  *gate
	guest *guest // of a newcomer
	timer *time.Timer
}

type awaitedKey struct{}

// await gives a call so much time for its message, from its headers on, and a newcomer a place.
// What has not come by then ends, whatever it waits for.
func (g *gate) await(ctx context.Context, p Peer, conn *tcpConn) (context.Context, error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &awaited{gate: g}
	if p.Kind == Newcomer {
		var err error
		if c.guest, err = g.newcomers.enter(network(p.Host), conn, cancel); err != nil {
			cancel()
			return ctx, err
		}
	}
	c.timer = time.AfterFunc(g.body, func() {
		g.logLimited("a call of "+p.String()+" ended: its message, or a part of it, did not come in time", "peer", p.String(), "within", g.body)
		cancel()
	})
	context.AfterFunc(ctx, func() {
		c.timer.Stop()
		if c.guest != nil {
			g.newcomers.done(c.guest)
		}
	})
	return context.WithValue(ctx, awaitedKey{}, c), nil
}

// came says that the message of a call, or a part of what is uploaded, has come.
func (c *awaited) came() error {
	if c == nil {
		return nil
	}
	c.timer.Stop()
	if c.guest != nil && !c.gate.newcomers.answers(c.guest) {
		return fault.New(fault.Unavailable, "the call's message came late, and others needed the place: try again")
	}
	return nil
}

// wait gives the next part of what is uploaded its time.
func (c *awaited) wait() {
	if c != nil {
		c.timer.Reset(c.gate.body)
	}
}

func awaitedOf(ctx context.Context) *awaited {
	c, _ := ctx.Value(awaitedKey{}).(*awaited)
	return c
}
