package head

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

const (
	ofOwner   = "owner"
	ofProject = "project"

	// mostWaiting jobs of an owner wait, unless its quota says otherwise; and it has no more than
	// mostShare that are not over, whatever it says.
	mostWaiting = 1000
	mostShare   = mostJobs / 2
	// An owner submits submitsAtOnce jobs at once, and then submitsPerSecond.
	submitsAtOnce    = 1000
	submitsPerSecond = 20
	// mostQuotas are on record.
	mostQuotas = 10_000
)

// quotaKey is whose quotas they are.
type quotaKey struct{ kind, name string }

func (k quotaKey) String() string { return k.kind + " " + k.name }

func (k quotaKey) id() string { return k.kind + "/" + k.name }

// quotaRecord is of table quotas, by KIND/NAME: nil is the default, -1 no limit. A project is there
// as long as its record is.
type quotaRecord struct {
	Waiting, Running, Packs, Logs *int64 `json:",omitempty"`
}

// parseQuota is the name of a quota that somebody says.
func parseQuota(n *pb.QuotaName) (k quotaKey, err error) {
	k = quotaKey{n.GetKind(), n.GetName()}
	if k.kind != ofOwner && k.kind != ofProject {
		return k, fault.New(fault.Invalid, "quotas are of an owner or of a project, not of %.40q", k.kind)
	}
	return k, checkOwner(k.kind, k.name)
}

// checkOwner refuses what is no name of an owner or a project.
func checkOwner(kind, name string) error {
	if ownerOf.MatchString(name) {
		return nil
	}
	return fault.New(fault.Invalid, "the name of a %s has up to 63 letters, digits, dots, hyphens, underscores and @, and begins with a letter or digit: not %.80q", strings.Replace(kind, ofOwner, "token's owner", 1), name)
}

// limits are quotas in numbers, none of them negative.
type limits struct{ waiting, running, packs, logs int64 }

// limits of an owner or a project. They are read in the loop.
func (h *Head) limits(k quotaKey) limits {
	l := limits{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}
	if k.kind == ofOwner {
		l.waiting, l.packs = mostWaiting, h.cfg.packs/2
	}
	if r := h.quotas[k]; r != nil {
		v := r.Value
		for _, x := range []struct {
			said *int64
			to   *int64
		}{{v.Waiting, &l.waiting}, {v.Running, &l.running}, {v.Packs, &l.packs}, {v.Logs, &l.logs}} {
			if x.said != nil {
				if *x.to = *x.said; *x.to < 0 {
					*x.to = math.MaxInt64
				}
			}
		}
	}
	return l
}

// keys are whose quotas count for what b submits.
func (b by) keys() (ks []quotaKey) {
	if !b.Free {
		ks = append(ks, quotaKey{ofOwner, b.Owner})
	}
	if b.Project != "" {
		ks = append(ks, quotaKey{ofProject, b.Project})
	}
	return ks
}

// raise says who can raise a quota, and how.
func (k quotaKey) raise(flag string) string {
	return fmt.Sprintf("wait, stop some, or have an administrator raise it: penstock %s set %s --%s N", k.kind, k.name, flag)
}

// used are the jobs of an owner or a project that are not over.
type used struct {
	waiting, running int64 // running: on nodes
	admitted         int64 // given to the machine
}

// counted are the jobs, by whose quotas count for them.
func (h *Head) counted() map[quotaKey]used {
	of := map[quotaKey]used{}
	for id, r := range h.jobs {
		v := &r.Value
		if v.Record.State.Over() {
			continue
		}
		for _, k := range v.By.keys() {
			u := of[k]
			if len(v.Record.Placed) == 0 {
				u.waiting++
			} else {
				u.running++
			}
			if !h.held[id] {
				u.admitted++
			}
			of[k] = u
		}
	}
	return of
}

// mayWait is an error where a job more of b would be one too many.
func (h *Head) mayWait(b by) error {
	alive, own := 0, 0
	for _, r := range h.jobs {
		if !r.Value.Record.State.Over() {
			alive++
			if r.Value.By.Owner == b.Owner {
				own++
			}
		}
	}
	if alive >= mostJobs {
		return fault.New(fault.Exhausted, "%d jobs wait or run, the most that a cluster has", alive)
	}
	if !b.Free && own >= mostShare {
		return fault.New(fault.Exhausted, "%d jobs of %s wait or run: one owner has half of what a cluster has, at most: wait, or stop some", own, b.Owner)
	}
	of := h.counted()
	for _, k := range b.keys() {
		if most := h.limits(k).waiting; of[k].waiting >= most {
			return fault.New(fault.Exhausted, "%d jobs of %s wait, of %d (jobs-waiting): %s", of[k].waiting, k, most, k.raise("jobs-waiting"))
		}
	}
	return nil
}

// mayHurry is an error where b submits too fast: each submission is several writes of the store.
func (h *Head) mayHurry(b by, now time.Time) error {
	if b.Free {
		return nil
	}
	l := h.rates[b.Owner]
	if l == nil {
		maps.DeleteFunc(h.rates, func(_ string, l *rate.Limiter) bool { return l.TokensAt(now) >= submitsAtOnce }) // as none
		l = rate.NewLimiter(submitsPerSecond, submitsAtOnce)
		h.rates[b.Owner] = l
	}
	if !l.AllowN(now, 1) {
		return fault.New(fault.Exhausted, "%s submits faster than %d jobs a second: go on more slowly", b.Owner, submitsPerSecond)
	}
	return nil
}

// waitsFor says for which quota a job cannot run beside the others; "": for none.
func (h *Head) waitsFor(b by, of map[quotaKey]used) string {
	for _, k := range b.keys() {
		if n, most := of[k].admitted, h.limits(k).running; n >= most {
			return fmt.Sprintf("%d of %d jobs of %s run (jobs-running): an administrator can raise it: penstock %s set %s --jobs-running N", n, most, k, k.kind, k.name)
		}
	}
	return ""
}

// admit gives a job that is on record to the machine, or holds it until its quotas allow that.
func (h *Head) admit(r *records.Record[jobRecord]) error {
	h.held[r.ID] = true // it is none of those that run
	if h.waitsFor(r.Value.By, h.counted()) != "" {
		h.change()
		return nil
	}
	delete(h.held, r.ID)
	return h.step(core.Event{Kind: core.Submit, Spec: r.Value.spec(r.ID)})
}

// admitHeld gives the machine the jobs that are held and need not be, the oldest first, by Submit
// or LoadJob.
func (h *Head) admitHeld(by core.EventKind) error {
	if h.freed = false; len(h.held) == 0 {
		return nil
	}
	of := h.counted()
	for _, id := range sortedIDs(h.held) {
		r := h.jobs[id]
		if h.waitsFor(r.Value.By, of) != "" {
			continue
		}
		for _, k := range r.Value.By.keys() {
			u := of[k]
			u.admitted++
			of[k] = u
		}
		delete(h.held, id)
		if err := h.step(core.Event{Kind: by, Spec: r.Value.spec(id), Record: r.Value.Record}); err != nil {
			return err
		}
	}
	return nil
}

// stopHeld ends a job that the machine does not have.
func (h *Head) stopHeld(id string) error {
	delete(h.held, id)
	rec := h.jobs[id].Value.Record
	rec.State, rec.Stop = jobs.Stopped, true
	err := h.saveJob(id, rec)
	h.change()
	return err
}

// shares are whose room the packs of p take.
func (h *Head) shares(p rpc.Peer) (all []packs.Share) {
	b := byPeer(p)
	all = append(all, packs.Share{Key: b.packs()[0], Most: math.MaxInt64, Of: b.Owner})
	for _, k := range b.keys() {
		s := packs.Share{Key: k.id(), Most: h.limits(k).packs, Of: fmt.Sprintf("%s (pack-bytes; an administrator can raise it: penstock %s set %s --pack-bytes N)", k, k.kind, k.name)}
		if k.kind == ofOwner {
			all[0] = s
		} else {
			all = append(all, s)
		}
	}
	return all
}

// packs are how the store of packs calls those whose room the pack of a job takes; the first is the
// owner.
func (b by) packs() []string {
	keys := []string{quotaKey{ofOwner, b.Owner}.id()}
	if b.Project != "" {
		keys = append(keys, quotaKey{ofProject, b.Project}.id())
	}
	return keys
}

// logsOf is how much of the log of a process of the job its node keeps; 0: as much as of any.
func (h *Head) logsOf(b by) int64 {
	most := int64(math.MaxInt64)
	for _, k := range b.keys() {
		most = min(most, h.limits(k).logs)
	}
	if most == math.MaxInt64 {
		return 0
	}
	return max(most, 1)
}

// SetQuota makes a project, or says what an owner or a project may have.
func (c controlServer) SetQuota(ctx context.Context, q *pb.Quota) (*pb.Empty, error) {
	h := c.h
	k, err := parseQuota(q.GetName())
	if err != nil {
		return nil, err
	}
	for _, n := range []*int64{q.JobsWaiting, q.JobsRunning, q.PackBytes, q.LogBytes} {
		if n != nil && *n < -1 {
			return nil, fault.New(fault.Invalid, "a quota is a number, or -1 for no limit: not %d", *n)
		}
	}
	return &pb.Empty{}, h.do(ctx, func() error {
		r := records.Record[quotaRecord]{ID: k.id()}
		if was := h.quotas[k]; was != nil {
			r = *was
		} else if other := h.alike(k); other != "" {
			return fault.New(fault.Exists, "there is a project %s: another one has a name that differs by more than capital letters", other)
		} else if len(h.quotas) >= mostQuotas {
			return fault.New(fault.Exhausted, "there are %d quotas and projects: remove some", len(h.quotas))
		}
		v := &r.Value
		v.Waiting, v.Running = cmp.Or(q.JobsWaiting, v.Waiting), cmp.Or(q.JobsRunning, v.Running)
		v.Packs, v.Logs = cmp.Or(q.PackBytes, v.Packs), cmp.Or(q.LogBytes, v.Logs)
		if err := h.commitAudited(h.noting(ctx, "set-quota", what{Kind: k.kind, ID: k.name, Detail: r.Value.String()}), h.t.quotas.PutOp(r)); err != nil {
			return err
		}
		if r, err = read(h, h.t.quotas, k.id()); err != nil {
			return err
		}
		h.quotas[k] = &r
		return h.admitHeld(core.Submit)
	})
}

// alike is the name of a project that a new one would be taken for; "": there is none.
func (h *Head) alike(k quotaKey) string {
	for x := range h.quotas {
		if k.kind == ofProject && x.kind == ofProject && strings.EqualFold(x.name, k.name) {
			return x.name
		}
	}
	return ""
}

func (v quotaRecord) String() string {
	var parts []string
	for _, x := range []struct {
		name string
		n    *int64
	}{{"jobs-waiting", v.Waiting}, {"jobs-running", v.Running}, {"pack-bytes", v.Packs}, {"log-bytes", v.Logs}} {
		if x.n != nil {
			parts = append(parts, fmt.Sprintf("%s=%d", x.name, *x.n))
		}
	}
	return strings.Join(parts, " ")
}

// ListQuotas gives what is on record, and what is used of it.
func (c controlServer) ListQuotas(ctx context.Context, _ *pb.Empty) (*pb.Quotas, error) {
	h := c.h
	list := &pb.Quotas{}
	err := h.do(ctx, func() error {
		of := h.counted()
		for _, k := range slices.SortedFunc(maps.Keys(h.quotas), func(a, b quotaKey) int { return cmp.Compare(a.id(), b.id()) }) {
			v := h.quotas[k].Value
			list.Quotas = append(list.Quotas, &pb.Quota{Name: &pb.QuotaName{Kind: k.kind, Name: k.name}, JobsWaiting: v.Waiting, JobsRunning: v.Running, PackBytes: v.Packs, LogBytes: v.Logs,
				Waiting: of[k].waiting, Running: of[k].running, Packed: h.packs.Bytes(k.id())})
		}
		return nil
	})
	return list, err
}

// RemoveQuota ends a project that nobody can use any more, or has the defaults be an owner's
// quotas.
func (c controlServer) RemoveQuota(ctx context.Context, q *pb.QuotaName) (*pb.Empty, error) {
	h := c.h
	k, err := parseQuota(q)
	if err != nil {
		return nil, err
	}
	return &pb.Empty{}, h.do(ctx, func() error {
		r := h.quotas[k]
		if r == nil {
			return fault.New(fault.NotFound, "there is no %s (see penstock %s list)", k, k.kind)
		}
		if k.kind == ofProject {
			if u := h.counted()[k]; u.waiting+u.running > 0 {
				return fault.New(fault.Exists, "%d jobs of %s are not over: stop them first (penstock jobs)", u.waiting+u.running, k)
			}
			for _, t := range h.tokens.list() {
				if v := t.Value; v.Kind == pki.Access && v.Project == k.name && !v.Revoked && (v.Ends.IsZero() || time.Now().Before(v.Ends)) {
					return fault.New(fault.Exists, "token %s is for %s: revoke it first (penstock token revoke %s)", t.ID, k, t.ID)
				}
			}
		}
		if err := h.commitAudited(h.noting(ctx, "remove-quota", what{Kind: k.kind, ID: k.name}), h.t.quotas.DeleteOp(r.ID, r.Revision)); err != nil {
			return err
		}
		delete(h.quotas, k)
		return h.admitHeld(core.Submit)
	})
}
