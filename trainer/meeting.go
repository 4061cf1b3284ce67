package trainer

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/collective"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// meetTime is how long ranks on several nodes wait for each other before they compute together, from the first on. Tests shorten it.
var meetTime = 5 * time.Minute

// joinRing makes the ring of all ranks.
func (c *Context) joinRing() (*collective.Group, error) {
	o := &collective.Options{Group: fmt.Sprintf("%s/%d", c.w.Run, c.w.Attempt)}
	if c.w.Nodes > 1 {
		leave, err := c.reach(o)
		defer leave()
		if err != nil {
			return nil, err
		}
	}
	return collective.Join(c, c.w.Peers, c.w.Rank, c.w.World, o)
}

// reach waits until the ranks of all nodes want to meet, and says in o how this one is connected with its neighbours on other nodes. What it listens at is there until leave.
func (c *Context) reach(o *collective.Options) (leave func(), err error) {
	leave = func() {}
	per := c.w.World / c.w.Nodes
	for r := range c.w.World {
		o.Nodes = append(o.Nodes, r/per)
	}
	left, right := (c.w.Rank+c.w.World-1)%c.w.World, (c.w.Rank+1)%c.w.World
	from, to := left/per, right/per
	var m wire.Meet
	var g *gang.Gang
	if from != c.w.Node || to != c.w.Node {
		if g = c.id.gang; g == nil {
			if c.id.aide == "" {
				return leave, fault.New(fault.Invalid, "rank %d does not reach those of other nodes: %s, which Fit has put into the environment of this process, is not there any more: what the program does before it calls Fit must leave it", c.w.Rank, envGang)
			}
			if g, err = gang.AideOf(c.id.aide); err != nil {
				return leave, err
			}
			leave = func() { g.Close() }
		}
	}
	if from != c.w.Node {
		l, err := g.Listen(c.service(c.w.Rank))
		if err != nil {
			return leave, err
		}
		before := leave
		leave = func() {
			l.Close()
			before()
		}
		m.Address = g.Address()
		o.Left = func(ctx context.Context) (net.Conn, error) {
			for {
				conn, node, err := l.Accept(ctx)
				if err != nil || node == from {
					return conn, err
				}
				conn.Close()
			}
		}
	}
	address, err := c.meet(m)
	if err == nil && to != c.w.Node {
		o.Right = func(ctx context.Context) (net.Conn, error) { return g.DialAt(ctx, to, address, c.service(right)) }
	}
	return leave, err
}

// service is that of a rank's neighbour on the left, in this attempt.
func (c *Context) service(rank int) string {
	name := fmt.Sprintf("ring/%d/%d/%s", c.w.Attempt, rank, c.w.Run)
	return name[:min(len(name), 255)] // the ranks say their group to each other besides
}

// meet waits for all ranks, and returns the address of the one on the right.
func (c *Context) meet(m wire.Meet) (string, error) {
	if err := c.send(wire.ToController{Meet: &m}); err != nil {
		return "", err
	}
	select {
	case met := <-c.met:
		return met.Address, met.Error.Err()
	case <-c.Done():
		return "", fault.New(fault.Canceled, "rank %d of %d gave up waiting for the others: %w", c.w.Rank, c.w.World, context.Cause(c))
	}
}

// meets takes a rank that waits for all others: when all have come each is told where its neighbour is; those that have, which did not in time.
func (c *controller) meets(at *attempt, rank int, p *peer, m *wire.Meet) {
	_, twice := at.met[rank]
	var err error
	switch {
	case c.a != at:
		return // it is told to end
	case len(m.Address) > wire.MaxAddress:
		err = fault.New(fault.Invalid, "rank %d is to be found at an address of %d bytes, at most %d", rank, len(m.Address), wire.MaxAddress)
	case twice:
		err = fault.New(fault.Invalid, "rank %d has met the others before: they meet once in an attempt, and what failed since then does not come again", rank)
	default:
		err = at.apart
	}
	if err != nil {
		p.say(wire.ToWorker{Met: &wire.Met{Error: wire.FromError(err)}})
		return
	}
	at.met[rank] = m.Address
	n := len(at.peers)
	if len(at.met) == 1 && n > 1 {
		c.others.Go(func() { c.missed(at, meetTime) })
	}
	if len(at.met) == n {
		for r := range n {
			c.tell(r, wire.ToWorker{Met: &wire.Met{Address: at.met[(r+1)%n]}})
		}
	}
}

// missed tells those that wait for others which of these did not come.
func (c *controller) missed(at *attempt, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-t.C:
	case <-at.over:
		return
	case <-c.over:
		return
	}
	c.post(func() {
		if c.a != at || len(at.met) == len(at.peers) {
			return
		}
		var missing []string
		for r := range at.peers {
			if _, came := at.met[r]; !came {
				missing = append(missing, fmt.Sprintf("rank %d%s", r, c.ofNode(r)))
			}
		}
		at.apart = fault.New(fault.Unavailable, "of %d ranks these did not come within %v to compute with the others: %s; every rank makes the same calls (AllReduce, Barrier, ...)", len(at.peers), limit, strings.Join(missing, "; "))
		for r := range at.met {
			c.tell(r, wire.ToWorker{Met: &wire.Met{Error: wire.FromError(at.apart)}})
		}
	})
}
