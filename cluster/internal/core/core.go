// Package core is what a head decides, as one pure state machine: which sessions of nodes count, where processes go (package place), and what becomes of jobs (package jobs). The shell around it, package head,
// keeps time and leases, writes records and carries messages; a simulator takes its place in tests (docs/design/0005-cluster.md).
//
// Not safe for concurrent use.
package core

import (
	"maps"
	"slices"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/place"
)

// NodeState is how a node stands.
type NodeState string

const (
	Alive    NodeState = "alive"
	Suspect  NodeState = "suspect"  // its stream is broken, its lease has not ended
	Draining NodeState = "draining" // it gets no work
	Gone     NodeState = "lost"     // its lease has ended: what ran there is elsewhere, or will be
	Left     NodeState = "left"     // it was asked to leave, and did
)

// EventKind is what happened.
type EventKind uint8

const (
	LoadNode  EventKind = iota // Node and its State and Epoch, as a head that starts again reads them, before all jobs
	LoadJob                    // Spec and Record, before anything else
	Attach                     // Node says hello with a new Epoch, greater than all of its before: Running, Waiting, Ended
	Break                      // the stream of session Epoch of Node ended
	LeaseOver                  // the lease of session Epoch of Node ended
	Leave                      // Node was asked to leave, ended what it ran, and left
	Started                    // Node says in session Epoch: Process runs
	Exited                     // and: Ended
	Drain                      // Node gets no work, and what runs there ends within Grace
	Undrain                    // it gets work again
	Submit                     // Spec
	Stop                       // Job ends within Grace
	Tick                       // it is At
)

// Event is an input. At never goes back.
type Event struct {
	Kind    EventKind
	At      time.Duration
	Node    place.Node
	State   NodeState
	Drained bool // LoadNode
	Epoch   uint64
	Running []jobs.Process
	Waiting []jobs.Process // those of Running that have not begun
	Ended   []End
	Process jobs.Process
	Spec    jobs.Spec
	Record  jobs.Record
	Job     string
	Grace   time.Duration
}

// End is how a process ended.
type End struct {
	Process jobs.Process
	Class   jobs.Class
	Code    int64
	Text    string
	At      []string      // what it was at
	Ago     time.Duration // how long ago it ended
}

// ActionKind is what to do.
type ActionKind uint8

const (
	SaveJob  ActionKind = iota // write Record of Job, before anything that follows is done
	SaveNode                   // and State and Drained of Node
	Welcome                    // answer the hello of session Epoch of Node: it keeps Processes, and ends all else that it runs
	Start                      // tell Node to start Process with Devices
	Kill                       // tell Node to end Process within Grace
	Heard                      // tell Node that the end of Process is on record
)

// Action is an output. What is told to a node without a session is dropped: it says what it has when it attaches.
type Action struct {
	Do        ActionKind
	Job       string
	Record    jobs.Record
	Node      place.NodeID
	State     NodeState
	Drained   bool
	Epoch     uint64
	Processes []jobs.Process
	Process   jobs.Process
	Devices   []string
	Grace     time.Duration
}

// Machine is the state. The zero value knows nothing.
type Machine struct {
	Life string // that of jobs.Machine

	place place.Machine
	jobs  jobs.Machine
	nodes map[place.NodeID]*node
	now   time.Duration
	out   []Action
}

type node struct {
	epoch   uint64
	state   NodeState
	drained bool
}

// Step takes an event, and says what to do, in this order. The actions are valid until the next call.
func (m *Machine) Step(e Event) []Action {
	if m.nodes == nil {
		m.nodes = map[place.NodeID]*node{}
		m.jobs.Life, m.jobs.Most = m.Life, m.place.Most
	}
	m.out, m.now = m.out[:0], e.At
	id := e.Node.ID
	n := m.nodes[id]
	current := n != nil && n.epoch == e.Epoch
	switch e.Kind {
	case LoadNode:
		m.nodes[id] = &node{epoch: e.Epoch, state: e.State, drained: e.Drained}
		if e.State != Gone && e.State != Left {
			m.nodes[id].state = Suspect
			m.placing(place.Event{Kind: place.NodeUp, Node: e.Node})
			if e.Drained {
				m.placing(place.Event{Kind: place.NodeDrain, Node: e.Node})
			}
			m.placing(place.Event{Kind: place.NodeSuspect, Node: e.Node})
		}
	case LoadJob:
		m.load(e.Spec, e.Record)
	case Attach:
		m.attach(e)
	case Break:
		if current && (n.state == Alive || n.state == Draining) {
			n.state = Suspect
			m.saveNode(id)
			m.placing(place.Event{Kind: place.NodeSuspect, Node: e.Node})
		}
	case LeaseOver: // that of a later session, which is not on record as the head died, says the same
		if n != nil && e.Epoch >= n.epoch && n.state != Gone && n.state != Left {
			m.lose(id, Gone)
		}
	case Leave:
		if n != nil && n.state != Left {
			m.lose(id, Left)
		}
	case Started:
		if current && m.on(e.Process, id) {
			m.job(jobs.Event{Kind: jobs.Started, Process: e.Process})
		}
	case Exited:
		if current {
			m.exited(id, e.Ended)
		}
	case Drain:
		if n != nil && !n.drained && n.state != Gone && n.state != Left {
			n.drained = true
			if n.state == Alive {
				n.state = Draining
			}
			m.saveNode(id)
			m.placing(place.Event{Kind: place.NodeDrain, Node: e.Node})
			for _, p := range m.jobs.On(id) {
				m.job(jobs.Event{Kind: jobs.Drain, Process: p, Grace: e.Grace})
			}
		}
	case Undrain:
		if n != nil && n.drained {
			n.drained = false
			if n.state == Draining {
				n.state = Alive
			}
			m.saveNode(id)
			m.placing(place.Event{Kind: place.NodeBack, Node: e.Node})
		}
	case Submit:
		m.job(jobs.Event{Kind: jobs.Submit, Spec: e.Spec})
	case Stop:
		m.job(jobs.Event{Kind: jobs.Stop, Job: e.Job, Grace: e.Grace})
	case Tick:
		m.job(jobs.Event{Kind: jobs.Tick})
	}
	return m.out
}

// Deadline is when a Tick is due.
func (m *Machine) Deadline() (at time.Duration, ok bool) { return m.jobs.Deadline() }

// Waiting says why jobs wait for nodes, the oldest first: the demand of a job is JOB/ATTEMPT.
func (m *Machine) Waiting() []place.Wait { return m.place.Waiting() }

// Record of a job.
func (m *Machine) Record(job string) (jobs.Record, bool) { return m.jobs.Record(job) }

// Node is the state of a node.
func (m *Machine) Node(id place.NodeID) (s NodeState, epoch uint64, drained bool) {
	if n := m.nodes[id]; n != nil {
		return n.state, n.epoch, n.drained
	}
	return "", 0, false
}

// On lists the processes of a node.
func (m *Machine) On(id place.NodeID) []jobs.Process { return m.jobs.On(id) }

// Where is the node of a process that belongs to an attempt that goes on, and has not ended.
func (m *Machine) Where(p jobs.Process) (place.NodeID, bool) { return m.jobs.Where(p) }

// Booked is what the processes of a node need.
func (m *Machine) Booked(id place.NodeID) place.Resources { return m.place.Booked(id) }

// Forget drops a job that is over.
func (m *Machine) Forget(job string) { m.jobs.Forget(job) }

// ForgetNode drops a node that was lost or left.
func (m *Machine) ForgetNode(id place.NodeID) {
	if n := m.nodes[id]; n != nil && (n.state == Gone || n.state == Left) {
		delete(m.nodes, id)
	}
}

func (m *Machine) load(s jobs.Spec, r jobs.Record) {
	if len(r.Placed) > 0 {
		m.placing(place.Event{Kind: place.Restore, Demand: place.Demand{ID: jobs.Demand(s.ID, r.Attempt), Members: s.With(r.Memory, r.DataMemory), Spread: s.Spread, Distinct: s.Distinct}, Placed: r.Placed})
	}
	m.job(jobs.Event{Kind: jobs.Load, Spec: s, Record: r})
	for _, p := range r.Placed { // on nodes that are not known, or known to be gone
		if n := m.nodes[p.Node]; n == nil || n.state == Gone || n.state == Left {
			m.job(jobs.Event{Kind: jobs.Gone, Process: r.Process(s.ID, p.Member)})
		} else if n.drained { // what was asked of it may not have been heard
			m.job(jobs.Event{Kind: jobs.Drain, Process: r.Process(s.ID, p.Member), Grace: jobs.LateGrace})
		}
	}
}

// attach begins a session. What the node should run and does not is gone.
func (m *Machine) attach(e Event) {
	id := e.Node.ID
	n := m.nodes[id]
	if n == nil {
		n = &node{}
		m.nodes[id] = n
	}
	if e.Epoch <= n.epoch {
		return // a later session is there
	}
	n.epoch, n.state = e.Epoch, Alive
	if n.drained {
		n.state = Draining
	}
	m.saveNode(id)
	var keep []jobs.Process
	said, waits := map[jobs.Process]bool{}, map[jobs.Process]bool{}
	for _, p := range e.Running {
		if m.on(p, id) && !said[p] {
			keep = append(keep, p)
			said[p] = true
		}
	}
	for _, p := range e.Waiting {
		waits[p] = true
	}
	for _, x := range e.Ended {
		said[x.Process] = true
	}
	gone := slices.DeleteFunc(m.jobs.On(id), func(p jobs.Process) bool { return said[p] })
	m.out = append(m.out, Action{Do: Welcome, Node: id, Epoch: e.Epoch, Processes: keep})
	m.exited(id, e.Ended) // from here on others may be started there
	for _, p := range gone {
		m.job(jobs.Event{Kind: jobs.Gone, Process: p})
	}
	m.placing(place.Event{Kind: place.NodeUp, Node: e.Node})
	if n.drained {
		m.placing(place.Event{Kind: place.NodeDrain, Node: e.Node})
	}
	for _, p := range keep {
		k := jobs.Started
		if waits[p] {
			k = jobs.Waits
		}
		m.job(jobs.Event{Kind: k, Process: p})
	}
}

// exited takes the ends of processes, and says that they were heard: what follows from them is on record by then.
func (m *Machine) exited(id place.NodeID, ends []End) {
	for _, x := range ends {
		if m.on(x.Process, id) {
			m.job(jobs.Event{Kind: jobs.Exited, Process: x.Process, Class: x.Class, Code: x.Code, Text: x.Text, Places: x.At, Ago: x.Ago})
		}
		m.out = append(m.out, Action{Do: Heard, Node: id, Process: x.Process})
	}
}

// lose: what ran on a node is gone.
func (m *Machine) lose(id place.NodeID, s NodeState) {
	n := m.nodes[id]
	n.state, n.drained = s, false
	m.saveNode(id)
	m.placing(place.Event{Kind: place.NodeLost, Node: place.Node{ID: id}})
	for _, p := range m.jobs.On(id) {
		m.job(jobs.Event{Kind: jobs.Gone, Process: p})
	}
}

func (m *Machine) saveNode(id place.NodeID) {
	n := m.nodes[id]
	m.out = append(m.out, Action{Do: SaveNode, Node: id, State: n.state, Drained: n.drained, Epoch: n.epoch})
}

// on reports whether a process is one that the job has on this node.
func (m *Machine) on(p jobs.Process, id place.NodeID) bool {
	at, ok := m.jobs.Where(p)
	return ok && at == id
}

// job gives package jobs an event, and does what it says.
func (m *Machine) job(e jobs.Event) {
	e.At = m.now
	for _, a := range slices.Clone(m.jobs.Step(e)) {
		switch a.Do {
		case jobs.Save:
			m.out = append(m.out, Action{Do: SaveJob, Job: a.Job, Record: a.Record})
		case jobs.Want:
			m.placing(place.Event{Kind: place.Want, Demand: a.Demand})
		case jobs.Cancel:
			m.placing(place.Event{Kind: place.Cancel, Demand: a.Demand})
		case jobs.Free:
			m.placing(place.Event{Kind: place.Ended, Demand: a.Demand, Member: a.Process.Member})
		case jobs.Start:
			m.out = append(m.out, Action{Do: Start, Node: a.Placement.Node, Process: a.Process, Devices: a.Placement.Devices})
		case jobs.Kill:
			m.out = append(m.out, Action{Do: Kill, Node: a.Placement.Node, Process: a.Process, Grace: a.Grace})
		}
	}
}

// placing gives package place an event, and package jobs what it says. What was on a lost node is gone for its job by another way: see lose.
func (m *Machine) placing(e place.Event) {
	for _, a := range slices.Clone(m.place.Step(e)) {
		if a.Do == place.Place {
			m.job(jobs.Event{Kind: jobs.Placed, Job: jobs.Of(a.Demand), Demand: a.Demand, Placed: a.Placed})
		}
	}
}

// Nodes lists the nodes that are known.
func (m *Machine) Nodes() []place.NodeID { return slices.Sorted(maps.Keys(m.nodes)) }
