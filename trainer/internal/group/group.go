// Package group decides what happens to a group of workers: which reports belong together, what is a checkpoint, who is told, which failure is the
// first cause, and whether another attempt is made. It is a pure state machine: events with their time in, actions out; it starts nothing, waits for
// nothing, and the same events give the same actions. The shell around it starts processes, uploads files and keeps time.
//
// Every event carries the attempt it belongs to; those of an earlier attempt are ignored. Not safe for concurrent use.
package group

import (
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Config of a run. Durations and budgets are as they apply: defaults are the caller's.
type Config struct {
	World int // workers, at least 1
	// Library says that every worker must connect (a Go loop). Otherwise a group of which none does is one of plain programs, whose exits decide.
	Library       bool
	Async         bool          // checkpoints are acknowledged when their files are taken over
	StartTimeout  time.Duration // from the launch to the hello of every rank, where any connects
	HangTimeout   time.Duration // without a sign of a rank that has connected; <= 0: never
	ReportTimeout time.Duration // a rank that waits in a report for others
	StopTimeout   time.Duration // between asking workers to end and ending them
	Worker        int           // failures of workers without a commit in between that are outlived; < 0: none
	Hang          int           // of those that hung
	Memory        int           // of those ended for their memory
	Delay         time.Duration // before another attempt, doubled up to a minute; 0: 1 second where no worker was ready, else none
	Lag           int64         // reports that ranks may be apart; 0: 1024
	// Checkpoint and Reports are those the first attempt goes on from; Attempt is the number of the one before it.
	Checkpoint int
	Reports    int64
	Attempt    int
}

const (
	settle = time.Second      // exits within it are one failure
	stuck  = 10 * time.Second // beyond StopTimeout: workers that cannot be ended
	asking = 10 * time.Second // for stacks
	hurry  = time.Second      // StopTimeout, once nothing that workers do can be kept
	quick  = time.Minute      // a worker that is not connected, and ended sooner, got nowhere
)

// State of a run.
type State string

const (
	Queued     State = "queued" // waits for devices: the shell's
	Starting   State = "starting"
	Running    State = "running"
	Restarting State = "restarting"
	Preempting State = "preempting"
	Preempted  State = "preempted" // ended for a notice: may be resumed
	Finished   State = "finished"
	Failed     State = "failed"
)

// Kind of an event.
type Kind uint8

const (
	Begun        Kind = iota // Start goes on from Checkpoint, of report N: where that is not what it said
	Launched                 // the workers of a Start run
	LaunchFailed             // none does: Err; Memory where the data process was ended for its memory
	Hello                    // Rank has connected
	Report                   // Rank's report N: Files, Sets, Step; Err where its files cannot be used
	Alive                    // Rank gets somewhere: Step
	Restoring                // Rank waits for files
	Restored                 // and has them, or an error
	Done                     // Rank's loop returned: Err
	Exit                     // Rank ended: Code, Signal, Memory, Ours, Err (nil for code 0)
	DataLost                 // what feeds the group failed: Err
	Taken                    // the files of report N are the shell's (Async): they will be Checkpoint
	Uploaded                 // report N is committed as Checkpoint, or Err
	StacksTaken              // answer to Stacks
	Tick                     // time has passed; due at Deadline
	Notice                   // the machine will be taken away: Grace, Err says why
	Stop                     // the caller gave up: Err says why
	Lost                     // another machine of the run is gone: the run ends at once, and may be resumed. Err says which
)

// Event is something that happened at a time, counted from any fixed moment; times never go back.
type Event struct {
	Kind    Kind
	At      time.Duration
	Attempt int // of Start; not looked at for Uploaded, Tick, Notice, Stop and Lost
	Rank    int
	N       int64 // of a report
	Files   bool
	Sets    []Set // in order of their names
	Step    int64
	// Checkpoint is its number: they ascend.
	Checkpoint int
	Code       int    // exit code; 0 with a Signal
	Signal     string // that ended the worker; "": none
	Memory     bool   // ended for its memory
	Ours       bool   // by a signal of the shell
	Grace      time.Duration
	Err        error
}

// Set is where a rank stands in a data set.
type Set struct {
	Name  string
	Key   string // equal for equal states; "": not known
	Epoch uint64
	Step  int64
}

// Do is what an action does.
type Do uint8

const (
	Start     Do = iota // begin Attempt at Checkpoint (0: at the beginning) with Reports made; answer Launched or LaunchFailed
	Complete            // report N was made by all ranks: keep its metrics
	Commit              // report N is to be a checkpoint, with files of Ranks; answer (Async: Taken, then) Uploaded
	Ack                 // answer Rank's report N: Checkpoint where it gave files, or Err
	Stacks              // ask Ranks for the stacks of their threads; answer StacksTaken
	StopGroup           // end the workers: SIGTERM, after Grace SIGKILL; each answers by its Exit
	Warn                // tell Ranks of the notice: Grace is left, Report N (of a rank without data) is the first that counts, Err says why
	Status              // State of the run; Err where it is the cause of a restart
	Failure             // Rank (-1: none) failed in Attempt: Class, Err, Final
	Finish              // the run is over: State, Err; Ranks did not end within the grace of a notice. The last action
)

// Action is what the shell does, in order. Slices are the shell's.
type Action struct {
	Do         Do
	Attempt    int
	Checkpoint int
	Reports    int64
	Rank       int
	Ranks      []int
	N          int64
	Grace      time.Duration
	State      State
	Class      Class
	Final      bool
	Err        error
}

// Class of a failure: each has a budget of its own.
type Class uint8

const (
	Worker Class = iota // a crash, the data process lost
	Hang                // no sign, no hello, no report, or no end in time
	Memory              // ended for memory
	Fatal               // would come again: no budget
)

func (c Class) String() string { return [...]string{"worker", "hang", "memory", "fatal"}[c] }

type phase uint8

const (
	waiting   phase = iota // for the time of the next attempt
	launching              // Start is under way
	up                     // workers run
	settling               // a worker failed: others that fail now are heard
	asked                  // for stacks
	stopping               // until every worker has ended
	over
)

// Group is one run.
type Group struct {
	cfg   Config
	acts  []Action
	now   time.Duration
	phase phase
	state State

	attempt  int
	launched time.Duration
	ranks    []rank
	open     bool          // Start has no answer yet
	told     bool          // StopGroup was said in this attempt
	until    time.Duration // of the phase: waiting, settling, asked, stopping

	base     int64     // reports complete
	pending  []pending // those after base, in order
	together bool      // a report of this run was complete
	progress bool      // in this attempt: a report, or a step
	queue    []commit
	upload   *commit // under way

	newest  int   // checkpoint committed last
	reports int64 // made up to it

	cause  *cause        // of the failure under way
	heard  time.Duration // its first word
	fails  [Fatal]int    // by class, since the last commit
	starts int           // attempts since the last commit that failed
	last   string        // what failed before progress, for the second time
	end    *ending       // the run ends once the workers have
	gone   bool          // a machine is
	notice *Event        // of preemption
	by     time.Duration // when its grace is over
	late   []int         // ranks that ran then
}

type rank struct {
	running bool
	hello   bool
	idle    int           // waits for the shell: restore
	owed    int           // reports that wait for their answer
	held    int64         // report that waits because others are far behind; 0: none
	since   time.Duration // when the first of them began to wait
	made    int64         // reports
	step    int64
	sign    time.Duration // last one
	done    bool          // its loop returned well
	failed  bool          // told by Done
	ended   bool          // exited with code 0
}

type ending struct {
	state State
	err   error
}

// New makes a run that starts at once: with the first event, which may be a Tick.
func New(cfg Config) *Group {
	if cfg.Lag <= 0 {
		cfg.Lag = 1024
	}
	return &Group{cfg: cfg, attempt: cfg.Attempt, newest: cfg.Checkpoint, reports: cfg.Reports}
}

// State of the run.
func (g *Group) State() State { return g.state }

// Step takes an event and returns what to do, in order. The result is valid until the next call.
func (g *Group) Step(e Event) []Action {
	g.acts = g.acts[:0]
	g.now = max(g.now, e.At)
	if g.phase == over {
		return g.acts
	}
	switch e.Kind {
	case Uploaded:
		g.uploaded(e)
	case Notice:
		g.noticed(e)
	case Stop:
		g.stopped(e)
	case Lost:
		g.lost(e)
	case Tick:
	default:
		if e.Attempt == g.attempt && g.phase > waiting && e.Rank >= 0 && e.Rank < g.cfg.World {
			g.step(e)
		}
	}
	g.advance()
	return g.acts
}

func (g *Group) step(e Event) {
	r := &g.ranks[e.Rank]
	switch e.Kind {
	case Begun:
		if g.phase == launching {
			g.begin(e.Checkpoint, e.N)
		}
		return
	case Launched:
		if g.open {
			g.open = false
			g.launch()
		}
		return
	case LaunchFailed:
		if g.open {
			g.open = false
			g.launchFailed(e)
		}
		return
	case DataLost:
		g.hear(dataCause(e.Err))
		return
	case Taken:
		if c := g.upload; c != nil && c.n == e.N && g.cfg.Async {
			g.answer(c, e.Checkpoint, nil)
		}
		return
	case StacksTaken:
		if g.phase == asked {
			g.halt()
		}
		return
	}
	if e.Kind == Exit {
		g.exit(e)
		return
	}
	r.sign = g.now
	switch e.Kind {
	case Hello:
		r.hello = true
		if g.notice != nil {
			g.warn([]int{e.Rank})
		}
		g.ready()
	case Report:
		g.report(e)
	case Alive:
		r.step = max(r.step, e.Step)
		g.progress = g.progress || e.Step > 0
	case Restoring:
		r.idle++
	case Restored:
		r.idle = max(r.idle-1, 0)
	case Done:
		g.done(e)
	}
}

// launch: the workers run.
func (g *Group) launch() {
	for i := range g.ranks {
		g.ranks[i].running, g.ranks[i].sign = true, g.now
	}
	g.launched = g.now
	if g.phase == stopping { // given up meanwhile
		g.tell()
		return
	}
	g.phase = up
	g.ready()
	if g.notice != nil {
		var all []int
		for i := range g.ranks {
			if !g.ranks[i].hello {
				all = append(all, i)
			}
		}
		g.warn(all)
	}
}

// ready: the run runs once all ranks that will connect have.
func (g *Group) ready() {
	if g.phase != up || g.state == Running || g.notice != nil {
		return
	}
	for i := range g.ranks {
		if !g.ranks[i].hello && g.cfg.Library {
			return
		}
	}
	g.status(Running, nil)
}

func (g *Group) launchFailed(e Event) {
	if g.phase == stopping {
		return
	}
	code := fault.CodeOf(e.Err)
	g.cause = &cause{rank: -1, class: Fatal, err: e.Err, same: "launch: " + code.String()}
	switch {
	case e.Memory:
		g.cause.class = Memory
	case code == fault.Unavailable || code == fault.WorkerLost:
		g.cause.class = Worker
	}
	g.halt()
}

func (g *Group) act(a Action) { g.acts = append(g.acts, a) }

func (g *Group) status(s State, err error) {
	if g.state == s && err == nil {
		return
	}
	g.state = s
	g.act(Action{Do: Status, State: s, Attempt: g.attempt, Err: err})
}

// running is how many workers have not ended.
func (g *Group) running() (n int) {
	for i := range g.ranks {
		if g.ranks[i].running {
			n++
		}
	}
	return n
}

// halt ends the workers of this attempt.
func (g *Group) halt() {
	if g.phase == stopping {
		return
	}
	g.phase, g.queue = stopping, nil
	g.tell()
}

// tell says StopGroup once, where there is somebody to end.
func (g *Group) tell() {
	if !g.told && g.running() > 0 {
		g.told = true
		g.until = g.now + g.cfg.StopTimeout + stuck
		grace := g.cfg.StopTimeout
		if g.gone {
			grace = min(grace, hurry)
		}
		g.act(Action{Do: StopGroup, Attempt: g.attempt, Grace: grace, Err: g.why()})
	}
}

func (g *Group) why() error {
	switch {
	case g.cause != nil:
		return g.cause.err
	case g.end != nil:
		return g.end.err
	}
	return nil
}

// noticed: the machine will be taken away.
func (g *Group) noticed(e Event) {
	if g.notice != nil || g.end != nil {
		return
	}
	n := e
	g.notice, g.by = &n, g.now+e.Grace
	g.status(Preempting, e.Err)
	if g.phase == up {
		var all []int
		for i := range g.ranks {
			if g.ranks[i].running {
				all = append(all, i)
			}
		}
		g.warn(all)
	}
}

// warn tells ranks of the notice. It counts from a report that nobody has made.
func (g *Group) warn(ranks []int) {
	if len(ranks) > 0 {
		g.act(Action{Do: Warn, Attempt: g.attempt, Ranks: ranks, N: g.first(), Grace: max(g.by-g.now, 0), Err: g.notice.Err})
	}
}

// first is the first report that counts after the notice: all ranks are told the same one.
func (g *Group) first() int64 {
	if g.notice.N == 0 {
		for i := range g.ranks {
			g.notice.N = max(g.notice.N, g.ranks[i].made+1)
		}
	}
	return g.notice.N
}

// stopped: the caller gave up.
func (g *Group) stopped(e Event) {
	if g.end == nil {
		g.end = &ending{state: Failed, err: e.Err}
	}
	g.halt()
}

// lost: what runs cannot go on, nor be kept.
func (g *Group) lost(e Event) {
	if g.end == nil {
		g.end = &ending{state: Preempted, err: e.Err}
	}
	g.gone, g.told = true, false // those that are ending already have less time now
	if g.phase == stopping {
		g.tell()
	}
	g.halt()
}

// advance does what the time, and what was heard, ask for.
func (g *Group) advance() {
	switch g.phase {
	case waiting:
		if g.notice != nil {
			g.halt()
		} else if g.now >= g.until {
			g.start()
		}
	case up:
		g.watch()
	}
	if g.phase == settling && (g.now >= g.until || g.running() == 0 || g.cause.sure) ||
		g.phase == asked && (g.now >= g.until || g.running() == 0) {
		g.halt()
	}
	g.next()
	if g.phase == up && g.running() == 0 {
		g.allEnded()
	}
	if g.phase == stopping {
		g.ended()
	}
}

// start begins an attempt.
func (g *Group) start() {
	g.attempt++
	g.phase, g.open, g.told, g.cause, g.progress = launching, true, false, nil, false
	g.ranks = make([]rank, g.cfg.World)
	g.begin(g.newest, g.reports)
	if g.state == "" {
		g.status(Starting, nil)
	}
	g.act(Action{Do: Start, Attempt: g.attempt, Checkpoint: g.newest, Reports: g.reports})
}

// begin places an attempt.
func (g *Group) begin(checkpoint int, reports int64) {
	g.newest, g.reports = checkpoint, reports
	g.base, g.pending, g.queue = reports, nil, nil
	for i := range g.ranks {
		g.ranks[i] = rank{made: reports, sign: g.now}
	}
}

// Deadline is when a Tick is due; false: never.
func (g *Group) Deadline() (at time.Duration, ok bool) {
	least := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	switch g.phase {
	case waiting, settling, asked:
		least(g.until)
	case stopping:
		if g.running() > 0 && g.told {
			least(g.until)
		}
		if g.untold() {
			least(g.heard + settle)
		}
	case up:
		if g.notice != nil {
			least(g.by)
		}
		if t, ok := g.startDue(); ok {
			least(t)
		}
		for i := range g.ranks {
			r := &g.ranks[i]
			if t, ok := g.hangDue(r); ok {
				least(t)
			}
			if t, ok := g.reportDue(r); ok {
				least(t)
			}
		}
	}
	return at, ok
}
