package head

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// clusterRecord is the one record of table cluster, "cluster".
type clusterRecord struct {
	ID       string
	Pin      pki.Pin // of the authority that issues; zero: none was made yet
	Protocol int64   // the format of records
	Created  time.Time
}

// nodeRecord is of table nodes, by id.
type nodeRecord struct {
	Inventory *pb.Inventory
	State     core.NodeState
	Drained   bool
	Epoch     uint64
	Address   string
	Local     bool    // the head's own process
	Authority pki.Pin // of its certificate, as far as is known; zero: the head's own has none
	Joined    time.Time
	Seen      time.Time // when the state was written last
}

// tokenRecord is of table tokens, by id.
type tokenRecord struct {
	Kind    pki.Kind
	Scope   rpc.Scope
	Name    string
	Hash    pki.Hash
	Names   pki.Pin // the authority
	Created time.Time
	Ends    time.Time
	Revoked bool
	Owner   string // of an access token; "": nobody but the token
	Project string // of an access token; "": all
	UsedBy  string // node, of a join token
	Key     string // SHA-256 of the key that it was used for
}

// jobRecord is of table jobs, by id.
type jobRecord struct {
	Job       *pb.Job // without secrets
	Secrets   []string
	By        by
	Record    jobs.Record
	Ran       []ran // the last attempts, the oldest first
	Submitted time.Time
	Started   time.Time // of the first attempt
	Ended     time.Time
}

// fit cuts what the record says of how processes ended until it has room: how the job stands is kept, words need not be.
func (v *jobRecord) fit() {
	r := &v.Record
	for _, cut := range []func(){
		func() {},
		func() { r.At, r.Suspects = shorter(r.At, 8, 128), shorter(r.Suspects, 8, 128) },
		func() { r.Why, r.Notes = prefix(r.Why, 512), prefix(r.Notes, 512) },
		func() { r.At, r.Suspects, r.Notes, r.Why = nil, nil, "", prefix(r.Why, 64) },
		func() { v.Ran = v.Ran[max(len(v.Ran)-1, 0):] },
		func() { v.Ran = nil },
	} {
		cut()
		if text, err := json.Marshal(v); err != nil || len(text) <= records.MaxRecord {
			return
		}
	}
}

// shorter is up to n texts, of up to so many bytes.
func shorter(texts []string, n, bytes int) []string {
	texts = slices.Clone(texts[:min(len(texts), n)])
	for i, s := range texts {
		texts[i] = prefix(s, bytes)
	}
	return texts
}

// ran is where the processes of an attempt ran: of each node of the job, in order.
type ran struct {
	Attempt int64
	Life    string `json:",omitempty"` // of jobs.Process
	Nodes   []string
}

const (
	// mostRan is how many attempts of a job are remembered, for their logs, and mostRanNodes how many nodes in them, but always the last attempt.
	mostRan      = 16
	mostRanNodes = 256
)

// after is what is remembered when an attempt was placed.
func after(rs []ran, r jobs.Record) []ran {
	x := ran{Attempt: r.Attempt, Life: r.Life}
	for _, p := range r.Placed {
		x.Nodes = append(x.Nodes, string(p.Node))
	}
	rs = append(slices.Clone(rs), x)
	first, nodes := len(rs)-1, len(x.Nodes)
	for first > 0 && first > len(rs)-mostRan && nodes+len(rs[first-1].Nodes) <= mostRanNodes {
		first--
		nodes += len(rs[first].Nodes)
	}
	return rs[first:]
}

// submissionRecord is of table submissions, by submissionID.
type submissionRecord struct {
	Job    string
	Digest string // of what was submitted
	By     by
	Past   *pastRecord `json:",omitempty"` // nil: table jobs has the job
}

// liveRecord is of table live, by node; attached to the lease of its session.
type liveRecord struct{ Epoch uint64 }

type tables struct {
	cluster     records.Table[clusterRecord]
	nodes       records.Table[nodeRecord]
	tokens      records.Table[tokenRecord]
	jobs        records.Table[jobRecord]
	submissions records.Table[submissionRecord]
	live        records.Table[liveRecord]
	quotas      records.Table[quotaRecord]
	audit       records.Table[auditRecord]
}

func tablesOf(s *records.Store) tables {
	return tables{records.In[clusterRecord](s, "cluster"), records.In[nodeRecord](s, "nodes"), records.In[tokenRecord](s, "tokens"), records.In[jobRecord](s, "jobs"),
		records.In[submissionRecord](s, "submissions"), records.In[liveRecord](s, "live"), records.In[quotaRecord](s, "quotas"),
		records.In[auditRecord](s, "audit")}
}

// all reads a table, and says of which revision of the store it is.
func all[T any](ctx context.Context, t records.Table[T]) (rs []records.Record[T], revision int64, err error) {
	for at := (records.Cursor{}); ; {
		page, next, err := t.List(ctx, at, 500)
		if err != nil {
			return nil, 0, err
		}
		rs = append(rs, page...)
		if at = next; at.After == "" {
			return rs, at.Revision, nil
		}
	}
}

// repeat carries out f for the loop, however long the store is away, and however often: what follows from it must not be done before. It fails when the head ends, and with a code that is final.
func (h *Head) repeat(f func() error, final func(fault.Code) bool) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := f()
		if err == nil {
			h.storeAway.Store(nil)
			return nil
		}
		if h.ctx.Err() != nil {
			return fault.WithCode(fault.Canceled, context.Cause(h.ctx))
		}
		var full error
		if fault.CodeOf(err) == fault.Exhausted {
			full = h.store.Reclaim(h.ctx)
			err = errors.Join(err, full)
		}
		if code := fault.CodeOf(err); (code != fault.Exhausted || full != nil) && final(code) {
			return err
		}
		h.away(err)
		select {
		case <-time.After(wait):
		case <-h.ctx.Done():
		}
	}
}

// hopeless are codes with which what must be done cannot be, and refused those with which nothing is done.
func hopeless(c fault.Code) bool {
	return c == fault.Exists || c == fault.Invalid || c == fault.Corrupt
}
func refused(c fault.Code) bool { return c != fault.Unavailable }

// write carries out a write that must be done. It ends the head where that cannot be, as another one writes.
func write[T any](h *Head, t records.Table[T], r records.Record[T]) (records.Record[T], error) {
	var next records.Record[T]
	err := h.repeat(func() (err error) {
		next, err = t.Put(h.ctx, r)
		var other *records.Conflict
		if !errors.As(err, &other) {
			return err
		}
		have, gerr := t.Get(h.ctx, r.ID)
		switch {
		case gerr == nil && same(have.Value, r.Value): // ours, whose answer was lost
			next = have
			return nil
		case gerr == nil || fault.CodeOf(gerr) == fault.NotFound:
			return fault.New(fault.Exists, "%w: does another head write to this store? One at a time can", err)
		}
		return gerr // whose it is, is not known
	}, hopeless)
	if err != nil {
		if h.ctx.Err() == nil {
			h.fail(err)
		}
		return r, err
	}
	return next, nil
}

// commit carries out a transaction that creates records of new ids, or fails and has not. It says
// which revision what was written has, or 0 where that may be of an earlier try, whose answer was
// lost: read it again.
func (h *Head) commit(ops ...records.Op) (revision int64, err error) {
	maybe := false
	err = h.repeat(func() (err error) {
		revision, err = h.store.Txn(h.ctx, ops...)
		if fault.CodeOf(err) == fault.Exists && maybe { // done by an earlier try, whose answer was lost
			revision = 0
			return nil
		}
		maybe = true
		return err
	}, refused)
	return revision, err
}

// read reads a record that is there.
func read[T any](h *Head, t records.Table[T], id string) (r records.Record[T], err error) {
	err = h.repeat(func() (err error) {
		r, err = t.Get(h.ctx, id)
		return err
	}, refused)
	return r, err
}

// away notes that the store does not answer.
func (h *Head) away(err error) {
	if h.storeAway.Load() == nil {
		h.log.Warn("the store does not take records: nodes go on with what they run, nothing new is decided", "err", err)
	}
	text := err.Error()
	h.storeAway.Store(&text)
}

// resources of the wire.
func resources(r *pb.Resources) place.Resources {
	return place.Resources{MilliCPUs: r.GetMilliCpus(), GPUs: r.GetGpus(), Memory: r.GetMemory(), Named: r.GetNamed()}
}

func wireResources(r place.Resources) *pb.Resources {
	return &pb.Resources{MilliCpus: r.MilliCPUs, Gpus: r.GPUs, Memory: r.Memory, Named: r.Named}
}

// node is what package place knows of a node.
func (r *nodeRecord) node(id string) place.Node {
	return place.Node{ID: place.NodeID(id), Capacity: resources(r.Inventory.GetCapacity()), Labels: r.Inventory.GetLabels(), Devices: r.Inventory.GetDevices()}
}

// spec is what package jobs knows of a job.
func (r *jobRecord) spec(id string) jobs.Spec {
	b := jobs.Budgets{Crash: 3, Memory: 1, User: r.Job.GetRetries(), Unfit: 3}
	if r.Job.Crashes != nil {
		b.Crash = r.Job.GetCrashes()
	}
	var members []place.Member
	for range max(r.Job.GetNodes(), 1) {
		members = append(members, place.Member{Needs: resources(r.Job.GetResources()), Labels: r.Job.GetLabels()})
	}
	data := r.Job.GetData()
	for range data.GetNodes() {
		members = append(members, place.Member{Needs: resources(data.GetResources()), Labels: data.GetLabels()})
	}
	return jobs.Spec{ID: id, Members: members, Data: int(data.GetNodes()), Distinct: len(members) > 1, Budgets: b}
}

// resources of a process of the attempt.
func (r *jobRecord) resources(member int) *pb.Resources {
	return wireResources(r.spec("").With(r.Record.Memory, r.Record.DataMemory)[member].Needs)
}

// members are how many processes the job has.
func members(j *pb.Job) int64 { return max(j.GetNodes(), 1) + j.GetData().GetNodes() }

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
