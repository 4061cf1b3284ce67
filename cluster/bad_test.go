package cluster

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// joinBad tries to join as a machine that says of itself what lie makes of it.
func (c *testCluster) joinBad(name, token string, lie func(*pb.Inventory)) error {
	c.t.Helper()
	n, err := newNode(c.ctx(), c.node(name, Resources{CPUs: 1}))
	must(c.t, err)
	lie(n.inventory)
	if err = n.joinAt(c.ctx(), c.addr, token); err == nil {
		c.t.Cleanup(func() { n.Close() })
	} else {
		n.free(false)
	}
	return err
}

func (c *testCluster) joinToken() string {
	c.t.Helper()
	token, err := c.client.CreateJoinToken(c.ctx(), "", 0)
	must(c.t, err)
	return token
}

// Whoever has no good token does not get in, and hears why.
func TestBadTokens(t *testing.T) {
	t.Parallel()
	c, other := newCluster(t), newCluster(t)
	good := c.joinToken()
	parts := strings.Split(good, ".")
	flip := func(i, at int) string { // another letter, of the alphabet
		p := strings.Split(good, ".")
		b := []byte(p[i])
		b[at] = map[bool]byte{true: 'b', false: 'a'}[b[at] == 'a']
		p[i] = string(b)
		return strings.Join(p, ".")
	}
	short, err := c.client.CreateJoinToken(c.ctx(), "", time.Millisecond)
	must(t, err)
	access, err := c.client.CreateAccessToken(c.ctx(), "admin", "", 0)
	must(t, err)
	tokens, err := c.client.Tokens(c.ctx())
	must(t, err)
	for _, x := range tokens {
		if strings.Contains(short, x.ID) {
			<-time.After(time.Until(x.Expires)) // it ends
		}
	}
	for name, x := range map[string]struct {
		token string
		code  fault.Code
		says  string
	}{
		"expired":            {short, fault.Denied, "ended"},
		"wrong secret":       {flip(len(parts)-2, 5), fault.Denied, "penstock token create"},
		"unknown":            {flip(1, 0), fault.Denied, "not one of this cluster"},
		"of another cluster": {other.joinToken(), fault.Denied, "it is not the head of the cluster that the token or certificate here is of"},
		"cut":                {good[:len(good)-3], fault.Invalid, "token"},
		"garbage":            {"penstock-join.\x00.\xff.z", fault.Invalid, "token"},
		"for access":         {access, fault.Invalid, "for joining"},
	} {
		err := c.joinBad("a", x.token, func(*pb.Inventory) {})
		if fault.CodeOf(err) != x.code || err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v (%v), want %v and %q", name, err, fault.CodeOf(err), x.code, x.says)
		}
		if err != nil && len(parts) > 2 && strings.Contains(err.Error(), parts[len(parts)-2]) {
			t.Errorf("%s: the error has the secret: %v", name, err)
		}
	}
	for name, token := range map[string]string{"revoked": access, "wrong": access[:len(access)-60] + "aaaa" + access[len(access)-56:]} {
		must(t, c.client.RevokeToken(c.ctx(), strings.Split(access, ".")[1]))
		p, err := Dial(c.ctx(), c.addr, token)
		if err == nil {
			_, err = p.Status(c.ctx())
			p.Close()
		}
		if code := fault.CodeOf(err); code != fault.Denied && code != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, c.joinBad("a", good, func(*pb.Inventory) {}))
	// What is of another cluster now joins that one, and is refused with the old certificate there.
	err = func() error {
		n, err := newNode(c.ctx(), c.node("a2", Resources{CPUs: 1}))
		must(t, err)
		must(t, n.joinAt(c.ctx(), c.addr, c.joinToken()))
		must(t, n.Close())
		m, err := newNode(c.ctx(), c.node("a2", Resources{CPUs: 1}))
		must(t, err)
		return m.joinAt(c.ctx(), other.addr, "")
	}()
	wantCode(t, err, fault.Denied, "not the head of the cluster")
}

// Clocks that are wrong are named, with by how much.
func TestClocks(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	token, err := pki.ParseToken(c.joinToken())
	must(t, err)
	conn, err := rpc.Dial(c.ctx(), c.addr, rpc.AsNewcomer(token.Pin))
	must(t, err)
	defer conn.Close()
	n, err := newNode(c.ctx(), c.node("a", Resources{CPUs: 1}))
	must(t, err)
	for off, says := range map[time.Duration]string{-time.Hour: "behind", time.Hour: "ahead"} {
		key, err := pki.NewKey()
		must(t, err)
		csr, err := pki.NewCSR(key)
		must(t, err)
		_, err = pb.NewJoinClient(conn).Join(c.ctx(), &pb.JoinRequest{Token: token.Bearer(), Csr: csr, Inventory: n.inventory, UnixNanos: time.Now().Add(off).UnixNano()})
		wantCode(t, err, fault.Invalid, "clock is 1h0m "+says, "the head's", "NTP")
		_, err = rpc.Dial(c.ctx(), c.addr, rpc.AsNewcomer(token.Pin).WithClock(func() time.Time { return time.Now().Add(48 * off) }))
		wantCode(t, err, fault.Denied, "clock", says, "NTP")
	}
	// A certificate that has ended is not shown: the node joins again.
	must(t, os.MkdirAll(filepath.Join(c.dir, "old"), 0o700))
	past := time.Now().Add(-72 * time.Hour)
	ca, err := pki.OpenCA(filepath.Join(c.dir, "ca"), "old", func() time.Time { return past })
	must(t, err)
	key, err := pki.NewKey()
	must(t, err)
	csr, err := pki.NewCSR(key)
	must(t, err)
	chain, err := ca.IssueNode(csr, "n1", 1)
	must(t, err)
	cert := &tls.Certificate{Certificate: chain, PrivateKey: key}
	must(t, pki.Save(filepath.Join(c.dir, "old", "node.pem"), cert))
	_, err = Join(c.ctx(), c.addr, "", c.node("old", Resources{CPUs: 1}))
	wantCode(t, err, fault.Invalid, "--token")
}

// What a machine cannot be is refused when it joins; a statement about its CPUs is believed.
func TestBadInventory(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	token := c.joinToken()
	c.join("taken", Resources{CPUs: 1})
	for name, x := range map[string]struct {
		lie  func(*pb.Inventory)
		code fault.Code
		says string
	}{
		"more GPUs":       {func(i *pb.Inventory) { i.Capacity.Gpus, i.Devices = 2, []string{"GPU-1"} }, fault.Invalid, "offers 2 GPUs and names 1"},
		"one GPU twice":   {func(i *pb.Inventory) { i.Capacity.Gpus, i.Devices = 2, []string{"GPU-1", "GPU-1"} }, fault.Invalid, "GPU-1 twice"},
		"negative CPUs":   {func(i *pb.Inventory) { i.Capacity.MilliCpus = -1 }, fault.Invalid, "less than nothing"},
		"negative memory": {func(i *pb.Inventory) { i.Capacity.Memory = -1 }, fault.Invalid, "less than nothing"},
		"negative":        {func(i *pb.Inventory) { i.Capacity.Named = map[string]int64{"disk": -3} }, fault.Invalid, "-3 disk"},
		"no name":         {func(i *pb.Inventory) { i.Name = "" }, fault.Invalid, "a node's name"},
		"long name":       {func(i *pb.Inventory) { i.Name = strings.Repeat("x", 300) }, fault.Invalid, "a node's name"},
		"a line in it":    {func(i *pb.Inventory) { i.Name = "a\nb" }, fault.Invalid, "a node's name"},
		"an escape in it": {func(i *pb.Inventory) { i.Name = "a\x1b[2J" }, fault.Invalid, "a node's name"},
		"like an id":      {func(i *pb.Inventory) { i.Name = "n7" }, fault.Invalid, "--name"},
		"long device":     {func(i *pb.Inventory) { i.Capacity.Gpus, i.Devices = 1, []string{strings.Repeat("d", 30_000)} }, fault.Invalid, "more than 56"},
		"long version":    {func(i *pb.Inventory) { i.Version = strings.Repeat("v", 70<<10) }, fault.Invalid, "more than 253 bytes"},
		"like a job":      {func(i *pb.Inventory) { i.Name = "j7" }, fault.Invalid, "for the job or node of that id"},
		"odd label":       {func(i *pb.Inventory) { i.Labels = map[string]string{"zone": "a\x00"} }, fault.Invalid, "zone"},
		"taken name":      {func(i *pb.Inventory) { i.Name = "taken" }, fault.Exists, "node n1 is called taken"},
		"too much":        {func(i *pb.Inventory) { i.Labels = map[string]string{"x": strings.Repeat("x", 40<<10)} }, fault.Invalid, "32 KiB is the most"},
	} {
		if err := c.joinBad("a", token, x.lie); fault.CodeOf(err) != x.code || !strings.Contains(fmt.Sprint(err), x.says) {
			t.Errorf("%s: %v (%v), want %v and %q", name, err, fault.CodeOf(err), x.code, x.says)
		}
	}
	for what, change := range map[string]func(*NodeConfig){"name": func(n *NodeConfig) { n.Name = "a\xff" }, "label zone": func(n *NodeConfig) { n.Labels = map[string]string{"zone": "\xff"} }} {
		cfg := c.node("a", Resources{CPUs: 1})
		change(&cfg)
		_, err := Join(c.ctx(), c.addr, token, cfg)
		wantCode(t, err, fault.Invalid, "UTF-8", what)
	}
	must(t, c.joinBad("a", token, func(i *pb.Inventory) { i.Capacity.MilliCpus = 8_000_000 }))
	j := sh("true")
	j.Needs.CPUs = 7000
	c.finished(c.submit(j), 0)
}

// Releases of other protocols hear so, on both sides of it: a machine that joins, whose token is not used up, a node that was updated or that has not been, and whoever asks.
func TestOtherVersions(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	secret := c.joinToken()
	token, err := pki.ParseToken(secret)
	must(t, err)
	for protocol, update := range map[int]string{1: "update Penstock on the caller's machine", 99: "update Penstock on the head's machine"} {
		says := []string{fmt.Sprintf("protocol %d", protocol), fmt.Sprintf("protocol %d", rpc.Protocol), update, "penstock version"}
		conn, err := rpc.Dial(c.ctx(), c.addr, rpc.AsNewcomer(token.Pin).WithProtocol(protocol))
		must(t, err)
		n, err := newNode(c.ctx(), c.node("a", Resources{CPUs: 1}))
		must(t, err)
		key, err := pki.NewKey()
		must(t, err)
		csr, err := pki.NewCSR(key)
		must(t, err)
		_, err = pb.NewJoinClient(conn).Join(c.ctx(), &pb.JoinRequest{Token: token.Bearer(), Csr: csr, Inventory: n.inventory, UnixNanos: time.Now().UnixNano()})
		wantCode(t, err, fault.Unsupported, says...)
		must(t, conn.Close())
		n.free(false)

		access, err := c.client.CreateAccessToken(c.ctx(), "admin", "", 0)
		must(t, err)
		person, err := pki.ParseToken(access)
		must(t, err)
		client, err := dial(c.ctx(), c.addr, rpc.AsPerson(person).WithProtocol(protocol))
		must(t, err)
		_, err = client.Status(c.ctx())
		wantCode(t, err, fault.Unsupported, says...)
		_, _, err = client.Submit(c.ctx(), sh("true"))
		wantCode(t, err, fault.Unsupported, says...)
		must(t, client.Close())
	}
	cfg := c.node("a", Resources{CPUs: 1})
	n, err := Join(c.ctx(), c.addr, secret, cfg)
	must(t, err)
	must(t, n.Close())
	// The node is of another release when it comes back.
	n, err = newNode(c.ctx(), cfg)
	must(t, err)
	cert, err := pki.Load(filepath.Join(cfg.Dir, "node.pem"), pki.Node)
	must(t, err)
	holder := pki.NewHolder(cert, nil)
	conn, err := rpc.Dial(c.ctx(), c.addr, rpc.AsNode(holder, holder.Issuer).WithProtocol(99))
	must(t, err)
	n.run(conn, c.head.ID(), holder)
	<-n.Done()
	wantCode(t, n.Err(), fault.Unsupported, "protocol 99", "head's machine")
	n.Close()
}

// A machine that is refused has nothing more than before.
func TestRefusedLeavesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	cfg := c.node("a", Resources{CPUs: 1})
	used := c.joinToken()
	c.join("one", Resources{CPUs: 1})
	for name, token := range map[string]string{"none": "", "nonsense": "x", "unknown": used[:len(used)-2] + "xx"} {
		if _, err := Join(c.ctx(), c.addr, token, cfg); err == nil {
			t.Errorf("%s: it joined", name)
		}
	}
	cfg.Name = "one"
	_, err := Join(c.ctx(), c.addr, used, cfg)
	wantCode(t, err, fault.Exists, "--name")
	if _, err := os.Lstat(cfg.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is there: %v", err)
	}
	must(t, os.Mkdir(cfg.Dir, 0o700)) // it is not ours to remove
	_, err = Join(c.ctx(), c.addr, used, cfg)
	wantCode(t, err, fault.Exists, "--name")
	if _, err := os.Lstat(cfg.Dir); err != nil {
		t.Error(err)
	}
}

// One head, one node has a folder and a port.
func TestTwoOnOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	cfg := c.cfg
	_, err := StartHead(c.ctx(), cfg)
	wantCode(t, err, fault.Exists, "another process has the store", "another folder")
	cfg.Dir = filepath.Join(c.dir, "second")
	_, err = StartHead(c.ctx(), cfg)
	wantCode(t, err, fault.Exists, c.addr, "--listen")
	if _, err := os.Lstat(cfg.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is there: %v", err)
	}
	was := cfg.Listen
	cfg.Listen = "127.0.0.1:0"
	h, err := StartHead(c.ctx(), cfg)
	must(t, err)
	must(t, h.Close())
	cfg.Listen = was
	_, err = StartHead(c.ctx(), cfg) // a folder of a head
	wantCode(t, err, fault.Exists, c.addr, "--listen")
	cfg.Listen = "127.0.0.1:none"
	_, err = StartHead(c.ctx(), cfg)
	wantCode(t, err, fault.Invalid, "none")
	n := c.join("a", Resources{CPUs: 1})
	pem := filepath.Join(c.node("a", Resources{}).Dir, "node.pem")
	before, err := os.ReadFile(pem)
	must(t, err)
	fresh, err := c.client.CreateJoinToken(c.ctx(), "", 0)
	must(t, err)
	for _, token := range []string{"", fresh} {
		_, err = Join(c.ctx(), c.addr, token, c.node("a", Resources{CPUs: 1}))
		wantCode(t, err, fault.Exists, "another agent has the folder", "--dir")
	}
	if is, err := os.ReadFile(pem); err != nil || !bytes.Equal(is, before) {
		t.Errorf("the certificate of the node that runs was replaced: %v", err)
	}
	if n.Err() != nil {
		t.Error(n.Err())
	}
	c.finished(c.submit(sh("true")), 0)
}

// What cannot be a job is refused when it is submitted.
func TestBadJobs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	large, link, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "file")
	f, err := os.Create(filepath.Join(large, "model"))
	must(t, err)
	must(t, f.Truncate(5<<30))
	must(t, f.Close())
	must(t, os.Symlink("../outside", filepath.Join(link, "leaves")))
	must(t, os.WriteFile(file, nil, 0o644))
	for name, x := range map[string]struct {
		change func(*Job)
		code   fault.Code
		says   string
	}{
		"no such folder":     {func(j *Job) { j.WorkingDir = filepath.Join(large, "missing") }, fault.NotFound, "missing"},
		"a file":             {func(j *Job) { j.WorkingDir = file }, fault.Invalid, "file"},
		"too large":          {func(j *Job) { j.WorkingDir = large }, fault.Exhausted, ".penstockignore"},
		"a link out":         {func(j *Job) { j.WorkingDir = link }, fault.Invalid, "leaves"},
		"1 MiB environment":  {func(j *Job) { j.Env = map[string]string{"X": strings.Repeat("x", 1<<20)} }, fault.Invalid, "put large things into the working directory"},
		"1 MiB secret":       {func(j *Job) { j.Secrets = map[string]string{"X": strings.Repeat("x", 1<<20)} }, fault.Invalid, "40 KiB is the most"},
		"1 MiB arguments":    {func(j *Job) { j.Argv = append(j.Argv, strings.Repeat("x", 1<<20)) }, fault.Invalid, "40 KiB is the most"},
		"8 MiB":              {func(j *Job) { j.Argv = append(j.Argv, strings.Repeat("x", 8<<20)) }, fault.Invalid, "larger"},
		"many resources":     {func(j *Job) { j.Needs.Named = many() }, fault.Invalid, "40 KiB is the most"},
		"no program":         {func(j *Job) { j.Argv = nil }, fault.Invalid, "a program"},
		"variable":           {func(j *Job) { j.Env = map[string]string{"A=B": ""} }, fault.Invalid, "no name of a variable"},
		"zero byte in value": {func(j *Job) { j.Env = map[string]string{"A": "x\x00y"} }, fault.Invalid, "A"},
		"zero byte":          {func(j *Job) { j.Argv = append(j.Argv, "\x00") }, fault.Invalid, "argument 3"},
		"no UTF-8":           {func(j *Job) { j.Env = map[string]string{"A": "\xff"} }, fault.Invalid, "UTF-8"},
		"id":                 {func(j *Job) { j.ID = "a/b" }, fault.Invalid, "an id of submission"},
		"id of a job":        {func(j *Job) { j.ID = "j12" }, fault.Invalid, "would be taken for the job or node of that id"},
		"id of a node":       {func(j *Job) { j.ID = "n2" }, fault.Invalid, "would be taken for the job or node of that id"},
		"name":               {func(j *Job) { j.Name = "a\nb" }, fault.Invalid, "name of a job"},
		"negative":           {func(j *Job) { j.Needs.CPUs = -1 }, fault.Invalid, "less than nothing"},
	} {
		j := sh("true")
		x.change(&j)
		_, _, err := c.client.Submit(c.ctx(), j)
		if err == nil || fault.CodeOf(err) != x.code || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %.300v (%v), want %v and %q", name, err, fault.CodeOf(err), x.code, x.says)
		}
	}
	js, err := c.client.Jobs(c.ctx())
	if err != nil || len(js) != 0 {
		t.Errorf("%v, %v", js, err)
	}
}

func many() map[string]int64 {
	m := map[string]int64{}
	for i := range 10_000 {
		m[fmt.Sprintf("resource-%d", i)] = 1
	}
	return m
}

// A node that was stopped is of the cluster no more: its certificate is good for nothing, a new token is.
func TestStoppedNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n := c.join("a", Resources{CPUs: 1})
	err := c.client.Watch(c.ctx(), true, func(s *Status) error {
		if len(s.Nodes) == 1 && s.Nodes[0].State == "alive" {
			return errEnough
		}
		return nil
	})
	if err != errEnough {
		t.Fatal(err)
	}
	must(t, c.client.StopNode(c.ctx(), "a", time.Second))
	select {
	case <-n.Done():
	case <-c.ctx().Done():
		t.Fatal("it goes on")
	}
	if n.Err() != nil {
		t.Error(n.Err())
	}
	n.Close()
	again, err := Join(c.ctx(), c.addr, "", c.node("a", Resources{CPUs: 1}))
	must(t, err)
	select {
	case <-again.Done():
	case <-c.ctx().Done():
		t.Fatal("it is there again")
	}
	wantCode(t, again.Err(), fault.Denied, "node n1 is not of this cluster any more", "token")
	again.Close()
	back := c.join("a", Resources{CPUs: 1})
	if back.ID() != "n2" {
		t.Errorf("it came back as %s", back.ID())
	}
}

// What a node offers of its memory by itself is rounded: two machines that are alike are one kind of node.
func TestEven(t *testing.T) {
	for bytes, want := range map[int64]int64{0: 0, 1: 1, 127: 127, 129: 128, 64 << 30: 64 << 30, 57<<30 + 12345: 57 << 30, 57<<30 - 1: 57<<30 - 512<<20, 1<<40 - 1: 127 << 33} {
		if got := even(bytes); got != want {
			t.Errorf("%d: %d, want %d", bytes, got, want)
		}
	}
}

// What is submitted when a node has joined can run there at once.
func TestJoinedIsThere(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 8 {
		n := c.join(fmt.Sprint("node", i), Resources{CPUs: 1})
		s, err := c.client.Status(c.ctx())
		must(t, err)
		if len(s.Nodes) != i+1 || s.Nodes[i].ID != n.ID() || s.Nodes[i].State != "alive" {
			t.Fatalf("after %d joined: %+v", i+1, s.Nodes)
		}
	}
}
