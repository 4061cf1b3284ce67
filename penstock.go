// Package penstock is for programs that run on the nodes of a cluster. Init, at the top of main, takes the process's place among those of its job; without a job it is one node of one, so a program is the
// same on a laptop and on a cluster:
//
//	func main() {
//		p, err := penstock.Init()
//		if err == nil {
//			err = work(p)
//		}
//		os.Exit(p.Exit(err))
//	}
//
// A job on several nodes (penstock submit --nodes N) runs the program once on each, and all make the same calls in the same order: node 0 leads, on the others the same call works for it. A plan that is run with
// [Process.Run] gives node 0 its result, and the others [exec.ErrServed]: a program that goes on to another plan does so on all nodes. What decides the plans must be known to all of them: it is
// no result of an earlier one. A training run is made with [Process.Train].
//
// docs/cluster.md is for users, "Your own Go program"; docs/design/0006-nodes-of-a-job.md says what nodes say to each other.
package penstock

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer"
	"github.com/penstock-data/penstock/trainer/store"
)

// What a node says to the processes of jobs, in their environment.
const (
	envJob     = "PENSTOCK_JOB"         // its id
	envCluster = "PENSTOCK_JOB_CLUSTER" // every cluster has a j1
	envAttempt = "PENSTOCK_JOB_ATTEMPT" // from 1
	envCPUs    = "PENSTOCK_JOB_CPUS"    // that are booked for this process
	envMemory  = "PENSTOCK_JOB_MEMORY"  // bytes above which it is ended; not set: no limit
)

// Exit codes: see Process.Code.
const (
	exitFailed = 1
	exitAgain  = 75 // EX_TEMPFAIL: the cluster starts the job again, and counts no failure
)

// gather is how long a node waits for the others' next call of Run: a program may work alone for hours between two plans. A process that ends or is lost ends its job.
const gather = 7 * 24 * time.Hour

// Process is this process's place in its job. Safe for concurrent use. Exit, or Close, ends it.
type Process struct {
	gang         *gang.Gang // nil: it is alone
	job, cluster string     // "": none
	attempt      int64
	cpus         float64 // booked; 0: not said
	memory       int64   // bytes; 0: no limit

	left *remote.Departures // nil: it is alone

	mu     sync.Mutex
	plans  exec.Runner // on all nodes; nil: not asked for yet
	closer io.Closer   // of plans
}

// Init takes this process's place, as the node that started it says in its environment; call it once, first. Where nothing is said the process is node 0 of 1. So is a worker process of a training run
// (trainer.Config.Processes), which has its place from its trainer.Context. Another process that the program has started is refused where the job has several nodes: its own node does not know it.
func Init() (*Process, error) {
	p := &Process{job: os.Getenv(envJob), cluster: os.Getenv(envCluster)}
	var err error
	number := func(name string, parse func(string) error) {
		if s := os.Getenv(name); s != "" && err == nil && parse(s) != nil {
			err = fault.New(fault.Invalid, "%s is %q, which is no number: it is the nodes of a cluster that set it", name, s)
		}
	}
	number(envAttempt, func(s string) (err error) { p.attempt, err = strconv.ParseInt(s, 10, 64); return err })
	number(envCPUs, func(s string) (err error) { p.cpus, err = strconv.ParseFloat(s, 64); return err })
	number(envMemory, func(s string) (err error) { p.memory, err = strconv.ParseInt(s, 10, 64); return err })
	if err != nil {
		return nil, err
	}
	if p.gang, err = gang.Join(); err != nil {
		return nil, fault.New(fault.CodeOf(err), "this process cannot take its place among the nodes of its job: %w", err)
	}
	if p.Nodes() > 1 {
		if p.left, err = remote.NewDepartures(p.gang); err != nil {
			p.gang.Close()
			return nil, err
		}
	}
	return p, nil
}

// Node is this process's number among those of its job, from 0, and Nodes how many these are. Node 0 has the results.
func (p *Process) Node() int {
	if p.gang == nil {
		return 0
	}
	return p.gang.Node()
}

// Nodes: see Node.
func (p *Process) Nodes() int {
	if p.gang == nil {
		return 1
	}
	return p.gang.Nodes()
}

// Job is the id of the job, as penstock jobs has it; "": the process is of none.
func (p *Process) Job() string { return p.job }

// Booked is what the job has booked for this process: CPUs, and bytes of memory above which it is ended; 0: nothing is said of it.
func (p *Process) Booked() (cpus float64, memory int64) { return p.cpus, p.memory }

// Gang connects the processes of a job on several nodes, for what programs have to say to each other; nil where there is one. Close closes it.
func (p *Process) Gang() *gang.Gang { return p.gang }

// Close ends the listening to other nodes. Idempotent; what runs has ended.
func (p *Process) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	c := p.closer
	p.closer = nil
	p.mu.Unlock()
	var err error
	if c != nil {
		err = c.Close()
	}
	if p.left != nil {
		err = errors.Join(err, p.left.Close())
	}
	if p.gang != nil {
		err = errors.Join(err, p.gang.Close())
	}
	return err
}

// Run gives options, of which o may be nil, with which a plan runs on all nodes of the job: rows, files and numbers are those of one process. Results are node 0's: on all others calls return
// exec.ErrServed when the run is over. CPUs and Memory that are not set are what the job has booked on each node (all CPUs, half of the memory). Functions must be registered (ops.RegisterMap and so on) where there are several
// nodes, and output and dead letters be in a bucket or a folder that all nodes have. Of several calls the first one's Log counts there. One plan runs at a time: another one that begins before the stream of the first is closed is Invalid. Not for shards, but in the configuration of Train: the data sets have the CPUs and the memory of it there.
func (p *Process) Run(o *dataset.RunOptions) *dataset.RunOptions {
	var run dataset.RunOptions
	if o != nil {
		run = *o
	}
	if run.CPUs == 0 {
		run.CPUs = int(math.Ceil(p.cpus))
	}
	if run.Memory == 0 && p.memory > 0 {
		run.Memory = max(p.memory/2, shard.MinMemory)
	}
	if run.Runner == nil && p.Nodes() > 1 {
		run.Runner = p.runner(&run)
	}
	return &run
}

// runner is that of all plans of this process.
func (p *Process) runner(o *dataset.RunOptions) exec.Runner {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plans != nil {
		return p.plans
	}
	log := o.Log
	if log == nil { // who waits long for the others says so
		log = slog.New(slog.NewTextHandler(term.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if r, err := remote.New(p.gang, &remote.Options{Log: log, Gather: gather, Departures: p.left}); err == nil {
		p.plans, p.closer = r, r
	} else {
		p.plans = failed{err}
	}
	return p.plans
}

// failed is a Runner that cannot be.
type failed struct{ err error }

func (f failed) Run(context.Context, *exec.Graph, *exec.Options) (exec.Stream, error) {
	return nil, f.err
}

func (f failed) Write(context.Context, *exec.Graph, exec.Sink, *exec.Options) (exec.Stats, error) {
	return exec.Stats{}, f.err
}

// Train makes c the configuration of a run of this job; trainer.New or Command, and Fit, follow. The workers are spread over its nodes, a SIGTERM is a notice (Config.Preemption) where c has none of its own, until ctx
// ends, and a later attempt of the job goes on with the run that an earlier one began. A run without a name has the job's. Outside of a job c stays as it is; a worker process only needs
// the name and the job in it.
//
// Errors: Invalid, where the run would be kept in the job's copy of the working directory, which goes with the job; those of the storage.
func (p *Process) Train(ctx context.Context, c *trainer.Config) error {
	if p.gang != nil {
		c.Gang = p.gang
		c.Data = maps.Clone(c.Data)
		for name, d := range c.Data { // of Run's options: the nodes of a training run each read their part
			d.Options.Runner = nil
			c.Data[name] = d
		}
	}
	if p.job != "" { // every cluster has a j1
		c.Job, c.JobAttempt = p.cluster+"/"+p.job, p.attempt
		if c.Name == "" {
			sum := sha256.Sum256([]byte(p.cluster))
			c.Name = fmt.Sprintf("%s-%x", p.job, sum[:4])
		}
	}
	if p.gang == nil && p.job == "" || trainer.InWorker() {
		return nil
	}
	local := !strings.Contains(c.Storage, "://") // a path
	if local && !filepath.IsAbs(c.Storage) {
		return fault.New(fault.Invalid, "the run would be kept in %q, in the job's copy of the working directory, which is removed when the job ends: make Config.Storage a bucket, or an absolute path on a file system that the nodes share", c.Storage)
	}
	if p.gang != nil && (local || strings.HasPrefix(c.Storage, "file://")) {
		c.SharedStorage = true // the nodes look whether it is
	}
	if p.attempt > 1 && p.Node() == 0 { // of several nodes the first one's goes on
		if err := p.goesOn(ctx, c); err != nil {
			return err
		}
	}
	if c.Preemption.Notice == nil { // from here on Fit hears it
		c.Preemption.Notice = trainer.Signals(ctx)
	}
	return nil
}

// goesOn has a later attempt of a job go on with the run that an earlier one began: that of the same name and spec. The controller before it may be on a node that is not reached any more.
func (p *Process) goesOn(ctx context.Context, c *trainer.Config) error {
	r, err := store.Open(ctx, c.Storage, c.Name)
	if fault.CodeOf(err) == fault.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	spec := r.Record().Spec
	job, begun, err := r.Job(ctx)
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	if c.Resume || spec == c.Spec && (!begun || job == c.Job) {
		c.Resume, c.From = true, ""
	}
	if begun && job == c.Job { // an earlier attempt has gone back already, and on from there
		c.ResumeAt = 0
	}
	return nil
}

// Code is the exit code by which the cluster knows what to do, for the error that the program ends with: 0 where it is nil or, on all nodes but the first, exec.ErrServed; 75 where the same may go well elsewhere, so the job starts
// again and no failure is counted: a training run was preempted, or the other nodes are not reached; else 1. told: node 0 says what went wrong, so this process need not.
func (p *Process) Code(err error) (code int, told bool) {
	other := p != nil && p.Node() > 0
	switch {
	case err == nil:
		return 0, true
	case other && errors.Is(err, exec.ErrServed):
		return 0, true
	case errors.Is(err, trainer.ErrPreempted), errors.Is(err, remote.ErrLost):
		return exitAgain, false
	}
	return exitFailed, other && errors.Is(err, remote.ErrEnded)
}

// Exit closes p, says on stderr what err is, unless node 0 does, and gives the code to exit with: see Code. p may be nil, where Init failed. The program has ended: a plan that another node still runs fails there.
func (p *Process) Exit(err error) int {
	code, told := p.Code(err)
	if !told {
		fmt.Fprintf(term.Err, "%s: %v\n", filepath.Base(os.Args[0]), err)
	}
	if code == 0 && p.left != nil {
		p.left.Leave()
	}
	if cerr := p.Close(); cerr != nil && code == 0 {
		fmt.Fprintf(term.Err, "%s: %v\n", filepath.Base(os.Args[0]), cerr)
	}
	return code
}
