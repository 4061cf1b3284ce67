package head

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

const (
	// mostAudited entries of what was done are kept, in mostAuditBytes, and mostRefusals of what
	// was refused.
	mostAudited    = 100_000
	mostAuditBytes = 64 << 20
	mostRefusals   = 10_000
	// mostPending are the kinds of refusals that wait to be written, once in refusalsEvery, and
	// mostOfOne those of one caller; what comes beyond them is counted as one.
	mostPending   = 32
	mostOfOne     = 16
	refusalsEvery = time.Second
	// mostAuditText bytes of a text that callers choose are in an entry.
	mostAuditText = 200
)

// what is the object of an action: it says which thing, and never what is in it.
type what struct {
	Kind   string // job, node, token, project, owner, cluster, authority
	ID     string
	Detail string // what else names it
}

// auditRecord is of table audit, by number.
type auditRecord struct {
	At      time.Time
	Who     string // token, user, node, newcomer or head
	ID      string `json:",omitempty"` // of the token or node, or the number of the user; of a newcomer the token that it joined with
	Owner   string `json:",omitempty"`
	Project string `json:",omitempty"`
	From    string `json:",omitempty"`
	Action  string
	On      what
	Result  string // ok, or the code of the error
	Count   int64  `json:",omitempty"` // of refusals
}

// audited is an entry that is in the store.
type audited struct {
	id       string
	revision int64
	size     int64
	auditRecord
}

// auditBook is the entries that there are, of what was done and of what was refused: a flood of the
// one pushes nothing of the other out. Safe for concurrent use.
type auditBook struct {
	most, refusals int
	mostBytes      int64

	mu      sync.Mutex
	next    uint64 // number of the last entry
	done    fair[*audited]
	refused fair[*audited]
	bytes   int64                  // of both
	pending map[string]auditRecord // refusals that are not written yet
	soon    chan struct{}          // has something when there are
	writing sync.Mutex             // of pending
}

func newAuditBook(all []records.Record[auditRecord], cfg *Config) *auditBook {
	b := &auditBook{most: cmp.Or(cfg.audited, mostAudited), refusals: cmp.Or(cfg.refusals, mostRefusals), mostBytes: mostAuditBytes, pending: map[string]auditRecord{}, soon: make(chan struct{}, 1)}
	for _, r := range all {
		n, _ := strconv.ParseUint(r.ID, 10, 64) // an id of another form sorts somewhere
		b.next = max(b.next, n)
		b.put(&audited{r.ID, r.Revision, auditSize(&r.Value), r.Value})
	}
	return b
}

func auditSize(r *auditRecord) int64 {
	text, _ := json.Marshal(r) // texts and numbers
	return int64(len(text)) + 100
}

// put and queue want the lock.
func (b *auditBook) put(a *audited) {
	b.queue(&a.auditRecord).add(a.owner(), a)
	b.bytes += a.size
}

func (b *auditBook) queue(r *auditRecord) *fair[*audited] {
	if r.Result == "ok" {
		return &b.done
	}
	return &b.refused
}

// owner is by whom entries are shared out: who has most of them loses some first.
func (r *auditRecord) owner() string {
	if r.Result != "ok" {
		return r.From + " " + cmp.Or(r.Owner, r.ID)
	}
	return r.Who + " " + cmp.Or(r.Owner, r.ID)
}

// entry is what the caller of ctx did, or was refused.
func entry(p rpc.Peer, action string, on what, result string) auditRecord {
	on.ID, on.Detail = prefix(on.ID, mostAuditText), prefix(on.Detail, mostAuditText)
	r := auditRecord{At: time.Now().UTC(), Who: "head", From: p.Host, Action: action, On: on, Result: result}
	switch p.Kind {
	case rpc.Person:
		r.Who, r.ID, r.Owner, r.Project = "token", p.Token, p.Owner, p.Project
	case rpc.Local:
		r.Who, r.ID = "user", strconv.Itoa(p.UID)
	case rpc.Node:
		r.Who, r.ID = "node", p.Node.Node
	case rpc.Newcomer:
		r.Who = "newcomer"
	}
	return r
}

// noting is an entry on its way into the store, and what has to go for it.
type noting struct {
	b     *auditBook
	fresh audited
	gone  []taken[*audited]
}

// note begins to write an entry.
func (b *auditBook) note(r auditRecord) *noting {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	n := &noting{b: b, fresh: audited{id: fmt.Sprintf("%016d", b.next), size: auditSize(&r), auditRecord: r}}
	drop := func(q *fair[*audited]) {
		t := q.drop()
		b.bytes -= t.entry.size
		n.gone = append(n.gone, t)
	}
	const atOnce = 4 // bounds that were lowered are reached bit by bit
	q, most := &b.done, b.most
	if r.Result != "ok" {
		q, most = &b.refused, b.refusals
	}
	for q.n >= most && len(n.gone) < atOnce {
		drop(q)
	}
	for q.n > 0 && b.bytes+n.fresh.size > b.mostBytes && len(n.gone) < atOnce {
		drop(q)
	}
	return n
}

// ops are the entry's part of a transaction.
func (n *noting) ops(t records.Table[auditRecord]) []records.Op {
	ops := []records.Op{t.PutOp(records.Record[auditRecord]{ID: n.fresh.id, Value: n.fresh.auditRecord})}
	for _, g := range n.gone {
		ops = append(ops, t.DeleteOp(g.entry.id, g.entry.revision))
	}
	return ops
}

// end says what became of the transaction.
func (n *noting) end(revision int64, err error) {
	b := n.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		n.fresh.revision = revision
		b.put(&n.fresh)
		return
	}
	if fault.CodeOf(err) == fault.Exists { // somebody else has removed some: the next one takes others
		return
	}
	for _, g := range n.gone {
		b.queue(&g.entry.auditRecord).restore(g)
		b.bytes += g.entry.size
	}
}

// commitAudited carries out a transaction as commit does, with an entry that says that the caller
// of ctx did it: both, or none.
func (h *Head) commitAudited(n *noting, ops ...records.Op) error {
	revision, err := h.commit(append(ops, n.ops(h.t.audit)...)...)
	if err == nil && revision == 0 {
		var r records.Record[auditRecord]
		r, err = read(h, h.t.audit, n.fresh.id)
		revision = r.Revision
	}
	n.end(revision, err)
	return err
}

func (h *Head) noting(ctx context.Context, action string, on what) *noting {
	return h.audits.note(entry(rpc.PeerOf(ctx), action, on, "ok"))
}

// audit puts on record that the caller of ctx does something, before it is done, where err is nil:
// what cannot be put on record must not be done: that is the error. Else it notes that it was
// refused, and returns err.
// It may be called from anywhere.
func (h *Head) audit(ctx context.Context, action string, on what, err error) error {
	if err != nil {
		h.audits.refuse(entry(rpc.PeerOf(ctx), action, on, fault.CodeOf(err).String()))
		return err
	}
	return h.commitAudited(h.noting(ctx, action, on))
}

// refuse counts a refusal, which is written soon.
func (b *auditBook) refuse(r auditRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := fmt.Sprintf("%q", []string{r.Who, r.ID, r.From, r.Action, r.On.ID, r.Result})
	if _, ok := b.pending[key]; !ok {
		own := 0
		for _, x := range b.pending {
			if x.Who == r.Who && x.ID == r.ID && x.From == r.From {
				own++
			}
		}
		if own >= mostOfOne-1 { // who calls is told, whatever he has called besides
			key = fmt.Sprintf("%q", []string{r.Who, r.ID, r.From})
			r.Action, r.On, r.Result = "call", what{}, fault.Denied.String()
		}
	}
	if _, ok := b.pending[key]; !ok && len(b.pending) >= mostPending-1 {
		key = "others"
		r = auditRecord{At: r.At, Who: "others", Action: "call", Result: fault.Denied.String()}
	}
	if was, ok := b.pending[key]; ok {
		r = was
	}
	r.Count++
	b.pending[key] = r
	select {
	case b.soon <- struct{}{}:
	default:
	}
}

// take gives those that wait to be written, the first first.
func (b *auditBook) take() []auditRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	rs := slices.SortedFunc(maps.Values(b.pending), func(a, b auditRecord) int { return a.At.Compare(b.At) })
	clear(b.pending)
	return rs
}

// writeRefusals writes those that wait.
func (h *Head) writeRefusals() {
	h.audits.writing.Lock()
	defer h.audits.writing.Unlock()
	for _, r := range h.audits.take() {
		if err := h.commitAudited(h.audits.note(r)); err != nil && h.ctx.Err() == nil {
			h.log.Warn("a refusal is not on record", "action", r.Action, "count", r.Count, "err", err)
		}
	}
}

// keepRefusals writes refusals as they come, until the head ends.
func (h *Head) keepRefusals() {
	for {
		select {
		case <-h.audits.soon:
		case <-h.ctx.Done():
			return
		}
		h.writeRefusals()
		select {
		case <-time.After(refusalsEvery):
		case <-h.ctx.Done():
			return
		}
	}
}

// lastRefusals writes those that have come since, when nothing else is written any more.
func (h *Head) lastRefusals() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, r := range h.audits.take() {
		if _, err := h.store.Txn(ctx, h.audits.note(r).ops(h.t.audit)...); err != nil {
			h.log.Warn("refusals are not on record", "err", err)
			return
		}
	}
}

// actions are how entries call what methods do.
var actions = map[string]string{
	pb.Join_Join_FullMethodName: "join",

	pb.Control_Submit_FullMethodName:      "submit",
	pb.Control_StopJob_FullMethodName:     "stop",
	pb.Control_Drain_FullMethodName:       "drain",
	pb.Control_Undrain_FullMethodName:     "undrain",
	pb.Control_Shutdown_FullMethodName:    "shutdown",
	pb.Control_CreateToken_FullMethodName: "create-token",
	pb.Control_RevokeToken_FullMethodName: "revoke-token",
	pb.Control_SetQuota_FullMethodName:    "set-quota",
	pb.Control_RemoveQuota_FullMethodName: "remove-quota",

	pb.Control_RotateAuthority_FullMethodName: "rotate-authority",
	pb.Control_FinishAuthority_FullMethodName: "finish-authority",
}

// refusedCall is what package rpc tells of.
func (h *Head) refusedCall(p rpc.Peer, method string, request any, err error) {
	action := actions[method]
	if action == "" {
		action = method
	}
	h.audits.refuse(entry(p, action, objectOf(request), fault.CodeOf(err).String()))
}

// objectOf is what a request is about, by what names it: nothing else of it is on record.
func objectOf(request any) what {
	switch q := request.(type) {
	case *pb.Job:
		return what{Kind: "job", ID: q.GetSubmission(), Detail: q.GetName()}
	case *pb.StopJobRequest:
		return what{Kind: "job", ID: q.GetJob()}
	case *pb.DrainRequest:
		return what{Kind: "node", ID: q.GetNode()}
	case *pb.ShutdownRequest:
		if q.GetAll() {
			return what{Kind: "cluster"}
		}
		return what{Kind: "node", ID: q.GetNode()}
	case *pb.CreateTokenRequest:
		return what{Kind: "token", Detail: q.GetName()}
	case *pb.RevokeTokenRequest:
		return what{Kind: "token", ID: q.GetId()}
	case *pb.JoinRequest:
		return what{Kind: "node", Detail: q.GetInventory().GetName()}
	case *pb.Quota:
		return what{Kind: prefix(q.GetName().GetKind(), 20), ID: q.GetName().GetName()}
	case *pb.QuotaName:
		return what{Kind: prefix(q.GetKind(), 20), ID: q.GetName()}
	}
	return what{}
}

// list gives the entries that match, in order.
func (b *auditBook) list(match func(*auditRecord) bool) []*audited {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*audited
	for _, q := range []*fair[*audited]{&b.done, &b.refused} {
		for a := range q.all {
			if match(&a.auditRecord) {
				all = append(all, a)
			}
		}
	}
	slices.SortFunc(all, func(a, b *audited) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.id, b.id)) })
	return all
}

// Audit gives who did what, the oldest first.
func (c controlServer) Audit(q *pb.AuditRequest, stream grpc.ServerStreamingServer[pb.AuditEntry]) error {
	h := c.h
	if h.storeAway.Load() == nil { // else they wait longer than the caller would
		h.writeRefusals()
	}
	job := map[string]bool{q.GetJob(): true}
	known := q.GetJob() == ""
	if err := h.do(stream.Context(), func() error { // by its id, or that of its submission
		p := rpc.PeerOf(stream.Context())
		if r, err := h.jobFor(p, q.GetJob()); err == nil {
			job[r.ID], job[cmp.Or(r.Value.submission(), r.ID)], known = true, true, true
		} else if was := h.pastFor(p, q.GetJob()); was != nil {
			job[was.Value.Job], job[was.ID], known = true, true, true
		}
		return nil
	}); err != nil {
		return err
	}
	about := func(r *auditRecord) bool {
		id := r.On.ID
		if !idOf.MatchString(id) {
			id = submissionID(r.Project, id)
		}
		return r.On.Kind == "job" && job[id]
	}
	if !known && len(h.audits.list(about)) == 0 { // what is forgotten may be on record here
		return noJob(q.GetJob())
	}
	for _, a := range h.audits.list(func(r *auditRecord) bool {
		return (q.GetSinceUnixNanos() == 0 || r.At.UnixNano() >= q.GetSinceUnixNanos()) &&
			(q.GetJob() == "" || about(r)) &&
			(q.GetToken() == "" || r.ID == q.GetToken() && r.Who != "node" && r.Who != "user" || r.On.Kind == "token" && r.On.ID == q.GetToken())
	}) {
		if err := stream.Send(&pb.AuditEntry{UnixNanos: nanos(a.At), Who: a.Who, Id: a.ID, Owner: a.Owner, Project: a.Project, From: a.From, Action: a.Action, Kind: a.On.Kind, Object: a.On.ID,
			Detail: a.On.Detail, Result: a.Result, Count: a.Count}); err != nil {
			return err
		}
	}
	return nil
}
