//go:build ignore

// The line above goes when packages launch and store are there.

// Package trainer runs training loops in groups of workers that are fed by the data sets of package dataset: Go loops in goroutines or
// processes ([New]), and any program that is written for torchrun ([Command]). Checkpoints hold the position in the data beside the user's files, and are
// committed together; a group that loses a worker goes on from the last commit with the batches that come next.
//
// docs/design/0004-trainers.md says who talks to whom, and what is durable.
package trainer

import (
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/trainer/launch"
	"github.com/penstock-data/penstock/trainer/store"
)

// Config of a run. The zero value of every field is its default.
type Config struct {
	// Name of the run: letters, digits, and _ . -; "": made of the time. A name that the storage has already is an Exists
	// error, but with Resume.
	Name string
	// Storage is the folder or bucket URL below which the run has a folder of its name; "": penstock-runs. Workers on several
	// machines need one that all of them reach.
	Storage string
	// Resume goes on with the run of this name from its last checkpoint; a run that is not there is a NotFound error.
	Resume bool
	// From is another run's checkpoint to begin with: URL of its run, with #N for checkpoint N, else the last. Its files and metrics are restored, and
	// the states of those data sets that this run has under the same name and plan; others begin anew, which the log says.
	From string

	// Workers is their number; 0: 1.
	Workers   int
	Resources Resources
	// Processes runs the workers of New in processes of their own: this program again, up to its call of Fit, which runs the loop and ends the
	// process. What main does before it is done in every worker.
	Processes bool
	// Data sets by name. A loop opens them by Context.Shard(name).
	Data map[string]Data
	// Settings are what the loop gets as its config: JSON values by name.
	Settings map[string]any
	// Env of worker processes: NAME=value, beside what they inherit from this process.
	Env []string
	// Dir is the working directory of worker processes; "": this process's.
	Dir string
	// Logs is a folder for the workers' output; "": RUN/logs where the storage is a folder, else penstock-logs/RUN.
	Logs string

	// StartTimeout is how long workers that use the library have to connect; 0: 5 minutes. A program that never does (a plain torchrun script) is not waited for.
	StartTimeout time.Duration
	// HangTimeout ends a group in which a worker that has connected gives no sign (a report, a batch, Context.Alive) for so long; 0: 30 minutes, negative: never.
	HangTimeout time.Duration
	// ReportTimeout is how long a rank that gave files waits for the reports of the others; 0: 5 minutes.
	ReportTimeout time.Duration
	// StopTimeout is between asking workers to end (SIGTERM) and ending them; 0: 10 seconds.
	StopTimeout time.Duration

	Failures   Failures
	Checkpoint Checkpointing
	Preemption Preemption

	// Launcher starts the workers; nil: child processes of this one (goroutines, where New has no Processes).
	Launcher launch.Launcher
	// Events tell what happens; nil fields are skipped.
	Events Events
}

// Resources of one worker.
type Resources struct {
	CPUs float64 // 0: what the machine has, shared evenly; sets OMP_NUM_THREADS where it is not set
	GPUs int     // whole ones, leased until the run ends
	// Memory of the worker's process tree in bytes: above it the worker is ended and counted as out of memory. 0: no limit.
	Memory int64
}

// Data is a data set of a run.
type Data struct {
	Dataset *dataset.Dataset
	// Options as for Dataset.Shards; for an evaluation set GlobalBatch or BatchPerRank is all it needs.
	Options dataset.ShardOptions
	// Eval deals every row exactly once, in order, the last step padded with a mask; each loop over it begins at the first row. It is no part of checkpoints.
	Eval bool
}

// Failures are how many of each kind a run outlives without a commit in between: a checkpoint refills them. A group is started
// again from the last one. 0 is the default; negative: none.
type Failures struct {
	Worker int // a worker's crash or hang, or the loss of the data process; default 3
	Memory int // a worker, or the data process, ended for its memory; default 1
	Delay  time.Duration // before another start, doubled each time up to a minute; 0: 1 second where a worker was never ready, else none
}

// Checkpointing says what is kept, and how it is written.
type Checkpointing struct {
	store.Policy
	// Async lets a report return as soon as its files are the controller's: the directory is moved away, so that it is gone. One upload goes on at a
	// time; the next report with files waits for it.
	Async bool
	// Parallel uploads of files; 0: 8.
	Parallel int
}

// Preemption of the machine.
type Preemption struct {
	// Grace is between the notice and the end of the workers; 0: 30 seconds.
	Grace time.Duration
}
