// Package trainer runs training loops in groups of workers that are fed by the data sets of package dataset: Go loops in goroutines or
// processes ([New]), and any program that is written for torchrun ([Command]). Checkpoints hold the position in the data beside the user's files, and are
// committed together; a group that loses a worker goes on from the last commit with the batches that come next.
//
// docs/training.md is for users; docs/design/0004-trainers.md says who talks to whom, and what is durable.
package trainer

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/trainer/launch"
	"github.com/penstock-data/penstock/trainer/store"
)

// Config of a run. The zero value of every field is its default.
type Config struct {
	// Name of the run: letters, digits, and _ . -; "": made of the time. A name that the storage has already is an Exists
	// error, but with Resume.
	Name string
	// Storage is the folder or bucket URL below which the run has a folder of its name; "": penstock-runs. Workers on several
	// machines (Gang, or a launch.Spanning Launcher) need one that all of them reach: a folder is refused then, unless SharedStorage says that it is the same one everywhere.
	Storage string
	// SharedStorage says that the folder Storage is of a file system that all machines have at this place. Nodes of a Gang that find another folder there are refused.
	SharedStorage bool
	// Resume goes on with the run of this name from its last checkpoint; a run that is not there is a NotFound error. Of one that is finished Fit returns the
	// result, with no attempts: nothing is done again.
	Resume bool
	// ResumeAt is the number of the checkpoint that Resume goes back to, also of a run that is finished; 0: the last one. Those after it are given up, and removed, once the workers were started.
	ResumeAt int
	// TakeOver has Resume begin though a controller on another host seems to be at work, which is heard of at least each two minutes: that one commits nothing from then on, and ends.
	TakeOver bool
	// Job that this is an attempt of, and its number, from 1; "": none. A later attempt goes on (Resume) though an earlier one is still at work somewhere, which commits nothing from then on, and ends.
	Job        string
	JobAttempt int64
	// From is another run's checkpoint to begin with: the name of its run, which is in Storage too, or its folder or URL; with #N for checkpoint N, else the last. Its files and metrics are restored, and
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
	// DataProcess serves the data sets of a spec from a process of its own; nil: Data are served by this one.
	DataProcess *DataProcess
	// Settings are what the loop gets as its config: JSON values by name.
	Settings map[string]any
	// Spec is kept in the run's record: what penstock resume starts the run from.
	Spec string
	// Mask is applied to the errors and reasons that the run's status keeps, as secrets may be in
	// paths; nil: they are kept as they are.
	Mask func(string) string
	// Env of worker processes: NAME=value, beside what they inherit from this process. Goroutines have none of their own: Env, Dir, and Resources are Unsupported for them.
	Env []string
	// Dir is the working directory of worker processes; "": this process's.
	Dir string
	// Logs is a folder for the workers' output; "": RUN/logs where the storage is a folder, else penstock-logs/RUN.
	Logs string
	// Output gets what worker processes and the data process print, for people: lines that begin
	// with the name of their worker or "data", and do nothing else to a terminal. nil: this
	// process's stderr. Logs have all bytes.
	Output io.Writer

	// StartTimeout is how long workers that use the library have to connect; 0: 5 minutes. A program that never does (a plain torchrun script) is not waited for.
	StartTimeout time.Duration
	// HangTimeout ends a group in which a worker that has connected gives no sign (a report, a batch, Context.Alive) for so long, or has not ended so long after all loops have returned; 0: 30 minutes,
	// negative: never. A program that never connects is not watched.
	HangTimeout time.Duration
	// ReportTimeout is how long a rank that gave files waits for the reports of the others; 0: 5 minutes.
	ReportTimeout time.Duration
	// StopTimeout is between asking workers to end (SIGTERM) and ending them; 0: 10 seconds.
	StopTimeout time.Duration

	Failures   Failures
	Checkpoint Checkpointing
	Preemption Preemption

	// Gang is this process's among those that run together on several nodes (cluster/gang; penstock train has it from its job); nil: the run is this machine's. Every process of the gang calls Fit
	// with the same configuration: that of node 0 is the controller, the others run the workers of their node for it. Workers are spread evenly over the nodes that are no data nodes (gang.Gang.DataNodes), rank r is on node r / (Workers / nodes). Where there are data nodes, they read and compute for all, and the others do not. Name
	// is that of the job where it is not set. Events are node 0's, and so is the log; of the notices (Preemption), each is one for all. Fit does not close the gang.
	Gang *gang.Gang

	// Launcher starts the workers of this machine; nil: child processes of this one (goroutines, where New has no Processes).
	Launcher launch.Launcher
	// Events tell what happens; nil fields are skipped.
	Events Events
	// Log receives what happens along the way; nil discards it.
	Log *slog.Logger
}

// Resources of one worker.
type Resources struct {
	// CPUs are how many threads a worker process computes in: OMP_NUM_THREADS is set to it, and GOMAXPROCS of a loop in Go, where they are not set. 0: what the machine has, shared evenly by OMP_NUM_THREADS
	// alone. The machine need not have as many.
	CPUs float64
	GPUs int // whole ones, leased until the run ends
	// Memory of the worker's process tree in bytes: above it the worker is ended and counted as out of memory. 0: no limit.
	Memory int64
}

const hangTimeout = 30 * time.Minute

// Data is a data set of a run.
type Data struct {
	Dataset *dataset.Dataset
	// Options as for Dataset.Shards; for an evaluation set GlobalBatch or BatchPerRank is all it needs. A StallTimeout of 0 is [StallTimeout].
	Options dataset.ShardOptions
	// Eval deals every row exactly once, in order, the last step padded with a mask; each loop over it begins at the first row. It is no part of checkpoints.
	Eval bool
	// Locate says more of an error of opening it, as the line of a spec that it is about; nil: there is no more to say.
	Locate func(error) error
}

// DataProcess is a program that serves data sets, as `penstock data` does; see [ServeData].
type DataProcess struct {
	Argv []string
	// Input, where it is not empty, is written to a file that this user alone can read and that goes with the run; its path is one more argument.
	Input string
	// Env of the process: NAME=value, beside what it inherits.
	Env []string
	// Sets are the names of the data sets that it serves; true: for evaluation.
	Sets map[string]bool
}

// Failures are how many of each kind a run outlives without a commit in between: a checkpoint refills them. A group is started
// again from the last one. 0 is the default; negative: none.
type Failures struct {
	Worker int           // a worker's crash, or the loss of the data process; default 3
	Hang   int           // a worker that gave no sign, did not connect, or made no report in time, or did not end; default 3
	Memory int           // a worker, or the data process, ended for its memory; default 1
	Delay  time.Duration // before another start, doubled each time up to a minute; 0: 1 second where a worker was never ready, else none
}

// Checkpointing says what is kept, and how it is written.
type Checkpointing struct {
	store.Policy
	// Async lets a report return as soon as its files are the controller's: the directory is moved away, so that it is gone. One upload goes on at a
	// time; the next report with files waits for it. Where it fails the files are kept in a folder of the temporary folder, which the error names.
	Async bool
	// Parallel uploads of files; 0: 8.
	Parallel int
}

// Preemption of the machine.
type Preemption struct {
	// Notice gets a reason when the machine will be taken away, or the run is to stop for another reason: workers are told, save and end. nil: never. See [Signals].
	Notice <-chan string
	// Grace is between the notice and the end of the workers; 0: 30 seconds.
	Grace time.Duration
}

// Events are called one after another, by one goroutine that waits for them: they must not block. nil ones are skipped.
type Events struct {
	// Status is called with each state of the run; reason says why, where there is more to say.
	Status func(state string, attempt int, reason error)
	// Failed is called for each failure, before another start or the end.
	Failed func(Failure)
	// Reported is called when all ranks have made a report.
	Reported func(report int64, attempt int, metrics map[string]float64)
	// Committed is called for each checkpoint.
	Committed func(store.Manifest)
}

// Failure of an attempt: its first cause.
type Failure struct {
	Attempt int
	Rank    int    // -1: of no worker
	Class   string // worker, hang, memory, or fatal
	Final   bool   // no other attempt follows
	Log     string // file with what the worker printed; "": none
	Err     error
}

// or is the configuration with defaults, checked.
func (c Config) or() (Config, error) {
	bad := func(format string, args ...any) (Config, error) { return c, fault.New(fault.Invalid, format, args...) }
	if c.Gang != nil && c.Name == "" {
		c.Name = c.Gang.Job() // later attempts of the job know it
	}
	if c.Name == "" {
		if c.Resume {
			return bad("a run to resume has a name: set Config.Name")
		}
		c.Name = time.Now().Format("2006-01-02_15-04-05") + fmt.Sprintf("-%04x", rand.Uint32N(1<<16))
	}
	if err := store.CheckName(c.Name); err != nil {
		return c, err
	}
	if c.Storage == "" {
		c.Storage = "penstock-runs"
	}
	switch {
	case c.Workers < 0:
		return bad("%d workers: there is at least one", c.Workers)
	case c.Resources.CPUs < 0 || c.Resources.GPUs < 0 || c.Resources.Memory < 0:
		return bad("resources of a worker are not negative")
	case c.ResumeAt < 0:
		return bad("checkpoints begin at 1, there is no %d", c.ResumeAt)
	case !c.Resume && (c.ResumeAt > 0 || c.TakeOver):
		return bad("a checkpoint to go back to (ResumeAt), and to take a run over (TakeOver), go with Resume")
	case c.Resume && c.From != "":
		return bad("a run goes on (Resume), or begins with the checkpoint of another (From), not both")
	case c.DataProcess != nil && len(c.Data) > 0:
		return bad("data sets are served by the data process, or by this one, not both")
	case c.Failures.Delay < 0 || c.Preemption.Grace < 0 || c.StartTimeout < 0 || c.ReportTimeout < 0 || c.StopTimeout < 0:
		return bad("a time is negative")
	}
	if err := c.Checkpoint.Check(); err != nil {
		return c, err
	}
	if c.Workers == 0 {
		c.Workers = 1
	}
	if n := c.trains(); c.Workers%n != 0 {
		return bad("%d workers on %d nodes: each node has as many as the others, so give a multiple of %d", c.Workers, n, n)
	}
	for _, name := range c.dataNames() {
		if d, ok := c.Data[name]; ok && d.Dataset == nil {
			return bad("data set %q is nil", name)
		}
		if err := store.CheckSet(name); err != nil {
			return c, err
		}
		if strings.Contains(name, "/") {
			return bad("a data set cannot have the name %q", name)
		}
	}
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return bad("Env holds NAME=value, not %q", kv)
		}
	}
	if c.Settings == nil {
		c.Settings = map[string]any{}
	}
	for p, d := range map[*time.Duration]time.Duration{&c.StartTimeout: 5 * time.Minute, &c.HangTimeout: hangTimeout, &c.ReportTimeout: 5 * time.Minute,
		&c.StopTimeout: 10 * time.Second, &c.Preemption.Grace: 30 * time.Second} {
		if *p == 0 {
			*p = d
		}
	}
	c.Data = maps.Clone(c.Data)
	for name, d := range c.Data {
		if d.Options.StallTimeout == 0 {
			d.Options.StallTimeout = StallTimeout(c.HangTimeout)
			c.Data[name] = d
		}
	}
	for p, d := range map[*int]int{&c.Failures.Worker: 3, &c.Failures.Hang: 3, &c.Failures.Memory: 1, &c.Checkpoint.Parallel: 8} {
		if *p == 0 {
			*p = d
		}
	}
	if c.Output == nil {
		c.Output = term.Output(term.Err, term.Colors(term.Err))
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// StallTimeout is that of data sets which have none (dataset.RunOptions.StallTimeout), of a run with a [Config.HangTimeout]: a rank that
// hangs is found by its silence, with its stacks, before the ranks that wait for it in the data give up and look like the cause.
func StallTimeout(hang time.Duration) time.Duration {
	switch {
	case hang < 0:
		return -1
	case hang == 0:
		hang = hangTimeout
	}
	return hang + hang/8 + 10*time.Second
}

// settings is the loop's config as JSON.
func (c *Config) settings() (json.RawMessage, error) {
	b, err := json.Marshal(c.Settings)
	if err != nil {
		return nil, fault.New(fault.Invalid, "settings are JSON values: %w", err)
	}
	return b, nil
}

// dataNames of all data sets, in order.
func (c *Config) dataNames() (names []string) {
	for name := range c.Data {
		names = append(names, name)
	}
	if c.DataProcess != nil {
		for name := range c.DataProcess.Sets {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// eval reports whether a data set is for evaluation.
func (c *Config) eval(name string) bool {
	if c.DataProcess != nil {
		return c.DataProcess.Sets[name]
	}
	return c.Data[name].Eval
}

// logs is the folder of logs of a run, and the run's where it is in that.
func (c *Config) logs(run *store.Run) (dir, within string, err error) {
	if dir = c.Logs; dir == "" {
		if local, ok := run.Local(); ok {
			local, err = filepath.Abs(local)
			return filepath.Join(local, "logs"), local, err
		}
		dir = filepath.Join("penstock-logs", run.Name())
	}
	dir, err = filepath.Abs(dir)
	return dir, "", err
}
