package core

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/place"
)

// sim is a cluster in simulated time: agents with processes, streams that deliver late, break and come back one-sided, a store, leases, a head that dies between any two actions, people who submit twice.
type sim struct {
	t    *testing.T
	r    *rand.Rand
	now  time.Duration
	todo queue
	seq  int
	calm bool // nothing fails any more

	head   *Machine // nil: dead
	life   int      // of the head
	epochs map[place.NodeID]uint64
	nodes  map[place.NodeID]*loaded
	jobs   map[string]*submitted
	leases map[place.NodeID]time.Duration // when they end
	agents []*agent
	dies   int // actions until the head dies; < 0: not now
	acts   []Action
	saving bool    // the head waits for its store, and does nothing else
	inbox  []Event // meanwhile
	tick   time.Duration
	slows  bool            // the disk of the store is slow at times
	slept  int             // writes that took their time
	first  int             // nodes at the beginning: so many are there again in the end
	apart  [2]place.NodeID // do not reach each other, to the end
}

type loaded struct { // what the store has of a node
	node    place.Node
	state   NodeState
	drained bool
	epoch   uint64
}

type submitted struct {
	spec     jobs.Spec
	record   jobs.Record
	saved    bool
	stop     bool
	plan     [][]jobs.Class // how processes end, by attempt and member; beyond it they end well
	good     map[int64]map[int]bool
	attempts int64
	on       map[place.NodeID]bool // the nodes of its last attempt
}

type agent struct {
	place.Node
	up      bool
	cut     bool          // what it sends does not arrive, though the stream lives
	stream  int           // 0: none; a later one has a greater number
	in, out time.Duration // when the last message arrives
	epoch   uint64
	runs    map[jobs.Process]*process
	ended   []End
	pending []Action // starts that wait for devices
	free    bool     // before the step that the head is at
}

type process struct {
	devices []string
	told    bool // to end
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type queue []event

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, k int) bool {
	return q[i].at < q[k].at || q[i].at == q[k].at && q[i].seq < q[k].seq
}
func (q queue) Swap(i, k int) { q[i], q[k] = q[k], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *queue) Pop() any     { x := (*q)[len(*q)-1]; *q = (*q)[:len(*q)-1]; return x }

func (s *sim) after(d time.Duration, f func()) {
	s.seq++
	heap.Push(&s.todo, event{s.now + d, s.seq, f})
}

func (s *sim) upTo(d time.Duration) time.Duration { return time.Duration(s.r.Int64N(int64(d))) }

const lease = 15 * time.Second

func (s *sim) act(a Action) {
	switch a.Do {
	case SaveJob:
		j := s.jobs[a.Job]
		if j.record.State.Over() {
			s.t.Fatalf("job %s was %s, and is written as %s", a.Job, j.record.State, a.Record.State)
		}
		if a.Record.Attempt < j.record.Attempt {
			s.t.Fatalf("job %s: attempt %d after %d", a.Job, a.Record.Attempt, j.record.Attempt)
		}
		on := map[place.NodeID]bool{}
		for _, p := range a.Record.Placed {
			on[p.Node] = true
		}
		if n := len(a.Record.Placed); n > len(j.spec.Members) || a.Record.Attempt > j.record.Attempt && n < len(j.spec.Members) || j.spec.Distinct && len(on) < n {
			s.t.Fatalf("job %s, of %d, is placed as %v", a.Job, len(j.spec.Members), a.Record.Placed)
		}
		if a.Record.Attempt > j.record.Attempt {
			s.moves(j, a.Record.Placed)
		}
		j.record, j.saved = a.Record, true
	case SaveNode:
		n := s.nodes[a.Node]
		n.state, n.drained, n.epoch = a.State, a.Drained, a.Epoch
	case Welcome, Start, Kill, Heard:
		for _, g := range s.agents {
			if g.ID == a.Node && g.up && g.stream > 0 {
				stream := g.stream
				g.in = max(g.in, s.now+s.upTo(50*time.Millisecond)) // a stream keeps the order
				s.after(g.in-s.now, func() {
					if g.up && g.stream == stream {
						s.hears(g, a)
					}
				})
			}
		}
	}
}

// isFree reports whether a node takes work, and has none.
func (s *sim) isFree(g *agent) bool {
	state, _, _ := s.head.Node(g.ID)
	return state == Alive && s.head.Booked(g.ID).MilliCPUs == 0
}

// moves: a job whose processes were on nodes of which one was to be left does not go to the same ones while another is free. What becomes free in the same step may be so too late.
func (s *sim) moves(j *submitted, placed []place.Placement) {
	was := j.on
	j.on = map[place.NodeID]bool{}
	for _, p := range placed {
		j.on[p.Node] = true
	}
	if j.record.Cause != jobs.Preemption || j.record.Drained || j.record.Code != 75 || !maps.Equal(was, j.on) || len(s.head.Waiting()) > 0 {
		return
	}
	for _, g := range s.agents {
		if g.free && s.isFree(g) && !j.on[g.ID] {
			s.t.Fatalf("attempt %d of job %s is on %v again, and %s is free: %+v", j.record.Attempt+1, j.spec.ID, placed, g.ID, j.record)
		}
	}
}

// renew gives a node's lease its full time. One that ends while there is no head gets it again when one starts.
func (s *sim) renew(id place.NodeID, epoch uint64) {
	end := s.now + lease
	s.leases[id] = end
	s.after(lease, func() {
		if s.leases[id] == end {
			s.step(Event{Kind: LeaseOver, Node: place.Node{ID: id}, Epoch: epoch})
		}
	})
}

// dial lets an agent try to attach.
func (s *sim) dial(g *agent) {
	s.after(100*time.Millisecond+s.upTo(2*time.Second), func() {
		if !g.up || g.stream > 0 {
			return
		}
		if s.head == nil || g.cut {
			s.dial(g)
			return
		}
		s.seq++
		g.stream = s.seq
		s.epochs[g.ID]++
		epoch := s.epochs[g.ID]
		g.epoch = epoch
		if s.nodes[g.ID] == nil {
			s.nodes[g.ID] = &loaded{}
		}
		s.nodes[g.ID].node = g.Node
		s.renew(g.ID, epoch)
		s.beat(g, g.stream)
		running := slices.SortedFunc(maps.Keys(g.runs), func(a, b jobs.Process) int { return strings.Compare(a.String(), b.String()) })
		s.step(Event{Kind: Attach, Node: g.Node, Epoch: epoch, Running: running, Ended: slices.Clone(g.ended)})
	})
}

func (s *sim) beat(g *agent, stream int) {
	s.after(lease/3, func() {
		if g.up && g.stream == stream {
			if s.head != nil && !g.cut {
				s.renew(g.ID, g.epoch)
			}
			s.beat(g, stream)
		}
	})
}

// hears: an agent does what the head says.
func (s *sim) hears(g *agent, a Action) {
	switch a.Do {
	case Welcome:
		for p := range g.runs {
			if !slices.Contains(a.Processes, p) {
				s.ends(g, p, s.upTo(3*time.Second))
			}
		}
		g.pending = nil
	case Start:
		g.pending = append(g.pending, a)
		s.launch(g)
	case Kill:
		g.pending = slices.DeleteFunc(g.pending, func(x Action) bool {
			if x.Process == a.Process { // it never ran
				s.tells(g, End{Process: a.Process, Class: jobs.User, Code: -1, Text: "ended before it began"})
			}
			return x.Process == a.Process
		})
		if g.runs[a.Process] != nil {
			s.ends(g, a.Process, s.upTo(min(a.Grace, 5*time.Second)+1))
		}
	case Heard:
		g.ended = slices.DeleteFunc(g.ended, func(e End) bool { return e.Process == a.Process })
	}
}

// launch starts what waits for devices that are free.
func (s *sim) launch(g *agent) {
	g.pending = slices.DeleteFunc(g.pending, func(a Action) bool {
		for _, x := range g.runs {
			for _, d := range x.devices {
				if slices.Contains(a.Devices, d) {
					return false
				}
			}
		}
		if g.runs[a.Process] != nil {
			s.t.Fatalf("%s runs twice", a.Process)
		}
		j := s.jobs[a.Process.Job]
		j.attempts = max(j.attempts, a.Process.Attempt)
		g.runs[a.Process] = &process{devices: a.Devices}
		s.send(g, func() {
			s.step(Event{Kind: Started, Node: g.Node, Epoch: g.epoch, Process: a.Process})
		})
		s.after(s.upTo(20*time.Second), func() { s.exit(g, a.Process) })
		return true
	})
}

// exit: a process comes to its end by itself.
func (s *sim) exit(g *agent, p jobs.Process) {
	x := g.runs[p]
	if x == nil || x.told {
		return
	}
	j := s.jobs[p.Job]
	if j.record.Attempt != p.Attempt || j.record.State.Over() {
		return // nobody wants it any more: it stays until it is ended
	}
	class := jobs.None
	if a := int(p.Attempt) - 1; !s.calm && a < len(j.plan) && p.Member < len(j.plan[a]) {
		class = j.plan[a][p.Member]
	}
	if j.on[s.apart[0]] && j.on[s.apart[1]] {
		class = jobs.Preemption
	}
	delete(g.runs, p)
	if class == jobs.None {
		if j.good[p.Attempt] == nil {
			j.good[p.Attempt] = map[int]bool{}
		}
		j.good[p.Attempt][p.Member] = true
	}
	code := int64(len(class))
	if class == jobs.Preemption {
		code = 75
	}
	s.tells(g, End{Process: p, Class: class, Code: code, Text: "by itself"})
	s.launch(g)
}

// ends: a process is ended.
func (s *sim) ends(g *agent, p jobs.Process, in time.Duration) {
	x := g.runs[p]
	x.told = true
	s.after(in, func() {
		if g.runs[p] == x {
			delete(g.runs, p)
			s.tells(g, End{Process: p, Class: jobs.Crash, Code: -1, Text: "ended"})
			s.launch(g)
		}
	})
}

// tells: an agent keeps how a process ended until that was heard.
func (s *sim) tells(g *agent, e End) {
	g.ended = append(g.ended, e)
	s.send(g, func() { s.step(Event{Kind: Exited, Node: g.Node, Epoch: g.epoch, Ended: []End{e}}) })
}

// send delivers on the stream as it is now; sometimes twice.
func (s *sim) send(g *agent, f func()) {
	stream := g.stream
	if stream == 0 {
		return
	}
	for range 1 + s.r.IntN(10)/9 {
		g.out = max(g.out, s.now+s.upTo(50*time.Millisecond))
		s.after(g.out-s.now, func() {
			if g.stream == stream && !g.cut {
				f()
			}
		})
	}
}

// trouble does one bad thing, and comes again.
func (s *sim) trouble() {
	if s.calm {
		return
	}
	g := s.agents[s.r.IntN(len(s.agents))]
	switch s.r.IntN(9) {
	case 0: // a node dies, and comes back with nothing
		if g.up && g.stream > 0 {
			broken := g.stream
			g.up, g.stream, g.runs, g.ended, g.pending = false, 0, map[jobs.Process]*process{}, nil, nil
			s.broken(g, broken)
			if s.r.IntN(3) == 0 { // for good: another takes its place
				s.join()
				break
			}
			s.after(s.upTo(40*time.Second), func() { g.up = true; s.dial(g) })
		}
	case 1: // a stream breaks
		if g.stream > 0 {
			broken := g.stream
			g.stream = 0
			s.broken(g, broken)
			s.dial(g)
		}
	case 2: // half open: the agent hears, and is not heard
		if !g.cut && g.stream > 0 {
			g.cut = true
			s.after(s.upTo(30*time.Second), func() {
				g.cut = false
				if broken := g.stream; broken > 0 {
					g.stream = 0
					s.broken(g, broken)
					s.dial(g)
				}
			})
		}
	case 3:
		if s.head != nil && s.r.IntN(2) == 0 {
			s.kill()
		}
	case 4:
		s.step(Event{Kind: Drain, Node: place.Node{ID: g.ID}, Grace: s.upTo(10 * time.Second)})
		s.after(s.upTo(20*time.Second), func() { s.step(Event{Kind: Undrain, Node: place.Node{ID: g.ID}}) })
	case 5:
		if ids := slices.Sorted(maps.Keys(s.jobs)); len(ids) > 0 && s.r.IntN(4) == 0 {
			if j := s.jobs[ids[s.r.IntN(len(ids))]]; j.saved && s.head != nil {
				j.stop = true
				s.step(Event{Kind: Stop, Job: j.spec.ID, Grace: s.upTo(10 * time.Second)})
			}
		}
	case 6: // submitted again
		if ids := slices.Sorted(maps.Keys(s.jobs)); len(ids) > 0 {
			s.step(Event{Kind: Submit, Spec: s.jobs[ids[s.r.IntN(len(ids))]].spec})
		}
	}
	s.after(s.upTo(4*time.Second), s.trouble)
}

// broken lets the head find out, at some time.
func (s *sim) broken(g *agent, stream int) {
	epoch := g.epoch
	s.after(s.upTo(5*time.Second), func() { s.step(Event{Kind: Break, Node: place.Node{ID: g.ID}, Epoch: epoch}) })
}

func (s *sim) submit(i int) {
	j := &submitted{spec: jobs.Spec{ID: fmt.Sprintf("j%02d", i)}, good: map[int64]map[int]bool{}}
	needs := place.Resources{MilliCPUs: 500 + s.r.Int64N(1500), GPUs: s.r.Int64N(2)}
	for range 1 + s.r.IntN(4)*s.r.IntN(2) { // gangs of up to four
		j.spec.Members = append(j.spec.Members, place.Member{Needs: needs})
	}
	j.spec.Distinct = len(j.spec.Members) <= s.first && s.r.IntN(3) > 0
	j.spec.Budgets = jobs.Budgets{Crash: s.r.Int64N(4), Memory: s.r.Int64N(2), User: s.r.Int64N(2), Unfit: 3}
	for range s.r.IntN(4) {
		var ends []jobs.Class
		for range j.spec.Members {
			ends = append(ends, []jobs.Class{jobs.None, jobs.None, jobs.None, jobs.Crash, jobs.Memory, jobs.User, jobs.Unfit, jobs.Preemption}[s.r.IntN(8)])
		}
		j.plan = append(j.plan, ends)
	}
	s.jobs[j.spec.ID] = j
	var ask func()
	ask = func() { // until it is on record, as a client would
		if !j.saved {
			s.step(Event{Kind: Submit, Spec: j.spec})
			s.after(time.Second, ask)
		}
	}
	ask()
}

// join makes a node.
func (s *sim) join() {
	g := &agent{Node: place.Node{ID: place.NodeID(fmt.Sprintf("n%02d", len(s.agents))), Capacity: place.Resources{MilliCPUs: 4000, GPUs: 2}, Devices: []string{"0", "1"}}, up: true, runs: map[jobs.Process]*process{}}
	s.agents = append(s.agents, g)
	s.dial(g)
}

func (s *sim) run() {
	s.first = 3 + s.r.IntN(6)
	if s.r.IntN(10) == 0 {
		s.first = 3 + s.r.IntN(18)
	}
	for len(s.agents) < s.first {
		s.join()
	}
	s.slows = s.r.IntN(2) == 0
	if s.r.IntN(2) == 0 {
		s.apart = [2]place.NodeID{s.agents[0].ID, s.agents[1+s.r.IntN(len(s.agents)-1)].ID}
	}
	s.start()
	for i := range 4 + s.r.IntN(12) {
		s.after(s.upTo(60*time.Second), func() { s.submit(i) })
	}
	s.after(0, s.trouble)
	s.after(2*time.Minute, func() { s.calm, s.dies = true, -1 })
	s.after(3*time.Minute, func() { // the head is up again
		for _, g := range s.agents {
			s.step(Event{Kind: Undrain, Node: g.Node})
		}
	})
	for i := 0; s.now < time.Hour && len(s.todo) > 0; i++ {
		e := heap.Pop(&s.todo).(event)
		s.now = e.at
		e.do()
		s.check()
		if s.calm && i%100 == 0 && s.done() {
			break
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		j := s.jobs[id]
		r := j.record
		switch {
		case !r.State.Over():
			s.t.Errorf("job %s is %s after an hour: %+v; waits: %+v", id, r.State, r, s.head.Waiting())
		case r.State == jobs.Finished && len(j.good[r.Attempt]) != len(j.spec.Members):
			s.t.Errorf("job %s finished with %v of its processes in attempt %d", id, j.good[r.Attempt], r.Attempt)
		case r.State == jobs.Stopped && !j.stop:
			s.t.Errorf("nobody stopped job %s", id)
		case r.State == jobs.Failed && r.Apart >= 10 && j.on[s.apart[0]] && j.on[s.apart[1]]: // there was no other way
		case r.State == jobs.Failed && r.Failures[jobs.Crash] <= j.spec.Budgets.Crash && r.Failures[jobs.Memory] <= j.spec.Budgets.Memory && r.Failures[jobs.User] <= j.spec.Budgets.User && r.Failures[jobs.Unfit] <= j.spec.Budgets.Unfit:
			s.t.Errorf("job %s failed within its budgets: %+v", id, r)
		case r.State == jobs.Failed && r.Why == "":
			s.t.Errorf("job %s failed without a cause", id)
		}
	}
	for _, g := range s.agents {
		if len(g.runs) > 0 || len(g.ended) > 0 {
			s.t.Errorf("%s has left %v, %v", g.ID, g.runs, g.ended)
		}
	}
}

// check: no device has two processes.
func (s *sim) check() {
	for _, g := range s.agents {
		owner := map[string]jobs.Process{}
		for p, x := range g.runs {
			for _, d := range x.devices {
				if o, ok := owner[d]; ok {
					s.t.Fatalf("device %s of %s is of %s and %s", d, g.ID, o, p)
				}
				owner[d] = p
			}
		}
	}
}

func (s *sim) done() bool {
	for _, j := range s.jobs {
		if !j.record.State.Over() {
			return false
		}
	}
	for _, g := range s.agents {
		if len(g.runs)+len(g.ended)+len(g.pending) > 0 {
			return false
		}
	}
	return s.head != nil && len(s.jobs) > 0
}

// kept are seeds beyond the first 2,000 that have failed: a node became free in the step in which a job was placed.
var kept = []uint64{2741, 5631}

// Whatever dies, breaks and comes twice: every job comes to an end, the right one, no device is used twice, and nothing is left running.
func TestSimulated(t *testing.T) {
	seeds := uint64(2000)
	switch {
	case os.Getenv("PENSTOCK_SOAK") != "":
		seeds = 100_000
	case testing.Short():
		seeds = 100
	}
	slept, large := 0, 0
	for i := range seeds + uint64(len(kept)) {
		seed := i
		if i >= seeds {
			seed = kept[i-seeds]
		}
		s := &sim{t: t, r: rand.New(rand.NewPCG(seed, 7)), epochs: map[place.NodeID]uint64{}, nodes: map[place.NodeID]*loaded{}, jobs: map[string]*submitted{}, leases: map[place.NodeID]time.Duration{}, dies: -1}
		s.run()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		slept += s.slept
		if s.first > 8 {
			large++
		}
	}
	t.Logf("%d slow writes; %d of %d seeds with 9 to 20 nodes", slept, large, seeds)
	if slept == 0 || large == 0 {
		t.Error("no write was slow, or no cluster large")
	}
}
