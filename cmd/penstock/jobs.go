package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/cluster"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/trainer/store"
)

const (
	// awayMost is how long a command that follows a job goes on without its head.
	awayMost = 10 * time.Minute
	// lastLogs is how long what an ended job has printed may take to come.
	lastLogs = 30 * time.Second
	// stopGrace is what a job gets to end in that is interrupted, or stopped without another one: more than a training run takes by itself, whose workers save for 30 s after the notice.
	stopGrace = time.Minute

	remoteHelp = `With --cluster it is a job of a cluster: --working-dir, by default the folder that the command is given in, is sent to the head, less what its file
.penstockignore names, and the job runs in a copy of it on a node. Data and output are not in that copy: name them by bucket, or by an absolute path that all nodes have. What the job prints
comes out here, and the command exits as it does. SIGINT stops the job; a second one leaves it to end by itself. If its node is lost, it starts again on another.
With --nodes N it is a process on each of N nodes, with those resources each; when one fails or is lost, all start again.`
)

// remote is a job that the command line asks for.
type remote struct {
	at           whereabouts
	needs        offer
	dir          string
	env, secrets []string
	id           string
	nodes        int
	data         dataNodes
	retries      int64
	detach       bool
	summary      bool        // the last line of what the job prints is one
	submitted    bool        // there is a job, whose processes speak now
	summed       func() bool // they have printed a summary
}

func (r *remote) flags(c *cobra.Command) {
	r.at.flags(c)
	r.needs.flags(c, "of a job: CPUs that it gets on each node; default: what the spec says, else 1", "of a job: GPUs that it gets on each node", "of a job: memory on each node above which it is ended, such as 4GiB; default: no limit")
	f := c.Flags()
	f.Lookup("resource").Usage = "of a job: another resource that it gets on each node, `name=number`"
	f.Lookup("labels").Usage = "of a job: labels that its nodes must have, `key=value,...`"
	f.IntVar(&r.nodes, "nodes", 1, "of a job: on how many nodes it runs, together")
	f.StringVar(&r.dir, "working-dir", "", "of a job: the `folder` that it gets a copy of; default: the current one")
	f.StringArrayVar(&r.env, "env", nil, "of a job: a variable, `NAME=value`, or NAME for that of here")
	f.StringArrayVar(&r.secrets, "secret", nil, "of a job: a variable with the value of here that no record, list or log of Penstock shows: `NAME`")
	f.StringVar(&r.id, "id", "", "of a job: submitting the same `id` and content again is submitting once")
	f.Int64Var(&r.retries, "retries", 0, "of a job: how many exits with an error it survives; a lost node and three crashes are always survived")
	f.BoolVar(&r.detach, "detach", false, "of a job: print its id and leave")
}

// dataNodes are those that the command line asks for.
type dataNodes struct {
	nodes  int
	cpus   float64
	memory string
	labels []string
}

// ofDataNodes are the flags of data nodes.
var ofDataNodes = []string{"data-nodes", "data-cpus", "data-memory", "data-labels"}

// dataFlags are for jobs that may be training runs. cpus says what a data node has by default.
func (r *remote) dataFlags(c *cobra.Command, cpus string) {
	f := c.Flags()
	f.IntVar(&r.data.nodes, "data-nodes", 0, "of a job: on how many nodes more it runs, which read and compute for the workers of the others")
	f.Float64Var(&r.data.cpus, "data-cpus", 0, "of a job: `CPUs` that it gets on each data node; default: "+cpus)
	f.StringVar(&r.data.memory, "data-memory", "", "of a job: memory on each data node above which it is ended, such as 4GiB; default: no limit")
	f.StringSliceVar(&r.data.labels, "data-labels", nil, "of a job: labels that its data nodes must have, `key=value,...`; --labels are for the others")
}

// read gives the data nodes of a job.
func (d *dataNodes) read() (n cluster.DataNodes, err error) {
	switch {
	case d.nodes < 0:
		return n, usage("--data-nodes %d: a job has 0 or more", d.nodes)
	case d.nodes == 0 && (d.cpus != 0 || d.memory != "" || d.labels != nil):
		return n, usage("--data-cpus, --data-memory and --data-labels go with --data-nodes")
	}
	if err := checkCPUs("--data-cpus", d.cpus); err != nil {
		return n, err
	}
	n.Nodes, n.Needs.CPUs = d.nodes, d.cpus
	if d.memory != "" {
		size, err := spec.ParseSize(d.memory)
		if err != nil {
			return n, usage("--data-memory: %w", err)
		}
		n.Needs.Memory = int64(size)
	}
	if d.nodes > 0 {
		n.Labels, err = pairs("--data-labels", d.labels)
	}
	return n, err
}

// ofJobs are flags that say nothing without --cluster.
var ofJobs = []string{"token-file", "cpus", "gpus", "memory", "resource", "labels", "working-dir", "env", "secret", "id", "retries", "detach", "nodes"}

// asked says whether it is to be a job. Flags of jobs, and more, without one are a mistake.
func (r *remote) asked(cmd *cobra.Command, more ...string) (bool, error) {
	if cmd.Flags().Changed("cluster") {
		if r.at.cluster == "" {
			return false, usage("%s: --cluster is empty: want HOST:PORT, the folder of a head, or %s", cmd.Name(), local)
		}
		return true, nil
	}
	for _, name := range append(ofJobs, more...) {
		if cmd.Flags().Changed(name) {
			return false, usage("%s: --%s goes with --cluster", cmd.Name(), name)
		}
	}
	return false, nil
}

// job begins a job of what the command line says. The variables of the job are those of this process from now on: specs refer to them.
func (r *remote) job(specPath string) (j cluster.Job, inside string, err error) {
	needs, labels, err := r.needs.read()
	if err != nil {
		return j, "", err
	}
	if r.nodes < 1 {
		return j, "", usage("--nodes %d: a job runs on 1 or more", r.nodes)
	}
	if r.retries < 0 {
		return j, "", usage("--retries cannot be less than 0")
	}
	data, err := r.data.read()
	if err != nil {
		return j, "", err
	}
	j = cluster.Job{ID: r.id, Env: map[string]string{}, Secrets: map[string]string{}, Nodes: r.nodes, Needs: needs, Labels: labels, Data: data, Crashes: 3, Retries: r.retries}
	here := func(flag, name string) (string, error) {
		v, ok := os.LookupEnv(name)
		if !ok {
			return "", usage("--%s %s: the variable is not set here", flag, name)
		}
		return v, nil
	}
	for _, kv := range r.env {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			if v, err = here("env", k); err != nil {
				return j, "", err
			}
		}
		if err := os.Setenv(k, v); err != nil {
			return j, "", usage("--env %s: %w", kv, err)
		}
		j.Env[k] = v
	}
	for _, k := range r.secrets {
		if strings.Contains(k, "=") {
			return j, "", usage("--secret takes the name of a variable; its value would be seen on a command line")
		}
		if _, shown := j.Env[k]; shown {
			return j, "", usage("--env and --secret both give %s: what --env gives is on record", k)
		}
		if j.Secrets[k], err = here("secret", k); err != nil {
			return j, "", err
		}
	}
	j.WorkingDir, inside, err = r.folder(specPath)
	return j, inside, err
}

// folder is the working directory, and the spec as it is called there.
func (r *remote) folder(specPath string) (dir, inside string, err error) {
	if dir, err = filepath.Abs(r.dir); err != nil { // "": the current one
		return "", "", usage("--working-dir: %w", err)
	}
	file, err := filepath.Abs(specPath)
	if err != nil {
		return "", "", usage("%s: %w", specPath, err)
	}
	if home, err := os.UserHomeDir(); r.dir == "" && (dir == string(filepath.Separator) || err == nil && dir == home) {
		return "", "", usage("all of %s would be sent to the cluster: give the folder that the job needs with --working-dir", dir)
	}
	inside, err = filepath.Rel(dir, file)
	if err != nil || inside == ".." || strings.HasPrefix(inside, ".."+string(filepath.Separator)) {
		return "", "", usage("%s is not in %s, which is what the nodes get: give a folder that holds it with --working-dir", specPath, dir)
	}
	inside = filepath.ToSlash(inside)
	if err := cluster.CheckSent(dir, inside); err != nil {
		return "", "", usageError{err}
	}
	return dir, inside, nil
}

// stays refuses output that would be lost with the job's process, or removed with its copy of the working directory. what is a key of the spec, or a flag.
func stays(what, path string) error {
	if err := spec.Lasting(path); err != nil {
		return usage("%s: %w", what, err)
	}
	if path == "" || strings.Contains(path, "://") || filepath.IsAbs(path) {
		return nil
	}
	how := what + " ..."
	if !strings.HasPrefix(what, "--") {
		how = "--set " + what + "=..."
	}
	return usage("%s is %s, in the job's copy of the working directory, which is removed when the job ends: name a bucket, or an absolute path on a file system that the nodes share (%s)", what, path, how)
}

// run submits penstock run.
func (r *remote) run(cmd *cobra.Command, path, name string, sets []string, may *permission, asJSON, quiet bool) error {
	j, inside, err := r.job(path)
	if err != nil {
		return err
	}
	t, err := may.trust(false)
	if err != nil {
		return err
	}
	s, err := spec.Load(path, sets, t)
	if err != nil {
		return usageError{err}
	}
	if err := s.CheckSink(); err != nil {
		return usageError{err}
	}
	if k := s.Sink; k != nil {
		switch {
		case k.Parquet != nil:
			err = stays("sink.parquet.path", k.Parquet.Path)
		case k.CSV != nil:
			err = stays("sink.csv.path", k.CSV.Path)
		case k.JSON != nil:
			err = stays("sink.json.path", k.JSON.Path)
		case k.IPC != nil:
			err = stays("sink.ipc.path", k.IPC.Path)
		}
	}
	if e := s.Run.OnError; err == nil && e != nil {
		err = stays("run.on_error.dead_letter", e.DeadLetter)
	}
	if err != nil {
		return err
	}
	if j.Needs.CPUs == 0 {
		j.Needs.CPUs = float64(max(s.Run.CPUs, 1))
	}
	if s.Run.CPUs == 0 { // not all of the node's
		sets = append(sets, fmt.Sprintf("run.cpus=%d", int(math.Ceil(j.Needs.CPUs))))
	}
	switch most := j.Needs.Memory; {
	case most == 0:
	case s.Run.Memory == 0:
		sets = append(sets, fmt.Sprintf("run.memory=%d", max(most/2, 1<<20)))
	case int64(s.Run.Memory) > most:
		return usage("--memory %s is less than the budget of the spec: run.memory is %s", exec.Bytes(most), exec.Bytes(int64(s.Run.Memory)))
	}
	j.Name = cmp.Or(name, secrets.Text(s.Name), filepath.Base(path))
	j.Argv = []string{"penstock", "run", inside}
	for _, x := range sets {
		j.Argv = append(j.Argv, "--set", x)
	}
	j.Argv = append(j.Argv, may.again()...)
	if asJSON {
		j.Argv = append(j.Argv, "--json")
		r.summary = true
	}
	return r.submit(cmd, j, quiet)
}

// train submits penstock train. sets are all overrides.
func (r *remote) train(cmd *cobra.Command, t *training, path string, sets []string) error {
	j, inside, err := r.job(path)
	if err != nil {
		return err
	}
	may, err := t.may.trust(false)
	if err != nil {
		return err
	}
	o, s, err := spec.LoadOriginal(path, sets, may)
	if err != nil {
		return usageError{err}
	}
	if err := trainable(o, s, may); err != nil {
		return err
	}
	if !t.resume && t.goesBack(cmd) {
		return usage("train: --checkpoint and --take-over go with --resume; another run begins with a checkpoint by --from RUN#N")
	}
	storage := cmp.Or(t.storage, s.Train.Storage)
	if storage == "" {
		return usage("train: the run would be kept in %s, in the job's copy of the working directory, which is removed when the job ends: give --storage, a bucket or an absolute path on a file system that the nodes share", defaultStorage)
	}
	what := "train.storage"
	if t.storage != "" {
		what = "--storage"
	}
	if err := stays(what, storage); err != nil {
		return err
	}
	name := cmp.Or(t.name, s.Train.Name, r.id)
	if name == "" && t.resume {
		return usage("train: --resume of which run? Give --name, or train.name in the spec")
	}
	if name == "" { // the same in all attempts
		name = time.Now().Format("2006-01-02_15-04-05") + fmt.Sprintf("-%04x", rand.Uint32N(1<<16))
	}
	if err := store.CheckName(name); err != nil {
		return usageError{err}
	}
	workers := s.Train.Ranks()
	if workers%r.nodes != 0 {
		return usage("--nodes %d: %s cannot be spread evenly over them; give --workers %d, or another multiple", r.nodes, some(int64(workers), "worker"), (workers+r.nodes-1)/r.nodes*r.nodes)
	}
	workers /= r.nodes // on each
	of := s.Train.Resources
	if of == nil {
		of = &spec.Resources{}
	}
	if j.Needs.CPUs == 0 {
		j.Needs.CPUs = float64(workers) * cmp.Or(of.CPUs, 1)
	}
	if j.Needs.GPUs == 0 {
		j.Needs.GPUs = workers * of.GPUs
	}
	if j.Data.Nodes > 0 && j.Data.Needs.CPUs == 0 {
		j.Data.Needs.CPUs = float64(max(s.Run.CPUs, 1))
	}
	j.Name = name
	j.Argv = []string{"penstock", "train", inside, "--name", name}
	if t.storage != "" {
		j.Argv = append(j.Argv, "--storage", t.storage)
	}
	j.Argv = append(j.Argv, t.may.again()...)
	for _, x := range sets {
		j.Argv = append(j.Argv, "--set", x)
	}
	if t.resume {
		j.Argv = append(j.Argv, "--resume")
	}
	if t.at > 0 {
		j.Argv = append(j.Argv, "--checkpoint", strconv.Itoa(t.at))
	}
	if t.takeOver {
		j.Argv = append(j.Argv, "--take-over")
	}
	if t.from != "" {
		j.Argv = append(j.Argv, "--from", t.from)
	}
	if t.quiet {
		j.Argv = append(j.Argv, "--quiet")
	}
	return r.submit(cmd, j, t.quiet)
}

// muchToSend is what takes so long to send that people want to know why they wait.
const muchToSend = 16 << 20

// submit makes the job, and follows it.
func (r *remote) submit(cmd *cobra.Command, j cluster.Job, quiet bool) error {
	client, err := r.at.dial(cmd.Context())
	if err != nil {
		return err
	}
	defer client.Close()
	j.Sending = func(bytes int64) {
		if bytes > muchToSend && !quiet {
			fmt.Fprintf(cmd.ErrOrStderr(), "penstock: sending the working directory %s: %s packed; .penstockignore there says what is left out\n", j.WorkingDir, exec.Bytes(bytes))
		}
	}
	id, existed, err := client.Submit(cmd.Context(), j)
	if err != nil {
		return err
	}
	r.submitted = true
	f := follower{client: client, job: id, out: others(cmd), log: cmd.ErrOrStderr(), quiet: quiet, summary: r.summary}
	r.summed = func() bool { return f.summed.Load() || r.detach }
	if r.detach {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), id); err != nil {
			return err
		}
		if js, err := client.Jobs(cmd.Context(), id); err == nil && js[0].State == "queued" && js[0].Why != "" { // it is submitted, whatever this says
			f.state(&js[0])
		}
		return nil
	}
	if existed {
		f.say("job %s was submitted before", id)
	} else {
		f.say("job %s is submitted", id)
	}
	return f.follow(cmd.Context())
}

// follower shows a job here.
type follower struct {
	client  *cluster.Client
	job     string
	out     *term.Writer
	log     io.Writer
	quiet   bool
	summary bool        // its last line is one, of run --json
	summed  atomic.Bool // it was written
	said    string
}

func (f *follower) say(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !f.quiet && line != f.said {
		f.said = line
		fmt.Fprintln(f.log, "penstock:", term.Line(line))
	}
}

// follow prints what the job does until it is over, and says how it ended. When ctx ends the job is stopped.
func (f *follower) follow(asked context.Context) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(asked))
	defer cancel()
	logs, over := make(chan error, 1), make(chan error, 1)
	go func() { logs <- f.logs(ctx) }()
	var last cluster.JobStatus
	go func() {
		over <- away(ctx, f.say, func() error {
			return f.client.Watch(ctx, true, func(*cluster.Status) error {
				js, err := f.client.Jobs(ctx, f.job)
				if err != nil {
					return err
				}
				last = js[0]
				if last.Over() {
					return errOver
				}
				f.state(&last)
				return nil
			})
		})
	}()
	var err error
	select {
	case err = <-over:
	case <-asked.Done():
		fmt.Fprintf(f.log, "penstock: stopping job %s; interrupt again to leave it to end by itself\n", f.job)
		limited, cancel := context.WithTimeout(ctx, reach)
		err = f.client.StopJob(limited, f.job, stopGrace)
		cancel()
		if err != nil {
			return fmt.Errorf("job %s goes on: %w", f.job, err)
		}
		err = <-over
	}
	if fault.CodeOf(err) == fault.NotFound {
		return fmt.Errorf("how job %s ended is not remembered any more: %w", f.job, err)
	}
	if err != errOver {
		return fmt.Errorf("job %s goes on (penstock logs -f %s): %w", f.job, f.job, err)
	}
	select {
	case err := <-logs:
		if err != nil {
			fmt.Fprintf(f.log, "penstock: warning: what job %s printed is not all here: %v\n", f.job, err)
		}
	case <-time.After(lastLogs):
		fmt.Fprintf(f.log, "penstock: warning: what job %s printed last has not come\n", f.job)
	}
	if last.State == "finished" && last.Why != "" {
		fmt.Fprintf(f.log, "penstock: warning: of job %s: %s\n", f.job, oneLine(whyLine(last.Why)))
	}
	return outcome(&last)
}

// state says where a job is that is not over.
func (f *follower) state(j *cluster.JobStatus) {
	switch j.State {
	case "queued", "restarting":
		f.say("job %s is %s: %s", j.ID, j.State, whyLine(j.Why))
	case "starting", "running":
		noun := "node"
		if len(j.Nodes) > 1 {
			noun = "nodes"
		}
		f.say("job %s is on %s %s, attempt %d", j.ID, noun, nodesText(j), j.Attempts)
	}
}

// away calls f again while its head is away, for up to awayMost.
func away(ctx context.Context, say func(string, ...any), f func() error) error {
	var begin time.Time
	for {
		called := time.Now()
		err := f()
		if c := fault.CodeOf(err); c != fault.Unavailable || ctx.Err() != nil {
			return err
		}
		if begin.IsZero() || time.Since(called) > reach { // it was there for a while
			begin = time.Now()
		}
		if time.Since(begin) > awayMost {
			return err
		}
		say("the head is away; the job goes on, and so does this when it is back")
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// outcome is how a job that is over ends a command that has followed it.
func outcome(j *cluster.JobStatus) error {
	switch j.State {
	case "finished":
		return nil
	case "stopped":
		return exitError{exitFailed, fmt.Errorf("job %s was stopped", j.ID)}
	}
	code := exitFailed
	if j.Code > 0 {
		code = j.Code
	}
	return exitError{code, fmt.Errorf("job %s failed after %s: %s", j.ID, some(j.Attempts, "attempt"), whyLine(j.Why))}
}

func jobsCommand() *cobra.Command {
	var p whereabouts
	var asJSON bool
	c := &cobra.Command{
		Use:   "jobs [JOB...]",
		Short: "List the jobs of the cluster, the newest first",
		Long: `Jobs lists the jobs that wait, run, or are over and remembered (start --keep-jobs): their state, why they wait, start again or failed, and their nodes. JOB is the id of one, or of its submission; of a single
one the whole reason is printed, with what the process said last. It needs a token of scope read.

` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock jobs
  penstock jobs j1 --json`,
		Args: args("JOB", 0, math.MaxInt),
		RunE: func(cmd *cobra.Command, a []string) error {
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			js, err := client.Jobs(cmd.Context(), a...)
			if err != nil {
				return err
			}
			now := time.Now()
			t := newTable(cmd.OutOrStdout(), "JOB", "NAME", "OWNER", "STATE", "NODES", "ATTEMPTS", "AGE", "TOOK", "WHY")
			for _, j := range js {
				if asJSON {
					if err := printJSON(cmd.OutOrStdout(), jobOf(&j)); err != nil {
						return err
					}
					continue
				}
				took := "-"
				if !j.Started.IsZero() {
					end := now
					if !j.Ended.IsZero() {
						end = j.Ended
					}
					took = age(end.Sub(j.Started))
				}
				t.row(j.ID, cmp.Or(j.Name, "-"), j.Owner, j.State, nodesText(&j), number(j.Attempts), age(now.Sub(j.Submitted)), took, whyNow(&j))
			}
			if asJSON {
				return nil
			}
			if len(js) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "penstock: no jobs")
				return nil
			}
			if err := t.Flush(); err != nil || len(a) != 1 {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), whyAll(&js[0]))
			return err
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print an object for every job, one a line")
	return c
}

// nodesText is where a job is, or was at last: "n3", "n1,n2", "n1 data n4" with a data node, "- of 2" while it waits for two nodes.
func nodesText(j *cluster.JobStatus) string {
	const most = 6
	list := func(nodes []string) string {
		if n := len(nodes); n > most {
			return fmt.Sprintf("%s and %d more", strings.Join(nodes[:most-1], ","), n-most+1)
		}
		return strings.Join(nodes, ",")
	}
	switch n := len(j.Nodes); {
	case n == 0 && j.Size > 1:
		return fmt.Sprintf("- of %d", j.Size)
	case n == 0:
		return "-"
	case n == j.Size && j.Data.Nodes > 0:
		first := n - j.Data.Nodes
		return list(j.Nodes[:first]) + " data " + list(j.Nodes[first:])
	}
	return list(j.Nodes)
}

// jobJSON is a job in --json.
type jobJSON struct {
	ID        string           `json:"id"`
	Submitted time.Time        `json:"submitted"`
	Given     string           `json:"submission,omitempty"`
	Name      string           `json:"name,omitempty"`
	State     string           `json:"state"`
	Why       string           `json:"why,omitempty"`
	Command   []string         `json:"command"`
	Size      int              `json:"size"`                 // on how many nodes it runs
	DataNodes int              `json:"data_nodes,omitempty"` // of them, the last ones
	Needs     resourcesJSON    `json:"needs"`
	DataNeeds *resourcesJSON   `json:"data_needs,omitempty"`
	Nodes     []string         `json:"nodes"`
	Attempts  int64            `json:"attempts"`
	Failures  map[string]int64 `json:"failures,omitempty"`
	Code      int              `json:"code"`
	Started   time.Time        `json:"started,omitzero"`
	Ended     time.Time        `json:"ended,omitzero"`
	Owner     string           `json:"owner"`
	Token     string           `json:"token,omitempty"`
	Project   string           `json:"project,omitempty"`
}

func jobOf(j *cluster.JobStatus) jobJSON {
	x := jobJSON{j.ID, j.Submitted, j.Submission, j.Name, j.State, j.Why, j.Argv, j.Size, j.Data.Nodes, resourcesJSON(j.Needs), nil, j.Nodes, j.Attempts, j.Failures, j.Code, j.Started, j.Ended, j.Owner, j.Token, j.Project}
	if j.Data.Nodes > 0 {
		of := resourcesJSON(j.Data.Needs)
		x.DataNeeds = &of
	}
	if x.Nodes == nil {
		x.Nodes = []string{}
	}
	return x
}

func logsCommand() *cobra.Command {
	var p whereabouts
	var follow bool
	var tail string
	var raw bool
	c := &cobra.Command{
		Use:   "logs [-f] JOB",
		Short: "Print what a job of the cluster printed",
		Long: `Logs prints what a job printed, on stdout and stderr, attempt after attempt, with a line "penstock: attempt 2" before those after the first; with -f until it is over. Of a job on several nodes every line begins with its node's number ("node 1 | ..."), from 0; lines come node after
node, with -f as they are printed. Logs are on the nodes: what cannot be read, as its node is away, is said in a line. It needs a token of
scope read.

What is no text (escape sequences, marks that turn the direction of text) is printed as an escape, such as \x1b, on a terminal and elsewhere; colours pass by --color. With --raw all bytes are as the job printed them.

` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock logs -f j1
  penstock logs --tail 4KiB j1
  penstock logs --raw j1 > j1.log   # all bytes as they are`,
		Args: args("JOB", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			if raw && term.IsTerminal(cmd.OutOrStdout()) {
				return usage("logs: --raw is for files and programs: what a job prints may do anything to a terminal; for example: penstock logs --raw %s > log", a[0])
			}
			var last spec.Size
			if tail != "" {
				var err error
				if last, err = spec.ParseSize(tail); err != nil || last < 1 {
					return usage("logs: --tail %s: want a size, such as 4096 or 64KiB", tail)
				}
			}
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			at := cluster.LogPosition{Attempts: true}
			printed := others(cmd)
			var to io.Writer = printed
			if raw {
				to = term.Out.Raw()
			}
			read := func() error { return client.LogsFrom(cmd.Context(), a[0], follow, int64(last), &at, to) }
			if !follow {
				return errors.Join(read(), printed.Flush())
			}
			f := follower{log: cmd.ErrOrStderr()}
			return errors.Join(away(cmd.Context(), f.say, read), printed.Flush())
		},
	}
	p.flags(c)
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job is over")
	c.Flags().StringVar(&tail, "tail", "", "only the last `bytes` of its last attempt, of each node, such as 64KiB")
	c.Flags().BoolVar(&raw, "raw", false, "the bytes that the job printed, whatever they are; not to a terminal")
	colorFlag(c)
	return c
}
