package head

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

type controlServer struct{ h *Head }

// watchEvery is the least time between two states that a watcher gets.
const watchEvery = 500 * time.Millisecond

// Watch gives the state of the cluster, and again when it has changed; of a cluster that is stopped also the last one.
func (c controlServer) Watch(q *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.Cluster]) error {
	h := c.h
	ctx := stream.Context()
	if q.GetFollow() {
		if err := h.do(ctx, func() error { h.watchers++; return nil }); err != nil {
			return err
		}
		defer func() {
			_ = h.do(h.ctx, func() error { h.watchers--; h.change(); return nil }) // whatever became of the token
		}()
	}
	for last := false; ; {
		select {
		case <-h.final:
			last = true
		default:
		}
		var now *pb.Cluster
		var changed chan struct{}
		if err := h.do(ctx, func() error {
			now, changed = h.state(rpc.PeerOf(ctx)), h.changed
			return nil
		}); err != nil {
			return err
		}
		if err := stream.Send(now); err != nil || !q.GetFollow() {
			return err
		}
		if last {
			return h.ends("")
		}
		pause := time.NewTimer(watchEvery)
		select {
		case <-pause.C:
		case <-h.final:
			pause.Stop()
			continue
		case <-ctx.Done():
			pause.Stop()
			return fault.WithCode(fault.Canceled, context.Cause(ctx))
		case <-h.ctx.Done():
			pause.Stop()
			return h.ends("")
		}
		select {
		case <-changed:
		case <-h.final:
		case <-time.After(5 * time.Second): // what is measured changes without an event
		case <-ctx.Done():
			return fault.WithCode(fault.Canceled, context.Cause(ctx))
		case <-h.ctx.Done():
			return h.ends("")
		}
	}
}

// state is what status shows p.
func (h *Head) state(p rpc.Peer) *pb.Cluster {
	c := &pb.Cluster{Id: h.id, Version: h.cfg.Version, UnixNanos: time.Now().UnixNano()}
	for _, id := range sortedIDs(h.nodes) {
		n := h.nodes[id]
		on := h.core.On(place.NodeID(id))
		seen := h.seen[id]
		if seen.IsZero() {
			seen = n.Value.Seen
		}
		c.Nodes = append(c.Nodes, &pb.NodeState{Id: id, State: string(n.Value.State), Inventory: n.Value.Inventory, Booked: wireResources(h.core.Booked(place.NodeID(id))), Used: h.used[id],
			Address: n.Value.Address, SeenUnixNanos: nanos(seen), Processes: int64(len(on))})
	}
	for _, w := range h.core.Waiting() {
		job := jobOf(w.Demand)
		if r := h.jobs[job]; r != nil && sees(p, r.Value.By.Project) {
			c.Waiting = append(c.Waiting, &pb.Waiting{Job: job, Why: w.Why, SinceUnixNanos: nanos(r.Value.Submitted)})
		}
	}
	if len(h.held) > 0 {
		of := h.counted()
		for _, job := range sortedIDs(h.held) {
			if r := h.jobs[job]; sees(p, r.Value.By.Project) {
				c.Waiting = append(c.Waiting, &pb.Waiting{Job: job, Why: h.waitsFor(r.Value.By, of), SinceUnixNanos: nanos(r.Value.Submitted)})
			}
		}
	}
	return c
}

// sortedIDs are ids of a letter and a number in their order: n9 before n10.
func sortedIDs[V any](m map[string]V) []string {
	ids := make([]string, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func compareIDs(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

const mostGrace = time.Hour

func graceOf(ms int64) time.Duration {
	return min(max(time.Duration(ms)*time.Millisecond, 0), mostGrace)
}

// Drain takes no new work to a node, and ends what runs there.
func (c controlServer) Drain(ctx context.Context, q *pb.DrainRequest) (*pb.Empty, error) {
	return &pb.Empty{}, c.onNode(ctx, "drain", q.GetNode(), core.Drain, graceOf(q.GetGraceMs()))
}

// Undrain gives it work again.
func (c controlServer) Undrain(ctx context.Context, q *pb.DrainRequest) (*pb.Empty, error) {
	return &pb.Empty{}, c.onNode(ctx, "undrain", q.GetNode(), core.Undrain, 0)
}

func (c controlServer) onNode(ctx context.Context, action, name string, k core.EventKind, grace time.Duration) error {
	return c.h.do(ctx, func() error {
		id, err := c.h.nodeNamed(name)
		if err != nil {
			return err
		}
		if s := c.h.nodes[id].Value.State; s == core.Gone || s == core.Left {
			return fault.New(fault.Invalid, "node %s is %s", id, s)
		}
		if err := c.h.audit(ctx, action, c.h.nodeObject(id), nil); err != nil {
			return err
		}
		return c.h.step(core.Event{Kind: k, Node: place.Node{ID: place.NodeID(id)}, Grace: grace})
	})
}

// nodeObject is a node in an entry of what was done.
func (h *Head) nodeObject(id string) what {
	return what{Kind: "node", ID: id, Detail: h.nodes[id].Value.Inventory.GetName()}
}

// Shutdown asks agents to end what they run, and themselves; with all the head ends too.
func (c controlServer) Shutdown(ctx context.Context, q *pb.ShutdownRequest) (*pb.Empty, error) {
	h := c.h
	grace := graceOf(q.GetGraceMs())
	again := false
	err := h.do(ctx, func() error {
		var ids []string
		switch {
		case q.GetAll():
			if err := h.audit(ctx, "shutdown", what{Kind: "cluster", ID: h.id}, nil); err != nil {
				return err
			}
			again, h.stopping = h.stopping, true
			for id, s := range h.sessions {
				if s != nil {
					ids = append(ids, id)
				}
			}
		default:
			id, err := h.nodeNamed(q.GetNode())
			if err != nil {
				return err
			}
			if h.nodes[id].Value.Local {
				return fault.New(fault.Invalid, "node %s is the head's own: stop the head (penstock stop --all), or drain it", id)
			}
			if err := h.audit(ctx, "shutdown", h.nodeObject(id), nil); err != nil {
				return err
			}
			if h.sessions[id] == nil {
				if err := h.step(core.Event{Kind: core.Leave, Node: place.Node{ID: place.NodeID(id)}}); err != nil {
					return err
				}
				return nil
			}
			ids = []string{id}
		}
		slices.Sort(ids)
		for _, id := range ids {
			h.sessions[id].leaving = true
			if err := h.step(core.Event{Kind: core.Drain, Node: place.Node{ID: place.NodeID(id)}, Grace: grace}); err != nil {
				return err
			}
			h.tell(id, &pb.FromHead{Say: &pb.FromHead_Leave{Leave: &pb.Leave{GraceMs: grace.Milliseconds()}}})
		}
		return nil
	})
	if err != nil || !q.GetAll() || again {
		return &pb.Empty{}, err
	}
	h.work.Go(func() { // the nodes get their time, those who watch hear how they ended, then the head ends
		h.until(grace+10*time.Second, func() bool { return len(h.sessions) == 0 })
		close(h.final)
		h.until(5*time.Second, func() bool { return h.watchers == 0 })
		h.end(errStopped)
	})
	return &pb.Empty{}, nil
}

// until waits for what the loop sees to be so, the end of the head, or so long.
func (h *Head) until(most time.Duration, ok func() bool) {
	for end := time.Now().Add(most); time.Now().Before(end); {
		is := false
		var changed chan struct{}
		if h.do(h.ctx, func() error { is, changed = ok(), h.changed; return nil }) != nil || is {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Until(end)):
		case <-h.ctx.Done():
		}
	}
}

// CreateToken makes a token. It is the only time that it is shown.
func (c controlServer) CreateToken(ctx context.Context, q *pb.CreateTokenRequest) (*pb.CreateTokenReply, error) {
	ttl := time.Duration(q.GetTtlMs()) * time.Millisecond
	if ttl < 0 || ttl > mostTTL {
		return nil, fault.New(fault.Invalid, "a token lives for up to 10 years, not %v", ttl)
	}
	if len(q.GetName()) > 200 {
		return nil, fault.New(fault.Invalid, "the name of a token has up to 200 bytes")
	}
	v := tokenRecord{Kind: pki.Join, Name: q.GetName(), Owner: q.GetOwner(), Project: q.GetProject()}
	switch q.GetKind() {
	case "join":
		if v.Owner != "" || v.Project != "" {
			return nil, fault.New(fault.Invalid, "owners and projects are of tokens for access")
		}
		ttl = cmp.Or(ttl, joinTTL)
	case "access":
		v.Kind = pki.Access
		ttl = cmp.Or(ttl, 90*24*time.Hour)
		var err error
		if v.Scope, err = rpc.ParseScope(q.GetScope()); err != nil {
			return nil, err
		}
		if v.Owner != "" {
			if err := checkOwner(ofOwner, v.Owner); err != nil {
				return nil, err
			}
		}
		if v.Project != "" && v.Scope == rpc.Admin {
			return nil, fault.New(fault.Invalid, "a token of scope admin is for all projects")
		}
	default:
		return nil, fault.New(fault.Invalid, "a token is for join or for access, not for %q", q.GetKind())
	}
	var t pki.Token
	err := c.h.do(ctx, func() (err error) {
		if v.Project != "" && c.h.quotas[quotaKey{ofProject, v.Project}] == nil {
			return fault.New(fault.NotFound, "there is no project %s: make it first (penstock project set %s)", v.Project, v.Project)
		}
		t, _, err = c.h.token(ctx, v, ttl)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.h.log.Info(fmt.Sprintf("%v made %v", rpc.PeerOf(ctx), t), "scope", v.Scope)
	return &pb.CreateTokenReply{Token: t.Reveal()}, nil
}

func wireToken(r records.Record[tokenRecord], believed string) *pb.Token {
	v := r.Value
	t := &pb.Token{Id: r.ID, Kind: v.Kind.String(), Name: v.Name, CreatedUnixNanos: nanos(v.Created), ExpiresUnixNanos: nanos(v.Ends), UsedBy: v.UsedBy, Revoked: v.Revoked, Authority: v.Names.String(), Believed: believed}
	if v.Kind == pki.Access {
		t.Scope, t.Owner, t.Project = v.Scope.String(), cmp.Or(v.Owner, r.ID), v.Project
	}
	return t
}

// ListTokens lists them, without their secrets, which nobody has.
func (c controlServer) ListTokens(context.Context, *pb.Empty) (*pb.Tokens, error) {
	ts := &pb.Tokens{}
	for _, r := range c.h.tokens.list() {
		ts.Tokens = append(ts.Tokens, wireToken(r, c.h.standing(r.Value.Names)))
	}
	return ts, nil
}

// RevokeToken ends one now.
func (c controlServer) RevokeToken(ctx context.Context, q *pb.RevokeTokenRequest) (*pb.Empty, error) {
	return &pb.Empty{}, c.h.do(ctx, func() error {
		r, ok := c.h.tokens.get(q.GetId())
		if !ok {
			return fault.New(fault.NotFound, "no token %s (see penstock token list)", q.GetId())
		}
		r.Value.Revoked = true
		err := c.h.commitAudited(c.h.noting(ctx, "revoke-token", what{Kind: "token", ID: r.ID, Detail: r.Value.Name}), c.h.t.tokens.PutOp(r))
		if err != nil {
			return err
		}
		if r, err = read(c.h, c.h.t.tokens, r.ID); err == nil {
			c.h.tokens.put(r)
		}
		return err
	})
}

// HasPack says whether a pack of the caller's is here: those of others are not shown.
func (c controlServer) HasPack(ctx context.Context, q *pb.PackRequest) (*pb.HasPackReply, error) {
	hash, err := packs.ParseHash(q.GetSha256())
	if err != nil {
		return nil, err
	}
	return &pb.HasPackReply{Has: c.h.packs.HasOf(byPeer(rpc.PeerOf(ctx)).packs()[0], hash)}, nil
}

// PutPack takes one.
func (c controlServer) PutPack(stream grpc.ClientStreamingServer[pb.Chunk, pb.Empty]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hash, err := packs.ParseHash(first.GetSha256())
	if err != nil {
		return err
	}
	var shares []packs.Share
	if err := c.h.do(stream.Context(), func() error { shares = c.h.shares(rpc.PeerOf(stream.Context())); return nil }); err != nil {
		return err
	}
	if err := c.h.packs.Put(stream.Context(), hash, &chunkReader{next: stream.Recv, rest: first.GetData()}, shares...); err != nil {
		return err
	}
	return stream.SendAndClose(&pb.Empty{})
}

// chunkReader reads the chunks of a stream.
type chunkReader struct {
	next func() (*pb.Chunk, error)
	rest []byte
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		c, err := r.next()
		if err != nil {
			return 0, err
		}
		r.rest = c.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// chunkBytes are in a message of a pack.
const chunkBytes = 1 << 20

// Pack gives a node a pack.
func (n nodeServer) Pack(q *pb.PackRequest, stream grpc.ServerStreamingServer[pb.Chunk]) error {
	hash, err := packs.ParseHash(q.GetSha256())
	if err != nil {
		return err
	}
	if err := n.h.do(stream.Context(), func() error { return n.h.mayFetch(rpc.PeerOf(stream.Context()).Node.Node, hash) }); err != nil {
		return err
	}
	r, _, err := n.h.packs.Open(hash)
	if err != nil {
		return err
	}
	defer r.Close()
	buf := make([]byte, chunkBytes)
	for {
		k, err := io.ReadFull(r, buf)
		if k > 0 {
			if err := stream.Send(&pb.Chunk{Data: buf[:k]}); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
	}
}

// mayFetch: a node gets what a process needs that is on it, while it is of the cluster.
func (h *Head) mayFetch(node string, hash packs.Hash) error {
	if n := h.nodes[node]; n == nil || n.Value.State == core.Left {
		return fault.New(fault.Denied, "node %s is not of this cluster any more", node)
	}
	for _, r := range h.jobs {
		if r.Value.Job.GetPack() == string(hash) && slices.ContainsFunc(r.Value.Record.Placed, func(p place.Placement) bool { return string(p.Node) == node }) {
			return nil
		}
	}
	return fault.New(fault.Denied, "no job on node %s needs pack %s", node, hash)
}

// jobID is the next id of a job.
func (h *Head) jobID(ctx context.Context) (string, error) {
	n, err := h.store.Next(ctx, "job")
	return "j" + strconv.FormatInt(n, 10), err
}
