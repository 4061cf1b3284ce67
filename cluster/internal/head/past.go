package head

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/internal/fault"
)

const (
	// keepFor is how long a job that is over stays beyond KeepJobs: whoever follows it asks how it ended, after as long an absence of the head as commands wait for. mostRecent such jobs stay.
	keepFor    = 10 * time.Minute
	mostRecent = 1000
	// mostPast ids of submission stay when their jobs are not remembered any more.
	mostPast = 100_000
	// mostWhy is of the reason that stays then.
	mostWhy = 500
)

// pastRecord is what stays of a job that was submitted with an id.
type pastRecord struct {
	Name      string
	State     jobs.State
	Why       string // its first line
	Attempt   int64
	Code      int64
	Submitted time.Time
	Started   time.Time
	Ended     time.Time
}

// past is the submissions of jobs that are not remembered any more.
type past struct {
	job, id map[string]*records.Record[submissionRecord] // by job, and by id of submission
	order   fair[*records.Record[submissionRecord]]      // by who submitted them
}

func newPast(all []records.Record[submissionRecord]) past {
	p := past{job: map[string]*records.Record[submissionRecord]{}, id: map[string]*records.Record[submissionRecord]{}}
	all = slices.DeleteFunc(all, func(r records.Record[submissionRecord]) bool { return r.Value.Past == nil })
	slices.SortStableFunc(all, func(a, b records.Record[submissionRecord]) int {
		return cmp.Or(a.Value.Past.Ended.Compare(b.Value.Past.Ended), compareIDs(a.Value.Job, b.Value.Job))
	})
	for _, r := range all {
		p.add(r)
	}
	return p
}

func (p *past) add(r records.Record[submissionRecord]) {
	p.job[r.Value.Job], p.id[r.ID] = &r, &r
	p.order.add(r.Value.By.Owner, &r)
}

// drop takes out the first that has to go.
func (p *past) drop() {
	r := p.order.drop().entry
	delete(p.job, r.Value.Job)
	delete(p.id, r.ID)
}

// state is what is known of such a job, whose id is on record so.
func (v submissionRecord) state(id string) *pb.JobState {
	x := v.Past
	if _, of, in := strings.Cut(id, "/"); in { // behind the project
		id = of
	}
	return &pb.JobState{Owner: v.By.Owner, Token: v.By.Token, Project: v.By.Project, Id: v.Job, Job: &pb.Job{Submission: id, Name: x.Name}, State: string(x.State), Why: x.Why, Attempts: x.Attempt, Code: x.Code,
		SubmittedUnixNanos: nanos(x.Submitted), StartedUnixNanos: nanos(x.Started), EndedUnixNanos: nanos(x.Ended)}
}

// trim removes the records of jobs that have been over for longest, beyond KeepJobs, of the owner
// who has most of them; what stays of those that were submitted with an id is how they ended.
func (h *Head) trim() {
	for {
		type ended struct {
			n      int
			oldest *records.Record[jobRecord]
		}
		of := map[string]ended{}
		over := 0
		for _, r := range h.jobs {
			if r.Value.Record.State.Over() {
				over++
				e := of[r.Value.By.Owner]
				if e.n++; e.oldest == nil || r.Value.Ended.Before(e.oldest.Value.Ended) {
					e.oldest = r
				}
				of[r.Value.By.Owner] = e
			}
		}
		var most ended
		for _, e := range of {
			if e.n > most.n || e.n == most.n && e.oldest.Value.Ended.Before(most.oldest.Value.Ended) {
				most = e
			}
		}
		oldest := most.oldest
		if over <= h.cfg.KeepJobs || over <= h.cfg.KeepJobs+mostRecent && time.Since(oldest.Value.Ended) < keepFor {
			return
		}
		ops := []records.Op{h.t.jobs.DeleteOp(oldest.ID, oldest.Revision)}
		var was *records.Record[submissionRecord]
		if s := oldest.Value.submission(); s != "" {
			if r, err := h.t.submissions.Get(h.ctx, s); err == nil && r.Value.Job == oldest.ID {
				v := oldest.Value
				why, _, _ := strings.Cut(v.Record.Why, "\n")
				r.Value.Past = &pastRecord{Name: v.Job.GetName(), State: v.Record.State, Why: prefix(why, mostWhy), Attempt: v.Record.Attempt, Code: v.Record.Code,
					Submitted: v.Submitted, Started: v.Started, Ended: v.Ended}
				was = &r
				ops = append(ops, h.t.submissions.PutOp(r))
			}
		}
		revision, err := h.store.Txn(h.ctx, ops...)
		if gone(h, h.t.jobs, oldest.ID, err) {
			err = nil
			if was != nil {
				var r records.Record[submissionRecord]
				if r, err = h.t.submissions.Get(h.ctx, was.ID); r.Value.Past == nil {
					was = nil
				} else {
					was, revision = &r, r.Revision
				}
			}
		}
		if err != nil {
			h.log.Warn("a job that is over stays on record", "job", oldest.ID, "err", err)
			return
		}
		delete(h.jobs, oldest.ID)
		h.core.Forget(oldest.ID)
		if was != nil {
			was.Revision = revision
			h.past.add(*was)
		}
		for h.past.order.n > mostPast {
			r := h.past.order.first()
			if err := h.t.submissions.Delete(h.ctx, r.ID, r.Revision); err != nil && !gone(h, h.t.submissions, r.ID, err) {
				h.log.Warn("an id of submission stays on record", "id", r.ID, "err", err)
				return
			}
			h.past.drop()
		}
	}
}

// gone says of a record that could not be removed that it is: this head has removed it, and the answer was lost.
func gone[T any](h *Head, t records.Table[T], id string, err error) bool {
	if _, ok := errors.AsType[*records.Conflict](err); !ok {
		return false
	}
	_, err = t.Get(h.ctx, id)
	return fault.CodeOf(err) == fault.NotFound
}
