package agent

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
)

// heard waits for what a says to its head next, of the members of gangs.
func heard(t *testing.T, a *agent) *pb.Listening {
	t.Helper()
	for {
		a.mu.Lock()
		var l *pb.Listening
		if len(a.queue) > 0 {
			l, a.queue = a.queue[0].GetListening(), a.queue[1:]
		}
		a.mu.Unlock()
		if l != nil {
			return l
		}
		select {
		case <-a.more:
		case <-t.Context().Done():
			t.Fatal("the agent says nothing")
		}
	}
}

func authority(t *testing.T, dir string, ago time.Duration) *pki.CA {
	t.Helper()
	ca, err := pki.OpenCA(dir, "c0", func() time.Time { return time.Now().Add(-ago) })
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// newMember is a process of two that an agent is to start, and its agent, in a session.
func newMember(t *testing.T, ca *pki.CA, host string) *process {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	a := &agent{Config: Config{Node: "n1", Log: slog.New(slog.DiscardHandler)}, ctx: ctx, procs: map[string]*process{}, more: make(chan struct{}, 1), session: true, trust: ca.Pins()}
	p := &process{a: a, id: "j1/2/1", start: &pb.Start{Members: 2, Host: host}}
	a.procs[p.id] = p
	return p
}

type metMember struct {
	m   *member
	err error
}

// A member is met when the head has answered its own request; its certificate is renewed when two thirds of its life are over, and the process finds the new one.
func TestMember(t *testing.T) {
	dir := t.TempDir()
	old := authority(t, filepath.Join(dir, "ca"), 16*time.Hour) // its certificates are due
	ca := authority(t, filepath.Join(dir, "ca"), 0)
	p := newMember(t, ca, "127.0.0.1")
	a := p.a
	log := make(lines, 100)
	a.Log = slog.New(slog.NewTextHandler(log, nil))
	folder := filepath.Join(dir, "gang")
	done := make(chan metMember, 1)
	go func() { m, err := p.meet(t.Context(), folder); done <- metMember{m, err} }()
	ask := heard(t, a)
	if line := <-log; !strings.Contains(line, "waits for the other nodes") {
		t.Error(line)
	}
	if ask.GetProcess() != p.id || !strings.HasPrefix(ask.GetAddress(), "127.0.0.1:") {
		t.Fatalf("it says %v", ask)
	}
	if again := p.listening().GetListening(); again.GetAddress() != ask.GetAddress() || string(again.GetCsr()) != string(ask.GetCsr()) {
		t.Errorf("in the next session it would say %v, not %v", again, ask)
	}
	addresses := []string{"127.0.0.1:1", ask.GetAddress()}
	answer := func(by *pki.CA, csr []byte) *pb.Peers {
		chain, err := by.IssueMember(csr, "j1", 2, 1)
		if err != nil {
			t.Fatal(err)
		}
		return &pb.Peers{Process: p.id, Addresses: addresses, Chain: chain}
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	a.met(&pb.Peers{Process: "j1/2/0", Error: "of another process"})
	a.met(answer(ca, other)) // of another key: a second answer to what was asked before
	a.met(answer(old, ask.GetCsr()))
	x := <-done
	if x.err != nil {
		t.Fatal(x.err)
	}
	if again := p.listening().GetListening(); again.GetCsr() != nil || again.GetAddress() != ask.GetAddress() {
		t.Errorf("in the next session it would say %v", again)
	}
	l, err := net.FileListener(x.m.files()[0]) // as the process does
	if err != nil {
		t.Fatal(err)
	}
	g, err := gang.Open(folder, l)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.Node() != 1 || g.Nodes() != 2 || g.Job() != "j1" || g.Attempt() != 2 || g.Address() != ask.GetAddress() || g.Host(0) != "127.0.0.1" {
		t.Errorf("%v at %s", g, g.Address())
	}
	if env := strings.Join(x.m.env(), " "); env != "PENSTOCK_GANG="+folder+" PENSTOCK_GANG_FD=3" {
		t.Error(env)
	}
	was, err := os.ReadFile(filepath.Join(folder, gang.CertName))
	if err != nil {
		t.Fatal(err)
	}
	x.m.begun()
	renew := heard(t, a)
	if renew.GetAddress() != ask.GetAddress() || len(renew.GetCsr()) == 0 || string(renew.GetCsr()) == string(ask.GetCsr()) {
		t.Fatalf("it says %v", renew)
	}
	a.met(answer(old, ask.GetCsr())) // again
	a.met(answer(ca, renew.GetCsr()))
	if line := <-log; !strings.Contains(line, "certificate renewed") {
		t.Fatal(line)
	}
	if is, err := os.ReadFile(filepath.Join(folder, gang.CertName)); err != nil || string(is) == string(was) {
		t.Errorf("the certificate stays: %v", err)
	}
	c, err := pki.Load(filepath.Join(folder, gang.CertName), pki.Member)
	if err != nil || time.Until(c.Leaf.NotAfter) < 23*time.Hour {
		t.Errorf("the new one: %v, %v", c, err)
	}
	x.m.close()
	if p.listening() != nil {
		t.Error("a member that is over is listening")
	}
	a.met(answer(ca, renew.GetCsr())) // late
}

// lines gets what is logged.
type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }

// A member that cannot be: no such address here, the head refuses it, it is ended while it waits.
func TestNoMember(t *testing.T) {
	dir := t.TempDir()
	ca := authority(t, filepath.Join(dir, "ca"), 0)
	p := newMember(t, ca, "192.0.2.1") // an address for books
	if _, err := p.meet(t.Context(), filepath.Join(dir, "gang")); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "cannot listen at 192.0.2.1, where the head sees it") {
		t.Error(err)
	}
	for name, x := range map[string]struct {
		answer *pb.Peers
		code   fault.Code
		says   string
	}{
		"refused": {&pb.Peers{Process: "j1/2/1", Error: "for a reason"}, fault.Denied, "for a reason"},
		"ended":   {nil, fault.Canceled, ""},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		p := newMember(t, ca, "127.0.0.1")
		done := make(chan metMember, 1)
		go func() { m, err := p.meet(ctx, filepath.Join(dir, name)); done <- metMember{m, err} }()
		at := heard(t, p.a).GetAddress()
		if x.answer != nil {
			p.a.met(x.answer)
		} else {
			cancel()
		}
		if got := <-done; fault.CodeOf(got.err) != x.code || !strings.Contains(got.err.Error(), x.says) {
			t.Errorf("%s: %v", name, got.err)
		}
		cancel()
		if c, err := net.Dial("tcp", at); err == nil {
			c.Close()
			t.Errorf("%s: it listens on", name)
		}
		if p.listening() != nil {
			t.Errorf("%s: it would say where it listens", name)
		}
	}
}
