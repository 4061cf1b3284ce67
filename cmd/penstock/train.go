package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	library "github.com/penstock-data/penstock"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer"
	"github.com/penstock-data/penstock/trainer/launch"
	"github.com/penstock-data/penstock/trainer/store"
)

const (
	defaultStorage = "penstock-runs"

	trainExits = `Exit codes: 0 the run finished; 1 it failed; 2 a mistake in the command line or the spec, a name that is taken, a program,
script or working directory that is not there; 75 it was preempted, and can be resumed; 130 interrupted (SIGINT), and can be resumed.`

	trainSignals = `SIGINT ends the workers; a second one, half a second later or more, ends everything at once. SIGTERM and SIGUSR2 say that the machine will be taken away: the workers
save, report and end, within train.preemption.grace. Either way penstock resume goes on from the last checkpoint.`
)

func trainCommand() *cobra.Command {
	var t training
	var r remote
	c := &cobra.Command{
		Use:   "train SPEC [-- COMMAND [ARGUMENT...]]",
		Short: "Train: start workers, feed them with a spec's shards, keep checkpoints, go on after failures",
		Long: `Train starts the workers of a spec with the sections shards and train: processes of a program that is written for torchrun, or
takes its batches from the Python package penstock. One data process on each machine reads for those there. A worker that crashes or hangs costs one restart of the group, from
the last checkpoint and with exactly the batches that come next.

` + remoteHelp + ` Workers are spread evenly over
the nodes, and rank 0 is on the first one, which leads. With --data-nodes M it has M nodes more, without workers and GPUs, which read and compute for the others. The run is kept in --storage, which all nodes must reach, and a later attempt goes on with it.

What follows -- takes the place of train.command. What workers print comes out with their rank in front, what the data process says with [data]; whole logs are in the folder of the run.

` + trainSignals + `

` + trainExits,
		Example: `  penstock train examples/train.yaml
  penstock train examples/train.yaml --workers 4 --set train.config.lr=0.1 -- sh -c 'echo "rank $RANK of $WORLD_SIZE"'
  penstock train examples/train.yaml --name first --resume   # goes on, with the spec as it is now
  penstock train examples/train.yaml --cluster local --storage "$PWD/runs"   # on a node of the cluster
  penstock train examples/train.yaml --from first   # another run, which begins with its last checkpoint`,
		Args: func(cmd *cobra.Command, a []string) error {
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				t.command, a = a[n:], a[:n]
				if len(t.command) == 0 {
					return usage("train: a command is missing behind --; for example: -- python train.py")
				}
			}
			if len(a) > 1 {
				return usage("train: it takes one SPEC, but there is also %q: put the command of the workers behind --", a[1])
			}
			return args("SPEC", 1, 1)(cmd, a)
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			asJob, err := r.asked(cmd, ofDataNodes...)
			if err != nil {
				return err
			}
			sets, err := t.overrides(cmd)
			if err != nil {
				return err
			}
			if asJob {
				return t.asGiven(r.train(cmd, &t, a[0], append(t.sets, sets...)))
			}
			may, err := t.may.trust(false)
			if err != nil {
				return err
			}
			o, s, err := spec.LoadOriginal(a[0], append(t.sets, sets...), may)
			if err != nil {
				return t.asGiven(usageError{err})
			}
			if !t.resume && t.goesBack(cmd) {
				return usage("train: --checkpoint and --take-over go with --resume; another run begins with a checkpoint by --from RUN#N")
			}
			t.cfg = trainer.Config{Name: t.name, Resume: t.resume, ResumeAt: t.at, TakeOver: t.takeOver, From: t.from, Storage: t.storage}
			if s.Train != nil && t.name == "" {
				t.cfg.Name = s.Train.Name
			}
			if t.resume && t.cfg.Name == "" {
				return usage("train: --resume of which run? Give --name, or train.name in the spec")
			}
			return t.run(cmd, o, s, may)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&t.sets, "set", nil, "override a key of the spec: `key=value`, such as train.config.lr=0.1")
	f.StringVar(&t.name, "name", "", "of the run; default: train.name, or made of the time")
	f.StringVar(&t.storage, "storage", "", "folder or bucket `URL` for runs; default: train.storage, or penstock-runs")
	f.BoolVar(&t.resume, "resume", false, "go on with the run of this name, which is there already")
	f.StringVar(&t.from, "from", "", "begin with a checkpoint of another `run`: its name in the storage, or its folder or URL; with #N for checkpoint N, else the last")
	t.flags(c)
	r.flags(c)
	r.dataFlags(c, "what the spec says in run.cpus, else 1")
	return c
}

func resumeCommand() *cobra.Command {
	var t training
	c := &cobra.Command{
		Use:   "resume RUN",
		Short: "Go on with a training run, from its last checkpoint",
		Long: `Resume goes on with a run that penstock train started, and that was interrupted, was preempted, failed, or lost its controller. It takes the
spec and the command from the record of the run, as they were; to change them, use penstock train --resume. The number of workers may be another: the batches
of a step are the same. RUN is a name in --storage, or the folder or URL of the run.

It says which command it runs, and where. A record that others can write is of theirs: one in a folder that is not this user's own, or in a bucket, unless it
is sealed with the key in $PENSTOCK_RUN_KEY. Of such a one it asks on a terminal whether to run it, and elsewhere needs --trust.

It begins at the last checkpoint, or at --checkpoint N: those after it are given up and removed. A run that is finished is left alone without
--checkpoint. One whose controller is seen to live is refused; on another host it counts as lost when nothing was heard of it for two minutes, or
with --take-over.

` + trainSignals + `

` + trainExits,
		Example: `  penstock resume first
  penstock resume first --workers 3 --storage penstock-runs
  penstock resume penstock-runs/first --quiet`,
		Args: args("RUN", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			sets, err := t.overrides(cmd)
			if err != nil {
				return err
			}
			storage, name, err := runAt(a[0], t.storage)
			if err != nil {
				return err
			}
			r, err := store.Open(cmd.Context(), storage, name)
			if err != nil {
				return err
			}
			rec := r.Record()
			foreign := foreignRun(r, storage, name)
			st, err := r.Status(cmd.Context())
			if cerr := r.Close(); cerr != nil {
				return cerr
			}
			if err == nil && st.State == store.Finished && t.at == 0 {
				nothingLeft(cmd.OutOrStdout(), storage, name, "", st.Reports, st.Checkpoint)
				return nil
			}
			if err != nil && fault.CodeOf(err) != fault.NotFound {
				return err
			}
			if rec.Spec == "" {
				return fault.New(fault.Unsupported, "run %q was not started by penstock train: start its program again, with Config.Resume", name)
			}
			started, err := recorded(rec)
			if err != nil {
				return err
			}
			may, err := t.may.trust(false)
			if err != nil {
				return err
			}
			may.Typed = false // by whoever made the record
			if err := t.agreed(cmd, name, started, foreign); err != nil {
				return err
			}
			if storage, err = anywhere(storage); err != nil {
				return err
			}
			if err := enter(cmd.ErrOrStderr(), rec.Dir); err != nil {
				return err
			}
			o := started.spec
			o.Sets = append(o.Sets, sets...)
			s, err := o.Spec(may)
			if err != nil {
				return usageError{err}
			}
			t.cfg = trainer.Config{Name: name, Resume: true, ResumeAt: t.at, TakeOver: t.takeOver, Storage: storage}
			return t.run(cmd, o, s, may)
		},
	}
	c.Flags().StringVar(&t.storage, "storage", defaultStorage, "folder or bucket `URL` that the run is in")
	t.flags(c)
	c.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		type unknown interface { // pflag's
			error
			GetSpecifiedName() string
		}
		if no, ok := errors.AsType[unknown](err); ok && no.GetSpecifiedName() == "set" {
			return usage("resume: a run that is resumed keeps its spec; to go on with another: penstock train SPEC --name RUN --resume --set key=value")
		}
		return flagError(cmd, err)
	})
	return c
}

// training is a run that the command line asks for.
type training struct {
	sets          []string
	command       []string // behind --; nil: the spec's
	name, storage string
	resume        bool
	from          string
	at            int  // checkpoint to go back to; 0: the last
	takeOver      bool // from a controller on another host
	may           permission
	workers       int
	quiet         bool
	cfg           trainer.Config // where it begins
}

func (t *training) flags(c *cobra.Command) {
	colorFlag(c)
	c.Flags().IntVar(&t.workers, "workers", 0, "how many there are; default: the spec's")
	c.Flags().BoolVar(&t.quiet, "quiet", false, "only what goes wrong, and what workers print")
	c.Flags().IntVar(&t.at, "checkpoint", 0, "go back to checkpoint `N`, and give up those after it: they are removed once the workers run; default: the last")
	t.may.flags(c)
	c.Flags().BoolVar(&t.takeOver, "take-over", false, "go on though another host seems to be at work on the run: nothing that it does from then on counts")
}

// goesBack reports whether the command line says something of resuming.
func (t *training) goesBack(cmd *cobra.Command) bool {
	return cmd.Flags().Changed("checkpoint") || cmd.Flags().Changed("take-over")
}

// overrides are the parts of the command line that are kept in the record of the run, as --set has them.
func (t *training) overrides(cmd *cobra.Command) ([]string, error) {
	var sets []string
	if cmd.Flags().Changed("checkpoint") && t.at < 1 {
		return nil, usage("%s: --checkpoint must be at least 1; penstock checkpoints RUN lists them", cmd.Name())
	}
	if cmd.Flags().Changed("workers") {
		if t.workers < 1 {
			return nil, usageError{fault.New(fault.Invalid, "--workers must be at least 1")}
		}
		sets = append(sets, fmt.Sprintf("train.workers=%d", t.workers))
	}
	if t.command != nil {
		var argv []string
		for _, a := range t.command { // what looks like a reference is not one here
			argv = append(argv, strings.ReplaceAll(a, "${", "$${"))
		}
		b, err := json.Marshal(argv)
		if err != nil {
			return nil, fault.New(fault.Internal, "the command: %w", err)
		}
		sets = append(sets, "train.command="+string(b))
	}
	return sets, nil
}

// asGiven calls what overrides made of the command line as the user did: nobody gave those --set.
func (t *training) asGiven(err error) error {
	u, ok := errors.AsType[usageError](err)
	if !ok {
		return err
	}
	text := u.Error()
	if t.command != nil {
		text = strings.Replace(text, ": --set train.command: ", ": the command behind --: ", 1)
	}
	if t.workers > 0 {
		text = strings.Replace(text, ": --set train.workers: ", ": --workers: ", 1)
	}
	return usage("%s", text)
}

// trainable refuses a spec that says not enough for a run.
func trainable(o *spec.Original, s *spec.Spec, may spec.Trust) error {
	if s.Train == nil {
		return usageError{fault.New(fault.Invalid, "%s: the spec has no train section, which says what to run: add `train: {command: [python, train.py]}`, or put the command behind --", o.File)}
	}
	if len(s.Train.Command) == 0 {
		return usageError{fault.New(fault.Invalid, "%s: what do the workers run? Add train.command, or put it on the command line: penstock train %s -- python train.py", o.File, o.File)}
	}
	if _, err := dataSets(o, may, nil); err != nil { // before the run has a name
		return usageError{err}
	}
	return nil
}

// run trains.
func (t *training) run(cmd *cobra.Command, o *spec.Original, s *spec.Spec, may spec.Trust) error {
	if err := trainable(o, s, may); err != nil {
		return err
	}
	place, err := library.Init()
	if err != nil {
		return err
	}
	defer place.Close()
	reads := place.Gang().OnDataNode() // workers are elsewhere, with what they need
	if err := configure(&t.cfg, s.Train, !reads); err != nil {
		return usageError{err}
	}
	if err := launch.Check(launch.Worker{Argv: s.Train.Command, Dir: t.cfg.Dir, Env: append(os.Environ(), t.cfg.Env...)}); err != nil && !reads {
		return usageError{err}
	}
	self, err := os.Executable()
	if err != nil {
		return fault.New(fault.Unsupported, "the path of this program: %w", err)
	}
	c := &t.cfg
	c.Spec, c.Mask = o.String(), secrets.Text
	input := c.Spec
	if reads {
		input = withBooked(o, s, place).String()
	}
	hand := place.Node() > 0
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	if err := place.Train(ctx, c); err != nil { // it may wait for the storage
		return err
	}
	signal.Reset(syscall.SIGTERM) // which ends other commands
	c.Preemption.Notice = trainer.Signals(ctx)
	c.DataProcess = &trainer.DataProcess{Argv: append([]string{self, "data", "--control"}, granted(&may)...), Input: input, Sets: map[string]bool{spec.TrainName: false}}
	for name, d := range s.Train.Data {
		c.DataProcess.Sets[name] = d.Eval
	}
	c.Output = others(cmd)
	lines := newLineLog(cmd.ErrOrStderr(), t.quiet || hand)
	c.Log = slog.New(lines)
	defer endAtSecond(cmd.Context())()
	begin := time.Now()
	r, err := trainer.Command(s.Train.Command, *c).Fit(ctx)
	lines.close()
	code, _ := place.Code(err)
	switch {
	case r == nil && fault.CodeOf(err) == fault.Exists && place.Job() != "": // the name
		return usage("there is a run %q in %s: to go on with it submit this again with --name %[1]s --resume; or take another name", c.Name, c.Storage)
	case r == nil && fault.CodeOf(err) == fault.Exists:
		return usageError{err}
	case r == nil && code == exitPreempted:
		return exitError{exitPreempted, err}
	case r == nil:
		return err
	case hand: // node 0 says how it ended
	case r.Attempts == 0 && r.State == store.Finished:
		nothingLeft(cmd.OutOrStdout(), c.Storage, r.Run, place.Job(), r.Reports, r.Checkpoint)
		return err
	default:
		t.summary(cmd.OutOrStdout(), r, place.Job(), time.Since(begin))
	}
	switch {
	case err == nil:
		return nil
	case code == exitPreempted:
		return exitError{exitPreempted, err}
	}
	return exitError{exitFailed, errors.New(lastWord(err, r.Failures))} // whatever it was: the command line was right
}

// withBooked is a spec whose run has the CPUs and the memory that a job has booked for a data node, where it says nothing of them: nothing else is there that needs any.
func withBooked(o *spec.Original, s *spec.Spec, place *library.Process) *spec.Original {
	with := *o
	with.Sets = slices.Clone(o.Sets)
	cpus, memory := place.Booked()
	if s.Run.CPUs == 0 && cpus > 0 {
		with.Sets = append(with.Sets, fmt.Sprintf("run.cpus=%d", int(math.Ceil(cpus))))
	}
	if s.Run.Memory == 0 && memory > 0 {
		with.Sets = append(with.Sets, fmt.Sprintf("run.memory=%d", max(memory/2, shard.MinMemory)))
	}
	return &with
}

// killTime is how long processes have to be gone after SIGKILL.
const killTime = 5 * time.Second

// endAtSecond ends everything at the second SIGINT (the first ends ctx), until what it returns is called: what workers have started would outlive this process.
func endAtSecond(ctx context.Context) (stop func()) {
	in := make(chan os.Signal, 2)
	signal.Notify(in, os.Interrupt)
	over := make(chan struct{})
	go func() {
		if ctx.Err() == nil { // else the first was heard before
			select {
			case <-in:
			case <-over:
				return
			}
		}
		select {
		case <-time.After(sameSignal):
		case <-over:
			return
		}
		for len(in) > 0 {
			<-in
		}
		select {
		case <-in:
		case <-over:
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		launch.KillAll(ctx)
		os.Exit(exitSignal + int(syscall.SIGINT))
	}()
	return func() {
		signal.Stop(in)
		close(over)
	}
}

// lastWord is an error in one sentence, with the log of the worker that it is of. What the worker said itself has been printed.
func lastWord(err error, failures []trainer.Failure) string {
	text := firstLine(err.Error())
	if n := len(failures); n > 0 && failures[n-1].Log != "" && failures[n-1].Final && !strings.Contains(text, failures[n-1].Log) {
		text += " (log: " + failures[n-1].Log + ")"
	}
	return text
}

// firstLine of an error; the end of a log, or a stack, may follow.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSuffix(line, ":")
}

// configure makes the train section a configuration; what is set in c already stays. Variables that workers inherit must be set where there are some.
func configure(c *trainer.Config, t *spec.Train, workers bool) error {
	if c.Storage == "" {
		if c.Storage = t.Storage; c.Storage == "" {
			c.Storage = defaultStorage
		}
	}
	if err := spec.Lasting(c.Storage); err != nil {
		return fault.New(fault.Invalid, "--storage: %w", err) // that of the spec was looked at
	}
	c.Workers = t.Ranks()
	if r := t.Resources; r != nil {
		c.Resources = trainer.Resources{CPUs: r.CPUs, GPUs: r.GPUs, Memory: int64(r.Memory)}
	}
	c.Settings = map[string]any{}
	for name, v := range t.Config {
		c.Settings[name] = v
	}
	for _, kv := range t.Env {
		if strings.Contains(kv, "=") {
			c.Env = append(c.Env, kv)
		} else if _, ok := os.LookupEnv(kv); !ok && workers {
			return fault.New(fault.Invalid, "train.env: variable %s is not set here, and the workers need it", kv)
		}
	}
	c.Dir, c.Logs = t.WorkingDir, t.Logs
	c.StartTimeout, c.ReportTimeout, c.StopTimeout = time.Duration(t.StartTimeout), time.Duration(t.ReportTimeout), time.Duration(t.StopTimeout)
	if t.HangTimeout != nil {
		if c.HangTimeout = time.Duration(*t.HangTimeout); c.HangTimeout == 0 {
			c.HangTimeout = -1
		}
	}
	if f := t.Failures; f != nil {
		c.Failures = trainer.Failures{Worker: budget(f.Worker), Hang: budget(f.Hang), Memory: budget(f.Memory), Delay: time.Duration(f.Delay)}
	}
	if k := t.Checkpoints; k != nil {
		c.Checkpoint = trainer.Checkpointing{Async: k.Upload == "async", Parallel: k.Parallel, Policy: store.Policy{KeepLast: k.KeepLast, KeepEvery: k.KeepEvery}}
		if k.KeepAll {
			c.Checkpoint.KeepLast = -1
		}
		if b := k.KeepBest; b != nil {
			c.Checkpoint.KeepBest, c.Checkpoint.Metric, c.Checkpoint.Order = max(b.N, 1), b.Metric, b.Order
		}
	}
	if p := t.Preemption; p != nil {
		c.Preemption.Grace = time.Duration(p.Grace)
	}
	return nil
}

// budget is a number of failures as the configuration has it, in which 0 is the default.
func budget(n *int) int {
	switch {
	case n == nil:
		return 0
	case *n == 0:
		return -1
	}
	return *n
}

// summary is the last line, and what to do next.
func (t *training) summary(w io.Writer, r *trainer.Result, job string, took time.Duration) {
	state, attempts := r.State, some(int64(r.Attempt), "attempt")
	if state == store.Failed && fault.CodeOf(r.Err) == fault.Canceled {
		state = "interrupted"
	}
	if r.Attempts != r.Attempt {
		attempts += fmt.Sprintf(" (this time %d)", r.Attempts)
	}
	fmt.Fprintf(w, "%s: %s after %s in %s, %s in %s", r.Run, state, some(r.Reports, "report"), attempts, lastCheckpoint(r.Checkpoint), seconds(took))
	if len(r.Metrics) > 0 {
		fmt.Fprintf(w, "; %s", metricsText(r.Metrics))
	}
	if len(r.Late) > 0 {
		who, after := "rank ", "the last checkpoint"
		if len(r.Late) > 1 {
			who = "ranks "
		}
		if r.Checkpoint == 0 {
			after = "the start"
		}
		who += strings.Trim(strings.Join(strings.Fields(fmt.Sprint(r.Late)), ", "), "[]")
		fmt.Fprintf(w, "; %s did not end within the grace, and had to be ended: what came after %s is lost", who, after)
	}
	fmt.Fprintln(w)
	if r.State != store.Finished && (job == "" || r.State != store.Preempted) { // else the cluster starts it again
		hint := goOn(t.cfg.Storage, r.Run, job)
		if t.resume && job == "" { // its spec is that of this command, perhaps another
			hint = "go on with the same command; " + resumeHint(t.cfg.Storage, r.Run) + " takes the spec that the run began with"
		}
		fmt.Fprintln(w, hint)
	}
}

// nothingLeft says that a run is finished, and what may come of it; job is that of penstock train --cluster, if any.
func nothingLeft(w io.Writer, storage, name, job string, reports int64, checkpoint int) {
	fmt.Fprintf(w, "%s is finished: %s, %s; nothing was done", name, some(reports, "report"), lastCheckpoint(checkpoint))
	if checkpoint > 0 {
		train := "penstock train SPEC --from " + inStorage(storage, name)
		if job != "" {
			train = "the same penstock train --cluster, with another --name and --from " + name
		}
		fmt.Fprint(w, ". Another run begins with its checkpoint: ", train)
	}
	fmt.Fprintln(w)
}

func lastCheckpoint(n int) string {
	if n == 0 {
		return "no checkpoint"
	}
	return fmt.Sprintf("last checkpoint %d", n)
}

// goOn says how a run goes on that was a job, of which the files are gone when it is over; "": it was none.
func goOn(storage, name, job string) string {
	if job == "" {
		return "go on with: " + resumeHint(storage, name)
	}
	return fmt.Sprintf("it was job %s of a cluster (penstock jobs %[1]s says whether it starts again); go on, after penstock submit, by submitting the program with Config.Name %q and Config.Resume, after penstock train --cluster with the same command, and --name %[2]s --resume", filepath.Base(job), name)
}

// resumeHint is the command that goes on with a run.
func resumeHint(storage, name string) string { return "penstock resume " + inStorage(storage, name) }

// inStorage is a run as the command line names it.
func inStorage(storage, name string) string {
	if storage == defaultStorage {
		return name
	}
	return name + " --storage " + storage
}

// runAt splits what names a run: a name in storage, or a folder or URL.
func runAt(run, storage string) (in, name string, err error) {
	run = strings.TrimRight(run, "/")
	if i := strings.LastIndexByte(run, '/'); i >= 0 {
		if strings.Contains(run, "?") {
			return "", "", usage("%s: give the name of the run alone, and the bucket with --storage", run)
		}
		storage, run = run[:i], run[i+1:]
		if storage == "" {
			storage = "/"
		}
	}
	return storage, run, store.CheckName(run)
}

// anywhere is a storage as it is called from any folder.
func anywhere(storage string) (string, error) {
	if strings.Contains(storage, "://") {
		return storage, nil
	}
	abs, err := filepath.Abs(storage)
	if err != nil {
		return "", fault.New(fault.Unsupported, "the working directory: %w", err)
	}
	return abs, nil
}

// enter goes to the folder that a run was started in, from which its paths count. Where that is not there, they count from here.
func enter(log io.Writer, dir string) error {
	here, err := os.Getwd()
	if err != nil || dir == "" || dir == here {
		return nil
	}
	if err := os.Chdir(dir); err != nil {
		fmt.Fprintf(log, "penstock: warning: the run was started in %s, which is not there: its paths count from here\n", dir)
		return nil
	}
	fmt.Fprintf(log, "penstock: in %s, where the run was started\n", dir)
	return nil
}

// lineLog writes what a run says about itself: a line each.
type lineLog struct {
	least slog.Level
	times bool // each line begins with its time
	lines chan string
	done  chan struct{}
}

const (
	logLines = 1000        // that wait for a terminal which takes nothing; others are left out
	logTime  = time.Second // for the last ones to leave
)

// newLineLog writes in a goroutine of its own: a terminal that takes nothing (Ctrl-S, a pipe that nobody reads) must not hold up the run. Close it.
func newLineLog(w io.Writer, quiet bool) *lineLog {
	l := &lineLog{least: slog.LevelInfo, lines: make(chan string, logLines), done: make(chan struct{})}
	if quiet {
		l.least = slog.LevelWarn
	}
	go func() {
		defer close(l.done)
		for s := range l.lines {
			_, _ = io.WriteString(w, s) // there is nobody to tell
		}
	}()
	return l
}

// close waits for what was said to be written, for a second.
func (l *lineLog) close() {
	close(l.lines)
	select {
	case <-l.done:
	case <-time.After(logTime):
	}
}

func (l *lineLog) Enabled(_ context.Context, level slog.Level) bool { return level >= l.least }
func (l *lineLog) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *lineLog) WithGroup(string) slog.Handler                    { return l }

func (l *lineLog) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	if l.times {
		b.WriteString(r.Time.Format(time.RFC3339) + " ")
	}
	b.WriteString("penstock: ")
	if r.Level >= slog.LevelWarn {
		b.WriteString("warning: ")
	}
	b.WriteString(r.Message)
	sep := ": "
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "error", "err", "why":
			if a.Value.String() == "" {
				return true
			}
			b.WriteString(sep + firstLine(a.Value.String()))
		case "data":
			fmt.Fprintf(&b, "%sdata set %s", sep, a.Value)
		default: // the message has it
			return true
		}
		sep = ", "
		return true
	})
	select {
	case l.lines <- term.Line(b.String()) + "\n":
	default: // left out
	}
	return nil
}
