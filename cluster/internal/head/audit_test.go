package head

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// join joins as a node of a name, with a token: id.secret.
func (p *people) join(token, name string) error {
	conn, err := rpc.Dial(p.t.Context(), p.h.Addr().String(), rpc.AsNewcomer(p.h.Pin()))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	key, err := pki.NewKey()
	if err != nil {
		p.t.Fatal(err)
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		p.t.Fatal(err)
	}
	_, err = pb.NewJoinClient(conn).Join(p.t.Context(), &pb.JoinRequest{Token: token, Csr: csr, UnixNanos: time.Now().UnixNano(),
		Inventory: &pb.Inventory{Name: name, Capacity: &pb.Resources{MilliCpus: 1000}}})
	return err
}

// Every method that is to be on record is, with who called it and how it ended, when it does what
// was asked, and when it does not; also for the next head. No secret is.
func TestAuditOfEveryMethod(t *testing.T) {
	dir := shortDir(t)
	p := startPeople(t, Config{Dir: dir})
	ctx := t.Context()
	eve, eveID := p.person("submit", "", "")
	reader, readerID := p.person("read", "", "")
	user := fmt.Sprint("user ", os.Getuid())
	secret := "the secret of a job"
	var joinToken, joinID string // id.secret, id
	steps := []struct {
		method string
		call   func(c pb.ControlClient) error
		object func() string // of what was done
		failed string        // the object of eve's or the reader's try
	}{
		{pb.Control_Submit_FullMethodName, func(c pb.ControlClient) error {
			_, err := c.Submit(ctx, &pb.Job{Submission: "once", Argv: []string{"x", secret}, Env: map[string]string{"K": secret}, Secrets: map[string]string{"S": secret}})
			return err
		}, func() string { return "job j1" }, ""},
		{pb.Control_StopJob_FullMethodName, func(c pb.ControlClient) error {
			_, err := c.StopJob(ctx, &pb.StopJobRequest{Job: "once"})
			return err
		}, func() string { return "job j1" }, "job once"},
		{pb.Control_CreateToken_FullMethodName, func(c pb.ControlClient) error {
			r, err := c.CreateToken(ctx, &pb.CreateTokenRequest{Kind: "join", Name: "of n1"})
			if err == nil {
				x, err := pki.ParseToken(r.GetToken())
				joinToken, joinID = x.Bearer(), x.ID
				return err
			}
			return err
		}, func() string { return "token " + joinID }, ""},
		{pb.Join_Join_FullMethodName, nil, func() string { return "node n1" }, ""},
		{pb.Control_Drain_FullMethodName, func(c pb.ControlClient) error {
			n := attach(t, p.h, "n1") // a node that is lost cannot drain
			_, err := c.Drain(ctx, &pb.DrainRequest{Node: n.id})
			return err
		}, func() string { return "node n1" }, ""},
		{pb.Control_Undrain_FullMethodName, func(c pb.ControlClient) error {
			_, err := c.Undrain(ctx, &pb.DrainRequest{Node: "n1"})
			return err
		}, func() string { return "node n1" }, ""},
		{pb.Control_Shutdown_FullMethodName, func(c pb.ControlClient) error {
			_, err := c.Shutdown(ctx, &pb.ShutdownRequest{Node: "n1"})
			return err
		}, func() string { return "node n1" }, ""},
		{pb.Control_SetQuota_FullMethodName, func(c pb.ControlClient) error {
			_, err := c.SetQuota(ctx, &pb.Quota{Name: &pb.QuotaName{Kind: ofProject, Name: "team-a"}})
			return err
		}, func() string { return "project team-a" }, ""},
		{pb.Control_RemoveQuota_FullMethodName, func(c pb.ControlClient) error {
			_, err := c.RemoveQuota(ctx, &pb.QuotaName{Kind: ofProject, Name: "team-a"})
			return err
		}, func() string { return "project team-a" }, ""},
		{pb.Control_RevokeToken_FullMethodName, func(c pb.ControlClient) error {
			_, err := c.RevokeToken(ctx, &pb.RevokeTokenRequest{Id: eveID})
			return err
		}, func() string { return "token " + eveID }, ""},
		{pb.Control_RotateAuthority_FullMethodName, func(c pb.ControlClient) error {
			_, err := c.RotateAuthority(ctx, &pb.Empty{})
			return err
		}, func() string { return "cluster " + p.h.id }, ""},
		{pb.Control_FinishAuthority_FullMethodName, func(c pb.ControlClient) error {
			_, err := c.FinishAuthority(ctx, &pb.FinishAuthorityRequest{Force: true})
			return err
		}, func() string { return "cluster " + p.h.id }, ""},
	}
	var done []string
	var want []string
	for _, s := range steps {
		action := actions[s.method]
		who := user
		if s.call == nil {
			p.wants(p.join(joinID+"."+strings.Repeat("A", len(joinToken)-len(joinID)-1), "one"), fault.Denied)
			if err := p.join(joinToken, "one"); err != nil {
				t.Fatal(err)
			}
			want = append(want, "newcomer  join node  denied")
			who = "newcomer " + joinID
		} else {
			if action != "drain" {
				p.wants(s.call(reader), fault.Denied)
				want = append(want, "token "+readerID+" "+action+"   denied")
			}
			if err := s.call(p.root); err != nil {
				t.Fatalf("%s: %v", action, err)
			}
		}
		done = append(done, s.method)
		want = append(want, fmt.Sprintf("%s %s %s ok", who, action, s.object()))
		if action == "submit" {
			p.wants(steps[1].call(eve), fault.Denied)
			want = append(want, "token "+eveID+" stop job once denied")
			_, err := eve.StopJob(ctx, &pb.StopJobRequest{Job: strings.Repeat("j", 5000)})
			p.wants(err, fault.NotFound)
			want = append(want, "token "+eveID+" stop job "+strings.Repeat("j", mostAuditText)+" not_found")
		}
	}
	slices.Sort(done)
	if all := rpc.Audited(); !slices.Equal(all, done) {
		t.Errorf("not tried: %v", slices.DeleteFunc(all, func(m string) bool { return slices.Contains(done, m) }))
	}
	check := func() []string {
		t.Helper()
		all := p.audit(&pb.AuditRequest{})
		text := strings.Join(all, "\n")
		for _, w := range want {
			if !slices.Contains(all, w) {
				t.Errorf("%q is not on record", w)
			}
		}
		for _, s := range []string{secret, joinToken[len(joinToken)-20:]} {
			if strings.Contains(text, s) {
				t.Error("a secret is on record")
			}
		}
		if t.Failed() {
			t.Log(text)
		}
		return all
	}
	before := check()
	if got := p.audit(&pb.AuditRequest{Job: "once"}); !slices.Equal(got, []string{want[1], want[2], user + " stop job j1 ok"}) {
		t.Errorf("of the job: %q", got)
	}
	for _, none := range []string{"j99", "none"} { // that never was
		s, err := p.root.Audit(ctx, &pb.AuditRequest{Job: none})
		if err == nil {
			_, err = s.Recv()
		}
		p.wants(err, fault.NotFound, "no job "+none)
	}
	if got := p.audit(&pb.AuditRequest{Token: joinID}); len(got) != 2 || !strings.Contains(got[1], "join node n1") {
		t.Errorf("of a token: %q", got)
	}
	if got := p.audit(&pb.AuditRequest{SinceUnixNanos: time.Now().UnixNano()}); len(got) != 0 {
		t.Errorf("of later: %q", got)
	}
	p.wants(steps[1].call(reader), fault.Denied)
	want = append(want, "token "+readerID+" stop   denied")
	p.h.Stop(0) // and what was refused last is not lost
	p = startPeople(t, Config{Dir: dir})
	if after := check(); len(after) < len(before) {
		t.Errorf("%d entries, before the start %d", len(after), len(before))
	}
}

// A flood of refusals is counted, and pushes out nothing of what was done; and who does much pushes
// out his own.
func TestAuditIsBounded(t *testing.T) {
	dir := shortDir(t)
	p := startPeople(t, Config{Dir: dir, audited: 8, refusals: 5})
	ctx := t.Context()
	p.submit(p.root, "", "")
	eve := rpc.Peer{Kind: rpc.Person, Token: "eve", Owner: "eve", Host: "10.0.0.66"}
	bob := rpc.Peer{Kind: rpc.Person, Token: "bob", Owner: "bob", Host: "10.0.0.9"}
	denied := fault.New(fault.Denied, "no")
	p.h.refusedCall(bob, pb.Control_StopJob_FullMethodName, nil, denied)
	p.h.writeRefusals()
	for range 1_000_000 / 100 { // of the same
		p.h.refusedCall(eve, pb.Control_Drain_FullMethodName, &pb.DrainRequest{Node: "n1"}, denied)
	}
	for range 10 { // and of many kinds
		for i := range 100 {
			p.h.refusedCall(eve, pb.Control_StopJob_FullMethodName, &pb.StopJobRequest{Job: fmt.Sprint("j", i)}, denied)
		}
		p.h.audits.mu.Lock()
		n := len(p.h.audits.pending)
		p.h.audits.mu.Unlock()
		if n > mostPending {
			t.Errorf("%d wait to be written", n)
		}
		p.h.writeRefusals()
	}
	check := func() {
		t.Helper()
		all := p.audit(&pb.AuditRequest{})
		of := func(part string) (n int) {
			for _, a := range all {
				if strings.Contains(a, part) {
					n++
				}
			}
			return n
		}
		if of(" denied") != 5 || of("token bob stop") != 1 || of("submit job j1 ok") != 1 {
			t.Errorf("%q", all)
		}
	}
	check()
	c, id := p.person("submit", "", "")
	for range 20 {
		p.submit(c, "", "")
	}
	check()
	if got := p.audit(&pb.AuditRequest{Token: id}); len(got) == 0 || len(got) > 8 || !strings.Contains(got[len(got)-1], "submit job j21 ok") {
		t.Errorf("%q", got)
	}
	if rs, _, err := all(ctx, p.h.t.audit); err != nil || len(rs) != 8+5 { // nor are there more in the store
		t.Errorf("%d records, %v", len(rs), err)
	}
	p.h.Stop(0)
	p = startPeople(t, Config{Dir: dir, audited: 8, refusals: 5})
	check()
}

// What cannot be put on record is not done.
func TestWhatIsNotOnRecordIsNotDone(t *testing.T) {
	p := startPeople(t, Config{Dir: shortDir(t)})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p.submit(p.root, "", "")
	p.h.audits.mu.Lock()
	next := p.h.audits.next + 1
	p.h.audits.mu.Unlock()
	r := auditRecord{Result: "ok"} // somebody else writes where the next entry would be
	if _, err := p.h.t.audit.Put(ctx, records.Record[auditRecord]{ID: fmt.Sprintf("%016d", next), Value: r}); err != nil {
		t.Fatal(err)
	}
	_, err := p.root.StopJob(ctx, &pb.StopJobRequest{Job: "j1"})
	if err == nil || p.state("j1") != "queued" {
		t.Errorf("%v, and it is %s", err, p.state("j1"))
	}
	if _, err := p.root.StopJob(ctx, &pb.StopJobRequest{Job: "j1"}); err != nil || p.state("j1") != "stopped" {
		t.Errorf("the next: %v, and it is %s", err, p.state("j1"))
	}
}

// Who is refused in many ways at once hides nothing of what others are refused.
func TestManyRefusals(t *testing.T) {
	b := newAuditBook(nil, &Config{})
	eve := rpc.Peer{Kind: rpc.Person, Token: "eve", Owner: "eve", Host: "10.0.0.66"}
	bob := rpc.Peer{Kind: rpc.Person, Token: "bob", Owner: "bob", Host: "10.0.0.9"}
	for i := range 1000 {
		b.refuse(entry(eve, "stop", what{Kind: "job", ID: fmt.Sprint("j", i)}, "denied"))
	}
	b.refuse(entry(bob, "drain", what{Kind: "node", ID: "n1"}, "denied"))
	var got []string
	for _, r := range b.take() {
		got = append(got, fmt.Sprint(r.ID, r.Action, r.On.ID, r.Count))
	}
	slices.Sort(got)
	if len(got) != mostOfOne+1 || got[0] != "bobdrainn11" || got[1] != fmt.Sprint("evecall", 1000-mostOfOne+1) {
		t.Errorf("%q", got)
	}
}
