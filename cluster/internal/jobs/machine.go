package jobs

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/place"
)

const (
	firstDelay = time.Second
	mostDelay  = 30 * time.Second
	// endGrace is what the other processes of an attempt get to end in, when one has failed.
	endGrace = 10 * time.Second
	// poison is how many ends of processes in a row, all at one place of the data and no other, end the job.
	poison = 3
)

// Machine is the state. The zero value has no jobs.
type Machine struct {
	jobs map[string]*job
	due  map[string]*job // that wait for their time
	now  time.Duration
	out  []Action
}

type job struct {
	Spec
	Record
	procs   map[int]*proc // of the attempt, that have not ended
	started int
	ending  bool          // an end of the attempt was asked for
	failed  time.Duration // when the process ended that Why is of; unknown: it was before this machine
	again   bool          // the next attempt is due at
	at      time.Duration
}

// unknown is before everything: nothing that is heard comes before it.
const unknown = math.MinInt64

type proc struct {
	place.Placement
	runs    bool
	drained bool
}

// Step takes an event, and says what to do, in this order. The actions are valid until the next call.
func (m *Machine) Step(e Event) []Action {
	if m.jobs == nil {
		m.jobs, m.due = map[string]*job{}, map[string]*job{}
	}
	m.out, m.now = m.out[:0], e.At
	switch e.Kind {
	case Submit:
		if m.jobs[e.Spec.ID] == nil {
			j := &job{Spec: e.Spec, Record: Record{State: Queued}}
			m.jobs[j.ID] = j
			m.save(j)
			m.want(j)
		}
	case Load:
		m.load(e.Spec, e.Record)
	case Placed:
		if j := m.jobs[e.Job]; j != nil && e.Demand == j.demand() && (j.State == Queued || j.State == Restarting) && !j.again && j.procs == nil {
			m.place(j, e.Placed)
		}
	case Started, Waits, Exited, Gone, Drain:
		if j := m.jobs[e.Process.Job]; j != nil && e.Process.Attempt == j.Attempt {
			if p := j.procs[e.Process.Member]; p != nil {
				m.process(j, p, e)
			}
		}
	case Stop:
		if j := m.jobs[e.Job]; j != nil && !j.State.Over() {
			m.stop(j, e.Grace)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.due)) {
		if j := m.due[id]; j.at <= m.now {
			delete(m.due, id)
			j.again = false
			m.want(j)
		}
	}
	return m.out
}

// Deadline is when a Tick is due.
func (m *Machine) Deadline() (at time.Duration, ok bool) {
	for _, j := range m.due {
		if !ok || j.at < at {
			at, ok = j.at, true
		}
	}
	return at, ok
}

// Record of a job.
func (m *Machine) Record(id string) (Record, bool) {
	j := m.jobs[id]
	if j == nil {
		return Record{}, false
	}
	return j.copy(), true
}

// Forget drops a job that is over.
func (m *Machine) Forget(id string) {
	if j := m.jobs[id]; j != nil && j.State.Over() {
		delete(m.jobs, id)
	}
}

// Where is the node of a process that belongs to an attempt that goes on, and has not ended.
func (m *Machine) Where(p Process) (node place.NodeID, ok bool) {
	j := m.jobs[p.Job]
	if j == nil || j.Attempt != p.Attempt || j.procs[p.Member] == nil {
		return "", false
	}
	return j.procs[p.Member].Node, true
}

// On lists the processes that are on a node, as far as is known.
func (m *Machine) On(node place.NodeID) []Process {
	var ps []Process
	for _, id := range slices.Sorted(maps.Keys(m.jobs)) {
		j := m.jobs[id]
		for _, i := range slices.Sorted(maps.Keys(j.procs)) {
			if j.procs[i].Node == node {
				ps = append(ps, Process{id, j.Attempt, i})
			}
		}
	}
	return ps
}

func (j *job) copy() Record {
	r := j.Record
	r.Failures = maps.Clone(r.Failures)
	r.Placed = slices.Clone(r.Placed)
	r.Avoid = slices.Clone(r.Avoid)
	r.At, r.Suspects = slices.Clone(r.At), slices.Clone(r.Suspects)
	return r
}

// demand names that of the attempt after the present one, or of the one that is placed.
func (j *job) demand() place.DemandID {
	n := j.Attempt
	if j.procs == nil {
		n++
	}
	return Demand(j.ID, n)
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

func (m *Machine) save(j *job) { m.do(Action{Do: Save, Job: j.ID, Record: j.copy()}) }

func (m *Machine) want(j *job) {
	m.do(Action{Do: Want, Job: j.ID, Demand: place.Demand{ID: j.demand(), Members: j.Members, Spread: j.Spread, Distinct: j.Distinct, Avoid: slices.Clone(j.Avoid)}})
}

// load takes up a job from its record. The shell restores what it holds in package place, and says of each of its processes what its node says: Started, Exited or Gone.
func (m *Machine) load(s Spec, r Record) {
	j := &job{Spec: s, Record: r, failed: unknown}
	j.Record = j.copy()
	m.jobs[j.ID] = j
	switch {
	case r.State.Over():
	case len(r.Placed) > 0:
		j.procs, j.started = map[int]*proc{}, len(s.Members)-len(r.Placed)
		for _, p := range r.Placed {
			j.procs[p.Member] = &proc{Placement: p}
		}
		j.ending = r.State == Restarting || r.State == Stopping
	case r.Stop:
		m.over(j, Stopped)
	default:
		m.want(j)
	}
}

func (m *Machine) place(j *job, placed []place.Placement) {
	j.Attempt++
	j.Suspects, j.Ends = j.suspects()
	j.State, j.Cause, j.At, j.Placed = Starting, None, nil, slices.Clone(placed)
	j.procs, j.started, j.ending = map[int]*proc{}, 0, false
	m.save(j)
	for _, p := range placed {
		j.procs[p.Member] = &proc{Placement: p}
		m.do(Action{Do: Start, Job: j.ID, Process: Process{j.ID, j.Attempt, p.Member}, Placement: p})
	}
}

// process is what happened to a process of the attempt.
func (m *Machine) process(j *job, p *proc, e Event) {
	switch e.Kind {
	case Started:
		if !p.runs {
			p.runs = true
			if j.started++; j.started == len(j.Members) && j.State == Starting {
				j.State = Running
				m.save(j)
			}
		}
		m.reminds(j, p, e)
	case Waits:
		m.reminds(j, p, e)
	case Drain:
		p.drained = true
		m.kill(j, e.Process.Member, e.Grace)
	case Exited, Gone:
		class := e.Class
		if e.Kind == Gone {
			class = Lost
			e.Text = fmt.Sprintf("node %s was lost, or its agent was", p.Node)
		}
		if (class == Crash || class == User || class == Preemption) && p.drained {
			class = Preemption // it ended as it was asked to
			e.Text = strings.TrimSuffix(fmt.Sprintf("node %s drained\n%s", p.Node, e.Text), "\n")
		}
		delete(j.procs, e.Process.Member)
		j.Placed = slices.DeleteFunc(j.Placed, func(x place.Placement) bool { return x.Member == e.Process.Member })
		fails := class != None && (!j.ending || j.Cause != None && j.first(e))
		if fails {
			j.fails(p, class, e)
		}
		if len(j.procs) == 0 {
			m.ended(j)
		} else {
			m.save(j) // its node need not say again how it ended
		}
		for _, i := range slices.Sorted(maps.Keys(j.procs)) {
			if fails {
				m.kill(j, i, endGrace)
			}
		}
		m.do(Action{Do: Free, Job: j.ID, Demand: place.Demand{ID: Demand(j.ID, j.Attempt)}, Process: e.Process, Placement: p.Placement}) // when it is on record
	}
}

// reminds has a process ended that is to end: its node may not have heard.
func (m *Machine) reminds(j *job, p *proc, e Event) {
	if j.ending || p.drained {
		m.kill(j, e.Process.Member, endGrace)
	}
}

// first says that a process that was heard of after the cause of an attempt's end is the real one: it ended earlier, and what was taken for the cause had only lost it; or its node was lost, which is heard when its lease is over. What failed by the
// loss of a node may be heard later still: it takes no lost node's place.
func (j *job) first(e Event) bool {
	return j.Cause != Lost && (e.Kind == Gone || e.At-e.Ago < j.failed)
}

// fails: the end of a process is why its attempt ends. The others are to end.
func (j *job) fails(p *proc, class Class, e Event) {
	if j.Cause != None {
		if j.Failures[j.Cause]--; j.Failures[j.Cause] == 0 {
			delete(j.Failures, j.Cause)
		}
	}
	j.ending, j.Cause, j.failed = true, class, e.At-e.Ago
	j.Code, j.At = e.Code, e.Places
	j.Why = string(class) + ": " + e.Text
	if len(j.Members) > 1 {
		j.Why = fmt.Sprintf("node %d of the job (%s), %s", e.Process.Member, p.Node, j.Why)
	}
	if j.Failures == nil {
		j.Failures = map[Class]int64{}
	}
	j.Failures[class]++
	if (class == Unfit || class == Lost) && !slices.Contains(j.Avoid, p.Node) {
		j.Avoid = append(j.Avoid, p.Node)
		if len(j.Avoid) > 16 {
			j.Avoid = j.Avoid[1:]
		}
	}
	j.State = Restarting
	at, ends := j.suspects()
	isPoison := ends >= poison && len(at) == 1
	if isPoison {
		j.Why = fmt.Sprintf("%s ended %d processes that read it: %s", at[0], ends, j.Why)
	}
	if isPoison || !j.may(class) {
		j.State = Stopping // until the others have ended
	}
}

// suspects are Suspects and Ends, this attempt with them: an end that says nothing about data, the loss of a node say, leaves them as they are, and one in which none of the suspects was at work begins anew.
func (j *job) suspects() (at []string, ends int64) {
	switch {
	case j.Cause == None || j.Cause == Lost || j.Cause == Preemption || j.Cause == Unfit:
		return j.Suspects, j.Ends
	case j.Ends > 0:
		if at = slices.DeleteFunc(slices.Clone(j.Suspects), func(s string) bool { return !slices.Contains(j.At, s) }); len(at) > 0 {
			return at, j.Ends + 1
		}
	}
	if len(j.At) == 0 {
		return nil, 0
	}
	return j.At, 1
}

// may reports whether a failure of this class is within the budget.
func (j *job) may(class Class) bool {
	most := int64(0)
	switch class {
	case Lost, Preemption:
		return true
	case Crash:
		most = j.Budgets.Crash
	case Memory:
		most = j.Budgets.Memory
	case User:
		most = j.Budgets.User
	case Unfit:
		most = j.Budgets.Unfit
	}
	return most < 0 || j.Failures[class] <= most
}

// ended: all processes of the attempt have ended.
func (m *Machine) ended(j *job) {
	j.procs, j.Placed = nil, nil
	switch {
	case j.Stop:
		m.over(j, Stopped)
	case !j.ending:
		j.Why, j.Code = "", 0
		m.over(j, Finished)
	case j.State == Stopping:
		m.over(j, Failed)
	default:
		j.State = Restarting
		m.save(j)
		var n int64
		for _, k := range j.Failures {
			n += k
		}
		j.again, j.at = true, m.now+min(firstDelay<<min(n-1, 10), mostDelay)
		m.due[j.ID] = j
	}
}

func (m *Machine) over(j *job, s State) {
	j.State, j.Avoid, j.At, j.Suspects, j.Ends = s, nil, nil, nil, 0
	delete(m.due, j.ID)
	j.again = false
	m.save(j)
}

func (m *Machine) stop(j *job, grace time.Duration) {
	if j.procs == nil {
		if !j.again {
			m.do(Action{Do: Cancel, Job: j.ID, Demand: place.Demand{ID: j.demand()}})
		}
		j.Stop = true
		m.over(j, Stopped)
		return
	}
	if j.State != Stopping || j.Cause != None {
		if j.State != Stopping { // else it has failed, or was stopped before: that stays its end
			j.State, j.ending, j.Stop = Stopping, true, true
		}
		j.Cause = None // it stays what it is
		m.save(j)
	}
	for _, i := range slices.Sorted(maps.Keys(j.procs)) {
		m.kill(j, i, grace)
	}
}

func (m *Machine) kill(j *job, member int, grace time.Duration) {
	m.do(Action{Do: Kill, Job: j.ID, Process: Process{j.ID, j.Attempt, member}, Placement: j.procs[member].Placement, Grace: grace})
}
