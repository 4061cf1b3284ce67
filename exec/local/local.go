// Package local runs a graph in this process. It is the shell around
// exec/internal/sched: one goroutine per task at work, one mutex around the
// scheduler and the queues, everything per block, nothing per row.
//
// A task reads its split, runs every batch through the chain of operators and
// queues what comes out; the consumer takes blocks in canonical order. Failure
// policies (retries, skipped rows, dead letters, time limits, panics) live here,
// once for all operators. See docs/execution.md.
package local

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/internal/sched"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/procs"
	"github.com/penstock-data/penstock/io/driver"
)

// Options may be nil.
type Options struct {
	Log *slog.Logger // nil discards
	// Nodes are other processes that run tasks too: of one run at a time.
	Nodes []Node
}

// Runner runs graphs in this process. Safe for concurrent use.
type Runner struct {
	log   *slog.Logger
	nodes []Node
	ids   atomic.Uint64 // of attempts
}

var _ exec.Runner = (*Runner)(nil)

// New returns a Runner.
func New(o *Options) *Runner {
	r := &Runner{log: slog.New(slog.DiscardHandler)}
	if o != nil && o.Log != nil {
		r.log = o.Log
	}
	if o != nil {
		r.nodes = o.Nodes
	}
	return r
}

const (
	closeGrace      = time.Second      // how long Close, and a call that was timed out, wait for code that does not obey its context
	opsGrace        = 15 * time.Second // and for steps to end: large child processes take their time, also when they are killed
	stallTimeout    = 5 * time.Minute
	readTimeout     = 2 * time.Minute
	minBatchBytes   = 4 << 10
	leastAhead      = 64      // tasks ahead of the first that is not through
	taskBytes       = 4 << 20 // of the budget for each that is more: readers may hold as much
	enoughBytes     = 4 << 20 // queued per task at work: a few batches, which the caches of the CPUs may still hold
	defaultAttempts = 3
	poisonAfter     = 3 // workers lost by one task
)

// Run starts g. The Stream must be closed. Tables of g must stay open until then.
func (n *Runner) Run(ctx context.Context, g *exec.Graph, o *exec.Options) (exec.Stream, error) {
	r, err := n.newRun(ctx, g, o, nil)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// settings are options with defaults filled in.
type settings struct {
	exec.Options
	trackAll bool
}

func withDefaults(o *exec.Options) (settings, error) {
	var s settings
	if o != nil {
		s.Options = *o
	}
	if s.CPUs < 0 || s.Memory < 0 || s.BatchRows < 0 || s.BatchBytes < 0 {
		return s, fault.New(fault.Invalid, "options: cpus, memory and batch sizes must not be negative")
	}
	if r := s.OnError.MaxRate; r < 0 || r > 1 {
		return s, fault.New(fault.Invalid, "options: max_rate %v must lie between 0 and 1", r)
	}
	if s.CPUs == 0 {
		s.CPUs = procs.CPUs()
	}
	if s.Budget != nil { // looking what the machine has takes longer than a small run
		s.Memory = s.Budget.Limit()
	} else if s.Memory == 0 {
		s.Memory = exec.DefaultMemory()
	}
	if s.StallTimeout == 0 {
		s.StallTimeout = stallTimeout
	}
	most := max(s.Memory/16, minBatchBytes)
	if s.BatchBytes == 0 {
		s.BatchBytes = driver.DefaultBatchBytes
	}
	s.BatchBytes = min(s.BatchBytes, most)
	if s.BatchRows == 0 {
		s.BatchRows = driver.DefaultBatchRows
	}
	if s.Events == nil {
		s.Events = new(exec.Events)
	}
	s.trackAll = s.OnError.Policy == exec.Skip || s.DeadLetter != nil || s.Spans
	return s, nil
}

// attempts resolves a retry budget: 0 means def, negative none.
func attempts(n, def int) int {
	switch {
	case n == 0:
		return def
	case n < 0:
		return 0
	}
	return n
}

func retryBudget(b exec.RetryBudget) (r [sched.NumClasses]int) {
	r[sched.Unavailable] = attempts(b.Unavailable, defaultAttempts)
	r[sched.WorkerLost] = attempts(b.WorkerLost, poisonAfter-1)
	r[sched.Exhausted] = attempts(b.Exhausted, defaultAttempts)
	return r
}

func classOf(c fault.Code) sched.Class {
	switch c {
	case fault.Unavailable:
		return sched.Unavailable
	case fault.WorkerLost:
		return sched.WorkerLost
	case fault.Exhausted:
		return sched.Exhausted
	}
	return sched.Fatal
}

// backoff before an attempt, 2 being the first that is made again.
func backoff(attempt int) time.Duration {
	return min(50*time.Millisecond<<(2*min(attempt-2, 8)), 5*time.Second)
}

// aheadTasks is how many tasks may be started ahead of the first that is not through, as long as what they queue is little: so many that all CPUs have
// work while one is at a task that takes 30 times as long as the others, where the budget has room for their readers.
func aheadTasks(cpus int, memory int64) int {
	return max(leastAhead, 8*cpus, int(min(int64(max(256, 32*cpus)), memory/taskBytes)))
}
