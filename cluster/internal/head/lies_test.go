package head

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// lying is a cluster with a node that does as it should, and one that lies: both joined with
// tokens, and call with their certificates over TLS.
type lying struct {
	t            *testing.T
	h            *Head
	log          *logBuffer
	honest, liar *member
}

// member is a node of which the test says what it says.
type member struct {
	*peer
	holder *pki.Holder
	conn   *rpc.Conn
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newLying(t *testing.T) *lying {
	t.Helper()
	l := &lying{t: t, log: &logBuffer{}}
	h, err := Start(t.Context(), Config{Dir: shortDir(t), Listen: "127.0.0.1:0", Log: slog.New(slog.NewTextHandler(l.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Stop(0) })
	l.h = h
	l.honest, l.liar = l.join("honest"), l.join("liar")
	return l
}

func (l *lying) inventory(name string) *pb.Inventory {
	return &pb.Inventory{Name: name, Capacity: &pb.Resources{MilliCpus: 1000}, Labels: map[string]string{"is": name}}
}

// join makes a node as penstock join does.
func (l *lying) join(name string) *member {
	l.t.Helper()
	t := l.t
	token, err := l.h.JoinToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := rpc.Dial(t.Context(), l.h.Addr().String(), rpc.AsNewcomer(token.Pin))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pb.NewJoinClient(stranger).Join(t.Context(), &pb.JoinRequest{Token: token.Bearer(), Csr: csr, Inventory: l.inventory(name), UnixNanos: time.Now().UnixNano()})
	if err != nil {
		t.Fatal(err)
	}
	c, err := pki.Assemble(r.GetChain(), key, token.Pin, pki.Node)
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.IdentityOf(c.Leaf)
	if err != nil {
		t.Fatal(err)
	}
	m := &member{peer: &peer{t: t, h: l.h, id: id.Node}, holder: pki.NewHolder(c, nil)}
	if m.conn, err = rpc.Dial(t.Context(), l.h.Addr().String(), rpc.AsNode(m.holder, m.holder.Issuer)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.conn.Close() })
	if err := m.attach(&pb.Hello{Inventory: l.inventory(name)}); err != nil {
		t.Fatal(err)
	}
	return m
}

// attach begins a session, and says why there is none.
func (m *member) attach(hello *pb.Hello) error {
	m.t.Helper()
	var err error
	if m.stream, err = pb.NewNodeClient(m.conn).Attach(m.t.Context()); err != nil {
		return err
	}
	m.say(&pb.FromAgent{Say: &pb.FromAgent_Hello{Hello: hello}})
	first, err := m.stream.Recv()
	if err == nil && first.GetWelcome() == nil {
		m.t.Fatalf("node %s is welcomed with %v", m.id, first)
	}
	if err != nil {
		return err
	}
	if x := m.hear(); x.GetBelieved() == nil { // follows the welcome
		m.t.Fatalf("node %s receives %v after the welcome", m.id, x)
	}
	return nil
}

// again begins another session after one that the head has ended.
func (l *lying) again(running ...string) {
	l.t.Helper()
	if err := l.liar.attach(&pb.Hello{Inventory: l.inventory("liar"), Running: running}); err != nil {
		l.t.Fatal(err)
	}
}

// thrown checks that the head has ended the liar's session, and its log says why.
func (l *lying) thrown(why string) {
	l.t.Helper()
	for {
		_, err := l.liar.stream.Recv()
		if err == nil {
			continue
		}
		if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), why) {
			l.t.Fatalf("the session ended with %v (%v), want %q", err, fault.CodeOf(err), why)
		}
		break
	}
	l.h.until(20*time.Second, func() bool { return l.h.sessions[l.liar.id] == nil })
	if !strings.Contains(l.log.String(), why) {
		l.t.Errorf("the log does not say %q: %s", why, l.log)
	}
}

// run has a job run on a node of that name, and returns the id of its process.
func (l *lying) run(on *member, name string, nodes int64) (job, process string) {
	l.t.Helper()
	q := &pb.Job{Argv: []string{"x"}, Resources: &pb.Resources{MilliCpus: 100}, Nodes: nodes, Secrets: map[string]string{"KEY": "a secret of " + name}}
	if name != "" {
		q.Labels = map[string]string{"is": name}
	}
	r, err := (controlServer{h: l.h}).Submit(l.t.Context(), q)
	if err != nil {
		l.t.Fatal(err)
	}
	process = on.hear().GetStart().GetProcess()
	if !strings.HasPrefix(process, r.GetJob()+"/") {
		l.t.Fatalf("%s is started, of job %s", process, r.GetJob())
	}
	on.say(&pb.FromAgent{Say: &pb.FromAgent_Started{Started: process}})
	return r.GetJob(), process
}

// state is all that the head knows of a job.
func (l *lying) state(job string) string {
	l.t.Helper()
	var text []byte
	if err := l.h.do(l.t.Context(), func() (err error) {
		text, err = json.Marshal(l.h.jobs[job])
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	return string(text)
}

// reader follows a log.
type reader struct {
	grpc.ServerStream
	ctx   context.Context
	mu    sync.Mutex
	got   []*pb.LogChunk
	heard chan struct{} // has room for one
}

func (r *reader) Context() context.Context { return r.ctx }
func (r *reader) Send(c *pb.LogChunk) error {
	r.mu.Lock()
	r.got = append(r.got, c)
	r.mu.Unlock()
	select {
	case r.heard <- struct{}{}:
	default:
	}
	return nil
}

func (r *reader) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, c := range r.got {
		b.Write(c.GetData())
		b.WriteString(c.GetError())
	}
	return b.String()
}

// follow reads the log of a job until the function that it returns is called, which waits for the
// end.
func (l *lying) follow(job string) (*reader, func() error) {
	ctx, cancel := context.WithCancel(l.t.Context())
	r := &reader{ctx: ctx, heard: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() { done <- (controlServer{h: l.h}).Logs(&pb.LogsRequest{Job: job, Follow: true}, r) }()
	return r, func() error { cancel(); return <-done }
}

func (m *member) answers(c *pb.LogChunk) {
	m.t.Helper()
	m.say(&pb.FromAgent{Say: &pb.FromAgent_Log{Log: c}})
}

// What a node answers to log requests that it was not sent reaches nobody: neither those of another
// node's job, by whatever number, nor its own with other contents than were asked for.
func TestForgedLogs(t *testing.T) {
	l := newLying(t)
	job, process := l.run(l.honest, "honest", 0)
	mine, own := l.run(l.liar, "liar", 0)
	r, stop := l.follow(job)
	asked := l.honest.hear().GetReadLog()
	if asked.GetProcess() != process || asked.GetRequest() < 1<<20 {
		t.Errorf("the head asks %v", asked) // a small number is one in 2^44
	}
	for id := range uint64(400) { // the attack
		if err := l.liar.stream.Send(&pb.FromAgent{Say: &pb.FromAgent_Log{Log: &pb.LogChunk{Request: id, Process: process, Data: []byte("forged\n")}}}); err != nil {
			break
		}
	}
	l.thrown("answers a question for a log that it was not asked")
	l.again(own)
	l.liar.answers(&pb.LogChunk{Request: asked.GetRequest(), Process: process, Data: []byte("forged\n")}) // who knows the number
	l.thrown("answers a question for a log that it was not asked")
	l.honest.answers(&pb.LogChunk{Request: asked.GetRequest(), Process: process, Data: []byte("true\n"), Nodes: 7})
	asked = l.honest.hear().GetReadLog()
	if asked.GetOffset() != 5 || r.text() != "true\n" || r.got[0].GetNodes() != 1 || r.got[0].GetRequest() != 0 {
		t.Errorf("read on from %d: %q", asked.GetOffset(), r.text())
	}
	if err := stop(); fault.CodeOf(err) != fault.Canceled {
		t.Error(err)
	}
	l.honest.answers(&pb.LogChunk{Request: asked.GetRequest(), Process: process, Data: []byte("late\n"), Offset: 5}) // nobody waits for it any more: that is honest
	l.honest.silent()

	for what, x := range map[string]struct {
		lie func(*pb.LogChunk)
		why string
	}{
		"of another process": {func(c *pb.LogChunk) { c.Process = process }, "answers with that of"},
		"too much":           {func(c *pb.LogChunk) { c.Data = make([]byte, mostChunk+1) }, "262144 are the most"},
		"before the begin":   {func(c *pb.LogChunk) { c.Offset = -1 }, "answers with byte -1"},
		"at the end of time": {func(c *pb.LogChunk) { c.Offset = math.MaxInt64 }, "answers with byte 9223372036854775807"},
	} {
		l.again(own)
		r, stop := l.follow(mine)
		q := l.liar.hear().GetReadLog()
		c := &pb.LogChunk{Request: q.GetRequest(), Process: own, Data: []byte("x\n")}
		x.lie(c)
		l.liar.answers(c)
		l.thrown(x.why)
		stop()
		if r.text() != "" {
			t.Errorf("%s: %q", what, r.text())
		}
	}
	// Out of order, twice, and words that would be lines of others.
	l.again(own)
	r, stop = l.follow(mine)
	q := l.liar.hear().GetReadLog()
	l.liar.answers(&pb.LogChunk{Request: q.GetRequest(), Process: own, Data: []byte("ab"), Error: "gone\nnode 1 | forged\x1b[2J" + strings.Repeat("x", 1<<20)})
	q = l.liar.hear().GetReadLog()
	<-r.heard
	if e := r.got[0].GetError(); len(e) > mostError || strings.ContainsAny(e, "\n\x1b") {
		t.Errorf("%d bytes: %.100q", len(e), e)
	}
	l.liar.answers(&pb.LogChunk{Request: q.GetRequest(), Process: own, Data: []byte("b"), Offset: 1})
	l.thrown("from byte 2 on, and answers with byte 1")
	stop()
}

// A node that never answers what it was asked costs no more than so many questions, and others
// nothing.
func TestNoAnswers(t *testing.T) {
	s := &session{node: "n1", more: make(chan struct{}, 1), end: func(error) {}}
	ids := map[uint64]bool{}
	for range mostAsked {
		if _, err := s.ask("j1/1/0", 0, true); err != nil {
			t.Fatal(err)
		}
		ids[s.queue[len(s.queue)-1].GetReadLog().GetRequest()] = true
	}
	if len(ids) != mostAsked {
		t.Errorf("%d ids", len(ids))
	}
	if _, err := s.ask("j1/1/0", 0, true); fault.CodeOf(err) != fault.Exhausted {
		t.Error(err)
	}
}

// Whatever a node says of processes that are not on it, and of attempts that are over, changes
// nothing: neither a job elsewhere, nor that of the node itself.
func TestForeignProcesses(t *testing.T) {
	l := newLying(t)
	job, process := l.run(l.honest, "honest", 0)
	both, first := l.run(l.honest, "", 2)
	second := l.liar.hear().GetStart().GetProcess()
	l.liar.say(&pb.FromAgent{Say: &pb.FromAgent_Started{Started: second}})
	l.liar.silent()
	l.honest.silent()
	foreign := []string{process, first, strings.Replace(second, "/1/", "/2/", 1), strings.TrimSuffix(second, l.h.core.Life) + "another", job + "/1/0", "j77/1/0", job + "/1/-1", job + "/9223372036854775807/0", "", "\n"}
	before := l.state(job) + l.state(both)
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range foreign {
		for _, m := range []*pb.FromAgent{
			{Say: &pb.FromAgent_Started{Started: p}},
			{Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: p, Code: 1, Class: "user", Text: "forged", At: []string{"forged"}, AgoMs: math.MaxInt64}}},
			{Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: p}}},
			{Say: &pb.FromAgent_Listening{Listening: &pb.Listening{Process: p, Address: "127.0.0.1:6666", Csr: csr}}},
		} {
			l.liar.say(m)
		}
	}
	for n := 0; ; { // it receives acknowledgements and nothing else, above all no certificate
		m := l.liar.hear()
		if m.GetHeard() == "" {
			t.Fatalf("the liar receives %v", m)
		}
		if n++; n == 2*(len(foreign)-2) {
			break
		}
	}
	l.liar.silent()
	// And in a hello.
	hello := &pb.Hello{Inventory: l.inventory("liar"), Running: append([]string{second}, foreign...), Waiting: []string{process, first}}
	for _, p := range foreign {
		hello.Exited = append(hello.Exited, &pb.Exited{Process: p, Code: 7, Class: "refused", Text: "forged"})
	}
	if err := l.liar.attach(hello); err != nil {
		t.Fatal(err)
	}
	for range foreign[2:] {
		if m := l.liar.hear(); m.GetHeard() == "" {
			t.Fatalf("the liar receives %v", m)
		}
	}
	if after := l.state(job) + l.state(both); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
	l.honest.silent()
	if strings.Contains(l.log.String(), "forged") {
		t.Error("the log has its words")
	}
	// It gets the pack of no job that is not on it, nor a certificate of another node.
	sum := strings.Repeat("0", 64)
	if err := l.h.do(t.Context(), func() error { l.h.jobs[job].Value.Job.Pack = sum; return nil }); err != nil {
		t.Fatal(err)
	}
	s, err := pb.NewNodeClient(l.liar.conn).Pack(t.Context(), &pb.PackRequest{Sha256: sum})
	if err == nil {
		_, err = s.Recv()
	}
	if fault.CodeOf(err) != fault.Denied {
		t.Errorf("the pack of a job elsewhere: %v", err)
	}
	s, err = pb.NewNodeClient(l.honest.conn).Pack(t.Context(), &pb.PackRequest{Sha256: sum})
	if err == nil {
		_, err = s.Recv()
	}
	if fault.CodeOf(err) != fault.NotFound {
		t.Errorf("that of its own, which the head has not: %v", err)
	}
	renewed, err := pb.NewNodeClient(l.liar.conn).Renew(t.Context(), &pb.RenewRequest{Csr: csr})
	if err != nil {
		t.Fatal(err)
	}
	c, err := pki.Assemble(renewed.GetChain(), key, l.h.Pin(), pki.Node)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := pki.IdentityOf(c.Leaf); err != nil || id.Node != l.liar.id {
		t.Errorf("%v, %v", id, err)
	}
}

// What a node says of its own is kept within what can be: words, places, codes, times, addresses,
// what it uses.
func TestWordsOfANode(t *testing.T) {
	l := newLying(t)
	both, own := l.run(l.liar, "", 2)
	l.honest.hear()
	for address, why := range map[string]string{"10.1.2.3:80": "not at 10.1.2.3", "[fe80::1]:80": "not at fe80::1", "169.254.169.254:80": "not at 169.254.169.254"} {
		l.liar.listens(own, address) // where others would be sent
		l.liar.refused(own, why)
	}
	many := make([]string, 1000)
	for i := range many {
		many[i] = strings.Repeat("ä", 40)
	}
	l.liar.say(&pb.FromAgent{Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: own, Code: math.MinInt64, Class: "node", Text: strings.Repeat("ä", 10<<10), At: many, AgoMs: math.MinInt64}}})
	for m := l.liar.hear(); m.GetHeard() != own; m = l.liar.hear() {
	}
	if err := l.h.do(t.Context(), func() error {
		r := l.h.jobs[both].Value.Record
		if r.Code != -1 || r.Cause != "worker" || len(r.Why) > mostEnd+100 || len(r.At) > mostAt {
			t.Errorf("code %d, cause %q, %d bytes, %d places", r.Code, r.Cause, len(r.Why), len(r.At))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var used *pb.Resources
	for used == nil { // where the loop is busy, a beat is not noted
		l.liar.say(&pb.FromAgent{Say: &pb.FromAgent_Beat{Beat: &pb.Beat{Used: &pb.Resources{MilliCpus: math.MinInt64, Memory: math.MaxInt64, Gpus: -1, Named: map[string]int64{"x": 1}}}}})
		for m := l.liar.hear(); m.GetBeat() == nil; m = l.liar.hear() {
		}
		if err := l.h.do(t.Context(), func() error { used = l.h.used[l.liar.id]; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if used.GetMilliCpus() != 0 || used.GetGpus() != 0 || used.GetMemory() > 1<<50 || len(used.GetNamed()) != 0 {
		t.Errorf("it uses %v", used)
	}
	for why, m := range map[string]*pb.FromAgent{
		"131072 are the most":    {Say: &pb.FromAgent_Exited{Exited: &pb.Exited{Process: own, Text: strings.Repeat("x", mostMessage)}}},
		"says what no node says": {Say: &pb.FromAgent_Hello{Hello: &pb.Hello{Inventory: l.inventory("liar")}}},
	} {
		l.liar.say(m)
		l.thrown(why)
		l.again()
	}
	l.liar.say(&pb.FromAgent{})
	l.thrown("says what no node says")
}

// A hello that no agent says is refused, with the field; and who attaches again and again waits.
func TestBadHello(t *testing.T) {
	l := newLying(t)
	list := make([]string, mostProcesses+1)
	for i := range list {
		list[i] = fmt.Sprintf("j%d/1/0", i)
	}
	inv := l.inventory("liar")
	for field, hello := range map[string]*pb.Hello{
		"hello.running":        {Inventory: inv, Running: list},
		"hello.waiting":        {Inventory: inv, Waiting: []string{"j1/1/0", "j2/1/0", "j1/1/0"}},
		"hello.exited":         {Inventory: inv, Exited: []*pb.Exited{{Process: "j1/1/0"}, {Process: "j1/1/0"}}},
		"hello.agent":          {Inventory: inv, Agent: "a\nb"},
		"with an inventory":    {},
		"-5 memory":            {Inventory: &pb.Inventory{Name: "liar", Capacity: &pb.Resources{Memory: -5}}},
		"memory: 11258":        {Inventory: &pb.Inventory{Name: "liar", Capacity: &pb.Resources{Memory: 1<<50 + 1}}},
		"offers 9223372036854": {Inventory: &pb.Inventory{Name: "liar", Capacity: &pb.Resources{MilliCpus: math.MaxInt64}}},
	} {
		if err := l.liar.attach(hello); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	before := l.h.nodes[l.liar.id].Value.Epoch
	var err error
	for n := 0; err == nil && n < 100; n++ {
		err = l.liar.attach(&pb.Hello{Inventory: inv})
	}
	if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "again and again") {
		t.Errorf("100 sessions: %v", err)
	}
	if n := l.h.nodes[l.liar.id].Value.Epoch - before; n > mostAttaches+20 {
		t.Errorf("%d sessions", n)
	}
	if err := l.honest.attach(&pb.Hello{Inventory: l.inventory("honest")}); err != nil {
		t.Error(err)
	}
}

// What a message has beside the fields that there are is not kept, and so not sent to those who ask
// how the cluster stands.
func TestUnknownFields(t *testing.T) {
	l := newLying(t)
	inv := l.inventory("liar")
	inv.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 999, protowire.BytesType), make([]byte, 1<<20)))
	if err := l.liar.attach(&pb.Hello{Inventory: inv}); err != nil {
		t.Fatal(err)
	}
	if err := l.h.do(t.Context(), func() error {
		if n := len(l.h.nodes[l.liar.id].Value.Inventory.ProtoReflect().GetUnknown()); n > 0 {
			t.Errorf("%d bytes", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A node does not take the name of another while that one is lost: the other would be refused when
// it is back, and what people say of it would be of the first.
func TestNamesOfTheLost(t *testing.T) {
	l := newLying(t)
	if err := l.honest.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	l.h.until(20*time.Second, func() bool { return l.h.nodes[l.honest.id].Value.State == core.Gone })
	hello := &pb.Hello{Inventory: l.inventory("honest")}
	if err := l.liar.attach(hello); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "is called honest") {
		t.Errorf("it takes the name: %v", err)
	}
	if err := l.honest.attach(&pb.Hello{Inventory: l.inventory("honest")}); err != nil {
		t.Errorf("the other is back: %v", err)
	}
	l.again()
}
