package head

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/internal/fault"
)

// pastHead is a head that remembers one job.
type pastHead struct {
	*Head
	t *testing.T
	c controlServer
}

func startPast(t *testing.T, dir string) pastHead {
	t.Helper()
	h, err := Start(t.Context(), Config{Dir: dir, KeepJobs: 1})
	if err != nil {
		t.Fatal(err)
	}
	return pastHead{h, t, controlServer{h: h}}
}

// submit submits a job with an id.
func (p pastHead) submit(id, program string) *pb.SubmitReply {
	p.t.Helper()
	r, err := p.c.Submit(p.t.Context(), &pb.Job{Submission: id, Name: "name of " + id, Argv: []string{program}})
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// stop ends it, as there is no node.
func (p pastHead) stop(id string) {
	p.t.Helper()
	if _, err := p.c.StopJob(p.t.Context(), &pb.StopJobRequest{Job: id}); err != nil {
		p.t.Fatal(err)
	}
}

// old makes it one that ended long ago.
func (p pastHead) old(job string) {
	p.t.Helper()
	if err := p.do(p.t.Context(), func() error {
		r := *p.jobs[job]
		r.Value.Ended = r.Value.Ended.Add(-keepFor)
		p.jobs[job] = &r
		return nil
	}); err != nil {
		p.t.Fatal(err)
	}
}

// listed are the jobs that are remembered.
func (p pastHead) listed() string {
	p.t.Helper()
	list, err := p.c.Jobs(p.t.Context(), &pb.JobsRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	var ids []string
	for _, j := range list.GetJobs() {
		ids = append(ids, j.GetId())
	}
	return strings.Join(ids, " ")
}

type noLogs struct {
	grpc.ServerStreamingServer[pb.LogChunk]
	ctx context.Context
}

func (n noLogs) Context() context.Context { return n.ctx }

// An id of submission is that of its job for long after the job was forgotten, also to the next head: the same again is not run again, and whoever asks for the job hears how it ended.
func TestPastSubmissions(t *testing.T) {
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	p := startPast(t, filepath.Join(dir, "head"))
	p.submit("once", "/bin/true")
	p.stop("once")
	p.old("j1")
	p.submit("two", "/bin/true")
	p.stop("two") // now j1 goes
	p.submit("three", "/bin/true")
	p.stop("three")
	if got := p.listed(); got != "j3 j2" { // j2 ended just now: somebody may ask how
		t.Errorf("%s are remembered", got)
	}
	var first *pb.JobState
	for range 2 {
		for _, name := range []string{"j1", "once"} {
			list, err := p.c.Jobs(t.Context(), &pb.JobsRequest{Jobs: []string{name}})
			if err != nil {
				t.Fatal(err)
			}
			s := list.GetJobs()[0]
			if first == nil {
				first = s
			}
			if s.GetId() != "j1" || s.GetState() != "stopped" || s.GetJob().GetSubmission() != "once" || s.GetJob().GetName() != "name of once" || s.GetEndedUnixNanos() <= 0 || !proto.Equal(s, first) {
				t.Errorf("%s: %v", name, s)
			}
			p.stop(name)
			if err := p.c.Logs(&pb.LogsRequest{Job: name}, noLogs{ctx: t.Context()}); fault.CodeOf(err) != fault.NotFound || !strings.Contains(err.Error(), "job j1 (once) has stopped") {
				t.Errorf("%v", err)
			}
		}
		if r := p.submit("once", "/bin/true"); !r.GetExisted() || r.GetJob() != "j1" {
			t.Errorf("%v", r)
		}
		if _, err := p.c.Submit(t.Context(), &pb.Job{Submission: "once", Argv: []string{"/bin/false"}}); fault.CodeOf(err) != fault.Exists {
			t.Errorf("%v", err)
		}
		p.Stop(0)
		p = startPast(t, filepath.Join(dir, "head"))
	}
	defer p.Stop(0)

	if err := p.do(t.Context(), func() error {
		for i := range mostPast - 1 { // as if they were in the store
			p.past.add(records.Record[submissionRecord]{ID: fmt.Sprint("x", i), Value: submissionRecord{Job: fmt.Sprint("x", i), Past: &pastRecord{}}})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	p.old("j2")
	p.submit("four", "/bin/true")
	p.stop("four") // now j2 goes, and the id of j1
	if r := p.submit("two", "/bin/true"); !r.GetExisted() || r.GetJob() != "j2" {
		t.Errorf("%v", r)
	}
	if r := p.submit("once", "/bin/true"); r.GetExisted() || r.GetJob() != "j5" {
		t.Errorf("%v", r)
	}
	if n := p.past.order.n; n != mostPast || len(p.past.job) != n || len(p.past.id) != n {
		t.Errorf("%d, %d, %d", n, len(p.past.job), len(p.past.id))
	}
}

// Of many jobs that end at once not all are kept until ten minutes are over.
func TestManyEnd(t *testing.T) {
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	p := startPast(t, filepath.Join(dir, "head"))
	defer p.Stop(0)
	p.submit("one", "/bin/true")
	p.stop("one")
	if err := p.do(t.Context(), func() error {
		for i := range mostRecent { // as if they were in the store
			id := fmt.Sprintf("j%d", i+10)
			p.jobs[id] = &records.Record[jobRecord]{ID: id, Value: jobRecord{Job: &pb.Job{}, Record: jobs.Record{State: jobs.Finished}, Ended: time.Now().UTC()}}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	p.submit("last", "/bin/true")
	p.stop("last")
	if got := strings.Fields(p.listed()); len(got) != mostRecent+1 || got[len(got)-1] != "j2" {
		t.Errorf("%d are remembered, the first is %s", len(got), got[len(got)-1])
	}
}

// TestTrimAfterALostAnswer: a job that was removed from the store, of which the answer was lost, is removed from memory, too, and those after it.
func TestTrimAfterALostAnswer(t *testing.T) {
	p := startPast(t, shortDir(t))
	defer p.Stop(0)
	for i := range 4 {
		r := p.submit(fmt.Sprintf("s%d", i), "x")
		p.stop(r.GetJob())
		p.old(r.GetJob())
		if i > 0 {
			continue
		}
		if err := p.do(t.Context(), func() error { // what trim writes
			job := p.jobs[r.GetJob()]
			s, err := p.Head.t.submissions.Get(p.ctx, "s0")
			if err != nil {
				return err
			}
			s.Value.Past = &pastRecord{State: job.Value.Record.State}
			_, err = p.store.Txn(p.ctx, p.Head.t.jobs.DeleteOp(job.ID, job.Revision), p.Head.t.submissions.PutOp(s))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if l := p.listed(); l != "j4" {
		t.Errorf("with KeepJobs 1: %v", l)
	}
	if s, err := p.c.Jobs(t.Context(), &pb.JobsRequest{Jobs: []string{"j1"}}); err != nil || s.GetJobs()[0].GetState() != "stopped" {
		t.Errorf("the one that was removed: %v, %v", s, err)
	}
}
