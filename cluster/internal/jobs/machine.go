package jobs

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/internal/units"
)

const (
	firstDelay = time.Second
	mostDelay  = 30 * time.Second
	// endGrace is what the other processes of an attempt get to end in, when one has failed.
	endGrace = 10 * time.Second
	// LateGrace is what a process gets to end in from a head that does not know how much it had: its node goes by the shortest that it was told.
	LateGrace = 10 * time.Minute
	// goodWhile is how long all processes of an attempt run before it counts as one that got on: what ended before it is nothing to wait for, or to give up for.
	goodWhile = 2 * time.Minute
	// mostApart attempts in a row end by exit code 75 without such a while: then the job failed.
	mostApart = 10
	// mostAvoid nodes are avoided.
	mostAvoid = 256
	// exitAgain is the exit code of a process that wants to be started again: EX_TEMPFAIL.
	exitAgain = 75
	// poison is how many ends of processes in a row, all at one place of the data and no other, end the job.
	poison = 3
)

// Machine is the state. The zero value has no jobs.
type Machine struct {
	// Life tells the machine from all that had the same records before it: no other has it.
	Life string
	// Most is how much memory, from least up to most, each of n processes of a demand, from first on, could have on the nodes there are. Its answer depends on events before only. nil: most.
	Most func(d place.Demand, first, n int, least, most int64) int64

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
	ending  bool           // an end of the attempt was asked for
	nodes   []place.NodeID // of the attempt
	whole   time.Duration  // since when all processes of the attempt run; unset: they did not yet
	failed  time.Duration  // when the process ended that Why is of, or before it one that ended alike; unknown: it was before this machine
	of      int            // the number of the process that Why is of; only where failed is known
	heard   time.Duration  // when that was heard, and the others were told to end; unknown as failed
	again   bool           // the next attempt is due at
	at      time.Duration
	asks    [2]int64 // Memory and DataMemory of the attempt that is wanted, as Record has them
}

// unknown is before everything: nothing that is heard comes before it.
const unknown = math.MinInt64

// unset is after everything.
const unset = math.MaxInt64

type proc struct {
	place.Placement
	runs    bool
	drained bool
	told    bool          // it is to end
	until   time.Duration // told: when it is killed
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
		if j := m.jobs[e.Process.Job]; j != nil && e.Process == j.Process(j.ID, e.Process.Member) {
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
	if j == nil || p != j.Process(j.ID, p.Member) || j.procs[p.Member] == nil {
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
				ps = append(ps, j.Process(id, i))
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

// want asks for the next attempt: with twice the memory, up to what nodes have, for processes like the one that did not do with its own.
func (m *Machine) want(j *job) {
	d := place.Demand{ID: j.demand(), Members: j.With(j.Memory, j.DataMemory), Spread: j.Spread, Distinct: j.Distinct, Avoid: slices.Clone(j.Avoid)}
	j.asks = [2]int64{j.Memory, j.DataMemory}
	first, n := j.kind(j.OnData)
	if had := d.Members[first].Needs.Memory; j.Cause == Memory && had > 0 {
		more := had + min(had, math.MaxInt64-had)
		if m.Most != nil {
			more = m.Most(d, first, n, had, more)
		}
		if more > had {
			j.asks[index(j.OnData)] = more
			d.Members = j.With(j.asks[0], j.asks[1])
		}
	}
	m.do(Action{Do: Want, Job: j.ID, Demand: d})
}

func index(onData bool) int {
	if onData {
		return 1
	}
	return 0
}

// load takes up a job from its record. The shell restores what it holds in package place, and says of each of its processes what its node says: Started, Exited or Gone.
func (m *Machine) load(s Spec, r Record) {
	j := &job{Spec: s, Record: r, failed: unknown, heard: unknown, whole: unset}
	j.Record = j.copy()
	m.jobs[j.ID] = j
	switch {
	case r.State.Over():
	case len(r.Placed) > 0:
		j.procs, j.started = map[int]*proc{}, len(s.Members)-len(r.Placed)
		for _, p := range r.Placed {
			j.procs[p.Member] = &proc{Placement: p}
			j.nodes = append(j.nodes, p.Node)
		}
		if r.State == Running {
			j.whole = m.now - goodWhile // nobody knows any more: it got on
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
	j.Life = m.Life
	j.Suspects, j.Ends = j.suspects()
	j.State, j.Cause, j.Drained, j.At, j.Notes, j.Placed, j.Memory = Starting, None, false, nil, "", slices.Clone(placed), j.asks[0]
	j.DataMemory = j.asks[1]
	j.procs, j.started, j.ending, j.nodes, j.whole = map[int]*proc{}, 0, false, nil, unset
	m.save(j)
	for _, p := range placed {
		j.procs[p.Member] = &proc{Placement: p}
		j.nodes = append(j.nodes, p.Node)
		m.do(Action{Do: Start, Job: j.ID, Process: j.Process(j.ID, p.Member), Placement: p})
	}
}

// process is what happened to a process of the attempt.
func (m *Machine) process(j *job, p *proc, e Event) {
	switch e.Kind {
	case Started:
		if !p.runs {
			p.runs = true
			if j.started++; j.started == len(j.Members) && j.State == Starting {
				j.State, j.whole = Running, m.now
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
		drained := (class == Crash || class == User || class == Preemption) && p.drained
		if drained {
			class = Preemption // it ended as it was asked to
			e.Text = strings.TrimSuffix(fmt.Sprintf("node %s drained\n%s", p.Node, e.Text), "\n")
		}
		delete(j.procs, e.Process.Member)
		j.Placed = slices.DeleteFunc(j.Placed, func(x place.Placement) bool { return x.Member == e.Process.Member })
		fails := class != None && (!j.ending || j.Cause != None && j.first(class, drained, e))
		switch {
		case fails:
			j.fails(p, class, drained, e)
		case class == None:
			j.notes(p, e)
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
	switch {
	case !j.ending && !p.drained:
	case p.told:
		m.kill(j, e.Process.Member, max(p.until-m.now, endGrace))
	case j.State == Restarting:
		m.kill(j, e.Process.Member, endGrace)
	default:
		m.kill(j, e.Process.Member, LateGrace)
	}
}

// first says that the end of a process that was heard of after the cause of its attempt's end is the real one. A lost node is: it is heard when its lease is over, and what failed for it may be heard later still. An end by exit code 75
// tells of another one, so it takes no other's place, and gives way to a process that failed before it was told to end, or whose node drained. Of those that end alike before they are told to, as all members of a run do when that fails,
// number 0 leads and says why. Of others the earlier one counts.
func (j *job) first(class Class, drained bool, e Event) bool {
	switch at := e.At - e.Ago; {
	case j.Cause == Lost:
		return false
	case e.Kind == Gone:
		return true
	case class == Preemption && !drained && e.Code == exitAgain:
		return false
	case j.apart() && drained:
		return true
	case j.apart() && class != Preemption:
		return at <= j.heard
	case j.alike(class, e) && j.of == 0:
		return false
	case j.alike(class, e) && e.Process.Member == 0:
		return at <= j.heard
	default:
		return at < j.failed
	}
}

// alike says that a process ended by the exit code that is the cause of its attempt's end.
func (j *job) alike(class Class, e Event) bool {
	return class == User && j.Cause == User && e.Code == j.Code
}

// fails: the end of a process is why its attempt ends. The others are to end.
func (j *job) fails(p *proc, class Class, drained bool, e Event) {
	if j.Cause != None {
		if j.Failures[j.Cause]--; j.Failures[j.Cause] == 0 {
			delete(j.Failures, j.Cause)
		}
	}
	failed := e.At - e.Ago
	if j.alike(class, e) {
		failed = min(failed, j.failed)
	}
	if !j.ending {
		j.heard = e.At
	}
	j.ending, j.Cause, j.Drained, j.failed, j.of = true, class, drained, failed, e.Process.Member
	j.Code, j.At = e.Code, e.Places
	j.Why = string(class) + ": " + e.Text
	if len(j.Members) > 1 {
		j.Why = fmt.Sprintf("node %d of the job (%s), %s", e.Process.Member, p.Node, j.Why)
	}
	if j.Failures == nil {
		j.Failures = map[Class]int64{}
	}
	j.Failures[class]++
	if class == Unfit || class == Lost || class == Preemption && !drained && e.Code != exitAgain { // the last: it went away under the process, or says so
		j.avoid(p.Node)
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
	member := e.Process.Member
	j.OnData = j.onData(member)
	if had := j.Members[member].Needs.Memory; class == Memory && had > 0 {
		first, rest, _ := strings.Cut(j.Why, "\n")
		switch {
		case j.State == Restarting:
			first += "; the next attempt gets twice as much, up to what nodes have"
		case j.With(j.Memory, j.DataMemory)[member].Needs.Memory > had:
			first += fmt.Sprintf("; attempt %d had %s, and the first one %s", j.Attempt, units.Bytes(j.With(j.Memory, j.DataMemory)[member].Needs.Memory), units.Bytes(had))
		}
		j.Why = strings.TrimSuffix(first+"\n"+rest, "\n")
	}
}

// notes keeps what a process says that ended well.
func (j *job) notes(p *proc, e Event) {
	if e.Text == "" || len(j.Notes) > mostNotes {
		return
	}
	if len(j.Members) > 1 {
		e.Text = fmt.Sprintf("node %d of the job (%s): %s", e.Process.Member, p.Node, e.Text)
	}
	j.Notes = strings.TrimPrefix(j.Notes+"\n"+e.Text, "\n")
}

// avoid has the next attempts prefer other nodes, and of all that were avoided those that were so longest ago.
func (j *job) avoid(nodes ...place.NodeID) {
	for _, n := range nodes {
		j.Avoid = append(slices.DeleteFunc(j.Avoid, func(id place.NodeID) bool { return id == n }), n)
	}
	j.Avoid = j.Avoid[max(len(j.Avoid)-mostAvoid, 0):]
}

// suspects are Suspects and Ends, this attempt with them: an end that says nothing about data, the loss of a node say, or an exit code, leaves them as they are, and one in which none of the suspects was at work begins anew.
func (j *job) suspects() (at []string, ends int64) {
	switch {
	case j.Cause != Crash && j.Cause != Memory:
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
		j.Why, j.Code = j.Notes, 0
		m.over(j, Finished)
	case j.State == Stopping:
		m.over(j, Failed)
	default:
		j.State = Restarting
		wait := m.count(j)
		if j.Apart >= mostApart {
			j.Why = fmt.Sprintf("%d attempts in a row ended with exit code %d, on other nodes where there were any, and none ran for %v: %s", j.Apart, exitAgain, goodWhile, j.Why)
			m.over(j, Failed)
			return
		}
		m.save(j)
		j.again, j.at = true, m.now+wait
		m.due[j.ID] = j
	}
}

// count takes up how an attempt ended, and says how long the next one waits: not for a lost or drained node, else longer with each failure without a good while between. Who lost whom is not known where one says so: the next attempt
// takes others before any of its nodes, as far as there are some, and leaves out another one each time.
func (m *Machine) count(j *job) time.Duration {
	if j.whole <= m.now-goodWhile {
		j.Row, j.Apart = 0, 0
	}
	row := int64(1)
	switch {
	case j.Cause == Lost, j.Cause == Preemption && j.Drained:
		return 0
	case j.apart():
		if j.whole > m.now-goodWhile {
			j.Apart++
		}
		j.avoid(j.nodes...)
		row = max(j.Apart, 1)
	case j.Cause != None && j.Cause != Preemption:
		j.Row++
		row = j.Row
	}
	return min(firstDelay<<min(row-1, 10), mostDelay)
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

// kill has a process ended within grace. Its node goes by the shortest that it was told, which is noted.
func (m *Machine) kill(j *job, member int, grace time.Duration) {
	p := j.procs[member]
	if until := m.now + grace; !p.told || until < p.until {
		p.told, p.until = true, until
	}
	m.do(Action{Do: Kill, Job: j.ID, Process: j.Process(j.ID, member), Placement: j.procs[member].Placement, Grace: grace})
}
