package exec

import (
	"time"
)

// Stats is a snapshot of a run. Numbers of rows and splits are of the whole job, where parts of an output were
// finished by an earlier run; everything else is of this run.
type Stats struct {
	Ops        []OpStats // the scans first, then operators, then the sink or consumer, in plan order
	RowsIn     int64     // rows read from sources
	RowsOut    int64     // rows delivered to the consumer or written
	BytesRead  int64     // from storage, for footers and samples, too
	Splits     int       // total
	SplitsDone int
	Retries    int64 // of tasks
	Skipped    int64 // rows left out by on_error
	PeakBytes  int64 // of the budget
	HeldBytes  int64 // now
	Elapsed    time.Duration
	Bottleneck string // name of the operator that the others wait for; "" if unclear

	StorageRetries int64      // requests of reads that were made again after an error; what a bucket's client library repeats by itself is not seen
	Inflight       []Inflight // tasks at work now, in canonical order
}

// OpStats counts one operator (or scan, sink, consumer) over all its tasks. The
// times are sums over tasks.
type OpStats struct {
	Name      string
	Step      string
	RowsIn    int64
	RowsOut   int64
	BytesOut  int64
	Batches   int64
	Tasks     int64
	Busy      time.Duration // in the operator's own code
	WaitIn    time.Duration // for input: of the consumer alone, as steps run in one task with what feeds them
	WaitOut   time.Duration // for room downstream
	WaitMem   time.Duration // for memory
	PeakBytes int64         // most memory held by one task while in this operator
}

// Events are optional callbacks. They are called from the engine's goroutines, in no
// promised order, and must not block. A struct of functions, so that new events
// break nobody.
type Events struct {
	TaskStarted  func(TaskInfo)
	TaskFinished func(TaskInfo, error)
	TaskRetried  func(TaskInfo, error)
	RowSkipped   func(*Skipped)
	Stalled      func(report string)
}

// TaskInfo names an attempt.
type TaskInfo struct {
	Stage   int
	Task    int // ordinal of the split (or piece of one), part or block in its stage
	Attempt int
	Origin  Origin
}

// Inflight is a row of the in-flight table: a task that is at work.
type Inflight struct {
	TaskInfo
	State string // "reading", "filter fare > 0.0", "waiting for memory: 412 MiB of 512 MiB held by ..."
	Since time.Duration
	Held  int64
}
