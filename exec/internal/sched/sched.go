// Package sched decides what a run does next. [Sched.Step] is pure: it takes an
// event and returns actions; no goroutine, clock, randomness or map order. It
// knows blocks by their size and place alone; the shell (exec/local) holds them,
// runs the actions in order and feeds what happens back. An event costs the stages
// and, for each task that it changes, the logarithm of those that are open.
//
// A run is a tree of stages. A scan has tasks; a cut joins its inputs one after
// another, takes at most Limit rows of them, and either passes blocks on or, if
// it has a chain of operators, makes each a task. Tasks start in canonical order
// and run ahead of what is delivered; each has a queue of blocks. The head is
// the first unfinished task in canonical order: what everything waits for.
package sched

// Task names a task: N is the ordinal in its stage.
type Task struct{ Stage, N int }

// Stage is a scan (Inputs nil) or a cut. A stage comes after its inputs.
type Stage struct {
	Inputs []int  // canonical order
	Tasks  int    // of a scan
	Empty  []bool // of a scan: tasks that need not run; nil: none
	Limit  int64  // of a cut: -1 means all
	Chain  bool   // of a cut: each block runs as a task
	Max    int    // tasks at work at once, if more than Config.CPUs
	Most   int    // tasks at work at once, if less; 0: no such limit
}

// Config of a run. The last stage is the root. All numbers are > 0 (budgets >= 0).
type Config struct {
	Stages    []Stage
	CPUs      int
	Unordered bool
	// OwnBytes of the head's output may wait for the consumer; one block always may.
	OwnBytes int64
	// AheadBytes may be queued by all tasks but the head (in an unordered run: by all), and AheadTasks started of a stage from the
	// first unfinished on. Less is enough, and more would be out of the caches when it is wanted: EnoughBytes, or what is more of
	// 4 blocks for every task that can be at work, and all that a task makes for each of them, up to WholeBytes and half of AheadBytes
	// (the head, too, holds what it made before it was the head). So those behind the head are through with theirs, and begin the
	// next, while the head is at work.
	AheadBytes  int64
	EnoughBytes int64
	WholeBytes  int64
	AheadTasks  int
	// Retry is how many failures of each class a task survives.
	Retry [NumClasses]int
}

// Class sorts failures of an attempt.
type Class uint8

const (
	Fatal       Class = iota // ends the run
	Unavailable              // transient
	WorkerLost               // a process died
	Exhausted                // out of memory: run again when nothing is before it
	NumClasses
	Moved = NumClasses // not begun where it was sent: no failure of the task, and runs again at once
)

// Meta is what the scheduler knows of a block.
type Meta struct{ Row, Span, Rows, Bytes int64 }

// EventKind says what happened.
type EventKind uint8

const (
	Pull   EventKind = iota // the consumer wants a block; at most one at a time
	Emit                    // an attempt made a block
	Finish                  // an attempt is through
	Fail                    // an attempt failed, of Class; also one that was told to stop
	Timer                   // a Sleep is over
	Stop                    // the consumer wants nothing more, or the shell failed
	Room                    // there are other CPUs now
)

// Event is what happened, to attempt Attempt at Task; Block is of Emit, Class of Fail, CPUs of Room.
type Event struct {
	Kind    EventKind
	Task    Task
	Attempt int
	Block   Meta
	Class   Class
	CPUs    int
}

// ActionKind says what to do.
type ActionKind uint8

const (
	Start   ActionKind = iota // an attempt; Of a cut: at the first block of From's queue, of which Take rows count
	Queue                     // keep the block just emitted
	Drop                      // release the block just emitted: delivered before, or not wanted
	Park                      // the emitter waits until Resume
	Resume                    //
	Cancel                    // stop the attempt; its Finish or Fail is still expected
	Discard                   // release all blocks queued by Task
	Sleep                     // wait before attempt Attempt, the longer the later, then send Timer
	Head                      // Task is the head now; Starved: the consumer waits for it
	Deliver                   // give the consumer the first block of From's queue, Take rows of it
	End                       // tell the consumer that all was delivered
	Abort                     // the run failed at Task, for Reason; in an ordered run once all before it was delivered
)

// Reason of an Abort.
type Reason uint8

const (
	TaskFailed Reason = iota // fatal, or out of retries
	Poison                   // lost too many workers
	Unstable                 // a new attempt made other blocks than the one before
)

// Action is what to do; which fields count depends on the kind.
type Action struct {
	Kind    ActionKind
	Task    Task
	Attempt int
	From    Task
	Take    int64
	Cut     bool // Start, Deliver: a limit was reached with this block
	Starved bool
	Reason  Reason
	Lost    int // Abort: workers that the task lost
}

// State of a task, for reports.
type State uint8

const (
	Running  State = iota
	Parked         // has no room for its output
	Asleep         // waits before another attempt
	Ready          // for another attempt, waits for its turn
	Canceled       // told to stop
	Failed         // ends the run once it is the first unfinished one
	Done
)

func (s State) String() string {
	return [...]string{"running", "waiting for room", "waiting to try again", "waiting for its turn", "told to stop", "failed", "done"}[s]
}

type task struct {
	Task
	state   State
	attempt int
	seen    int    // blocks of this attempt
	made    []Meta // blocks of all attempts, to check a later one
	queue   []Meta
	bytes   int64 // queued
	out     int64 // bytes of made
	fails   [NumClasses]int
	last    Class  // of the last failure
	why     Reason // where Failed
}

type stage struct {
	Stage
	id      int
	tasks   []*task // open tasks from number base on; nil: done and drained
	base    int
	first   int  // no task before it is unfinished
	parked  heap // tasks that are Parked
	ready   heap // that are Ready, and may start without being the head
	full    heap // of an unordered run: that have blocks queued
	done    int
	running int
	left    int64 // of Limit
	cur     int   // input being drained, ordered
	closed  bool  // nothing more is wanted
	limited bool  // below a limit
}

// Sched is the state of a run. Not safe for concurrent use.
type Sched struct {
	cfg     Config
	stages  []*stage
	root    *stage
	running int
	parked  int
	ready   int
	failed  int
	queued  int64
	block   int64 // bytes of the largest that was queued
	out     int64 // bytes of the task that made most
	most    int   // tasks that can be at work
	pull    bool
	over    bool
	head    Task
	headOK  bool
	starved bool
	retries int
	closing []*stage
	acts    []Action
}

// New starts a run; the first Step starts tasks.
func New(cfg Config) *Sched {
	s := &Sched{cfg: cfg, most: cfg.CPUs}
	for i, c := range cfg.Stages {
		st := &stage{Stage: c, id: i, left: -1}
		if c.Inputs != nil {
			st.left = c.Limit
		}
		s.stages = append(s.stages, st)
		s.most = max(s.most, c.Max)
	}
	s.root = s.stages[len(s.stages)-1]
	for _, st := range s.stages {
		if st.left >= 0 {
			s.each(st, func(in *stage) { in.limited = true; in.closed = in.closed || st.left == 0 })
		}
	}
	return s
}

// each calls f for everything below st.
func (s *Sched) each(st *stage, f func(*stage)) {
	for _, i := range st.Inputs {
		f(s.stages[i])
		s.each(s.stages[i], f)
	}
}

// Finished returns how many tasks of a stage are done.
func (s *Sched) Finished(stage int) int { return s.stages[stage].done }

// Retries returns how many attempts failed and were made again.
func (s *Sched) Retries() int { return s.retries }

// Failed reports whether t is to end the run.
func (s *Sched) Failed(t Task) bool {
	x := s.stages[t.Stage].get(t.N)
	return x != nil && x.state == Failed
}

// Starved reports whether the consumer waits.
func (s *Sched) Starved() bool { return s.pull }

// TaskState is a row of Open.
type TaskState struct {
	Task
	State   State
	Attempt int
	Queued  int64 // bytes
}

// Open lists the tasks that are not done, in canonical order of their stages.
func (s *Sched) Open() []TaskState {
	var all []TaskState
	for _, st := range s.stages {
		for _, t := range st.tasks {
			if t != nil && t.state != Done {
				all = append(all, TaskState{t.Task, t.state, t.attempt, t.bytes})
			}
		}
	}
	return all
}

func (st *stage) get(n int) *task {
	if n < st.base || n-st.base >= len(st.tasks) {
		return nil
	}
	return st.tasks[n-st.base]
}

func (st *stage) next() int { return st.base + len(st.tasks) }

// shift forgets drained tasks at the front.
func (st *stage) shift() {
	for len(st.tasks) > 0 && st.tasks[0] == nil {
		st.tasks = st.tasks[1:]
		st.base++
	}
}

// owns reports whether blocks of st come from tasks of its own.
func (st *stage) owns() bool { return st.Inputs == nil || st.Chain }
