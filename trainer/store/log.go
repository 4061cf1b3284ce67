package store

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sync/errgroup"
)

// entry of the log, RUN/checkpoints/NNNNNN.json. Exactly one of the two is set.
type entry struct {
	number int
	start  *start
	ckpt   *Manifest
}

// start of a group of workers. It takes the next number of the log, so that no commit of an earlier controller can come after it. Starts are never removed.
type start struct {
	Number     int       `json:"number"`
	Attempt    int       `json:"attempt"`
	From       int       `json:"from,omitempty"` // checkpoint that the group went on from; 0: none
	Report     int64     `json:"report"`         // of that checkpoint
	Controller string    `json:"controller"`     // a random id
	Process    Process   `json:"process"`
	Time       time.Time `json:"time"`
	Job        string    `json:"job,omitempty"` // of BeginOptions, at the controller's first start
	JobAttempt int64     `json:"job_attempt,omitempty"`
	// Back says that the start went back to From, and that the checkpoints after it are there until one takes their place, or a start of the same attempt without Back says that its group runs.
	Back bool `json:"back,omitempty"`
}

// owner is what a Run knows of its own place in the log.
type owner struct {
	id      string // of the controller; "": never began
	process Process
	attempt int
	next    int // number of the log after the last that is known

	job        string
	jobAttempt int64
}

func numbered(n int) string { return fmt.Sprintf("%06d", n) }

func entryName(n int) string { return checkpointsDir + numbered(n) + ".json" }

// parseEntry is the number in the name of an entry.
func parseEntry(name string) (n int, ok bool) {
	num, found := strings.CutSuffix(name, ".json")
	n, err := strconv.Atoi(num)
	return n, found && err == nil && n >= 0 && n <= maxNumber && numbered(n) == num
}

// readLog is the log, in order. What is removed at this moment may be missing.
func (r *Run) readLog(ctx context.Context) ([]*entry, error) {
	var numbers []int
	var total int64
	for info, err := range r.b.ListDir(ctx, r.prefix+checkpointsDir) {
		if err != nil {
			return nil, err
		}
		if n, ok := parseEntry(path.Base(info.Key)); ok && !info.Dir {
			numbers, total = append(numbers, n), total+info.Size
		}
	}
	if total > maxLog {
		return nil, fault.New(fault.Corrupt, "the records here have %d bytes, more than the %d of the longest run", total, int64(maxLog)).At(r.place(checkpointsDir))
	}
	slices.Sort(numbers)
	entries := make([]*entry, len(numbers))
	r.mu.Lock()
	for i, n := range numbers {
		entries[i] = r.seen[n]
	}
	r.mu.Unlock()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for i, n := range numbers {
		if entries[i] != nil {
			continue
		}
		g.Go(func() error {
			e, err := r.readEntry(gctx, n)
			if fault.CodeOf(err) == fault.NotFound {
				return nil
			}
			entries[i] = e
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e *entry) bool { return e == nil })
	r.mu.Lock()
	clear(r.seen) // entries do not change, but some are removed
	for _, e := range entries {
		r.seen[e.number] = e
	}
	r.mu.Unlock()
	return entries, nil
}

func (r *Run) readEntry(ctx context.Context, n int) (*entry, error) {
	rel := entryName(n)
	data, done, err := r.load(ctx, rel, maxManifest)
	if err != nil {
		return nil, err
	}
	defer done()
	e, err := r.decodeEntry(rel, data)
	if err == nil && e.number != n {
		err = fault.New(fault.Corrupt, "it says to be number %d", e.number)
	}
	return e, fault.Wrap(err, r.place(rel))
}

func (r *Run) decodeEntry(rel string, data []byte) (*entry, error) {
	h, err := decodeHead(data)
	if err != nil {
		return nil, err
	}
	if h.Kind == "start" {
		s := new(start)
		if err := r.decode(rel, data, "start", s); err != nil {
			return nil, err
		}
		return &entry{number: s.Number, start: s}, s.check()
	}
	m := new(Manifest)
	if err := r.decode(rel, data, "checkpoint", m); err != nil {
		return nil, err
	}
	return &entry{number: m.Number, ckpt: m}, r.checkManifest(m)
}

// checkpoints of a log, in order: those that no start has left behind by going back to an earlier one.
func checkpoints(entries []*entry) []*Manifest {
	var live []*Manifest
	cut := func(from int) {
		for len(live) > 0 && live[len(live)-1].Number > from {
			live = live[:len(live)-1]
		}
	}
	var back *start // that may have come to nothing
	for _, e := range entries {
		if back != nil && back.ran(e) {
			cut(back.From)
			back = nil
		}
		switch {
		case e.ckpt != nil:
			live = append(live, e.ckpt)
		case e.start.Back:
			back = e.start
		default:
			cut(e.start.From)
			back = nil
		}
	}
	return live
}

// ran reports that the entry that follows a start which went back is of its group, or of one that goes on from a checkpoint of it.
func (s *start) ran(next *entry) bool {
	return next.ckpt != nil || next.start.Attempt == s.Attempt || next.start.From > s.Number
}

// back is the start at the end of a log that went back and whose group does not run yet; nil: there is none.
func back(entries []*entry) *start {
	if n := len(entries); n > 0 && entries[n-1].start != nil && entries[n-1].start.Back {
		return entries[n-1].start
	}
	return nil
}

// attempts are the starts of groups that ran, one for each: without those that went back and came to nothing.
func attempts(entries []*entry) (all []*start) {
	for i, e := range entries {
		switch {
		case e.start == nil:
		case e.start.Back && (i+1 == len(entries) || !e.start.ran(entries[i+1])):
		case len(all) > 0 && all[len(all)-1].Attempt == e.start.Attempt: // it runs
		default:
			all = append(all, e.start)
		}
	}
	return all
}

func starts(entries []*entry) []*start {
	var all []*start
	for _, e := range entries {
		if e.start != nil {
			all = append(all, e.start)
		}
	}
	return all
}

// Attempt is a start of the group of workers.
type Attempt struct {
	Number int       // from 1, counted over all controllers of the run
	From   *Manifest // the checkpoint to go on from; nil: none, the run begins
	Back   bool      // it goes back to From: Launched is to follow
}

// BeginOptions of Run.Begin; the zero value is right for a controller that goes on.
type BeginOptions struct {
	// Checkpoint to go back to; 0: the newest, or the one that this controller goes back to. Those after it are left behind with [Run.Launched], or the next Commit: then they are no more checkpoints of the run, and Sweep
	// removes them. A Begin that comes to nothing leaves them to the next controller.
	Checkpoint int
	// TakeOver begins though a controller on another host may be at work. That one can commit nothing any more.
	TakeOver bool
	// Job that starts controllers, and which attempt of it this one is, from 1; "": nobody does. Of the attempts of a job the last one counts: it replaces an earlier one, also one that is at work, on this
	// machine or another, and an earlier one that comes later is refused.
	Job        string
	JobAttempt int64
}

// Begin claims the run for this Run as its controller, if it is not already, and the next attempt. Every start of the group begins with it. It waits for a Commit that is
// under way, so that Attempt.From has it.
//
// While another controller is at work on this machine, or seems to be on another (its status is younger than LostAfter), Begin is an Exists error that says which, unless that one is of an earlier attempt of the same job. A controller that is
// replaced finds out when it next calls Commit, SetStatus, Begin, Prune or Sweep.
func (r *Run) Begin(ctx context.Context, o BeginOptions) (*Attempt, error) {
	if err := r.mayWrite(); err != nil {
		return nil, err
	}
	if err := word("job", o.Job, maxWord); err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	if err := r.log.lock(ctx); err != nil {
		return nil, err
	}
	defer r.log.unlock()
	for {
		if ctx.Err() != nil {
			return nil, fault.New(fault.Canceled, "%w", context.Cause(ctx))
		}
		entries, err := r.readLog(ctx)
		if err != nil {
			return nil, err
		}
		s, from, err := r.nextStart(ctx, entries, o)
		if err != nil {
			return nil, err
		}
		data, err := r.encode(entryName(s.Number), "start", s)
		if err != nil {
			return nil, err
		}
		// Known before the start is there: another Run of this process may look for it.
		atWork.add(s.Controller)
		won, err := r.putNew(ctx, entryName(s.Number), data)
		if err == nil && !won { // another one's, or our own and its answer was lost
			var e *entry
			e, err = r.readEntry(ctx, s.Number)
			won = err == nil && e.start != nil && e.start.Controller == s.Controller && e.start.Attempt == s.Attempt
		}
		if err != nil || !won {
			r.mu.Lock()
			if r.own.id == "" {
				atWork.remove(s.Controller)
			}
			r.mu.Unlock()
		}
		if err != nil {
			return nil, err
		}
		if won {
			r.mu.Lock()
			r.own = owner{id: s.Controller, process: s.Process, attempt: s.Attempt, next: s.Number + 1, job: s.Job, jobAttempt: s.JobAttempt}
			r.mu.Unlock()
			return &Attempt{Number: s.Attempt, From: from, Back: s.Back}, nil
		}
	}
}

// nextStart is the start that may follow the log, and the checkpoint it goes on from.
func (r *Run) nextStart(ctx context.Context, entries []*entry, o BeginOptions) (*start, *Manifest, error) {
	r.mu.Lock()
	own := r.own
	r.mu.Unlock()
	s := &start{Attempt: 1, Controller: own.id, Process: own.process, Job: own.job, JobAttempt: own.jobAttempt, Time: time.Now().UTC().Round(0)}
	if all := starts(entries); len(all) > 0 {
		last := all[len(all)-1]
		s.Attempt = last.Attempt + 1
		switch {
		case last.Controller == own.id:
		case own.id != "":
			return nil, nil, r.superseded(last)
		case o.Job != "" && o.Job == last.Job && o.JobAttempt > last.JobAttempt: // its time is over
		case o.Job != "" && o.Job == last.Job && o.JobAttempt < last.JobAttempt:
			return nil, nil, r.superseded(last)
		default:
			if err := r.checkFree(ctx, last, o.TakeOver); err != nil {
				return nil, nil, err
			}
		}
	}
	if own.id == "" {
		s.Controller, s.Process = randomHex(8), Self()
		s.Job, s.JobAttempt = o.Job, o.JobAttempt
	}
	if len(entries) > 0 {
		s.Number = entries[len(entries)-1].number + 1
	}
	if s.Number > maxNumber-1000 { // no run comes near it by itself
		return nil, nil, fault.New(fault.Corrupt, "the last entry has number %d: it was damaged or forged; remove it", s.Number-1).At(r.place(entryName(s.Number - 1)))
	}
	to := o.Checkpoint
	if b := back(entries); to == 0 && b != nil && b.Controller == own.id {
		to = b.From
	}
	from, err := pick(checkpoints(entries), to)
	if err != nil {
		return nil, nil, fault.Wrap(err, r.place(""))
	}
	s.Back = to != 0
	if from != nil {
		s.From, s.Report = from.Number, from.Report
	}
	return s, from, nil
}

// Launched says that the group of an attempt that goes back runs: the checkpoints after that it goes on from are left behind. Only a controller that has begun may.
func (r *Run) Launched(ctx context.Context) error {
	if err := r.log.lock(ctx); err != nil {
		return err
	}
	defer r.log.unlock()
	for {
		if err := r.stillOwner(ctx); err != nil {
			return err
		}
		entries, err := r.readLog(ctx)
		if err != nil {
			return err
		}
		b := back(entries)
		if b == nil {
			r.mu.Lock()
			r.own.next = entries[len(entries)-1].number + 1
			r.mu.Unlock()
			return nil
		}
		s := *b
		s.Number, s.Back = b.Number+1, false
		data, err := r.encode(entryName(s.Number), "start", s)
		if err != nil {
			return err
		}
		if _, err := r.putNew(ctx, entryName(s.Number), data); err != nil {
			return err
		}
	}
}

// pick finds checkpoint n, or for 0 the last one, if any.
func pick(all []*Manifest, n int) (*Manifest, error) {
	if n == 0 && len(all) == 0 {
		return nil, nil
	}
	if n == 0 {
		return all[len(all)-1], nil
	}
	var have []string
	for _, m := range all {
		if m.Number == n {
			return m, nil
		}
		have = append(have, strconv.Itoa(m.Number))
	}
	if len(have) == 0 {
		return nil, fault.New(fault.NotFound, "there is no checkpoint %d: the run has none yet", n)
	}
	if len(have) > 20 {
		have = append([]string{"..."}, have[len(have)-20:]...)
	}
	return nil, fault.New(fault.NotFound, "there is no checkpoint %d: the run has %s", n, strings.Join(have, ", "))
}

// checkFree is an error where the controller that began last may be at work.
func (r *Run) checkFree(ctx context.Context, last *start, takeOver bool) error {
	st, err := r.Status(ctx)
	if err != nil && fault.CodeOf(err) != fault.NotFound {
		return err
	}
	heard := last.Time
	if err == nil && st.Attempt >= last.Attempt {
		if st.Over() {
			return nil
		}
		heard = st.Updated
	}
	p := last.Process.Presence()
	if last.Process == Self() && !atWork.has(last.Controller) {
		p = Lost
	}
	switch {
	case p == Alive:
		return fault.New(fault.Exists, "run %q is at work: process %d on this machine, since %s; end it first (kill %[2]d), or take another name",
			r.rec.Name, last.Process.PID, last.Time.Format(time.DateTime)).At(r.place(""))
	case p == Unknown && !takeOver && time.Since(heard) <= LostAfter:
		return fault.New(fault.Exists, "run %q seems to be at work: process %d on host %q was heard of at %s; end it there, try again when it was silent for %s, or take the run over (--take-over, Config.TakeOver)",
			r.rec.Name, last.Process.PID, last.Process.Host, heard.Format(time.DateTime), LostAfter).At(r.place(""))
	}
	return nil
}

func (r *Run) superseded(by *start) error {
	return fault.New(fault.Exists, "%w: attempt %d, process %d on host %q, since %s; this one ends", ErrSuperseded,
		by.Attempt, by.Process.PID, by.Process.Host, by.Time.Format(time.DateTime)).At(r.place(""))
}

// owned is the state of a controller that has begun.
func (r *Run) owned() (owner, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.own.id == "" {
		return owner{}, fault.New(fault.Internal, "run %q is changed before its attempt has begun: call Begin first", r.rec.Name)
	}
	return r.own, nil
}

// stillOwner is an error where another controller has begun.
func (r *Run) stillOwner(ctx context.Context) error {
	own, err := r.owned()
	if err != nil {
		return err
	}
	for n := own.next; ; n++ {
		if e, err := r.after(ctx, own, n); err != nil || e == nil {
			return err
		}
	}
}

// after reads what is in the log at number n, where own would append: nil where there is nothing, an error where it is another controller's.
func (r *Run) after(ctx context.Context, own owner, n int) (*entry, error) {
	// To look for it costs less than to read it, and it is almost never there.
	if _, err := r.b.Stat(ctx, r.prefix+entryName(n)); err != nil {
		if fault.CodeOf(err) == fault.NotFound {
			return nil, nil
		}
		return nil, err
	}
	e, err := r.readEntry(ctx, n)
	if fault.CodeOf(err) == fault.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if e.start != nil && e.start.Controller != own.id {
		return nil, r.superseded(e.start)
	}
	return e, nil
}

// Checkpoints of the run, ascending. Owned by the caller, but for what they point to, which is shared and must not be changed.
func (r *Run) Checkpoints(ctx context.Context) ([]Manifest, error) {
	entries, err := r.readLog(ctx)
	if err != nil {
		return nil, err
	}
	live := checkpoints(entries)
	all := make([]Manifest, len(live))
	for i, m := range live {
		all[i] = *m
	}
	return all, nil
}

// Checkpoint is checkpoint n of the run, or for 0 the newest one; a NotFound error where there is none.
func (r *Run) Checkpoint(ctx context.Context, n int) (*Manifest, error) {
	entries, err := r.readLog(ctx)
	if err != nil {
		return nil, err
	}
	m, err := pick(checkpoints(entries), n)
	if err == nil && m == nil {
		err = fault.New(fault.NotFound, "run %q has no checkpoint yet", r.rec.Name)
	}
	if err != nil {
		return nil, fault.Wrap(err, r.place(""))
	}
	c := *m
	return &c, nil
}

// Latest is the newest checkpoint; a NotFound error where there is none.
func (r *Run) Latest(ctx context.Context) (*Manifest, error) { return r.Checkpoint(ctx, 0) }

// Job is that of the controller which began last (BeginOptions.Job), "" where nobody had started it; begun: there was one.
func (r *Run) Job(ctx context.Context) (job string, begun bool, err error) {
	entries, err := r.readLog(ctx)
	if err != nil {
		return "", false, err
	}
	all := starts(entries)
	if len(all) == 0 {
		return "", false, nil
	}
	return all[len(all)-1].Job, true, nil
}

// Next is the number that the next Commit will give: known only to a controller that has begun, else 0.
func (r *Run) Next() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own.next
}
