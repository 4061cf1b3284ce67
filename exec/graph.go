package exec

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/driver"
)

// Graph is a translated plan: a tree of stages, in canonical order.
type Graph struct {
	Root   *Stage
	Schema *arrow.Schema // of Root
	// Words are what decides the rows of the graph, by name: the plan, its data. Processes that run it together
	// compare them. An Unsupported error says which step is known to this process only; so does a nil function.
	Words func(ctx context.Context) ([][2]string, error)
}

// InParts reports whether every row comes from a split by itself: the graph is a scan, or a union of scans. Such graphs are written part by part (Sink).
func (g *Graph) InParts() bool {
	if g == nil || g.Root == nil {
		return false
	}
	var of func(s *Stage) bool
	of = func(s *Stage) bool {
		if s.Scan != nil {
			return true
		}
		return s.Limit < 0 && len(s.Ops) == 0 && !slices.ContainsFunc(s.Inputs, func(in *Stage) bool { return !of(in) })
	}
	return of(g.Root)
}

// Stage is either a scan (Scan set) or a cut (Inputs set): the place where the
// blocks of the inputs come together in canonical order, one input after
// another, and at most Limit rows of them go on. Ops then run on every block, as
// one fused task per split (scan) or per block (cut), in parallel, without
// losing the order.
type Stage struct {
	Scan   *Scan
	Inputs []*Stage
	Limit  int64 // rows taken of the inputs; -1: all. Cuts only.
	Ops    []Fused
}

// Fused is an operator with the policy of its step.
type Fused struct {
	Operator
	OnError *OnError // nil: the run's
}

// Scan reads one resolved source.
type Scan struct {
	Source    int // ordinal through all sources of the plan
	Step      string
	Table     driver.Table
	Columns   []string         // as in driver.ScanOptions
	Predicate driver.Predicate // as in driver.ScanOptions
	Limit     int64            // as in driver.ScanOptions: per split, a hint
	Keep      []bool           // from driver.Pruner; nil: all. A split not kept is not opened.
	Tasks     int              // splits read at once, if more than CPUs: for reads that wait for a network
}

// Policy says what happens to a row that a step cannot process.
type Policy uint8

const (
	Fail Policy = iota // the run fails (default)
	Skip               // the row is left out, counted, and sent to the dead letter
)

// OnError is the policy of a step or a run.
type OnError struct {
	Policy Policy
	// Retries runs a failed step again that many times on the same input before
	// Policy applies, where the code is UserCode. Transient codes have their own
	// budgets.
	Retries int
	// MaxRows and MaxRate end the run when more rows, or a larger share of the
	// rows read (judged from 1,000 rows on, and at the end), were skipped; 0 means no
	// such limit. Where splits are written, the share is judged at the end of each part, and both
	// are of the whole job: what finished parts of an earlier run skipped counts, also under Fail.
	MaxRows int64
	MaxRate float64
}

// Options of a run; nil means defaults.
type Options struct {
	// Memory is the byte budget; 0 means half of what the machine (or its cgroup)
	// has available, at most 4 GiB. Ignored when Budget is set.
	Memory int64
	// Budget to share with other runs.
	Budget *Budget
	// CPUs is how many tasks compute at once; 0 means GOMAXPROCS.
	CPUs int
	// Unordered lets blocks come as they are ready. Parts of a graph that is InParts are the same.
	Unordered bool
	// Spans gives the consumer every block of a graph without cuts, also one that only covers rows of which
	// nothing is left, and ends each task that runs with a block that has End set. Rows and Ords of blocks are tracked.
	Spans       bool
	Seed, Epoch uint64
	OnError     OnError
	// DeadLetter receives every skipped row once, in canonical order. It borrows s.
	DeadLetter func(ctx context.Context, s *Skipped) error
	// StallTimeout fails a run in which nothing moves for so long while the
	// consumer waits; 0 means 5 minutes, negative never.
	StallTimeout time.Duration
	// CallTimeout fails (and retries) one call of a reader or an operator that
	// takes longer; 0 means never for operators and 2 minutes for readers.
	CallTimeout time.Duration
	// BatchRows and BatchBytes bound what is read at once; 0 means the driver's
	// defaults, BatchBytes at most 1/16 of the budget.
	BatchRows  int
	BatchBytes int64
	Retry      RetryBudget
	Events     *Events
	// Observe is called once, when the run starts, with a function that gives its
	// statistics at any time, also after its end.
	Observe func(stats func() Stats)
}

// RetryBudget bounds attempts of one task beyond the first, by cause; negative means none.
type RetryBudget struct {
	Unavailable int // reads, transient; 0 means 3
	WorkerLost  int // crash of a child process; 0 means 2: a split that loses three workers is poison
	Exhausted   int // out of memory; 0 means 3
}

// Stream is a run seen by its consumer.
type Stream interface {
	Schema() *arrow.Schema
	// Next returns a block that the caller must Release, or io.EOF. A block has rows,
	// or Skipped, or both. An ordered run fails in order: what comes before is
	// returned first. Not safe for concurrent use.
	Next(ctx context.Context) (*Block, error)
	// Stats may be called at any time, from any goroutine, also after Close.
	Stats() Stats
	// Close cancels the run, waits for its goroutines and frees everything but the
	// blocks handed out. Safe to call while Next waits, and again. Where code does
	// not obey its context for a second, Close returns a Stalled error that names
	// it; what it holds is freed when it returns.
	Close() error
}

// Runner runs graphs: exec/local in this process, exec/remote on a cluster.
type Runner interface {
	Run(ctx context.Context, g *Graph, o *Options) (Stream, error)
	// Write runs g into sink and returns when it is committed. After a failure
	// what was finished stays for the next run of the same job.
	Write(ctx context.Context, g *Graph, sink Sink, o *Options) (Stats, error)
}

// Sink takes the rows of a run, part by part. A part is a run of neighbouring
// splits, written by one task in canonical order; parts are written in any
// order. A graph that is not InParts has one part.
type Sink interface {
	// Begin is called once, first. splits are the plan's, in canonical order (one
	// pseudo split where the graph is not InParts). It returns how they are grouped.
	Begin(ctx context.Context, schema *arrow.Schema, splits []SinkSplit) (*SinkPlan, error)
	// NewPart starts an attempt at a part. Safe for concurrent use. Attempts at the same part
	// never overlap.
	NewPart(ctx context.Context, part int, env *Env) (PartWriter, error)
	// Commit makes the output visible as a whole; all parts are finished.
	Commit(ctx context.Context, env *CommitEnv) error
	// Abort ends a run that failed: unfinished parts are removed as far as
	// possible, finished ones stay for the next run.
	Abort(ctx context.Context) error
}

// CommitEnv is what a Commit may use of the run's: all of it, as the tasks are over.
type CommitEnv struct {
	Alloc memory.Allocator // charges the run's budget, and never waits
	CPUs  int              // calls that compute at once
}

// Joint is a Sink whose parts are written by several processes, each of which has a sink of the same output and job. One of them leads:
// its sink is used as any, but for Adopt. Those of the others see Join, NewPart, Report and Leave.
type Joint interface {
	Sink
	// Join is called instead of Begin, after the leader's, and once. NotFound where the output is not the leader's.
	Join(ctx context.Context, schema *arrow.Schema, splits []SinkSplit) error
	// Report is what the leader has to know of a part whose Finish has returned. Safe for concurrent use.
	Report(part int) ([]byte, error)
	// Adopt takes a part that another process finished as finished. Safe for concurrent use. A part may be adopted again.
	Adopt(ctx context.Context, part int, report []byte) error
	// Leave ends a joined sink. What is finished stays.
	Leave() error
}

// ErrServed is what a Runner returns on a node that worked for another one, when the run is over there: the result is that one's.
var ErrServed = errors.New("this process worked for node 0 of the job, which has the result")

// SinkSplit is a split as a sink sees it.
type SinkSplit struct {
	ID    string
	Rows  int64 // -1 unknown
	Bytes int64 // expected decoded bytes of the columns read; 0 unknown
}

// SinkPlan groups splits into parts.
type SinkPlan struct {
	Parts     []PartRange
	Committed bool // the job is finished already: nothing to do; Parts that are Done say what it wrote
}

// PartRange is a part: splits First to End-1.
type PartRange struct {
	First, End int
	Done       bool // finished by an earlier run: skip its splits
	Rows       int64
	Tally      Tally // if Done
}

// Tally is what the rows of a part came from.
type Tally struct {
	Read    int64            `json:"read"`              // rows read from sources
	Span    int64            `json:"span"`              // rows of the splits, also those that were not read: what OnError.MaxRate is a share of
	Skipped map[string]int64 `json:"skipped,omitempty"` // rows left out, by Skipped.By
}

// Skip counts rows that were left out.
func (t *Tally) Skip(all []Skipped) {
	for i := range all {
		if t.Skipped == nil {
			t.Skipped = map[string]int64{}
		}
		t.Skipped[all[i].By()]++
	}
}

// AllSkipped is how many rows were left out.
func (t *Tally) AllSkipped() (n int64) {
	for _, k := range t.Skipped {
		n += k
	}
	return n
}

// PartWriter writes one attempt at a part. One goroutine calls it; exactly one
// of Finish and Abort ends it.
type PartWriter interface {
	Write(ctx context.Context, b *Block) error // borrows b, which has rows, or Skipped, or both
	// Finish completes the part. t is what Begin of a later run of the job gives of it.
	Finish(ctx context.Context, t Tally) error
	Abort(ctx context.Context) error
}
