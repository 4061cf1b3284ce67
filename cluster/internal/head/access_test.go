package head

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// people is a head, with administrators at its socket and others who have tokens.
type people struct {
	t    *testing.T
	h    *Head
	root pb.ControlClient
}

func startPeople(t *testing.T, cfg Config) *people {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	h, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Stop(0) })
	p := &people{t: t, h: h}
	p.root = p.dial("unix:"+SocketIn(cfg.Dir), rpc.AtSocket())
	return p
}

func (p *people) dial(addr string, c rpc.Creds) pb.ControlClient {
	p.t.Helper()
	conn, err := rpc.Dial(p.t.Context(), addr, c)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	return pb.NewControlClient(conn)
}

// person has a token. id is that of it.
func (p *people) person(scope, owner, project string) (c pb.ControlClient, id string) {
	p.t.Helper()
	r, err := p.root.CreateToken(p.t.Context(), &pb.CreateTokenRequest{Kind: "access", Scope: scope, Owner: owner, Project: project})
	if err != nil {
		p.t.Fatal(err)
	}
	token, err := pki.ParseToken(r.GetToken())
	if err != nil {
		p.t.Fatal(err)
	}
	return p.dial(p.h.Addr().String(), rpc.AsPerson(token)), token.ID
}

func (p *people) submit(c pb.ControlClient, id, name string) string {
	p.t.Helper()
	r, err := c.Submit(p.t.Context(), &pb.Job{Submission: id, Name: name, Argv: []string{"x"}})
	if err != nil {
		p.t.Fatal(err)
	}
	return r.GetJob()
}

func (p *people) set(kind, name string, q *pb.Quota) {
	p.t.Helper()
	q.Name = &pb.QuotaName{Kind: kind, Name: name}
	if _, err := p.root.SetQuota(p.t.Context(), q); err != nil {
		p.t.Fatal(err)
	}
}

func (p *people) state(job string) string {
	p.t.Helper()
	l, err := p.root.Jobs(p.t.Context(), &pb.JobsRequest{Jobs: []string{job}})
	if err != nil {
		p.t.Fatal(err)
	}
	return l.GetJobs()[0].GetState()
}

func (p *people) wants(err error, code fault.Code, texts ...string) {
	p.t.Helper()
	if fault.CodeOf(err) != code {
		p.t.Errorf("%v (%v), want %v", err, fault.CodeOf(err), code)
	}
	for _, s := range texts {
		if err == nil || !strings.Contains(err.Error(), s) {
			p.t.Errorf("%v does not say %q", err, s)
		}
	}
}

func logsOf(c pb.ControlClient, ctx context.Context, job string) error {
	s, err := c.Logs(ctx, &pb.LogsRequest{Job: job})
	if err == nil {
		if _, err = s.Recv(); err != nil && err.Error() == "EOF" {
			return nil
		}
	}
	return err
}

func (p *people) audit(q *pb.AuditRequest) (all []string) {
	p.t.Helper()
	s, err := p.root.Audit(p.t.Context(), q)
	if err != nil {
		p.t.Fatal(err)
	}
	for {
		e, err := s.Recv()
		if err != nil {
			if err.Error() != "EOF" {
				p.t.Fatal(err)
			}
			return all
		}
		line := fmt.Sprintf("%s %s %s %s %s %s", e.GetWho(), e.GetId(), e.GetAction(), e.GetKind(), e.GetObject(), e.GetResult())
		if e.GetCount() > 1 {
			line += fmt.Sprintf(" x%d", e.GetCount())
		}
		all = append(all, line)
	}
}

// A job is its owner's: somebody else with a token of scope submit can neither stop it, nor take
// its id, before it is over or after, and gets its owner in the error. Another token of the owner,
// an administrator and the head's user can.
func TestAJobIsItsOwners(t *testing.T) {
	dir := shortDir(t)
	p := startPeople(t, Config{Dir: dir, KeepJobs: 1})
	ada, adaID := p.person("submit", "ada", "")
	again, _ := p.person("submit", "ada", "")
	eve, eveID := p.person("submit", "", "")
	admin, _ := p.person("admin", "", "")
	reader, _ := p.person("read", "ada", "")
	ctx := t.Context()

	first := p.submit(ada, "nightly", "n")
	stop := func(c pb.ControlClient, job string) error {
		_, err := c.StopJob(ctx, &pb.StopJobRequest{Job: job})
		return err
	}
	for _, name := range []string{first, "nightly"} {
		p.wants(stop(eve, name), fault.Denied, "job "+first+" was submitted by token "+adaID+" (of ada)", "administrators")
		p.wants(stop(reader, name), fault.Denied, "scope submit")
	}
	for _, argv := range []string{"x", "y"} { // the same content tells her nothing more
		_, err := eve.Submit(ctx, &pb.Job{Submission: "nightly", Name: "n", Argv: []string{argv}})
		p.wants(err, fault.Exists, "nightly is the id of somebody else's submission: choose another id")
		if strings.Contains(err.Error(), first) {
			t.Errorf("it tells of the job: %v", err)
		}
	}
	if got := p.state(first); got != "queued" {
		t.Fatalf("it is %s", got)
	}
	if r, err := again.Submit(ctx, &pb.Job{Submission: "nightly", Name: "n", Argv: []string{"x"}}); err != nil || !r.GetExisted() || r.GetJob() != first {
		t.Errorf("another token of the owner: %v, %v", r, err)
	}
	l, err := eve.Jobs(ctx, &pb.JobsRequest{})
	if err != nil || len(l.GetJobs()) != 1 || l.GetJobs()[0].GetOwner() != "ada" || l.GetJobs()[0].GetToken() != adaID {
		t.Errorf("%v, %v", l, err)
	}
	if err := stop(again, "nightly"); err != nil {
		t.Error(err)
	}
	for _, c := range []pb.ControlClient{admin, p.root} {
		if err := stop(c, p.submit(ada, "", "n")); err != nil {
			t.Error(err)
		}
	}
	p.wants(stop(ada, p.submit(p.root, "", "of root")), fault.Denied, fmt.Sprintf("user %d of the head's machine", os.Getuid()))
	p.wants(stop(eve, p.submit(admin, "", "of admin")), fault.Denied)
	for _, c := range []pb.ControlClient{ada, eve} { // and all that is for administrators
		_, err := c.Drain(ctx, &pb.DrainRequest{Node: "n1"})
		p.wants(err, fault.Denied)
		_, err = c.CreateToken(ctx, &pb.CreateTokenRequest{Kind: "access", Scope: "admin"})
		p.wants(err, fault.Denied)
		_, err = c.RevokeToken(ctx, &pb.RevokeTokenRequest{Id: eveID})
		p.wants(err, fault.Denied)
		_, err = c.SetQuota(ctx, &pb.Quota{Name: &pb.QuotaName{Kind: ofOwner, Name: "ada"}})
		p.wants(err, fault.Denied)
		s, err := c.Audit(ctx, &pb.AuditRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		p.wants(err, fault.Denied)
	}

	// When the job is forgotten its id is still ada's, and to the next head.
	if err := p.h.do(ctx, func() error {
		for _, r := range p.h.jobs {
			if r.Value.Record.State.Over() {
				x := *r
				x.Value.Ended = x.Value.Ended.Add(-keepFor)
				p.h.jobs[x.ID] = &x
			}
		}
		p.h.trim()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	p.h.Stop(0)
	p = startPeople(t, Config{Dir: dir, KeepJobs: 1})
	eve, _ = p.person("submit", "", "")
	_, err = eve.Submit(ctx, &pb.Job{Submission: "nightly", Name: "n", Argv: []string{"x"}})
	p.wants(err, fault.Exists, "somebody else's")
	p.wants(stop(eve, "nightly"), fault.Denied)
	if p.h.past.id["nightly"] == nil {
		t.Error("it is not one that was forgotten")
	}
}

// A token of a project submits, sees and stops jobs of that only, and nobody else takes its names.
func TestProjects(t *testing.T) {
	dir := shortDir(t)
	p := startPeople(t, Config{Dir: dir})
	ctx := t.Context()
	_, err := p.root.CreateToken(ctx, &pb.CreateTokenRequest{Kind: "access", Scope: "submit", Project: "team-a"})
	p.wants(err, fault.NotFound, "penstock project set team-a")
	one := int64(2)
	p.set(ofProject, "team-a", &pb.Quota{JobsWaiting: &one})
	p.set(ofProject, "team-b", &pb.Quota{})
	for _, q := range []*pb.CreateTokenRequest{{Kind: "access", Scope: "admin", Project: "team-a"}, {Kind: "join", Project: "team-a"}, {Kind: "join", Owner: "x"}, {Kind: "access", Scope: "read", Owner: "uid:0"}, {Kind: "access", Scope: "read", Owner: "a/b"}} {
		_, err := p.root.CreateToken(ctx, q)
		p.wants(err, fault.Invalid)
	}
	a, _ := p.person("submit", "ada", "team-a")
	b, _ := p.person("submit", "bob", "team-b")
	readB, _ := p.person("read", "", "team-b")
	eve, _ := p.person("submit", "", "")

	ja := p.submit(a, "ida", "nightly")
	jb := p.submit(b, "idb", "team-b/nightly")
	p.submit(eve, "", "other")
	names := func(c pb.ControlClient) (all []string) {
		l, err := c.Jobs(ctx, &pb.JobsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range l.GetJobs() {
			all = append(all, j.GetJob().GetName()+" of "+j.GetProject())
		}
		return all
	}
	if got := names(a); !slices.Equal(got, []string{"team-a/nightly of team-a"}) {
		t.Error(got)
	}
	if got := names(readB); !slices.Equal(got, []string{"team-b/nightly of team-b"}) {
		t.Error(got)
	}
	if got := names(eve); len(got) != 3 {
		t.Error(got)
	}
	for _, name := range []string{ja, "ida"} {
		for _, c := range []pb.ControlClient{b, readB} {
			_, err := c.Jobs(ctx, &pb.JobsRequest{Jobs: []string{name}})
			p.wants(err, fault.NotFound, "no job "+name)
			p.wants(logsOf(c, ctx, name), fault.NotFound, "no job "+name)
		}
		_, err := b.StopJob(ctx, &pb.StopJobRequest{Job: name})
		p.wants(err, fault.NotFound, "no job "+name)
	}
	w, err := b.Watch(ctx, &pb.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := w.Recv(); err != nil || len(s.GetWaiting()) != 1 || s.GetWaiting()[0].GetJob() != jb {
		t.Errorf("what waits: %v, %v", s.GetWaiting(), err)
	}
	_, err = b.Submit(ctx, &pb.Job{Name: "team-a/mine", Argv: []string{"x"}})
	if err != nil || names(b)[0] != "team-b/team-a/mine of team-b" {
		t.Errorf("%v, %v", names(b), err)
	}
	_, err = eve.Submit(ctx, &pb.Job{Name: "team-a/mine", Argv: []string{"x"}})
	p.wants(err, fault.Denied, "project team-a")
	p.submit(p.root, "", "team-a/of root")
	_, err = a.Submit(ctx, &pb.Job{Argv: []string{"x"}})
	p.wants(err, fault.Exhausted, "2 jobs of project team-a wait, of 2", "penstock project set team-a --jobs-waiting N")

	_, err = p.root.RemoveQuota(ctx, &pb.QuotaName{Kind: ofProject, Name: "team-a"})
	p.wants(err, fault.Exists, "2 jobs of project team-a")
	p.h.Stop(0)
	p = startPeople(t, Config{Dir: dir})
	l, err := p.root.ListQuotas(ctx, &pb.Empty{})
	if err != nil || len(l.GetQuotas()) != 2 || l.GetQuotas()[0].GetWaiting() != 2 || l.GetQuotas()[0].GetJobsWaiting() != 2 {
		t.Errorf("the next head: %v, %v", l, err)
	}
	c, id := p.person("submit", "", "team-b")
	l2, _ := p.root.Jobs(ctx, &pb.JobsRequest{})
	for _, j := range l2.GetJobs() {
		if j.GetProject() == "team-b" {
			if _, err := p.root.StopJob(ctx, &pb.StopJobRequest{Job: j.GetId()}); err != nil {
				t.Error(err)
			}
		}
	}
	remove := func() error {
		_, err := p.root.RemoveQuota(ctx, &pb.QuotaName{Kind: ofProject, Name: "team-b"})
		return err
	}
	err = remove()
	p.wants(err, fault.Exists, "is for project team-b")
	tokens, _ := p.root.ListTokens(ctx, &pb.Empty{})
	for _, x := range tokens.GetTokens() {
		if x.GetProject() == "team-b" && x.GetId() != id {
			if _, err := p.root.RevokeToken(ctx, &pb.RevokeTokenRequest{Id: x.GetId()}); err != nil {
				t.Error(err)
			}
		}
	}
	p.wants(remove(), fault.Exists, id)
	if _, err := p.root.RevokeToken(ctx, &pb.RevokeTokenRequest{Id: id}); err != nil {
		t.Error(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	_, err = c.Submit(ctx, &pb.Job{Argv: []string{"x"}})
	p.wants(err, fault.Denied)
}

// One token fills the quota of its owner, gets an error, and leaves room for others, however it
// goes about it.
func TestOneTokenLeavesRoom(t *testing.T) {
	p := startPeople(t, Config{Dir: shortDir(t), KeepJobs: 3})
	ctx := t.Context()
	eve, eveID := p.person("submit", "", "")
	more, _ := p.person("submit", eveID, "")
	ada, _ := p.person("submit", "ada", "")
	p.submit(eve, "", "first")
	if err := p.h.do(ctx, func() error {
		first := p.h.jobs["j1"].Value
		for i := range mostWaiting - 1 { // as if they were in the store
			id := fmt.Sprintf("j%d", i+100)
			p.h.jobs[id] = &records.Record[jobRecord]{ID: id, Value: jobRecord{Job: &pb.Job{}, By: first.By, Record: jobs.Record{State: jobs.Queued}}}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []pb.ControlClient{eve, more} {
		_, err := c.Submit(ctx, &pb.Job{Argv: []string{"x"}})
		p.wants(err, fault.Exhausted, "1000 jobs of owner "+eveID+" wait, of 1000 (jobs-waiting)", "penstock owner set "+eveID+" --jobs-waiting N")
	}
	p.submit(ada, "", "there is room")
	p.submit(p.root, "", "there is room")

	// With a quota as large as one likes, half of the cluster's jobs are the most.
	all := int64(-1)
	p.set(ofOwner, eveID, &pb.Quota{JobsWaiting: &all})
	if err := p.h.do(ctx, func() error {
		first := p.h.jobs["j1"].Value
		for i := range mostShare - mostWaiting {
			id := fmt.Sprintf("j%d", i+10_000)
			p.h.jobs[id] = &records.Record[jobRecord]{ID: id, Value: jobRecord{Job: &pb.Job{}, By: first.By, Record: jobs.Record{State: jobs.Queued}}}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	_, err := eve.Submit(ctx, &pb.Job{Argv: []string{"x"}})
	p.wants(err, fault.Exhausted, "5000 jobs of "+eveID+" wait or run", "half")
	p.submit(ada, "", "there is room")
}

// Who submits and stops again and again is slowed down, and pushes out how his own jobs ended, not
// those of others.
func TestSubmitAndStopAgain(t *testing.T) {
	h := &Head{rates: map[string]*rate.Limiter{}}
	now := time.Now()
	eve := by{Owner: "eve"}
	n := 0
	for ; h.mayHurry(eve, now) == nil; n++ {
	}
	if n != submitsAtOnce {
		t.Errorf("%d at once", n)
	}
	if err := h.mayHurry(by{Owner: "ada"}, now); err != nil {
		t.Error(err)
	}
	if err := h.mayHurry(by{Owner: "uid:0", Free: true}, now); err != nil {
		t.Error(err)
	}
	now = now.Add(time.Second)
	for n = 0; h.mayHurry(eve, now) == nil; n++ {
	}
	if n != submitsPerSecond {
		t.Errorf("%d in a second", n)
	}

	past, err := Start(t.Context(), Config{Dir: shortDir(t), KeepJobs: 3})
	if err != nil {
		t.Fatal(err)
	}
	p := pastHead{past, t, controlServer{h: past}}
	defer p.Stop(0)
	p.submit("ada", "x")
	p.stop("ada")
	if err := p.do(t.Context(), func() error {
		r := *p.jobs["j1"]
		r.Value.By, r.Value.Ended = by{Owner: "ada"}, r.Value.Ended.Add(-time.Hour) // the oldest of all
		p.jobs["j1"] = &r
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		p.submit(fmt.Sprint("x", i), "x")
		p.stop(fmt.Sprint("x", i))
		p.old(fmt.Sprintf("j%d", i+2))
	}
	p.submit("last", "x")
	p.stop("last")
	if got := p.listed(); got != "j5 j4 j1" {
		t.Errorf("%s are remembered", got)
	}
}

// Of an owner with a quota of jobs that run the others wait, and say why, also after another start
// of the head; each that ends makes room for one.
func TestJobsRunning(t *testing.T) {
	dir := shortDir(t)
	p := startPeople(t, Config{Dir: dir})
	ctx := t.Context()
	one, none := int64(1), int64(-1)
	p.set(ofOwner, "ada", &pb.Quota{JobsRunning: &one})
	ada, _ := p.person("submit", "ada", "")
	for i := range 4 {
		p.submit(ada, fmt.Sprint("a", i+1), "")
	}
	held := func(want string) {
		t.Helper()
		l, err := p.root.Jobs(ctx, &pb.JobsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, j := range l.GetJobs() {
			if strings.Contains(j.GetWhy(), "1 of 1 jobs of owner ada run (jobs-running)") && j.GetState() == "queued" {
				got = append(got, j.GetId())
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s are held, want %s", s, want)
		}
	}
	held("j4 j3 j2")
	p.h.Stop(0)
	p = startPeople(t, Config{Dir: dir})
	ada, _ = p.person("submit", "ada", "")
	held("j4 j3 j2")
	stop := func(job string) {
		t.Helper()
		if _, err := ada.StopJob(ctx, &pb.StopJobRequest{Job: job}); err != nil {
			t.Fatal(err)
		}
		if got := p.state(job); got != "stopped" {
			t.Errorf("%s is %s", job, got)
		}
	}
	stop("j3")
	held("j4 j2")
	stop("j1")
	held("j4")
	n := attach(t, p.h, "")
	if s := n.hear().GetStart(); !strings.HasPrefix(s.GetProcess(), "j2/1/0/") {
		t.Errorf("it receives %v", s)
	}
	p.set(ofOwner, "ada", &pb.Quota{JobsRunning: &none})
	held("")
}

// A pack is of those who sent it: who has its hash alone, which no list shows, cannot learn whether
// it is there, nor run a job with it; and who sends more than his share pushes out his own.
func TestPacksHaveOwners(t *testing.T) {
	p := startPeople(t, Config{Dir: shortDir(t), packs: 10_000})
	ctx := t.Context()
	ada, _ := p.person("submit", "ada", "")
	eve, _ := p.person("submit", "eve", "")
	pack := func(i byte) (string, []byte) {
		b := bytes.Repeat([]byte{i}, 1000)
		sum := sha256.Sum256(b)
		return hexOf(sum[:]), b
	}
	put := func(c pb.ControlClient, hash string, b []byte) error {
		s, err := c.PutPack(ctx)
		if err != nil {
			return err
		}
		if err := s.Send(&pb.Chunk{Sha256: hash, Data: b}); err != nil {
			return err
		}
		_, err = s.CloseAndRecv()
		return err
	}
	has := func(c pb.ControlClient, hash string) bool {
		r, err := c.HasPack(ctx, &pb.PackRequest{Sha256: hash})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetHas()
	}
	hash, content := pack(1)
	if err := put(ada, hash, content); err != nil || !has(ada, hash) {
		t.Fatal(err)
	}
	if _, err := ada.Submit(ctx, &pb.Job{Submission: "a", Argv: []string{"x"}, Pack: hash}); err != nil {
		t.Fatal(err)
	}
	l, err := eve.Jobs(ctx, &pb.JobsRequest{})
	if err != nil || strings.Contains(l.String(), hash) {
		t.Errorf("the list has the hash: %v, %v", l, err)
	}
	if has(eve, hash) {
		t.Error("somebody else learns that it is there")
	}
	_, err = eve.Submit(ctx, &pb.Job{Argv: []string{"x"}, Pack: hash})
	p.wants(err, fault.NotFound)
	p.wants(put(eve, hash, []byte("something else")), fault.Corrupt)
	if has(eve, hash) {
		t.Error("what was sent was something else")
	}
	if err := put(eve, hash, content); err != nil || !has(eve, hash) {
		t.Errorf("who has it too: %v", err)
	}
	for i := range byte(20) { // twice as much as there is room for, four times her share
		h, b := pack(10 + i)
		if err := put(eve, h, b); err != nil {
			t.Fatal(err)
		}
	}
	if !has(ada, hash) {
		t.Error("somebody else's was pushed out")
	}
	if n := p.h.packs.Bytes(quotaKey{ofOwner, "eve"}.id()); n != 5000 {
		t.Errorf("%d bytes are of one owner", n)
	}
	for i := range byte(4) { // those of jobs stay, also that of ada's, and then there is no room
		h, b := pack(40 + i)
		if err := put(eve, h, b); err != nil {
			t.Fatal(err)
		}
		if _, err := eve.Submit(ctx, &pb.Job{Argv: []string{"x"}, Pack: h}); err != nil {
			t.Fatal(err)
		}
	}
	h, b := pack(50)
	p.wants(put(eve, h, b), fault.Exhausted, "take 5000 of 5000 bytes of owner eve (pack-bytes", "penstock owner set eve --pack-bytes N")
	h, b = pack(51)
	if err := put(ada, h, b); err != nil {
		t.Error(err)
	}
}

// Ids of submission are of a project: another project can neither have one refused, nor learn that
// there is one, while its job is remembered and after that.
func TestSubmissionsOfProjects(t *testing.T) {
	dir := shortDir(t)
	p := startPeople(t, Config{Dir: dir, KeepJobs: 1})
	ctx := t.Context()
	p.set(ofProject, "team-a", &pb.Quota{})
	p.set(ofProject, "team-b", &pb.Quota{})
	a, _ := p.person("submit", "ada", "team-a")
	b, _ := p.person("submit", "bob", "team-b")
	eve, _ := p.person("submit", "eve", "")
	var ids []string
	for _, c := range []pb.ControlClient{a, b, eve} {
		job := p.submit(c, "nightly", "n")
		if slices.Contains(ids, job) || p.submit(c, "nightly", "n") != job {
			t.Errorf("%s, beside %v, and another one again", job, ids)
		}
		ids = append(ids, job)
	}
	named := func(c pb.ControlClient, name string) string {
		l, err := c.Jobs(ctx, &pb.JobsRequest{Jobs: []string{name}})
		if err != nil {
			return fault.CodeOf(err).String()
		}
		if s := l.GetJobs()[0].GetJob().GetSubmission(); s != "nightly" {
			t.Errorf("%s has the id %q", name, s)
		}
		return l.GetJobs()[0].GetId()
	}
	check := func() {
		t.Helper()
		for i, want := range []struct {
			c    pb.ControlClient
			name string
		}{{a, "nightly"}, {b, "nightly"}, {p.root, "nightly"}, {p.root, "team-a/nightly"}, {p.root, "team-b/nightly"}} {
			if got := named(want.c, want.name); got != ids[[]int{0, 1, 2, 0, 1}[i]] {
				t.Errorf("%d: %s is %s", i, want.name, got)
			}
		}
		for _, name := range []string{"team-a/nightly", ids[0], ids[2]} {
			if got := named(b, name); got != fault.NotFound.String() {
				t.Errorf("team-b has %s: %s", name, got)
			}
		}
		for i, name := range []string{"team-a/nightly", "team-b/nightly", "nightly"} {
			for _, x := range p.audit(&pb.AuditRequest{Job: name}) {
				if !strings.Contains(x, "job "+ids[i]+" ") {
					t.Errorf("of %s: %s", name, x)
				}
			}
		}
	}
	check()
	for i, c := range []pb.ControlClient{a, b, eve} {
		if _, err := c.StopJob(ctx, &pb.StopJobRequest{Job: "nightly"}); err != nil || p.state(ids[i]) != "stopped" {
			t.Errorf("%v, %s", err, p.state(ids[i]))
		}
	}
	if err := p.h.do(ctx, func() error {
		for _, r := range p.h.jobs {
			x := *r
			x.Value.Ended = x.Value.Ended.Add(-keepFor)
			p.h.jobs[x.ID] = &x
		}
		p.h.cfg.KeepJobs = 0
		p.h.trim()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	check()
	p.h.Stop(0)
	p = startPeople(t, Config{Dir: dir})
	a, _ = p.person("submit", "ada", "team-a")
	b, _ = p.person("submit", "bob", "team-b")
	check()
	if len(p.h.past.id) != 3 {
		t.Errorf("%d are remembered", len(p.h.past.id))
	}
}

// Names of jobs and projects do not look like those of another project.
func TestNamesLikeProjects(t *testing.T) {
	p := startPeople(t, Config{Dir: shortDir(t)})
	p.set(ofProject, "pa", &pb.Quota{})
	eve, _ := p.person("submit", "", "")
	for _, name := range []string{"PA/x", "pa\u200b/x", "\u200bpa/x", "p\u0430/x", "pa\u2215x", "pa\uff0fx", "pa \u0338x", "p/a/x", "/pa/x", "pa/../x", "p\u00ada/x", "pa\u202e/x", "pa\u3000\u2028x", "none/x"} {
		for _, c := range []pb.ControlClient{eve, p.root} {
			_, err := c.Submit(t.Context(), &pb.Job{Name: name, Argv: []string{"x"}})
			if name == "pa/../x" {
				if c == eve {
					p.wants(err, fault.Denied, "project pa")
				}
				continue
			}
			p.wants(err, fault.Invalid, "the name of a job has")
		}
	}
	for _, name := range []string{"PA", "p\u0430", "pa\u200b", "pa/", "pa ", "", ".pa"} {
		_, err := p.root.SetQuota(t.Context(), &pb.Quota{Name: &pb.QuotaName{Kind: ofProject, Name: name}})
		if code := fault.CodeOf(err); code != fault.Invalid && code != fault.Exists {
			t.Errorf("project %q: %v", name, err)
		}
	}
	for _, name := range []string{"pa", "flüge – 2026.yaml", "100 %", "日本"} {
		p.submit(eve, "", name)
	}
}

// A call whose message comes after its token was revoked does nothing.
func TestMessagesAfterTheToken(t *testing.T) {
	p := startPeople(t, Config{Dir: shortDir(t)})
	r, err := p.root.CreateToken(t.Context(), &pb.CreateTokenRequest{Kind: "access", Scope: "submit"})
	if err != nil {
		t.Fatal(err)
	}
	token, err := pki.ParseToken(r.GetToken())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(t.Context(), p.h.Addr().String(), rpc.AsPerson(token))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, pb.Control_Submit_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pb.NewControlClient(conn).Jobs(t.Context(), &pb.JobsRequest{}); err != nil { // behind it on the connection: it was judged
		t.Fatal(err)
	}
	if _, err := p.root.RevokeToken(t.Context(), &pb.RevokeTokenRequest{Id: token.ID}); err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(&pb.Job{Argv: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	p.wants(s.RecvMsg(&pb.SubmitReply{}), fault.Denied, "revoked")
	if l, err := p.root.Jobs(t.Context(), &pb.JobsRequest{}); err != nil || len(l.GetJobs()) != 0 {
		t.Errorf("%v, %v", l, err)
	}
}
