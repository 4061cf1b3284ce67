package head

import (
	"bytes"
	"crypto"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/internal/fault"
)

// peer is an agent that says what the test wants.
type peer struct {
	t      *testing.T
	h      *Head
	id     string
	stream grpc.BidiStreamingClient[pb.FromAgent, pb.FromHead]
}

// attach begins a session of a node, which is made where id is "".
func attach(t *testing.T, h *Head, id string, running ...string) *peer {
	t.Helper()
	inv := &pb.Inventory{Name: "name-" + id, Capacity: &pb.Resources{MilliCpus: 1000}}
	if id == "" {
		inv.Name = "one more"
		if err := h.do(t.Context(), func() (err error) {
			id, err = h.newNode(t.Context(), inv, "", false, nil, "")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		inv.Name = "name-" + id
	}
	conn, err := h.srv.Node(pki.Identity{Cluster: h.id, Role: pki.Node, Node: id})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	p := &peer{t: t, h: h, id: id}
	if p.stream, err = pb.NewNodeClient(conn).Attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	hello := &pb.Hello{Inventory: inv, Running: running}
	p.say(&pb.FromAgent{Say: &pb.FromAgent_Hello{Hello: hello}})
	if m := p.hear(); m.GetWelcome() == nil || len(m.GetWelcome().GetKeep()) != len(running) {
		t.Fatalf("node %s is welcomed with %v", id, m)
	}
	if m := p.hear(); len(m.GetBelieved().GetPins()) == 0 {
		t.Fatalf("node %s is to believe %v", id, m)
	}
	return p
}

func (p *peer) say(m *pb.FromAgent) {
	p.t.Helper()
	if err := p.stream.Send(m); err != nil {
		p.t.Fatal(err)
	}
}

// hear is what the head says next.
func (p *peer) hear() *pb.FromHead {
	p.t.Helper()
	m, err := p.stream.Recv()
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

// silent says that the head has answered nothing to what was said before: it answers a beat, and what was said is heard in order.
func (p *peer) silent() {
	p.t.Helper()
	p.say(&pb.FromAgent{Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: "j99/1/0"}}}) // whatever it is, it is heard
	if m := p.hear(); m.GetHeard() != "j99/1/0" {
		p.t.Fatalf("node %s hears %v", p.id, m)
	}
}

// listens says where a process listens, and asks for a certificate for a new key.
func (p *peer) listens(process, address string) crypto.Signer {
	p.t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		p.t.Fatal(err)
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		p.t.Fatal(err)
	}
	p.listening(process, address, csr)
	return key
}

func (p *peer) listening(process, address string, csr []byte) {
	p.t.Helper()
	p.say(&pb.FromAgent{Say: &pb.FromAgent_Listening{Listening: &pb.Listening{Process: process, Address: address, Csr: csr}}})
}

// met checks the next thing that is said: where the members are, and the certificate of this one.
func (p *peer) met(process string, key crypto.Signer, addresses ...string) {
	p.t.Helper()
	x := p.hear().GetPeers()
	if x.GetProcess() != process || x.GetError() != "" || !reflect.DeepEqual(x.GetAddresses(), addresses) {
		p.t.Fatalf("node %s hears %v, of %s it wants %v", p.id, x, process, addresses)
	}
	c, err := pki.Assemble(x.GetChain(), key, p.h.Pin(), pki.Member)
	if err != nil {
		p.t.Fatal(err)
	}
	if id, err := pki.IdentityOf(c.Leaf); err != nil || !strings.HasPrefix("penstock://"+p.h.ID()+"/job/"+process+"/", id.String()+"/") {
		p.t.Fatalf("%v, %v; want %s", id, err, process)
	}
}

// refused checks that the next thing that is said is an error.
func (p *peer) refused(process, why string) {
	p.t.Helper()
	if x := p.hear().GetPeers(); x.GetProcess() != process || len(x.GetChain()) > 0 || !strings.Contains(x.GetError(), why) {
		p.t.Fatalf("node %s hears %v, want %q", p.id, x, why)
	}
}

func startHead(t *testing.T, dir string) *Head {
	t.Helper()
	h, err := Start(t.Context(), Config{Dir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Stop(0) })
	return h
}

func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "ph")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "head")
}

// A node that joined keeps its name until it attaches, or its lease would have ended: of two that join at once under one name, one is told so before its token is used.
func TestNameOfWhoJoins(t *testing.T) {
	h := startHead(t, shortDir(t))
	if err := h.do(t.Context(), func() error {
		id, err := h.newNode(t.Context(), &pb.Inventory{Name: "vm"}, "", false, nil, "")
		if err != nil {
			return err
		}
		if err := h.nameIsFree("", "vm"); fault.CodeOf(err) != fault.Exists {
			t.Errorf("a second one joins: %v", err)
		}
		if err := h.nameIsFree(id, "vm"); err != nil {
			t.Errorf("it attaches: %v", err)
		}
		r := &h.nodes[id].Value
		r.Joined = r.Joined.Add(-h.cfg.Lease)
		if err := h.nameIsFree("", "vm"); err != nil {
			t.Errorf("it never came: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A node that two are called cannot be meant by its name; those that have one name on record, both there, keep it.
func TestOneName(t *testing.T) {
	h := startHead(t, shortDir(t))
	a, b := attach(t, h, ""), attach(t, h, "")
	named := func(name string) (id string, err error) {
		_ = h.do(t.Context(), func() error { id, err = h.nodeNamed(name); return nil })
		return id, err
	}
	hello := func(id, name string) error {
		s := &session{node: id, end: func(error) {}, more: make(chan struct{}, 1)}
		return h.do(t.Context(), func() error { return h.begin(s, &pb.Hello{Inventory: &pb.Inventory{Name: name}}, time.Now()) })
	}
	if err := hello(b.id, "name-n1"); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "node n1 is called name-n1: give this one another name with --name") {
		t.Errorf("a second one of the name: %v", err)
	}
	if err := hello(a.id, "name-n1"); err != nil {
		t.Errorf("it has the name: %v", err)
	}
	if err := hello(a.id, "vm"); err != nil {
		t.Error(err)
	}
	if id, err := named("vm"); id != a.id || err != nil {
		t.Errorf("%s, %v", id, err)
	}
	if err := h.do(t.Context(), func() error { h.nodes[b.id].Value.Inventory.Name = "vm"; return nil }); err != nil { // as heads of before let it be
		t.Fatal(err)
	}
	if err := hello(b.id, "vm"); err != nil {
		t.Errorf("it has the name: %v", err)
	}
	for range 20 {
		if _, err := named("vm"); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "vm is the name of node n1 and node n2: give an id") {
			t.Fatalf("both are called so: %v", err)
		}
	}
	if id, err := named("n2"); id != b.id || err != nil {
		t.Errorf("%s, %v", id, err)
	}
}

// Members of an attempt are told where all of them are, and certified, when all have said it; again to a head that starts; and a node gets a certificate for what runs on it, and for nothing else.
func TestMeet(t *testing.T) {
	dir := shortDir(t)
	h := startHead(t, dir)
	a, b, c := attach(t, h, ""), attach(t, h, ""), attach(t, h, "")
	if _, err := (controlServer{h: h}).Submit(t.Context(), &pb.Job{Argv: []string{"x"}, Nodes: 2, Resources: &pb.Resources{MilliCpus: 1000}}); err != nil {
		t.Fatal(err)
	}
	p0, p1 := "j1/1/0/"+h.core.Life, "j1/1/1/"+h.core.Life
	for i, p := range []*peer{a, b} {
		if s := p.hear().GetStart(); s.GetProcess() != []string{p0, p1}[i] || s.GetMembers() != 2 || s.GetHost() != "127.0.0.1" {
			t.Fatalf("member %d is started as %v", i, s)
		}
	}
	const at0, at1 = "127.0.0.1:4000", "[::1]:4001"
	k0 := a.listens(p0, at0)
	a.silent()                            // the other one has not said where it is
	for _, other := range []*peer{b, c} { // a's process, that of an attempt that is not there, of a job that is not there, and nonsense
		for _, process := range []string{p0, "j1/1/0", "j1/1/0/other", strings.Replace(p0, "/1/", "/2/", 1), "j1/1/7", "j1/1/-1", "j2/1/0", ""} {
			other.listens(process, "127.0.0.1:6666")
		}
		other.silent()
	}
	k1 := b.listens(p1, at1)
	a.met(p0, k0, at0, at1)
	b.met(p1, k1, at0, at1)
	a.listening(p0, at0, nil) // it has its certificate, and wants nothing
	a.silent()
	k0 = a.listens(p0, at0) // another one
	a.met(p0, k0, at0, at1)
	for address, why := range map[string]string{"": "an address and a port", "host:80": "an address and a port", "127.0.0.1:0": "an address and a port", "0.0.0.0:80": "an address and a port", "127.0.0.1": "an address and a port",
		"[fe80::1%" + strings.Repeat("x", 100) + "]:80": "an address and a port"} {
		a.listens(p0, address)
		a.refused(p0, why)
	}
	a.listening(p0, at0, []byte("no request"))
	a.refused(p0, "does not parse")
	a.listening(p0, at0, bytes.Repeat([]byte{1}, 20<<10))
	a.refused(p0, "at most 16384 are taken")

	// Another head knows nothing of it: only a waits now, and b, which runs, says where it is.
	h.Stop(0)
	h = startHead(t, dir)
	a, b = attach(t, h, a.id, p0), attach(t, h, b.id, p1)
	k0 = a.listens(p0, at0)
	a.silent()
	b.listening(p1, at1, nil)
	a.met(p0, k0, at0, at1)
	b.silent()

	// One ends: when all have, the head forgets where they were.
	b.say(&pb.FromAgent{Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: p1, Code: 1, Class: "user"}}})
	if m := a.hear(); m.GetStop().GetProcess() != p0 {
		t.Fatalf("the other one hears %v", m)
	}
	if m := b.hear(); m.GetHeard() != p1 {
		t.Fatalf("it receives %v", m)
	}
	a.say(&pb.FromAgent{Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: p0, Code: -1, Class: "worker"}}})
	if m := a.hear(); m.GetHeard() != p0 {
		t.Fatalf("it receives %v", m)
	}
	if err := h.do(t.Context(), func() error {
		if len(h.meetings) > 0 {
			t.Errorf("the head remembers %v", h.meetings)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// When a process ended that a node names in its hello counts from when that was heard, however long the head was busy then.
func TestEndsInHello(t *testing.T) {
	h := startHead(t, shortDir(t))
	a, b := attach(t, h, ""), attach(t, h, "")
	if _, err := (controlServer{h: h}).Submit(t.Context(), &pb.Job{Argv: []string{"x"}, Nodes: 2, Resources: &pb.Resources{MilliCpus: 1000}}); err != nil {
		t.Fatal(err)
	}
	p0, p1 := a.hear().GetStart().GetProcess(), b.hear().GetStart().GetProcess()
	b.say(&pb.FromAgent{Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: p1, Code: 75, Class: "preemption", AgoMs: 30_000}}})
	b.hear()
	hello := &pb.Hello{Inventory: &pb.Inventory{Name: "a"}, Exited: []*pb.Exited{{Process: p0, Code: 7, Class: "user"}}}
	s := &session{node: a.id, end: func(error) {}, more: make(chan struct{}, 1)}
	if err := h.do(t.Context(), func() error { return h.begin(s, hello, time.Now().Add(-time.Minute)) }); err != nil {
		t.Fatal(err)
	}
	if err := h.do(t.Context(), func() error {
		if r := h.jobs["j1"].Value.Record; r.State != jobs.Failed || !strings.Contains(r.Why, "node 0 of the job") {
			t.Errorf("%+v", r)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// What cannot be on several nodes is refused.
func TestSubmitNodes(t *testing.T) {
	h := startHead(t, shortDir(t))
	submit := func(h *Head, nodes, gpus int64, bytes int) error {
		_, err := controlServer{h: h}.Submit(t.Context(), &pb.Job{Argv: []string{strings.Repeat("x", max(bytes, 1))}, Nodes: nodes, Resources: &pb.Resources{Gpus: gpus}})
		return err
	}
	for _, x := range []struct {
		nodes, gpus int64
		bytes       int
		says        string
	}{
		{0, 0, 0, ""}, {1, 8, 39 << 10, ""}, {mostMembers, 0, 30 << 10, ""}, {64, 8, 0, ""},
		{-1, 0, 0, "it has 1 to 256"}, {mostMembers + 1, 0, 0, "it has 1 to 256"},
		{mostMembers, 8, 0, "on 256 nodes with 8 GPUs each are more than a record holds"}, {200, 0, 39 << 10, "more than a record holds"},
	} {
		err := submit(h, x.nodes, x.gpus, x.bytes)
		if x.says == "" && err != nil || x.says != "" && (fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	for _, x := range []struct {
		nodes int64
		data  *pb.DataNodes
		says  string
	}{
		{0, &pb.DataNodes{Nodes: 1, Resources: &pb.Resources{MilliCpus: 1000}, Labels: map[string]string{"role": "data"}}, ""}, {200, &pb.DataNodes{Nodes: 56}, ""},
		{200, &pb.DataNodes{Nodes: 57}, "it has 1 to 256"}, {1, &pb.DataNodes{Nodes: -1}, "it has 1 to 256"}, {math.MaxInt64, &pb.DataNodes{Nodes: math.MaxInt64}, "it has 1 to 256"},
		{1, &pb.DataNodes{}, "no number of them"}, {1, &pb.DataNodes{Nodes: 1, Resources: &pb.Resources{Memory: -1}}, "less than nothing"},
		{1, &pb.DataNodes{Nodes: 1, Resources: &pb.Resources{Named: map[string]int64{"disk": -1}}}, "cannot need -1 disk"},
		{1, &pb.DataNodes{Nodes: 255, Resources: &pb.Resources{Gpus: 8}}, "more than a record holds"},
		{1, &pb.DataNodes{Nodes: 16, Resources: &pb.Resources{Gpus: 1 << 60}}, "1024 are the most"},
		{1, &pb.DataNodes{Nodes: 1, Labels: map[string]string{"x": strings.Repeat("y", 41<<10)}}, "40 KiB is the most"},
	} {
		_, err := controlServer{h: h}.Submit(t.Context(), &pb.Job{Argv: []string{"x"}, Nodes: x.nodes, Data: x.data})
		if x.says == "" && err != nil || x.says != "" && (fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	alone, err := Start(t.Context(), Config{Dir: shortDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Stop(0)
	if err := submit(alone, 2, 0, 0); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "start the head with --listen") {
		t.Errorf("nothing listens: %v", err)
	}
	if _, err := (controlServer{h: alone}).Submit(t.Context(), &pb.Job{Argv: []string{"x"}, Data: &pb.DataNodes{Nodes: 1}}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "start the head with --listen") {
		t.Errorf("nothing listens: %v", err)
	}
	if err := submit(alone, 1, 0, 0); err != nil {
		t.Error(err)
	}
}

// A node on the head's machine is reached where the others reach the head.
func TestHost(t *testing.T) {
	h := &Head{sessions: map[string]*session{"n1": {}, "n2": {host: "127.0.0.1", here: "127.0.0.1"}, "n3": {host: "10.0.0.3", here: "10.0.0.1"}, "n4": {host: "fd00::4", here: "fd00::1"}}}
	on := func(ids ...place.NodeID) (ps []place.Placement) {
		for i, id := range ids {
			ps = append(ps, place.Placement{Member: i, Node: id})
		}
		return ps
	}
	for _, x := range []struct {
		node place.NodeID
		all  []place.Placement
		want string
	}{
		{"n3", on("n1", "n3"), "10.0.0.3"}, {"n1", on("n1", "n3"), "10.0.0.1"}, {"n2", on("n1", "n2", "n4", "n3"), "fd00::1"}, {"n4", on("n4", "n9"), "fd00::4"},
		{"n1", on("n1", "n2"), "127.0.0.1"}, {"n2", on("n1", "n2"), "127.0.0.1"},
	} {
		if got := h.host(x.node, x.all); got != x.want {
			t.Errorf("%s of %v is reached at %s, not %s", x.node, x.all, got, x.want)
		}
	}
}

// Of the attempts of a job the last are remembered, as far as there is room, and always the last one.
func TestRan(t *testing.T) {
	var rs []ran
	on := make([]place.Placement, 100)
	for i := range 20 {
		rs = after(rs, jobs.Record{Attempt: int64(i + 1), Placed: on[:1]})
	}
	if len(rs) != mostRan || rs[0].Attempt != 5 || rs[mostRan-1].Attempt != 20 {
		t.Errorf("%v", rs)
	}
	for i := range 3 {
		rs = after(rs, jobs.Record{Attempt: int64(i + 21), Placed: on})
	}
	if len(rs) != 2 || rs[0].Attempt != 22 {
		t.Errorf("%v", rs)
	}
	if rs = after(rs, jobs.Record{Attempt: 24, Placed: make([]place.Placement, 300)}); len(rs) != 1 || len(rs[0].Nodes) != 300 {
		t.Errorf("%v", rs)
	}
}

// TestRecordHasRoom: whatever processes say at their end, and whatever characters a job is of, its record is written.
func TestRecordHasRoom(t *testing.T) {
	var places []string
	for i := range 64 {
		places = append(places, fmt.Sprintf("%03d%s, row group 3", i, strings.Repeat("<", 900)))
	}
	for name, arg := range map[string]string{"long": strings.Repeat("x", 39<<10), "of characters that take six bytes": strings.Repeat("<", 6<<10)} {
		t.Run(name, func(t *testing.T) {
			h := startHead(t, shortDir(t))
			a := attach(t, h, "")
			crashes := int64(3)
			if _, err := (controlServer{h: h}).Submit(t.Context(), &pb.Job{Argv: []string{"x", arg}, Resources: &pb.Resources{MilliCpus: 1000}, Crashes: &crashes}); err != nil {
				t.Fatal(err)
			}
			m := a.hear()
			for ; m.GetStart() == nil; m = a.hear() {
			}
			p := m.GetStart().GetProcess()
			a.say(&pb.FromAgent{Say: &pb.FromAgent_Started{Started: p}})
			a.say(&pb.FromAgent{Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: p, Class: "worker", Code: -1, Text: strings.Repeat("<p>\n", 1<<10), At: places}}})
			for m = a.hear(); m.GetHeard() != p; m = a.hear() { // it is on record
				if m == nil {
					t.Fatal(h.Err())
				}
			}
		})
	}
	h := startHead(t, shortDir(t))
	if _, err := (controlServer{h: h}).Submit(t.Context(), &pb.Job{Argv: []string{strings.Repeat("<", 8<<10)}}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "40 KiB is the most") {
		t.Errorf("8,192 characters that take six bytes each: %v", err)
	}
	secrets := map[string]string{}
	for i := range 106 {
		secrets[fmt.Sprintf("S%03d%s", i, strings.Repeat("N", 240))] = ""
	}
	if _, err := (controlServer{h: h}).Submit(t.Context(), &pb.Job{Argv: []string{strings.Repeat("<", 3000)}, Secrets: secrets}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "40 KiB is the most") {
		t.Errorf("26 KB of names of secrets and 18 of an argument: %v", err)
	}
}

// TestStrangersAreNotLookedAt: who shows no token of this cluster hears that, whatever else he says.
func TestStrangersAreNotLookedAt(t *testing.T) {
	h := startHead(t, shortDir(t))
	inv := &pb.Inventory{Name: "a", Capacity: &pb.Resources{Gpus: 100_000}}
	for i := range 100_000 {
		inv.Devices = append(inv.Devices, fmt.Sprintf("%05d", i))
	}
	for _, token := range []string{"", "x"} {
		if _, err := (joinServer{h: h}).Join(t.Context(), &pb.JoinRequest{UnixNanos: time.Now().UnixNano(), Inventory: inv, Token: token}); fault.CodeOf(err) != fault.Denied {
			t.Errorf("token %q: %v", token, err)
		}
	}
	if err := checkInventory(inv); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "32 KiB is the most") {
		t.Errorf("100,000 devices: %v", err)
	}
}
