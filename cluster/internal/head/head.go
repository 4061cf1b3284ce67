// Package head is the head of a cluster: it keeps what is durable in the store, hears nodes and people, and carries out what package core decides (docs/design/0005-cluster.md).
package head

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// format is the version of the records. A head reads those of its own.
const format = 1

// Config of a head.
type Config struct {
	Dir    string          // the head's folder, mode 0700: authority, store, packs, secrets. One head at a time has it
	Listen string          // host:port for nodes and people; "": the unix socket only
	Names  []string        // by which others know the head, besides Listen's
	Store  records.Options // Endpoints and what belongs to them; without: embedded, in Dir

	Lease    time.Duration // of a node; 0: 15 s
	KeepJobs int           // that are over, and have been for ten minutes; 0: 100
	Version  string        // of the binary
	Log      *slog.Logger  // nil: none

	packs    int64 // bytes of packs that are kept; 0: 16 GiB
	audited  int   // entries of what was done that are kept; 0: mostAudited
	refusals int   // and of what was refused; 0: mostRefusals
}

// Head is a head that runs.
type Head struct {
	cfg   Config
	log   *slog.Logger
	ctx   context.Context // until Stop or a failure
	end   context.CancelCauseFunc
	store *records.Store
	t     tables
	ca    *pki.CA
	cert  *pki.Holder // the head's own
	srv   *rpc.Server
	addr  net.Addr
	packs *packs.Store
	id    string

	posts     chan func()
	work      sync.WaitGroup
	began     time.Time
	storeAway atomic.Pointer[string] // why; nil: it is there
	unrenewed atomic.Bool            // the last lease that was to be renewed was not
	tokens    tokenBook
	audits    *auditBook

	// the loop's
	core     core.Machine
	cluster  records.Record[clusterRecord]
	nodes    map[string]*records.Record[nodeRecord]
	live     map[string]*records.Record[liveRecord]
	jobs     map[string]*records.Record[jobRecord]
	past     past
	quotas   map[quotaKey]*records.Record[quotaRecord]
	held     map[string]bool          // jobs that the machine does not have yet, as quotas say
	freed    bool                     // a job has ended since those were looked at
	rates    map[string]*rate.Limiter // at which owners submit
	sessions map[string]*session
	looked   time.Time // at the clock
	excused  time.Time // until then leases that end are given again
	secrets  map[string]map[string]string
	used     map[string]*pb.Resources // as agents measured last
	seen     map[string]time.Time
	changed  chan struct{}            // closed at the next change
	meetings map[string]*meeting      // of jobs on several nodes whose processes may run
	attached map[string]*rate.Limiter // at which nodes attach
	watchers int                      // that follow
	stopping bool

	final chan struct{} // closed when the nodes of a cluster that is stopped have ended, or had their time: watchers get that state, and no other
}

// Start starts a head: it is ready when it returns. ctx is for the start; Stop ends the head, and Done says when it has ended by itself.
func Start(ctx context.Context, cfg Config) (h *Head, err error) {
	if cfg.Lease == 0 {
		cfg.Lease = 15 * time.Second
	}
	if cfg.Lease < time.Second || cfg.Lease > time.Hour {
		return nil, fault.New(fault.Invalid, "a lease of %v: it is between a second and an hour", cfg.Lease)
	}
	if cfg.KeepJobs == 0 {
		cfg.KeepJobs = 100
	}
	if cfg.packs == 0 {
		cfg.packs = 16 << 30
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var at net.Listener // until the server has it
	var taken error     // why there is none
	if cfg.Listen != "" {
		if at, taken = rpc.Listen(cfg.Listen); taken != nil {
			if in, _ := os.ReadDir(cfg.Dir); len(in) == 0 {
				return nil, taken // and nothing was made; of a folder that is a head's, who has its store says more
			}
		}
	}
	defer func() {
		if at != nil {
			at.Close()
		}
	}()
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fault.New(fault.Denied, "the head's folder: %w", err)
	}
	h = &Head{cfg: cfg, log: cfg.Log, looked: time.Now(), posts: make(chan func()), began: time.Now(), nodes: map[string]*records.Record[nodeRecord]{}, live: map[string]*records.Record[liveRecord]{},
		jobs: map[string]*records.Record[jobRecord]{}, sessions: map[string]*session{}, secrets: map[string]map[string]string{}, used: map[string]*pb.Resources{}, seen: map[string]time.Time{},
		changed: make(chan struct{}), meetings: map[string]*meeting{}, quotas: map[quotaKey]*records.Record[quotaRecord]{}, held: map[string]bool{}, rates: map[string]*rate.Limiter{}, attached: map[string]*rate.Limiter{}, final: make(chan struct{})}
	h.core.Life = strings.ToLower(rand.Text())[:10]
	h.ctx, h.end = context.WithCancelCause(context.Background())
	started := context.AfterFunc(ctx, func() { h.fail(fault.WithCode(fault.Canceled, context.Cause(ctx))) }) // also what waits for the store
	defer func() {
		if !started() && err == nil {
			err = fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		if err != nil {
			if h.store != nil && h.store.Err() != nil { // that is why, whoever noticed it first
				err = h.store.Err()
			}
			h.Stop(0)
		}
	}()
	cfg.Store.Log = cfg.Log
	if len(cfg.Store.Endpoints) == 0 {
		cfg.Store.Dir = cfg.Dir
	}
	if h.store, err = records.Open(ctx, cfg.Store); err != nil {
		return h, err
	}
	if len(cfg.Store.Endpoints) > 0 { // the folder's lock keeps others from an embedded one
		if err = h.store.Claim(ctx, cfg.Dir, cfg.Lease); err != nil {
			return h, err
		}
	}
	if taken != nil {
		return h, taken
	}
	h.work.Go(func() {
		select {
		case <-h.store.Failed():
			h.fail(h.store.Err())
		case <-h.ctx.Done():
		}
	})
	h.t = tablesOf(h.store)
	if err = h.identity(ctx); err != nil {
		return h, err
	}
	revision, err := h.load(ctx)
	if err != nil {
		return h, err
	}
	cert, err := h.issue(ctx)
	if err != nil {
		return h, err
	}
	h.cert = pki.NewHolder(cert, nil)
	h.srv, err = rpc.NewServer(rpc.ServerConfig{CA: h.ca, Holder: h.cert, Tokens: &h.tokens, Limits: rpc.Limits{Connections: mostNodes + 1000}, Log: cfg.Log, Refused: h.refusedCall}, func(r grpc.ServiceRegistrar) {
		pb.RegisterJoinServer(r, joinServer{h: h})
		pb.RegisterNodeServer(r, nodeServer{h: h})
		pb.RegisterControlServer(r, controlServer{h: h})
	})
	if err != nil {
		return h, err
	}
	h.work.Go(func() { h.cert.Keep(h.ctx, h.issue, h.log) })
	h.work.Go(h.loop)
	h.work.Go(h.keepRefusals)
	h.work.Go(func() { h.watchLive(revision) })
	if err = h.srv.ListenUnix(SocketIn(cfg.Dir)); err != nil {
		return h, err
	}
	if at != nil {
		h.addr = at.Addr()
		h.srv.ServeTLS(at)
		at = nil
	}
	h.work.Go(func() {
		select {
		case err := <-h.srv.Failed():
			h.fail(err)
		case <-h.ctx.Done():
		}
	})
	return h, nil
}

// SocketIn is the unix socket of the head of a folder.
func SocketIn(dir string) string { return filepath.Join(dir, "head.sock") }

// Addr is where it listens; nil: on the socket only.
func (h *Head) Addr() net.Addr { return h.addr }

// Pin is what new tokens say about it.
func (h *Head) Pin() pki.Pin { return h.ca.Pin() }

// issue makes a certificate for the head itself.
func (h *Head) issue(context.Context) (*tls.Certificate, error) {
	return h.ca.IssueHead(append([]string{h.cfg.Listen}, h.cfg.Names...)...)
}

// ID of the cluster.
func (h *Head) ID() string { return h.id }

// Done is closed when the head has to end: Err says why.
func (h *Head) Done() <-chan struct{} { return h.ctx.Done() }

// Err is why Done is closed; nil after Stop or Shutdown.
func (h *Head) Err() error {
	if err := context.Cause(h.ctx); err != nil && !errors.Is(err, errStopped) {
		return err
	}
	return nil
}

var errStopped = errors.New("the head was stopped")

func (h *Head) fail(err error) { h.end(err) }

// Stop ends the head; nodes go on with what they run. Calls get grace to end.
func (h *Head) Stop(grace time.Duration) {
	h.end(errStopped)
	if h.srv != nil {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		h.srv.Stop(ctx)
		cancel()
	}
	h.work.Wait()
	if h.store != nil {
		if h.audits != nil {
			h.lastRefusals()
		}
		h.store.Close()
	}
}

// identity reads who this cluster is, or makes it.
func (h *Head) identity(ctx context.Context) error {
	r, err := h.t.cluster.Get(ctx, "cluster")
	if fault.CodeOf(err) == fault.NotFound {
		r.ID = "cluster"
		r.Value = clusterRecord{ID: "c" + strings.ToLower(rand.Text())[:12], Protocol: format, Created: time.Now().UTC()}
		if r, err = h.t.cluster.Put(ctx, r); fault.CodeOf(err) == fault.Exists {
			r, err = h.t.cluster.Get(ctx, "cluster")
		}
	}
	if err != nil {
		return err
	}
	if r.Value.Protocol != format {
		return fault.New(fault.Unsupported, "the records are of format %d, this binary has %d: use the version that made them", r.Value.Protocol, format)
	}
	h.id = r.Value.ID
	dir := filepath.Join(h.cfg.Dir, "ca")
	if r.Value.Pin != (pki.Pin{}) { // nodes believe this one: another folder must not make a second
		h.ca, err = pki.LoadCA(dir, h.id, r.Value.Pin, nil)
	} else {
		h.ca, err = pki.OpenCA(dir, h.id, nil)
	}
	if err != nil {
		return err
	}
	h.tokens.ca = h.ca
	if err := h.ca.Destroy(); err != nil { // a head before this one was killed as it did
		h.log.Error("a key of an authority that is none any more is still there", "err", err)
	}
	if r.Value.Pin != h.ca.Pin() {
		r.Value.Pin = h.ca.Pin()
		r, err = h.t.cluster.Put(ctx, r)
	}
	h.cluster = r
	return err
}

// load reads the records into the machine, and opens the packs: those of jobs that are not over are held from then on. It runs before the loop.
func (h *Head) load(ctx context.Context) (revision int64, err error) {
	live, revision, err := all(ctx, h.t.live)
	if err != nil {
		return 0, err
	}
	for _, r := range live {
		h.live[r.ID] = &r
	}
	nodes, _, err := all(ctx, h.t.nodes)
	if err != nil {
		return 0, err
	}
	for _, r := range nodes {
		h.nodes[r.ID] = &r
		if err := h.step(core.Event{Kind: core.LoadNode, Node: r.Value.node(r.ID), State: r.Value.State, Drained: r.Value.Drained, Epoch: r.Value.Epoch}); err != nil {
			return 0, err
		}
	}
	entries, _, err := all(ctx, h.t.audit)
	if err != nil {
		return 0, err
	}
	h.audits = newAuditBook(entries, &h.cfg)
	quotas, _, err := all(ctx, h.t.quotas)
	if err != nil {
		return 0, err
	}
	for _, r := range quotas {
		kind, name, _ := strings.Cut(r.ID, "/")
		h.quotas[quotaKey{kind, name}] = &r
	}
	ids, _, err := all(ctx, h.t.submissions)
	if err != nil {
		return 0, err
	}
	h.past = newPast(ids)
	js, _, err := all(ctx, h.t.jobs)
	if err != nil {
		return 0, err
	}
	var held []packs.Hash
	for _, r := range js {
		if hash := packs.Hash(r.Value.Job.GetPack()); hash != "" && !r.Value.Record.State.Over() {
			held = append(held, hash)
		}
	}
	if h.packs, err = packs.OpenStore(filepath.Join(h.cfg.Dir, "packs"), h.cfg.packs, packs.Limits{}, held...); err != nil {
		return 0, err
	}
	slices.SortFunc(js, func(a, b records.Record[jobRecord]) int { return compareIDs(a.ID, b.ID) })
	for _, r := range js {
		h.jobs[r.ID] = &r
		if hash := packs.Hash(r.Value.Job.GetPack()); hash != "" && !r.Value.Record.State.Over() {
			h.packs.Share(hash, r.Value.By.packs()...)
		}
		if len(r.Value.Secrets) == 0 || r.Value.Record.State.Over() {
			h.dropSecrets(r.ID)
		} else if _, err := h.secretsOf(&r); err != nil {
			h.log.Warn(fmt.Sprintf("job %s will not start again", r.ID), "job", r.ID, "err", err)
		}
		if s := r.Value.Record.State; s == jobs.Queued && r.Value.Record.Attempt == 0 {
			h.held[r.ID] = true // until all that run are known
			continue
		}
		if err := h.step(core.Event{Kind: core.LoadJob, Spec: r.Value.spec(r.ID), Record: r.Value.Record}); err != nil {
			return 0, err
		}
	}
	if err := h.admitHeld(core.LoadJob); err != nil {
		return 0, err
	}
	for _, r := range nodes { // whose lease ended while no head was there
		if h.live[r.ID] == nil {
			if err := h.step(core.Event{Kind: core.LeaseOver, Node: place.Node{ID: place.NodeID(r.ID)}, Epoch: r.Value.Epoch}); err != nil {
				return 0, err
			}
		}
	}
	return revision, h.tokens.load(ctx, h.t.tokens)
}

// loop runs what is posted, one after another, and the machine's clock.
func (h *Head) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := min(lookEvery, h.cfg.Lease/8)
		if at, ok := h.core.Deadline(); ok {
			wait = min(wait, max(at-time.Since(h.began), 0))
		}
		timer.Reset(wait)
		select {
		case f := <-h.posts:
			h.look()
			f()
		case <-timer.C:
			h.look()
			_ = h.step(core.Event{Kind: core.Tick}) // a failure ends the head
		case <-h.ctx.Done():
			return
		}
		if h.freed {
			_ = h.admitHeld(core.Submit) // likewise
		}
	}
}

// lookEvery is how often the loop looks at the clock, at least; where leases are short, each eighth of one.
const lookEvery = 500 * time.Millisecond

// look notes when the head itself was away (stopped, or without its store): the leases that ended meanwhile say nothing about nodes that are attached, and get their time again. Two thirds of a lease are left of one that is
// renewed at each beat: to be away for less than that ends none.
func (h *Head) look() {
	now := time.Now()
	if now.Sub(h.looked) > min(4*lookEvery, h.cfg.Lease/2) {
		h.excused = now.Add(h.cfg.Lease)
	}
	h.looked = now
}

// post has the loop call f, unless it is busy.
func (h *Head) post(f func()) {
	select {
	case h.posts <- f:
	default:
	}
}

// do has the loop call f for the caller of ctx, and waits for it. A token is looked at again there:
// what waited, for its message or for the loop, is not done with one that was revoked meanwhile.
func (h *Head) do(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	select {
	case h.posts <- func() {
		err := h.mayStill(rpc.PeerOf(ctx))
		if err == nil {
			err = f()
		}
		done <- err
	}:
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "the head is busy: %s", h.busy())
	case <-h.ctx.Done():
		return h.ends("")
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "the head is busy: %s; what was asked may still be done", h.busy())
	case <-h.ctx.Done():
		return h.ends("; what was asked may be done")
	}
}

// mayStill is an error where a caller has a token that is good no more.
func (h *Head) mayStill(p rpc.Peer) error {
	if p.Kind != rpc.Person {
		return nil
	}
	r, ok := h.tokens.get(p.Token)
	if !ok {
		return fault.New(fault.Denied, "there is no access token %s any more: have another made (penstock token create)", p.Token)
	}
	return h.tokens.record(r).Good(p.Token, time.Now())
}

// ends is the error of what is asked while the head ends.
func (h *Head) ends(more string) error {
	if err := h.Err(); err != nil {
		return fault.New(fault.Unavailable, "the head ends%s: %w", more, err)
	}
	return fault.New(fault.Unavailable, "the head ends%s", more)
}

func (h *Head) busy() string {
	if why := h.storeAway.Load(); why != nil {
		return "its store does not answer: " + *why
	}
	return "try again"
}

// step gives the machine an event and carries out what it says, in order. An error is the end of the head, or of its context.
func (h *Head) step(e core.Event) error {
	e.At = time.Since(h.began)
	acts := append([]core.Action(nil), h.core.Step(e)...)
	var refused []core.End
	for _, a := range acts {
		if a.Do == core.Start {
			s, err := h.start(a)
			if err != nil {
				refused = append(refused, core.End{Process: a.Process, Class: jobs.Refused, Text: err.Error()})
				continue
			}
			h.tell(string(a.Node), &pb.FromHead{Say: &pb.FromHead_Start{Start: s}})
		} else if err := h.act(a); err != nil {
			return err
		}
	}
	if len(acts) > 0 {
		h.change()
	}
	for _, x := range refused { // when all that was decided before is done
		if node, ok := h.core.Where(x.Process); ok {
			_, epoch, _ := h.core.Node(node)
			if err := h.step(core.Event{Kind: core.Exited, Node: place.Node{ID: node}, Epoch: epoch, Ended: []core.End{x}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// change wakes who waits for another state.
func (h *Head) change() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *Head) act(a core.Action) error {
	id := string(a.Node)
	switch a.Do {
	case core.SaveNode:
		r := *h.nodes[id]
		if r.Value.State != a.State {
			h.log.Info(fmt.Sprintf("node %s (%s) is %s", id, r.Value.Inventory.GetName(), a.State), "node", id, "was", r.Value.State)
		}
		r.Value.State, r.Value.Drained, r.Value.Epoch, r.Value.Seen = a.State, a.Drained, a.Epoch, time.Now().UTC()
		r, err := write(h, h.t.nodes, r)
		if err != nil {
			return err
		}
		h.nodes[id] = &r
	case core.SaveJob:
		return h.saveJob(a.Job, a.Record)
	case core.Welcome:
		var keep []string
		for _, p := range a.Processes {
			keep = append(keep, p.String())
		}
		h.tell(id, &pb.FromHead{Say: &pb.FromHead_Welcome{Welcome: &pb.Welcome{Epoch: a.Epoch, LeaseMs: h.cfg.Lease.Milliseconds(), Keep: keep}}})
		h.tell(id, h.believed())
	case core.Kill:
		h.tell(id, &pb.FromHead{Say: &pb.FromHead_Stop{Stop: &pb.Stop{Process: a.Process.String(), GraceMs: a.Grace.Milliseconds()}}})
	case core.Heard:
		h.tell(id, &pb.FromHead{Say: &pb.FromHead_Heard{Heard: a.Process.String()}})
	}
	return nil
}

// saveJob writes the record of a job.
func (h *Head) saveJob(id string, rec jobs.Record) error {
	r := *h.jobs[id]
	was := r.Value.Record.State
	now := time.Now().UTC()
	if rec.State == jobs.Starting && rec.Attempt > r.Value.Record.Attempt {
		if r.Value.Started.IsZero() {
			r.Value.Started = now
		}
		r.Value.Ran = after(r.Value.Ran, rec)
	}
	if rec.State.Over() {
		r.Value.Ended = now
	}
	if len(rec.Placed) == 0 {
		delete(h.meetings, id)
	}
	r.Value.Record = rec
	r.Value.fit()
	r, err := write(h, h.t.jobs, r)
	if err != nil {
		return err
	}
	h.jobs[id] = &r
	if rec.State != was || rec.State == jobs.Queued {
		h.log.Info(fmt.Sprintf("job %s is %s", id, rec.State), "job", id, "attempt", rec.Attempt, "why", rec.Why)
	}
	if rec.State.Over() {
		h.dropSecrets(id)
		if h.freed = true; !was.Over() {
			h.releasePack(r.Value.Job)
		}
		h.trim()
	}
	return nil
}

// holdPack keeps the pack of a job, which may have none, until it is over.
func (h *Head) holdPack(j *pb.Job) error {
	if j.GetPack() == "" {
		return nil
	}
	return h.packs.Hold(packs.Hash(j.GetPack()))
}

func (h *Head) releasePack(j *pb.Job) {
	if j.GetPack() != "" {
		h.packs.Release(packs.Hash(j.GetPack()))
	}
}

func same[T any](a, b T) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && reflect.DeepEqual(x, y)
}
