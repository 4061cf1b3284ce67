package head

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

const (
	helloTimeout = 10 * time.Second
	// mostQueued messages wait for a node that does not read; then its stream is ended, and it attaches again.
	mostQueued = 10_000
)

// session is a node that is attached.
type session struct {
	node    string
	name    string // of the node
	agent   string // which process the agent is; "": it does not say
	host    string // from which it comes, and
	here    string // where it came: addresses; "": the head's own process
	epoch   uint64
	lease   atomic.Int64 // records.LeaseID
	missed  atomic.Bool  // a beat came and has not renewed the lease: the store is away, or was
	last    atomic.Int64 // when it was heard last, after Head.began
	end     context.CancelCauseFunc
	done    <-chan struct{} // closed when it has ended
	leaving bool            // it was asked to leave (the loop's)
	issuers []pki.Pin       // of the certificates there, as the node says (the loop's)
	said    bool            // it has said that (the loop's)

	warned atomic.Int64 // lines of the log about it

	mu    sync.Mutex
	queue []*pb.FromHead
	asked map[uint64]*question // by a random id, which is never used twice
	more  chan struct{}        // room for one
}

// tell puts a message in the queue of a node; one that has no session says what it has when it
// attaches. Part of the loop.
func (h *Head) tell(node string, m *pb.FromHead) {
	if s := h.sessions[node]; s != nil {
		s.tell(m)
	}
}

// tell puts a message in the queue of a session.
func (s *session) tell(m *pb.FromHead) {
	s.mu.Lock()
	s.queue = append(s.queue, m)
	full := len(s.queue) > mostQueued
	s.mu.Unlock()
	if full {
		s.end(fault.New(fault.Exhausted, "node %s does not read its messages", s.node))
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

type nodeServer struct{ h *Head }

// Attach is a session, from hello to the end of the stream.
func (n nodeServer) Attach(stream grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error {
	h := n.h
	peer := rpc.PeerOf(stream.Context())
	id := peer.Node.Node
	hello, err := receive(stream, helloTimeout)
	if err != nil {
		return err
	}
	heard := time.Now()
	inv := hello.GetHello().GetInventory()
	if inv == nil {
		return fault.New(fault.Invalid, "node %s: the first message of a session is hello, with an inventory", id)
	}
	if err := checkInventory(inv); err != nil {
		return err
	}
	if err := checkHello(id, hello.GetHello()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(h.ctx, func() { cancel(h.ends("")) })()
	s := &session{node: id, name: inv.GetName(), agent: hello.GetHello().GetAgent(), host: peer.Host, here: peer.Here, end: cancel, done: ctx.Done(), more: make(chan struct{}, 1)}
	s.last.Store(int64(heard.Sub(h.began)))
	if err := h.enter(ctx, s, hello.GetHello(), heard); err != nil {
		return err
	}
	h.log.Info(fmt.Sprintf("node %s (%s) is attached", id, inv.GetName()), "node", id, "epoch", s.epoch, "address", peer.Host)
	h.work.Go(func() { cancel(h.hear(ctx, s, stream)) }) // ends when the handler does: gRPC ends Recv with it
	cancel(s.write(ctx, stream))
	_ = h.do(context.WithoutCancel(ctx), func() error { return h.over(s, context.Cause(ctx)) })
	if err := context.Cause(ctx); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// enter begins s. Where another agent of the node is attached, from a copy of its folder or one that this one follows, s waits until that one's stream or lease has ended. If it is heard a beat or more after s said hello (what it had
// said before is read by then), both are there, and s is refused: each would throw the other out, for ever.
func (h *Head) enter(ctx context.Context, s *session, hello *pb.Hello, heard time.Time) error {
	for {
		var other *session
		err := h.do(ctx, func() error {
			if other = h.other(s); other != nil {
				return nil
			}
			return h.begin(s, hello, heard)
		})
		if err != nil || other == nil {
			return err
		}
		select {
		case <-other.done:
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(h.cfg.Lease / 12):
		}
		if h.began.Add(time.Duration(other.last.Load())).Sub(heard) >= h.cfg.Lease/3 {
			at := cmp.Or(other.host, "the head's own process")
			h.log.Warn(fmt.Sprintf("node %s (%s) is attached from %s: a second agent with its identity is refused", s.node, other.name, at), "node", s.node, "address", s.host)
			return fault.New(fault.Invalid, "another agent with the identity of node %s (name %s) is attached from %s, and this one has a copy of its folder: join this machine with a new token (penstock token create) and another folder (--dir)", s.node, other.name, at)
		}
	}
}

// other is the session of s's node, if it is one of another agent and its stream has not ended.
func (h *Head) other(s *session) *session {
	old := h.sessions[s.node]
	if old == nil || s.agent == "" || old.agent == "" || s.agent == old.agent {
		return nil
	}
	select {
	case <-old.done:
		return nil
	default:
		return old
	}
}

// begin makes s the session of its node, of which hello was heard at a time.
func (h *Head) begin(s *session, hello *pb.Hello, heard time.Time) error {
	known := h.nodes[s.node]
	if known == nil || known.Value.State == core.Left {
		return fault.New(fault.Denied, "node %s is not of this cluster any more: join again with a new token", s.node)
	}
	if err := h.nameIsFree(s.node, hello.GetInventory().GetName()); err != nil {
		return fault.New(fault.Invalid, "%w", err) // the agent gives up: it is what the node says about itself
	}
	if err := h.attaches(s.node); err != nil {
		return err
	}
	s.epoch = known.Value.Epoch + 1
	if err := h.grant(s); err != nil {
		return err
	}
	if old := h.sessions[s.node]; old != nil {
		old.end(fault.New(fault.Unavailable, "node %s has attached again", s.node))
	}
	r := *known
	r.Value.Inventory, r.Value.Address = hello.GetInventory(), s.host
	h.nodes[s.node] = &r // written with what the machine says
	h.sessions[s.node] = s
	h.seen[s.node] = time.Now()
	e := core.Event{Kind: core.Attach, Node: r.Value.node(s.node), Epoch: s.epoch, Running: processes(hello.GetRunning()), Waiting: processes(hello.GetWaiting())}
	for _, x := range hello.GetExited() {
		if end, ok := endOf(x); ok { // now: the loop and the store may have taken their time
			e.Ended = append(e.Ended, h.ended(s, end, heard))
		}
	}
	return h.step(e)
}

// grant gives a session a lease.
func (h *Head) grant(s *session) error {
	lease, err := h.store.Grant(h.ctx, h.cfg.Lease)
	if err != nil {
		return err
	}
	live := records.Record[liveRecord]{ID: s.node}
	if was := h.live[s.node]; was != nil {
		live = *was
	}
	live.Value.Epoch, live.Lease = s.epoch, lease.ID
	for range 3 {
		var r records.Record[liveRecord]
		if r, err = h.t.live.Put(h.ctx, live); err == nil {
			live = r
			break
		}
		if fault.CodeOf(err) == fault.Exists { // the lease of the session before ended, and nobody has said so yet
			have, gerr := h.t.live.Get(h.ctx, s.node)
			if gerr != nil && fault.CodeOf(gerr) != fault.NotFound {
				return gerr
			}
			live.Revision = have.Revision // or none
		}
	}
	if err != nil {
		return err
	}
	h.live[s.node] = &live
	s.lease.Store(int64(lease.ID))
	return nil
}

// over: a stream has ended.
func (h *Head) over(s *session, why error) error {
	if h.sessions[s.node] != s {
		return nil
	}
	delete(h.sessions, s.node)
	e := core.Event{Kind: core.Break, Node: place.Node{ID: place.NodeID(s.node)}, Epoch: s.epoch}
	if errors.Is(why, io.EOF) { // it ended what it ran, and said goodbye
		e.Kind = core.LeaseOver
		if s.leaving {
			e.Kind = core.Leave
		}
		delete(h.live, s.node)
		if err := h.store.Revoke(h.ctx, records.LeaseID(s.lease.Load())); err != nil {
			h.log.Warn("a lease ends by itself", "node", s.node, "err", err)
		}
	} else {
		h.log.Warn(fmt.Sprintf("node %s is not heard: its stream ended", s.node), "node", s.node, "err", why)
	}
	return h.step(e)
}

// hear takes what a node says, until its stream ends; io.EOF: it said goodbye. Beats are answered at once, whatever the store and the loop are busy with: the node is to know that the head is there.
func (h *Head) hear(ctx context.Context, s *session, stream grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var both sync.WaitGroup
	defer both.Wait()
	said := make(chan func() error, mostSaid)
	defer close(said) // what was said is heard to its end, where the head goes on
	renew := make(chan struct{}, 1)
	defer cancel(nil)
	both.Go(func() { h.renew(ctx, s, renew) })
	both.Go(func() {
		for do := range said {
			if err := h.do(h.ctx, do); err != nil {
				cancel(err)
				s.end(err)
			}
		}
	})
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		s.last.Store(int64(time.Since(h.began)))
		do, err := h.take(s, m, time.Now())
		switch {
		case err != nil:
			s.end(err) // before messages to it
			return err
		case m.GetBeat() != nil:
			s.tell(&pb.FromHead{Say: &pb.FromHead_Beat{Beat: &pb.Empty{}}})
			select {
			case renew <- struct{}{}:
			default:
			}
			h.post(func() { _ = do() })
		case do != nil:
			select {
			case said <- do:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// renew gives the lease of a session its full time for each beat.
func (h *Head) renew(ctx context.Context, s *session, beats <-chan struct{}) {
	for {
		select {
		case <-beats:
			s.missed.Store(true)
			_, err := h.store.KeepAlive(ctx, records.LeaseID(s.lease.Load()))
			switch {
			case err == nil:
				s.missed.Store(false)
				h.unrenewed.Store(false)
			case ctx.Err() == nil && fault.CodeOf(err) == fault.Unavailable && !h.unrenewed.Swap(true):
				h.log.Warn("leases are not renewed: nodes get theirs again when the store answers", "node", s.node, "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// write sends what is in the queue, until ctx ends.
func (s *session) write(ctx context.Context, stream grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error {
	for {
		s.mu.Lock()
		batch := s.queue
		s.queue = nil
		s.mu.Unlock()
		for _, m := range batch {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// receive waits for the first message.
func receive(stream grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead], timeout time.Duration) (*pb.FromAgent, error) {
	type got struct {
		m   *pb.FromAgent
		err error
	}
	c := make(chan got, 1)
	go func() { // ends with the stream
		m, err := stream.Recv()
		c <- got{m, err}
	}()
	select {
	case g := <-c:
		return g.m, g.err
	case <-time.After(timeout):
		return nil, fault.New(fault.Unavailable, "no hello within %v", timeout)
	case <-stream.Context().Done():
		return nil, fault.WithCode(fault.Canceled, context.Cause(stream.Context()))
	}
}

// watchLive hears of leases that end.
func (h *Head) watchLive(revision int64) {
	err := h.t.live.Watch(h.ctx, revision, func(e records.Event[liveRecord]) error {
		if e.Kind == records.Reset { // deletions may be missing: every node whose lease is not there now has lost it
			return nil
		}
		return h.do(h.ctx, func() error { return h.liveChanged(e) })
	})
	if err != nil && h.ctx.Err() == nil {
		h.fail(err)
	}
}

func (h *Head) liveChanged(e records.Event[liveRecord]) error {
	switch e.Kind {
	case records.Gone:
		return h.leaseOver(e.Record.ID, e.Record.Revision)
	case records.Current:
		for id, live := range h.live {
			if live.Revision <= e.Record.Revision {
				_, err := read(h, h.t.live, id)
				if fault.CodeOf(err) == fault.NotFound {
					err = h.leaseOver(id, e.Record.Revision)
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// leaseOver: the lease of a node's session was gone at a revision of the store.
func (h *Head) leaseOver(id string, revision int64) error {
	live := h.live[id]
	if live == nil || live.Revision > revision {
		return nil // a later session has another
	}
	delete(h.live, id)
	s := h.sessions[id]
	if s != nil && s.epoch != live.Value.Epoch {
		s = nil
	}
	switch { // where nobody could renew it, that says nothing about the node
	case s != nil && (s.missed.Swap(false) || time.Now().Before(h.excused)):
		return h.repeat(func() error { return h.grant(s) }, hopeless)
	case time.Now().Before(h.excused): // it gets its time to attach again
		s = &session{node: id, epoch: live.Value.Epoch}
		return h.repeat(func() error { return h.grant(s) }, hopeless)
	case s != nil:
		s.end(fault.New(fault.Unavailable, "the lease of node %s has ended", id))
		delete(h.sessions, id)
	}
	return h.step(core.Event{Kind: core.LeaseOver, Node: place.Node{ID: place.NodeID(id)}, Epoch: live.Value.Epoch})
}
