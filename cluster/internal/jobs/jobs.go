// Package jobs decides what becomes of the jobs of a cluster: a pure state machine, events in, actions out, without clock, goroutine, randomness or I/O
// (docs/design/0005-cluster.md, "Jobs"). Where processes go is package place's decision, which the shell carries to and fro.
//
// A job runs as attempts. Each attempt is a gang of processes that start together; when one of them fails or is lost, the others are ended, and when all have ended the next attempt is asked for, while the
// budget of what happened lasts. What an attempt says after its end is not heard.
//
// Not safe for concurrent use.
package jobs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/place"
)

// State of a job.
type State string

const (
	Queued     State = "queued"     // waits for nodes
	Starting   State = "starting"   // placed; not all of its processes have said that they run
	Running    State = "running"    // all do
	Restarting State = "restarting" // an attempt ends, or its successor waits for its time
	Stopping   State = "stopping"   // somebody asked for its end
	Finished   State = "finished"   // all processes ended with code 0
	Failed     State = "failed"
	Stopped    State = "stopped"
)

// Over reports whether the state is a last one.
func (s State) Over() bool { return s == Finished || s == Failed || s == Stopped }

// Class of the end of a process.
type Class string

const (
	None       Class = ""           // code 0
	Crash      Class = "worker"     // a signal that was not ours
	Memory     Class = "memory"     // ended for its memory
	User       Class = "user"       // another code: retried only where the job says so
	Refused    Class = "refused"    // no node could start it (no such program): never retried
	Unfit      Class = "unfit"      // this node cannot start it (it has less than it said): tried elsewhere
	Preemption Class = "preemption" // its node drains, or it says so (code 75): not counted
	Lost       Class = "node"       // its node was lost: not counted
)

// mostNotes is of Record.Notes, in bytes: above it no more are added.
const mostNotes = 2 << 10

// Budgets are how many failures of a class a job survives; below 0: any number.
type Budgets struct {
	Crash, Memory, User, Unfit int64
}

// Spec is what a job is made of, as far as it matters here.
type Spec struct {
	ID       string
	Members  []place.Member
	Data     int // of them, the last ones, are on data nodes
	Spread   place.Spread
	Distinct bool // members are on nodes of their own
	Budgets  Budgets
}

// Record is what is durable of a job: it is all that a head that starts again needs.
type Record struct {
	State      State
	Why        string // the first cause, of a job that is restarting or over; of one that finished, its Notes
	Cause      Class  // of Why; None: an attempt goes on, or no other cause may take its place any more
	Drained    bool   // Cause is Preemption, as the node of the process drained
	Attempt    int64  // 1 is the first; 0: none was placed yet
	Life       string // of the machine that placed it
	Code       int64  // of the process that Why is of, or 0
	Failures   map[Class]int64
	At         []string // what the process was at that Why is of; of an attempt that goes on: none
	Suspects   []string // what all of the last Ends were at, each in an attempt of its own before this one
	Ends       int64
	Placed     []place.Placement // of the processes of the attempt that have not ended
	Avoid      []place.NodeID    // the last at the end
	Row        int64             // attempts one after another, the last one included, that ended by a failure and none of which ran for goodWhile
	Apart      int64             // the same of those that ended by exit code 75
	Memory     int64             // that each process of the attempt that is on no data node has, where it is more than the spec says: those before did not do with that; 0: what the spec says
	OnData     bool              // the process that Why is of was on a data node
	DataMemory int64             // as Memory, of those on data nodes
	Stop       bool              // somebody asked for its end
	Notes      string            // of the processes of the attempt that ended well: Why of a job that finishes
}

// onData says that a member is on a data node.
func (s Spec) onData(member int) bool { return member >= len(s.Members)-s.Data }

// kind are the members that are alike in being on data nodes, or not: n of them, from first on.
func (s Spec) kind(onData bool) (first, n int) {
	rest := len(s.Members) - s.Data
	if onData {
		return rest, s.Data
	}
	return 0, rest
}

// With are the members with the memory of an attempt, as Record has it.
func (s Spec) With(memory, data int64) []place.Member {
	if memory == 0 && data == 0 {
		return s.Members
	}
	ms := slices.Clone(s.Members)
	for i := range ms {
		more := memory
		if s.onData(i) {
			more = data
		}
		if more > 0 {
			ms[i].Needs.Memory = more
		}
	}
	return ms
}

// apart says that a process of the attempt ended as it was to go on elsewhere: it has lost the others, or never reached them, or had a notice of its own.
func (r *Record) apart() bool { return r.Cause == Preemption && !r.Drained && r.Code == exitAgain }

// Process names a process. It is never used twice: numbers of jobs and attempts are given again where an older copy of the records is put back, but then by a machine with another Life.
type Process struct {
	Job     string
	Attempt int64
	Member  int
	Life    string // of the machine that placed the attempt; "": one of an older version
}

func (p Process) String() string {
	if p.Life == "" {
		return p.Short()
	}
	return p.Short() + "/" + p.Life
}

// Short is the name for people.
func (p Process) Short() string { return fmt.Sprintf("%s/%d/%d", p.Job, p.Attempt, p.Member) }

// Process is a member of the attempt of a job.
func (r *Record) Process(job string, member int) Process {
	return Process{job, r.Attempt, member, r.Life}
}

// ParseProcess is the process that String gives so.
func ParseProcess(s string) (p Process, ok bool) {
	f := strings.Split(s, "/")
	if len(f) < 3 || len(f) > 4 || f[0] == "" {
		return p, false
	}
	a, err := strconv.ParseInt(f[1], 10, 64)
	m, err2 := strconv.Atoi(f[2])
	p = Process{f[0], a, m, strings.Join(f[3:], "")}
	return p, err == nil && err2 == nil && p.String() == s
}

// Demand is what package place knows an attempt by.
func Demand(job string, attempt int64) place.DemandID {
	return place.DemandID(job + "/" + strconv.FormatInt(attempt, 10))
}

// Of is the job of a demand.
func Of(d place.DemandID) string {
	job, _, _ := strings.Cut(string(d), "/")
	return job
}

// EventKind is what happened.
type EventKind uint8

const (
	Submit  EventKind = iota // Spec
	Load                     // Spec and Record, as a head that starts again reads them; before all other events
	Placed                   // Job: package place says where (Placed) its demand Demand goes
	Started                  // Process runs
	Waits                    // Process is on its node, and has not begun
	Exited                   // Process ended: Class, Code, Text, Ago
	Gone                     // Process is not on its node any more, and nothing said how it ended: the node was lost, or attached without it
	Drain                    // Process is to leave its node within Grace
	Stop                     // Job is to end within Grace
	Tick                     // it is At
)

// Event is an input. At never goes back.
type Event struct {
	Kind    EventKind
	At      time.Duration
	Job     string
	Spec    Spec
	Record  Record
	Demand  place.DemandID
	Placed  []place.Placement
	Process Process
	Class   Class
	Code    int64
	Text    string
	Places  []string      // Exited: what it was at
	Ago     time.Duration // Exited: before At, it ended
	Grace   time.Duration
}

// ActionKind is what to do.
type ActionKind uint8

const (
	Save   ActionKind = iota // write Record of Job, before anything that follows is done
	Want                     // give Demand to package place
	Cancel                   // and take it back; what it holds is free
	Start                    // Process on Placement
	Kill                     // Process, on Placement.Node, within Grace
	Free                     // tell package place that member Process.Member of Demand has ended
)

// Action is an output.
type Action struct {
	Do        ActionKind
	Job       string
	Record    Record
	Demand    place.Demand
	Process   Process
	Placement place.Placement
	Grace     time.Duration
}
