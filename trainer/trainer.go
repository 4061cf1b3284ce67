package trainer

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/store"
)

// Trainer is a run to be made.
type Trainer struct {
	loop func(*Context) error
	argv []string
	cfg  Config
}

// New trains with a Go loop: it is called once per worker and attempt, and returns when its training is done. It begins at
// [Context.Checkpoint], and watches its context.
func New(loop func(*Context) error, c Config) *Trainer { return &Trainer{loop: loop, cfg: c} }

// Command trains with a program that is written for torchrun, one process per worker: argv is the program and its arguments.
func Command(argv []string, c Config) *Trainer { return &Trainer{argv: argv, cfg: c} }

// Result of a run.
type Result struct {
	Run      string
	Storage  string // URL of the run's folder
	State    string // store.Finished, Preempted or Failed
	Reports  int64  // made by all ranks, and kept
	Metrics  map[string]float64
	Attempts int // of this call; 0: the run was finished before, or was preempted before workers were started
	Attempt  int // number of the last one, counted over all calls
	Failures []Failure
	// Checkpoint is the newest one; 0: none.
	Checkpoint int
	// Checkpoints that are kept, ascending.
	Checkpoints []store.Manifest
	// Late are the ranks that did not end within Preemption.Grace of a notice, and were ended: what came after Checkpoint is lost.
	Late []int
	// Err is the first cause of a run that did not finish.
	Err error
}

// Best is the best of the checkpoints that are kept, by a metric; order is "min" or "max". False where none has it.
func (r *Result) Best(metric, order string) (*store.Manifest, bool) {
	return store.Best(r.Checkpoints, metric, order)
}

// calls counts the calls of Fit that start processes, by which a worker knows which of them started it.
var calls atomic.Int64

// Fit runs until the loop has ended on all ranks, the run is preempted, or it fails. The error is that of the result; without a result
// nothing was started, and the name of a new run is free again. The end of ctx ends the workers, and everything else: all that Fit started has ended when it returns.
//
// In a worker process (Config.Processes) Fit runs the loop and ends the process. In a process of a gang that is not node 0 (Config.Gang) it has the run's state and error, and not its history: neither failures nor checkpoints.
// The error of a run that was to end before it was done, for no failure of its own, is ErrPreempted.
func (t *Trainer) Fit(ctx context.Context) (r *Result, err error) {
	defer func() {
		if err != nil && (r == nil && fault.CodeOf(err) == fault.Canceled && ctx.Err() == nil || r != nil && r.State == store.Preempted) {
			err = preemption{err}
			if r != nil {
				r.Err = err
			}
		}
	}()
	if (t.loop == nil) == (len(t.argv) == 0) {
		return nil, fault.New(fault.Invalid, "nothing to run: give a loop, or a program")
	}
	call := int64(0)
	if t.loop != nil && t.cfg.Processes {
		call = calls.Add(1)
		if id, ok := workerProcess(); ok {
			os.Exit(t.work(ctx, id, call))
		}
	}
	cfg, err := t.cfg.or()
	if err != nil {
		return nil, err
	}
	s := site{cfg: cfg, call: call, work: t.loop, argv: t.argv}
	if err := s.launches(); err != nil {
		return nil, err
	}
	if cfg.nodes() > 1 && cfg.Gang.Node() > 0 {
		return lend(ctx, s)
	}
	return fit(ctx, s)
}

// ErrPreempted says that a run is not done, for a reason that is not its own: there was a notice (Config.Preemption), or other nodes of its gang are lost. Started again it goes on.
var ErrPreempted = errors.New("the run was preempted")

// preemption is an error that is ErrPreempted, and says why.
type preemption struct{ error }

func (p preemption) Unwrap() error        { return p.error }
func (p preemption) Is(target error) bool { return target == ErrPreempted }

// InWorker reports whether this process is a worker that Fit of this program has started (Config.Processes), also in the loop: its Fit runs the loop, and what main does before is done in every worker.
func InWorker() bool {
	_, ok := workerProcess()
	return ok || atWork.Load()
}

// Signals is a notice of preemption (Preemption.Notice) for SIGTERM and SIGUSR2, until ctx ends.
func Signals(ctx context.Context) <-chan string {
	in := make(chan os.Signal, 1)
	signal.Notify(in, syscall.SIGTERM, syscall.SIGUSR2)
	out := make(chan string, 1)
	go func() {
		defer signal.Stop(in)
		for {
			select {
			case s := <-in:
				select {
				case out <- s.String():
				default: // told already
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// errEnded is the cause of contexts of a run that is over.
var errEnded = errors.New("the run is over")
