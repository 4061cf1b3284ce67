package store

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"golang.org/x/sync/errgroup"
)

// States of a run.
const (
	Queued     = "queued"     // waits for devices
	Starting   = "starting"   // workers are being started
	Running    = "running"    //
	Restarting = "restarting" // a worker failed
	Preempting = "preempting" // workers have been told to save and end
	Preempted  = "preempted"  // they have; it can be resumed
	Finished   = "finished"   //
	Failed     = "failed"     // it can be resumed

	// StateLost is what Summary says of a run whose controller ended without a word.
	StateLost = "lost"
)

// Metrics are numbers by name. In JSON, NaN and the infinities are the strings "NaN", "Infinity" and "-Infinity".
type Metrics = wire.Metrics

// Status is where a run stands.
type Status struct {
	State   string `json:"state"`
	Attempt int    `json:"attempt"` // the group's start; set by SetStatus
	// The controller; set by SetStatus.
	Process
	Job        string    `json:"job,omitempty"`     // that started it, as in BeginOptions; set by SetStatus
	Updated    time.Time `json:"updated"`           // set by SetStatus
	Workers    int       `json:"workers,omitempty"` // of the last attempt
	Reports    int64     `json:"reports"`
	Checkpoint int       `json:"checkpoint,omitempty"` // the newest
	Metrics    Metrics   `json:"metrics,omitempty"`    // of the last report
	Error      *Error    `json:"error,omitempty"`      // the last failure
	// Of all controllers of the run: failures by class, and how often it was preempted.
	Failures    map[string]int `json:"failures,omitempty"`
	Preemptions int            `json:"preemptions,omitempty"`
	Reason      string         `json:"reason,omitempty"` // why it waits, restarts, was preempted or failed
}

// Error is a failure as it is told to people.
type Error struct {
	Code  string `json:"code"` // of package fault
	Text  string `json:"text"`
	Trace string `json:"trace,omitempty"` // last lines of the log, or the stack
}

// Over reports that the run has ended, well or not.
func (s *Status) Over() bool {
	return s.State == Finished || s.State == Failed || s.State == Preempted
}

// Presence looks for the controller at a time. One that cannot be looked for, and has not been heard of for LostAfter, is Lost.
func (s *Status) Presence(now time.Time) Presence {
	p := s.Process.Presence()
	if p == Unknown && now.Sub(s.Updated) > LostAfter {
		return Lost
	}
	return p
}

// Show is the state as people should see it: lost where the controller is.
func (s *Status) Show(now time.Time) string {
	if !s.Over() && s.Presence(now) == Lost {
		return StateLost
	}
	return s.State
}

// SetStatus replaces the status of the attempt. Only a controller that has begun may; one that was replaced gets ErrSuperseded, or writes what nobody reads: each attempt has a status of its own, and the last one's counts.
func (r *Run) SetStatus(ctx context.Context, s Status) error {
	if err := r.stat.lock(ctx); err != nil {
		return err
	}
	defer r.stat.unlock()
	if err := r.stillOwner(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	s.Attempt, s.Process, s.Job = r.own.attempt, r.own.process, r.own.job
	r.mu.Unlock()
	rel := statusName(s.Attempt)
	s.Updated = time.Now().UTC().Round(0)
	if err := s.check(); err != nil {
		return fault.New(fault.Internal, "%w", err)
	}
	data, err := r.encode(rel, "status", s)
	if err != nil {
		return err
	}
	r.at("status", rel)
	return r.b.Put(ctx, r.prefix+rel, data, nil)
}

func statusName(attempt int) string { return statusDir + numbered(attempt) + ".json" }

// statuses are the names of those of all attempts, the last one's last.
func (r *Run) statuses(ctx context.Context) ([]string, error) {
	var names []string
	for info, err := range r.b.ListDir(ctx, r.prefix+statusDir) {
		if err != nil {
			return nil, err
		}
		if name := path.Base(info.Key); !info.Dir && statusRE.MatchString(name) {
			names = append(names, statusDir+name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	return names, nil
}

var statusRE = regexp.MustCompile(`^[0-9]{6,10}\.json$`)

// Status is where the last attempt that has said so stands: a NotFound error where it never began. A damaged one is Corrupt, and stops whoever would go on: only it knows whether the run had finished.
func (r *Run) Status(ctx context.Context) (Status, error) {
	var s Status
	names, err := r.statuses(ctx)
	switch {
	case err != nil:
		return s, err
	case len(names) == 0:
		return s, fault.New(fault.NotFound, "the run has no status yet").At(r.place(statusDir))
	}
	rel := names[len(names)-1]
	data, done, err := r.load(ctx, rel, MaxRecord)
	if err != nil {
		return s, err
	}
	defer done()
	if err = r.decode(rel, data, "status", &s); err == nil {
		if err = s.check(); err == nil && rel != statusName(s.Attempt) {
			err = corrupt("attempt", "is %d, which is not that of this file", s.Attempt)
		}
	}
	err = fault.Wrap(err, r.place(rel))
	if fault.CodeOf(err) == fault.Corrupt {
		err = fault.Wrap(fmt.Errorf("%w; where the run stood is lost, its checkpoints are not: remove this file to go on from the newest one", err), fault.Place{})
	}
	return s, err
}

// Summary is a run in a list.
type Summary struct {
	Name    string
	Created time.Time
	Workers int
	State   string // as Status.Show says; queued where it never began
	Status  Status // zero where it never began
	Err     error  // the run's records cannot be read: nothing else but the name is known
}

// List lists the runs of a storage, the last created one first. A folder that is not there has none; folders that are no runs are left out.
func List(ctx context.Context, storage string) ([]Summary, error) {
	probe, err := openFolder(ctx, storage, "x", nil)
	if err != nil {
		return nil, err
	}
	defer probe.b.Close()
	if err := probe.checkStorage(); err != nil {
		return nil, err
	}
	prefix := probe.prefix[:len(probe.prefix)-len("x/")]
	names, err := folders(ctx, probe.b, prefix)
	if err != nil {
		return nil, err
	}
	runs := make([]Summary, len(names))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for i, name := range names {
		g.Go(func() error {
			s, err := probe.summary(gctx, storage, prefix, name)
			if gctx.Err() != nil {
				return fault.New(fault.Canceled, "%w", context.Cause(gctx))
			}
			if code := fault.CodeOf(err); code == fault.Denied || code == fault.Unavailable {
				return err
			}
			s.Err = err
			runs[i] = s
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	runs = slices.DeleteFunc(runs, func(s Summary) bool { return fault.CodeOf(s.Err) == fault.NotFound })
	slices.SortFunc(runs, func(a, b Summary) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Name, b.Name))
	})
	return runs, nil
}

// summary is of a run in storage; NotFound if the folder is none. r is any run there.
func (r *Run) summary(ctx context.Context, storage, prefix, name string) (Summary, error) {
	s := Summary{Name: name}
	run := &Run{b: r.b, key: r.key, prefix: prefix + name + "/"}
	if _, local := r.Local(); local { // a bucket keeps to one folder
		var err error
		if run, err = openFolder(ctx, storage, name, nil); err != nil {
			return s, err
		}
		defer run.b.Close()
	}
	if err := run.readRecord(ctx, name); err != nil {
		return s, err
	}
	st, err := run.Status(ctx)
	switch {
	case fault.CodeOf(err) == fault.NotFound:
		s.State = Queued
	case err != nil:
		return s, err
	default:
		s.State = st.Show(time.Now())
	}
	s.Created, s.Workers, s.Status = run.rec.Created, run.rec.Workers, st
	return s, nil
}
