//go:build linux

package cluster

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// authorities waits until they are as wanted.
func (c *testCluster) authorities(ok func([]Authority) bool) []Authority {
	c.t.Helper()
	var last []Authority
	err := c.client.Watch(c.ctx(), true, func(*Status) (err error) {
		if last, err = c.client.Authorities(c.ctx()); err == nil && ok(last) {
			err = errEnough
		}
		return err
	})
	if err != errEnough {
		c.t.Fatalf("%v; authorities %+v", err, last)
	}
	return last
}

// moved waits until these nodes, and no others, have certificates of the new authority, two being
// believed.
func (c *testCluster) moved(nodes ...string) {
	c.t.Helper()
	c.authorities(func(as []Authority) bool {
		return len(as) > 1 && as[1].State == "ends" && len(as[1].Nodes) == 0 && slices.Equal(as[0].Nodes, nodes)
	})
}

func (c *testCluster) access(scope string) string {
	c.t.Helper()
	token, err := c.client.CreateAccessToken(c.ctx(), scope, "", time.Hour)
	must(c.t, err)
	return token
}

// asks says whether a token is good for asking.
func (c *testCluster) asks(token string) error {
	p, err := Dial(c.ctx(), c.addr, token)
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = p.Status(c.ctx())
	return err
}

// repinned is a token that names another authority, as somebody would write it who knows that.
func repinned(t *testing.T, token, pin string) string {
	part := strings.Split(token, ".")
	if len(part) != 4 {
		t.Fatal("no token")
	}
	return strings.Join(append(part[:3:3], pin), ".")
}

// stranger dials with a node's certificate of an authority of his own, and calls himself of the
// cluster.
func (c *testCluster) stranger(pin func() pki.Pin) error {
	evil, err := pki.OpenCA(filepath.Join(c.t.TempDir(), "ca"), c.head.ID(), nil)
	must(c.t, err)
	must(c.t, evil.Rotate())
	key, err := pki.NewKey()
	must(c.t, err)
	csr, err := pki.NewCSR(key)
	must(c.t, err)
	chain, err := evil.IssueNode(csr, "n1", 1)
	must(c.t, err)
	cert, err := pki.Assemble(chain, key, evil.Pin(), pki.Node)
	must(c.t, err)
	return c.shows(cert, pin)
}

// shows dials with a node's certificate, and believes pin.
func (c *testCluster) shows(cert *tls.Certificate, pin func() pki.Pin) error {
	ctx, cancel := context.WithTimeout(c.ctx(), 10*time.Second)
	defer cancel()
	conn, err := rpc.Dial(ctx, c.addr, rpc.AsNode(pki.NewHolder(cert, nil), pin))
	if err == nil {
		err = conn.Close()
	}
	return err
}

// The authority is replaced under nodes that run a job on two of them: nothing notices. Tokens of
// before are good until the end, and then say why they are not.
func TestRotateAuthority(t *testing.T) {
	c := newCluster(t)
	a := c.join("a", Resources{CPUs: 2})
	c.join("b", Resources{CPUs: 2})
	results := t.TempDir()
	id := c.submit(gangJob(t, results, 2))
	before := metIn(c, results, id, 1, 2)
	access, joins, unused := c.access("admin"), c.joinToken(), c.joinToken()
	stolen, err := pki.Load(filepath.Join(c.dir, "a", "node.pem"), pki.Node)
	must(t, err)
	pin := func() pki.Pin { return c.head.h.Pin() }
	first := c.head.h.Pin().String()
	wantCode(t, c.stranger(pin), fault.Denied, "refuses this machine's certificate")
	_, err = c.client.FinishAuthority(c.ctx(), true)
	wantCode(t, err, fault.Invalid, "penstock ca rotate")

	as, err := c.client.RotateAuthority(c.ctx())
	must(t, err)
	if len(as) != 2 || as[0].State != "issues" || as[1].State != "ends" || as[1].Pin != first || as[0].Pin == first || len(as[1].Tokens) != 3 || as[0].Ends.Before(time.Now().AddDate(9, 0, 0)) {
		t.Errorf("%+v", as)
	}
	_, err = c.client.RotateAuthority(c.ctx())
	wantCode(t, err, fault.Exists, "penstock ca finish")
	c.moved("n1", "n2")
	for i := range 2 { // the processes have theirs
		b, err := filepath.Glob(filepath.Join(c.dir, "ab"[i:i+1], "run", "*", "gang", "cert.pem"))
		if err != nil || len(b) != 1 {
			t.Fatalf("%v, %v", b, err)
		}
		cert, err := pki.Load(b[0], pki.Member)
		must(t, err)
		if pki.Issuer(cert).String() != as[0].Pin || len(pki.Believed(cert)) != 2 {
			t.Errorf("process %d has a certificate of %v", i, pki.Issuer(cert))
		}
	}
	must(t, c.asks(access))
	must(t, c.shows(stolen, pin))
	wantCode(t, c.stranger(pin), fault.Denied, "refuses this machine's certificate")
	n, err := Join(c.ctx(), c.addr, joins, c.node("c", Resources{CPUs: 1}))
	must(t, err)
	defer n.Close()
	fresh := c.access("admin")
	must(t, c.asks(fresh))
	c.moved("n1", "n2", "n3")

	was, err := c.client.FinishAuthority(c.ctx(), false)
	must(t, err)
	if len(was[1].Tokens) != 2 || len(was[1].Nodes) != 0 {
		t.Errorf("%+v", was)
	}
	wantCode(t, c.asks(access), fault.Denied, "replaced its authority", "penstock token create")
	wantCode(t, c.asks(repinned(t, access, as[0].Pin)), fault.Denied, "of an authority that the cluster has replaced")
	_, err = Join(c.ctx(), c.addr, unused, c.node("d", Resources{CPUs: 1}))
	wantCode(t, err, fault.Denied, "replaced its authority")
	_, err = Join(c.ctx(), c.addr, repinned(t, unused, as[0].Pin), c.node("d", Resources{CPUs: 1}))
	wantCode(t, err, fault.Denied, "of an authority that the cluster has replaced")
	must(t, c.asks(fresh))
	wantCode(t, c.shows(stolen, pin), fault.Denied, "refuses this machine's certificate")
	wantCode(t, c.stranger(pin), fault.Denied, "refuses this machine's certificate")
	states := map[string]int{}
	tokens, err := c.client.Tokens(c.ctx())
	must(t, err)
	for _, x := range tokens {
		states[x.Believed]++
	}
	if states["replaced"] != 5 || states["issues"] != 1 {
		t.Errorf("%v", states)
	}
	now := c.authorities(func(as []Authority) bool { return len(as[0].Nodes) == 3 })
	if len(now) != 2 || now[1].State != "replaced" || now[1].Pin != first || len(now[1].Tokens) != 2 {
		t.Errorf("%+v", now)
	}
	// The node's own join token, of before, is no reason to join anew.
	must(t, n.Close())
	again, err := Join(c.ctx(), c.addr, joins, c.node("c", Resources{CPUs: 1}))
	must(t, err)
	defer again.Close()
	if again.ID() != "n3" {
		t.Errorf("it came back as %s", again.ID())
	}
	// What ran, runs; what comes, meets.
	must(t, os.WriteFile(filepath.Join(results, "go"), nil, 0o644))
	c.finished(id, 1)
	more := t.TempDir()
	next := c.submit(gangJob(t, more, 2))
	for i, m := range metIn(c, more, next, 1, 2) {
		if m.Cert == before[i].Cert {
			t.Error("a certificate of before")
		}
	}
	must(t, os.WriteFile(filepath.Join(more, "go"), nil, 0o644))
	c.finished(next, 1)
	select {
	case <-a.Done():
		t.Errorf("a node has ended: %v", a.Err())
	default:
	}
}

// A node that is away for the whole of it joins again; one that is back in time has its
// certificate; finishing names who is not.
func TestRotateWithoutNodes(t *testing.T) {
	c := newCluster(t)
	away, late := c.node("away", Resources{CPUs: 1}), c.node("late", Resources{CPUs: 1})
	must(t, c.join("away", Resources{CPUs: 1}).Close())
	must(t, c.join("late", Resources{CPUs: 1}).Close())
	c.nodes(func(ns []NodeStatus) bool { return ns[0].State == "lost" && ns[1].State == "lost" })
	_, err := c.client.RotateAuthority(c.ctx())
	must(t, err)
	_, err = c.client.FinishAuthority(c.ctx(), false)
	wantCode(t, err, fault.Invalid, "n1 (away, lost), n2 (late, lost)", "--force", "penstock stop NODE")
	n, err := Join(c.ctx(), c.addr, "", late)
	must(t, err)
	defer n.Close()
	c.authorities(func(as []Authority) bool {
		return slices.Equal(as[0].Nodes, []string{"n2"}) && slices.Equal(as[1].Nodes, []string{"n1"})
	})
	_, err = c.client.FinishAuthority(c.ctx(), false)
	wantCode(t, err, fault.Invalid, "still on n1 (away, lost):")
	was, err := c.client.FinishAuthority(c.ctx(), true)
	must(t, err)
	if !slices.Equal(was[1].Nodes, []string{"n1"}) {
		t.Errorf("%+v", was)
	}
	_, err = Join(c.ctx(), c.addr, "", away)
	wantCode(t, err, fault.Denied, "replaced its authority", "joins again")
	m, err := Join(c.ctx(), c.addr, c.joinToken(), away)
	must(t, err)
	defer m.Close()
	if m.ID() != "n3" {
		t.Errorf("it joined as %s", m.ID())
	}
	c.finished(c.submit(sh("true")), 1)
	// A node that left the cluster is nobody's concern.
	must(t, m.Close())
	must(t, c.client.StopNode(c.ctx(), "n3", 0))
	_, err = c.client.RotateAuthority(c.ctx())
	must(t, err)
	c.moved("n2")
	_, err = c.client.FinishAuthority(c.ctx(), false)
	must(t, err)
}

// A node that runs and does not renew is named, and ends where it is left behind.
func TestRotateLeavesBehind(t *testing.T) {
	c := newCluster(t)
	cfg := c.node("a", Resources{CPUs: 1})
	must(t, c.join("a", Resources{CPUs: 1}).Close())
	n, err := newNode(c.ctx(), cfg)
	must(t, err)
	cert, err := pki.Load(filepath.Join(cfg.Dir, "node.pem"), pki.Node)
	must(t, err)
	holder := pki.NewHolder(cert, nil) // nobody keeps it
	conn, err := rpc.Dial(c.ctx(), c.addr, rpc.AsNode(holder, holder.Issuer))
	must(t, err)
	n.id = "n1"
	n.run(conn, c.head.ID(), holder)
	must(t, n.arrived(c.ctx()))
	_, err = c.client.RotateAuthority(c.ctx())
	must(t, err)
	_, err = c.client.FinishAuthority(c.ctx(), false)
	wantCode(t, err, fault.Invalid, "n1 (a, alive)")
	_, err = c.client.FinishAuthority(c.ctx(), true)
	must(t, err)
	select {
	case <-n.Done():
	case <-c.ctx().Done():
		t.Fatal("it goes on")
	}
	wantCode(t, n.Err(), fault.Denied, "replaced its authority", "joins again")
	n.Close()
}

// A head that ends at any point of a rotation finds its way when it starts again, with its nodes
// and what they run. What the folder is at each point is made here by hand: see also
// pki.TestRotationIsKilled.
func TestHeadRestartsInRotation(t *testing.T) {
	c := newCluster(t)
	c.join("a", Resources{CPUs: 2})
	id := c.submit(sh("while [ ! -e " + filepath.Join(c.dir, "go") + " ]; do sleep 0.02; done"))
	c.until(id, func(s *JobStatus) bool { return s.State == "running" })
	dir := filepath.Join(c.cfg.Dir, "ca")
	offline := func(f func(*pki.CA) error) {
		t.Helper()
		cluster := c.head.ID()
		c.stop()
		ca, err := pki.OpenCA(dir, cluster, nil)
		must(t, err)
		must(t, f(ca))
		c.start()
		if in, err := os.ReadDir(dir); err != nil || len(in) != 1 {
			t.Errorf("in the folder: %v, %v", in, err)
		}
	}
	nothing := func(*pki.CA) error { return nil }
	for round, x := range map[string][2]func(*pki.CA) error{
		"the file is new, the record old":                    {(*pki.CA).Rotate, (*pki.CA).Finish},
		"by the head, and it is started again in each phase": {nil, nil},
	} {
		token := c.access("read")
		if x[0] != nil {
			offline(x[0])
		} else {
			_, err := c.client.RotateAuthority(c.ctx())
			must(t, err)
			offline(nothing)
		}
		c.moved("n1")
		must(t, c.asks(token))
		offline(nothing)
		c.moved("n1")
		if x[1] != nil {
			offline(x[1])
		} else {
			_, err := c.client.FinishAuthority(c.ctx(), false)
			must(t, err)
			offline(nothing)
		}
		wantCode(t, c.asks(token), fault.Denied, "replaced its authority")
		c.authorities(func(as []Authority) bool {
			return as[0].State == "issues" && slices.Equal(as[0].Nodes, []string{"n1"}) && (len(as) == 1 || as[1].State == "replaced")
		})
		must(t, c.asks(c.access("read")))
		c.until(id, func(s *JobStatus) bool { return s.State == "running" })
		_ = round
	}
	must(t, os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o644))
	c.finished(id, 1)
	// The folder of before does not go with records of after.
	old := filepath.Join(t.TempDir(), "ca.pem")
	b, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	must(t, err)
	must(t, os.WriteFile(old, b, 0o600))
	_, err = c.client.RotateAuthority(c.ctx())
	must(t, err)
	c.stop()
	must(t, os.Rename(old, filepath.Join(dir, "ca.pem")))
	_, err = StartHead(c.ctx(), c.cfg)
	wantCode(t, err, fault.Invalid, "not the one that cluster", "before penstock ca rotate")
}
