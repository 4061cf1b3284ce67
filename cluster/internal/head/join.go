package head

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// tokenBook has the tokens in memory: every call looks one up. Safe for concurrent use.
type tokenBook struct {
	ca *pki.CA
	mu sync.RWMutex
	by map[string]records.Record[tokenRecord]
}

func (b *tokenBook) load(ctx context.Context, t records.Table[tokenRecord]) error {
	rs, _, err := all(ctx, t)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.by = map[string]records.Record[tokenRecord]{}
	for _, r := range rs {
		b.by[r.ID] = r
	}
	return nil
}

// Lookup is for package rpc.
func (b *tokenBook) Lookup(_ context.Context, id string) (rpc.Record, error) {
	r, ok := b.get(id)
	if !ok || r.Value.Kind != pki.Access {
		return rpc.Record{}, fault.New(fault.NotFound, "no access token %s", id)
	}
	return b.record(r), nil
}

func (b *tokenBook) record(r records.Record[tokenRecord]) rpc.Record {
	v := r.Value
	return rpc.Record{Hash: v.Hash, Scope: v.Scope, Ends: v.Ends, Revoked: v.Revoked, Replaced: b.replaced(v), Owner: cmp.Or(v.Owner, r.ID), Project: v.Project}
}

// replaced says that a token names an authority that is believed no more: who has the key of that
// may have heard the token's secret in the head's place.
func (b *tokenBook) replaced(t tokenRecord) bool { return !slices.Contains(b.ca.Pins(), t.Names) }

func (b *tokenBook) get(id string) (records.Record[tokenRecord], bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	r, ok := b.by[id]
	return r, ok
}

func (b *tokenBook) put(r records.Record[tokenRecord]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.by[r.ID] = r
}

func (b *tokenBook) drop(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.by, id)
}

func (b *tokenBook) list() []records.Record[tokenRecord] {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var rs []records.Record[tokenRecord]
	for _, r := range b.by {
		rs = append(rs, r)
	}
	slices.SortFunc(rs, func(a, b records.Record[tokenRecord]) int { return a.Value.Created.Compare(b.Value.Created) })
	return rs
}

const (
	joinTTL = time.Hour
	mostTTL = 10 * 365 * 24 * time.Hour
	// mostTokens that have not ended.
	mostTokens = 10_000
)

// token makes one, and keeps what is known of it: v, and what belongs to it. Tokens that ended a
// day ago are dropped.
func (h *Head) token(ctx context.Context, v tokenRecord, ttl time.Duration) (pki.Token, records.Record[tokenRecord], error) {
	var r records.Record[tokenRecord]
	now := time.Now().UTC()
	old := h.tokens.list()
	for _, o := range old {
		if !o.Value.Ends.IsZero() && now.Sub(o.Value.Ends) > 24*time.Hour {
			if h.t.tokens.Delete(ctx, o.ID, o.Revision) == nil {
				h.tokens.drop(o.ID)
			}
		}
	}
	if len(old) >= mostTokens {
		return pki.Token{}, r, fault.New(fault.Exhausted, "there are %d tokens: revoke some", len(old))
	}
	t, err := pki.NewToken(v.Kind, strings.ToLower(rand.Text())[:10], h.ca.Pin())
	if err != nil {
		return t, r, err
	}
	r.ID = t.ID
	r.Value = v
	r.Value.Hash, r.Value.Names, r.Value.Created = t.Hash(), t.Pin, now
	if ttl > 0 {
		r.Value.Ends = now.Add(ttl)
	}
	kind := v.Kind.String()
	if v.Kind == pki.Access {
		kind = strings.Join(slices.DeleteFunc([]string{v.Scope.String(), v.Owner, v.Project}, func(s string) bool { return s == "" }), " ")
	}
	if err := h.commitAudited(h.noting(ctx, "create-token", what{Kind: "token", ID: r.ID, Detail: prefix(kind+" "+v.Name, mostAuditText)}), h.t.tokens.PutOp(r)); err != nil {
		return t, r, err
	}
	if r, err = read(h, h.t.tokens, t.ID); err == nil {
		h.tokens.put(r)
	}
	return t, r, err
}

// JoinToken makes a token for one node, good for an hour.
func (h *Head) JoinToken(ctx context.Context) (pki.Token, error) {
	t, _, err := h.token(ctx, tokenRecord{Kind: pki.Join, Name: "start --head"}, joinTTL)
	return t, err
}

type joinServer struct{ h *Head }

// joinToken is the token of a node that joins, which may have been used, and ended.
func (h *Head) joinToken(id string, hash pki.Hash) (records.Record[tokenRecord], error) {
	t, ok := h.tokens.get(id)
	switch {
	case !ok || !t.Value.Hash.Equal(hash) || t.Value.Kind != pki.Join:
		return t, fault.New(fault.Denied, "the join token is not one of this cluster, or was revoked: make one with penstock token create")
	case t.Value.Revoked:
		return t, fault.New(fault.Denied, "the join token was revoked: make one with penstock token create")
	case h.tokens.replaced(t.Value):
		return t, fault.New(fault.Denied, "the join token is of an authority that the cluster has replaced (penstock ca): make one with penstock token create")
	}
	return t, nil
}

// Join makes a node of whoever has a token for it.
func (j joinServer) Join(ctx context.Context, q *pb.JoinRequest) (*pb.JoinReply, error) {
	h := j.h
	now := time.Now()
	if err := pki.CheckClock(time.Unix(0, q.GetUnixNanos()), now, "the head's"); err != nil {
		return nil, err
	}
	id, hash, err := pki.ParseBearer(q.GetToken())
	if err != nil {
		return nil, fault.WithCode(fault.Denied, err)
	}
	if _, err := h.joinToken(id, hash); err != nil { // strangers have nothing else looked at
		return nil, err
	}
	if err := checkInventory(q.GetInventory()); err != nil {
		return nil, err
	}
	pub, err := pki.KeyOf(q.GetCsr())
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(pub)
	key := hexOf(sum[:])
	var node string
	err = h.do(ctx, func() error {
		t, err := h.joinToken(id, hash)
		switch {
		case err != nil:
			return err
		case t.Value.UsedBy != "" && t.Value.Key == key && h.nodes[t.Value.UsedBy] != nil:
			node = t.Value.UsedBy // its answer was lost
			return nil
		case t.Value.UsedBy != "":
			return fault.New(fault.Denied, "the join token was used by node %s: each is good for one node; make another with penstock token create", t.Value.UsedBy)
		case now.After(t.Value.Ends):
			return fault.New(fault.Denied, "the join token ended %v ago: make one with penstock token create", now.Sub(t.Value.Ends).Round(time.Second))
		}
		if err := h.nameIsFree("", q.GetInventory().GetName()); err != nil {
			return err
		}
		node, err = h.newNode(ctx, q.GetInventory(), rpc.PeerOf(ctx).Host, false, &t, key)
		return err
	})
	if err != nil {
		return nil, err
	}
	chain, err := h.ca.IssueNode(q.GetCsr(), node, 0)
	if err != nil {
		return nil, err
	}
	h.log.Info(fmt.Sprintf("%s joined as node %s", q.GetInventory().GetName(), node), "node", node, "address", rpc.PeerOf(ctx).Host)
	return &pb.JoinReply{Chain: chain, UnixNanos: now.UnixNano()}, nil
}

// there reports whether a node is of the cluster, and not lost.
func (r *nodeRecord) there() bool { return r.State != core.Gone && r.State != core.Left }

// comes reports whether a node joined just now and has not attached yet: its name is taken already.
func (h *Head) comes(r *nodeRecord) bool {
	return r.State == core.Gone && r.Epoch == 0 && time.Since(r.Joined) < h.cfg.Lease
}

// nameIsFree refuses a second node of a name: what people say would have two meanings. A node that is there already keeps the name that it has; node "" is a new one, which a token has let in.
// The name of one that is lost is not another's to take who has one: it could not come back.
func (h *Head) nameIsFree(node, name string) error {
	flag := "--name"
	renamed := false
	if n := h.nodes[node]; n != nil {
		renamed = n.Value.Inventory.GetName() != name
		if n.Value.there() && n.Value.Inventory.GetName() == name {
			return nil
		}
		if n.Value.Local {
			flag = "--node-name"
		}
	}
	for _, id := range sortedIDs(h.nodes) {
		if n := h.nodes[id]; id != node && (n.Value.there() || h.comes(&n.Value) || renamed && n.Value.State != core.Left) && n.Value.Inventory.GetName() == name {
			return fault.New(fault.Exists, "node %s is called %s: give this one another name with %s", id, name, flag)
		}
	}
	return nil
}

const mostNodes = 10_000

// newNode writes a node's record, and in the same transaction that the token was used. It runs in the loop.
func (h *Head) newNode(ctx context.Context, inv *pb.Inventory, address string, local bool, t *records.Record[tokenRecord], key string) (string, error) {
	if len(h.nodes) >= mostNodes {
		if err := h.forgetNodes(ctx); err != nil {
			return "", err
		}
	}
	n, err := h.store.Next(ctx, "node")
	if err != nil {
		return "", err
	}
	id := fmt.Sprintf("n%d", n)
	now := time.Now().UTC()
	r := records.Record[nodeRecord]{ID: id, Value: nodeRecord{Inventory: inv, State: core.Gone, Address: address, Local: local, Joined: now, Seen: now}}
	if !local {
		r.Value.Authority = h.ca.Pin()
	}
	ops := []records.Op{h.t.nodes.PutOp(r)}
	joined := entry(rpc.PeerOf(ctx), "join", what{Kind: "node", ID: id, Detail: inv.GetName()}, "ok")
	if t != nil {
		joined.ID = t.ID
		t.Value.UsedBy, t.Value.Key = id, key
		ops = append(ops, h.t.tokens.PutOp(*t))
	}
	if err := h.commitAudited(h.audits.note(joined), ops...); err != nil {
		return "", err
	}
	if r, err = read(h, h.t.nodes, id); err != nil {
		return "", err
	}
	h.nodes[id] = &r
	if t != nil {
		used, err := read(h, h.t.tokens, t.ID)
		if err != nil {
			return "", err
		}
		h.tokens.put(used)
	}
	return id, h.step(core.Event{Kind: core.LoadNode, Node: r.Value.node(id), State: core.Gone})
}

// forgetNodes removes the records of nodes that left, or were lost a day ago.
func (h *Head) forgetNodes(ctx context.Context) error {
	for id, n := range h.nodes {
		old := n.Value.State == core.Left || n.Value.State == core.Gone && time.Since(n.Value.Seen) > 24*time.Hour
		if !old {
			continue
		}
		if err := h.t.nodes.Delete(ctx, id, n.Revision); err != nil {
			return err
		}
		delete(h.nodes, id)
		delete(h.used, id)
		delete(h.seen, id)
		delete(h.attached, id)
		h.core.ForgetNode(place.NodeID(id))
	}
	if len(h.nodes) >= mostNodes {
		return fault.New(fault.Exhausted, "there are %d nodes, the most that a cluster has", len(h.nodes))
	}
	return nil
}

// Local connects the agent in the head's own process, as a node that keeps its id: it needs no token and no certificate on disk.
func (h *Head) Local(ctx context.Context, inv *pb.Inventory) (conn *rpc.Conn, id string, err error) {
	if err := checkInventory(inv); err != nil {
		return nil, "", err
	}
	err = h.do(ctx, func() error {
		for n, r := range h.nodes {
			if r.Value.Local && r.Value.State != core.Left {
				id = n
				return h.nameIsFree(n, inv.GetName())
			}
		}
		if err := h.nameIsFree("", inv.GetName()); err != nil {
			return err
		}
		var err error
		id, err = h.newNode(ctx, inv, "", true, nil, "")
		return err
	})
	if err != nil {
		return nil, "", err
	}
	conn, err = h.srv.Node(pki.Identity{Cluster: h.id, Role: pki.Node, Node: id})
	return conn, id, err
}

// Renew gives a node another certificate.
func (n nodeServer) Renew(ctx context.Context, q *pb.RenewRequest) (*pb.RenewReply, error) {
	id := rpc.PeerOf(ctx).Node.Node
	var epoch uint64
	err := n.h.do(ctx, func() error {
		r := n.h.nodes[id]
		if r == nil || r.Value.State == core.Left {
			return fault.New(fault.Denied, "node %s is not of this cluster any more", id)
		}
		epoch = r.Value.Epoch
		return nil
	})
	if err != nil {
		return nil, err
	}
	chain, err := n.h.ca.IssueNode(q.GetCsr(), id, epoch)
	if err != nil {
		return nil, err
	}
	return &pb.RenewReply{Chain: chain}, nil
}

var errNoNode = errors.New("no such node")

// nodeNamed finds a node by its id, else by its name, which must be that of one node only that is there.
func (h *Head) nodeNamed(name string) (string, error) {
	if h.nodes[name] != nil {
		return name, nil
	}
	var found []string
	for _, id := range sortedIDs(h.nodes) {
		if n := h.nodes[id]; n.Value.there() && n.Value.Inventory.GetName() == name {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return "", fault.New(fault.NotFound, "%w: %s (see penstock status)", errNoNode, name)
	case 1:
		return found[0], nil
	}
	return "", fault.New(fault.Invalid, "%s is the name of node %s: give an id", name, strings.Join(found, " and node "))
}
