package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/units"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/internal/group"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/launch"
	"github.com/penstock-data/penstock/trainer/store"
)

// attempt is a start of the group.
type attempt struct {
	number  int
	from    *store.Manifest          // of this run; nil: it begins
	restore []func() (string, error) // by node
	welcome wire.Welcome             // what all ranks have in common
	data    []map[string]wire.Data   // as the ranks of each node see them
	states  map[string]store.Data
	group   launch.Group
	over    chan struct{} // closed when the next begins, or none does

	// the loop's
	peers    []*peer
	wanted   int64                    // report that a rank waits for
	reports  map[int64][]*wire.Report // by number, then rank: those that are not complete, or not committed
	met      map[int]string           // addresses of the ranks that wait for the others, to compute together
	apart    error                    // they were told that others did not come
	refused  error                    // of a process that was not let in: perhaps a worker
	stranger refusedID
}

// start begins an attempt.
func (c *controller) start(a group.Action) {
	prev, begun := c.a, c.begun
	c.begun = nil
	if prev != nil {
		c.dismiss(prev)
	}
	restarts := a.Attempt - c.first
	c.others.Go(func() {
		at, err := c.prepare(a.Attempt, restarts, prev, begun)
		if err != nil {
			memory := errors.Is(err, feeder.ErrDied) && fault.CodeOf(err) == fault.Exhausted
			c.post(func() { c.step(group.Event{Kind: group.LaunchFailed, Attempt: a.Attempt, Memory: memory, Err: err}) })
		} else {
			c.post(func() {
				c.some = true
				c.step(group.Event{Kind: group.Launched, Attempt: a.Attempt})
			})
			for e := range at.group.Exits() {
				c.heardAll(at, e)
				c.post(func() { c.exited(at, e) })
			}
		}
	})
}

// heardAll waits until all was heard that a worker said which has ended.
func (c *controller) heardAll(at *attempt, e launch.Exit) {
	got := make(chan *peer, 1)
	c.post(func() { got <- at.peers[e.Rank] })
	var p *peer
	select {
	case p = <-got:
	case <-c.over:
	}
	if p == nil {
		return
	}
	if p.ear != nil {
		p.ear.Finish()
	}
	select {
	case <-p.heard:
	case <-time.After(time.Until(e.At.Add(lastWords))): // its node is lost
	case <-c.over:
	}
}

// dismiss ends what an attempt has open in this process.
func (c *controller) dismiss(at *attempt) {
	select {
	case <-at.over:
		return
	default:
	}
	close(at.over)
	for _, p := range at.peers {
		if p != nil {
			p.close()
		}
	}
}

// finishAttempt waits until nothing of the last attempt is left.
func (c *controller) finishAttempt() {
	if c.a == nil {
		return
	}
	c.dismiss(c.a)
	if c.a.group != nil {
		c.a.group.Stop(0)
	}
}

// prepare makes the data ready at the last commit, and launches the workers. prev is the attempt before, all of whose workers have ended; begun is what
// the store said of this one, where it was asked already.
func (c *controller) prepare(number, restarts int, prev *attempt, begun *store.Attempt) (at *attempt, err error) {
	if prev != nil && prev.group != nil {
		prev.group.Stop(0) // waits for what workers have left behind
	}
	if err := c.feeder.Stop(); err != nil {
		c.cfg.Log.Warn("the end of what was served", "run", c.cfg.Name, "error", err)
	}
	if prev != nil {
		if err := c.run.Metrics(prev.number).Flush(c.ctx); err != nil { // the next attempt has files of its own
			c.cfg.Log.Warn("metrics of reports are lost", "run", c.cfg.Name, "attempt", prev.number, "error", err)
		}
	}
	if begun == nil {
		if begun, err = c.run.Begin(c.ctx, store.BeginOptions{}); err != nil {
			return nil, err
		}
	}
	if begun.Number != number {
		return nil, fault.New(fault.Internal, "attempt %d where %d follows", begun.Number, number)
	}
	at = &attempt{number: number, from: begun.From, over: make(chan struct{}), states: map[string]store.Data{}, met: map[int]string{}, reports: map[int64][]*wire.Report{}, peers: make([]*peer, c.cfg.Workers)}
	c.place(at)
	failed, err := c.feed(at)
	if err != nil {
		return nil, err
	}
	workers, err := c.workers(at, restarts)
	if err != nil {
		return nil, err
	}
	// From here on the attempt is the loop's: workers may say hello before Launch returns.
	placed := make(chan struct{})
	c.post(func() {
		defer close(placed)
		c.a, c.metrics = at, c.run.Metrics(number)
		e := group.Event{Kind: group.Begun, Attempt: number}
		if m := at.from; m != nil {
			e.Checkpoint, e.N = m.Number, m.Report
		}
		c.reports = e.N
		c.step(e)
	})
	select {
	case <-placed:
	case <-c.over:
		return nil, fault.New(fault.Canceled, "%w", errEnded)
	}
	fed := at // not the result, which is nil after an error
	c.others.Go(func() { c.watchData(fed, failed) })
	if s, ok := c.launcher.(*spread); ok {
		s.attempt = number
	}
	g, err := c.launcher.Launch(c.ctx, workers)
	if err != nil {
		return nil, err
	}
	if begun.Back {
		if err := c.run.Launched(c.ctx); err != nil {
			g.Stop(0)
			return nil, err
		}
		c.others.Go(func() {
			if err := c.run.Sweep(c.ctx); err != nil && c.ctx.Err() == nil {
				c.cfg.Log.Warn("checkpoints that were given up take room until the run is gone on with", "run", c.cfg.Name, "error", err)
			}
		})
	}
	at.group = g
	return at, nil
}

// place says what the attempt goes on from.
func (c *controller) place(at *attempt) {
	run, m := c.run, at.from
	if m == nil && c.from != nil {
		run, m = c.from.run, c.from.manifest
	}
	at.welcome = wire.Welcome{Run: c.cfg.Name, Attempt: at.number, Storage: c.run.URL(), World: c.cfg.Workers, LocalWorld: c.cfg.perNode(), Nodes: c.cfg.trains(), Config: c.settings}
	at.restore = make([]func() (string, error), c.cfg.nodes())
	for k := range at.restore {
		at.restore[k] = func() (string, error) {
			return "", fault.New(fault.NotFound, "there is no checkpoint to restore: the run begins")
		}
	}
	if m == nil {
		return
	}
	at.welcome.Checkpoint, at.welcome.Metrics = m.Number, m.Metrics
	if at.from != nil {
		at.welcome.Reports = m.Report
	}
	for name, d := range m.Data {
		ledger, err := run.Ledger(c.ctx, m, name)
		if err != nil { // it is for replay: the state is all that is needed to go on
			c.cfg.Log.Warn("the ledger of a checkpoint", "run", c.cfg.Name, "data", name, "error", err)
		}
		at.states[name] = store.Data{State: d.State, Ledger: ledger}
	}
	at.restore[c.node] = once(func() (string, error) { return c.fetch(c.ctx, run, m) })
	ask := &wire.HandFetch{Number: m.Number}
	if at.from == nil {
		ask.From = c.cfg.From
	}
	for _, n := range c.nodes.others() {
		at.restore[n.number] = once(func() (string, error) {
			a, err := n.ask(c.ctx, wire.ToHand{Fetch: ask})
			return a.Dir, err
		})
	}
}

// once calls f with the first call; others wait for it and get the same.
func once[T any](f func() (T, error)) func() (T, error) {
	type result struct {
		v   T
		err error
	}
	turn := make(chan *result, 1)
	turn <- nil
	return func() (T, error) {
		r := <-turn
		defer func() { turn <- r }()
		if r == nil {
			r = &result{}
			r.v, r.err = f()
		}
		return r.v, r.err
	}
}

// feed has the feeder serve the data sets from where the attempt goes on.
func (c *controller) feed(at *attempt) (failed <-chan error, err error) {
	states := map[string]feeder.At{}
	for name, d := range at.states {
		known := false
		for _, n := range c.cfg.dataNames() {
			known = known || n == name && !c.cfg.eval(n)
		}
		if !known {
			if at.from == nil { // another run's
				c.cfg.Log.Info("the checkpoint has a data set that this run has not", "run", c.cfg.Name, "data", name)
				delete(at.states, name)
				continue
			}
			return nil, fault.New(fault.Invalid, "checkpoint %d has the position in a data set %q that this run does not train on: give it the name that it had, or start a new run from the checkpoint", at.from.Number, name)
		}
		s, err := shard.ParseState(d.State)
		if err != nil {
			return nil, fault.New(fault.CodeOf(err), "checkpoint %d, data set %q: %w", at.welcome.Checkpoint, name, err)
		}
		states[name] = feeder.At{State: s, Ledger: d.Ledger}
	}
	for _, name := range feeder.Fit(states) { // the state is all that is needed to go on
		c.cfg.Log.Warn(fmt.Sprintf("the ledger of data set %q in checkpoint %d is too long to go on with (%s): what was read before is not in the ledgers of later checkpoints, so a replay of it has to count; larger shuffle windows, which a new run can have, make shorter ledgers",
			name, at.welcome.Checkpoint, units.Bytes(int64(len(at.states[name].Ledger)))), "run", c.cfg.Name, "data", name)
	}
	sockets, failed, err := c.feeder.Start(c.ctx, c.cfg.Workers, states)
	for name, ok := feeder.Refused(err); ok && at.from == nil; name, ok = feeder.Refused(err) { // another run's
		c.cfg.Log.Info("a data set begins anew: that of the checkpoint has another plan, other data, or another seed", "run", c.cfg.Name, "data", name, "error", err)
		delete(at.states, name)
		delete(states, name)
		sockets, failed, err = c.feeder.Start(c.ctx, c.cfg.Workers, states)
	}
	if err != nil {
		return nil, err
	}
	for _, of := range sockets {
		data := map[string]wire.Data{}
		for name, path := range of {
			data[name] = wire.Data{Socket: path, Eval: c.cfg.eval(name)}
		}
		at.data = append(at.data, data)
	}
	return failed, nil
}

// watchData tells the state machine when the data fail.
func (c *controller) watchData(at *attempt, failed <-chan error) {
	select {
	case err := <-failed:
		if errors.Is(err, feeder.ErrDied) && fault.CodeOf(err) != fault.Exhausted {
			err = fault.New(fault.Unavailable, "%w", err) // not one of its consumers
		}
		c.event(at, group.Event{Kind: group.DataLost, Err: err})
	case <-at.over:
	case <-c.over:
	}
}

// workers are what the launcher starts.
func (c *controller) workers(at *attempt, restarts int) ([]launch.Worker, error) {
	if err := c.meetings(at.number); err != nil {
		return nil, err
	}
	socket := c.listener.Addr().String()
	all := make([]launch.Worker, c.cfg.Workers)
	var base []string
	master, port := "127.0.0.1", 0
	if g := c.cfg.gang(); g != nil {
		master = g.Host(c.node)
	}
	if c.argv != nil {
		var err error
		if port, err = freePort(master); err != nil {
			return nil, err
		}
		base = c.environ(os.Environ())
	}
	for r := range all {
		var vars []string
		if c.argv != nil {
			vars = c.torchrun(r, restarts, master, port)
		}
		if c.nodeOf(r) != nil { // the rest is its hand's
			all[r] = launch.Worker{Rank: r, LocalRank: r % c.cfg.perNode(), Node: r / c.cfg.perNode(), Env: vars}
		} else {
			all[r] = c.starts(r, base, vars, socket, at.number)
		}
	}
	return all, nil
}

// torchrun is the environment that programs for torchrun expect. No agent keeps the store: rank 0 does.
func (c *controller) torchrun(rank, restarts int, master string, port int) []string {
	n, per := c.cfg.Workers, c.cfg.perNode()
	var env []string
	set := func(name string, v any) { env = append(env, fmt.Sprintf("%s=%v", name, v)) }
	set("RANK", rank)
	set("LOCAL_RANK", rank%per)
	set("WORLD_SIZE", n)
	set("LOCAL_WORLD_SIZE", per)
	set("NODE_RANK", rank/per)
	set("GROUP_RANK", rank/per)
	set("GROUP_WORLD_SIZE", n/per)
	set("ROLE_NAME", "default")
	set("ROLE_RANK", rank)
	set("ROLE_WORLD_SIZE", n)
	set("MASTER_ADDR", master)
	set("MASTER_PORT", port)
	set("TORCHELASTIC_RESTART_COUNT", restarts)
	set("TORCHELASTIC_MAX_RESTARTS", max(c.cfg.Failures.Worker, 0))
	set("TORCHELASTIC_RUN_ID", c.cfg.Name)
	set("TORCHELASTIC_USE_AGENT_STORE", "False")
	return env
}

// turnedAway reports whether the process of a rank is the one that was not let in; or is taken for it, as nobody came for the rank.
func (at *attempt) turnedAway(rank int, who refusedID) bool {
	return at.refused != nil && (at.peers[rank] == nil || at.stranger.pid != 0 && at.stranger == who)
}

// exited tells the state machine of a worker's end.
func (c *controller) exited(at *attempt, e launch.Exit) {
	if e.OK() && at.turnedAway(e.Rank, refusedID{e.Rank / c.cfg.perNode(), e.PID}) { // its good end hides that it did nothing
		err := fault.New(fault.CodeOf(at.refused), "it was refused, and ended all the same with exit code 0: %w", at.refused)
		c.step(group.Event{Kind: group.Done, Attempt: at.number, Rank: e.Rank, Err: c.ofRank(e.Rank, err)})
	}
	ev := group.Event{Kind: group.Exit, Attempt: at.number, Rank: e.Rank, Code: e.Code, Memory: e.Memory, Ours: e.Ours}
	if e.Signal != 0 {
		ev.Code, ev.Signal = 0, e.Signal.String()
	}
	if !e.OK() {
		ev.Err = c.exitError(at, e)
		if ev.Code == 0 && ev.Signal == "" {
			ev.Code = 1
		}
	}
	c.step(ev)
}

// exitError is what a user reads of it.
func (c *controller) exitError(at *attempt, e launch.Exit) error {
	code := fault.UserCode
	switch {
	case e.Memory:
		code = fault.Exhausted
	case e.Signal != 0:
		code = fault.WorkerLost
	case e.Err != nil:
		return c.ofRank(e.Rank, e.Err)
	}
	text := e.String()
	if len(e.Tail) == 0 {
		text += c.ofNode(e.Rank)
	}
	if len(e.Tail) > 0 && e.Signal == 0 && !e.Memory { // where one line is shown, the exit code alone says nothing
		text += ", and printed last: " + lastPrinted(e.Tail)
	}
	if len(e.Tail) > 0 {
		text += fmt.Sprintf(" (log: %s%s):\n    %s", c.logFile(at.number, e.Rank), c.ofNode(e.Rank), strings.Join(e.Tail, "\n    "))
	} else if e.PID != 0 && e.Signal == 0 && !e.Memory {
		text += ", and printed nothing"
	}
	return fault.New(code, "%s", text)
}

// lastPrinted is the last line of a log, which is the exception where a program in Python ended by one.
func lastPrinted(tail []string) string {
	line := tail[len(tail)-1]
	if n := 300; len(line) > n {
		line = strings.ToValidUTF8(line[:n], "") + "..."
	}
	if strings.HasSuffix(line, "No module named 'penstock'") {
		line += "; install the package into this interpreter: make wheel, then pip install python/dist/penstock-*.whl"
	}
	return line
}

// logFile is where a worker's output goes.
func (c *controller) logFile(attempt, rank int) string {
	logs := c.logs
	if n := c.nodeOf(rank); n != nil {
		logs = n.logs
	}
	return filepath.Join(logs, fmt.Sprintf("attempt-%d", attempt), fmt.Sprintf("rank-%d.log", rank))
}

// logOf is the log of a worker that has one, where it can be read here.
func (c *controller) logOf(attempt, rank int) string {
	if rank >= 0 && c.argv != nil {
		file := c.logFile(attempt, rank)
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return ""
}

// ofRank says whose error it is, where it does not, and on which node.
func (c *controller) ofRank(rank int, err error) error {
	code := fault.CodeOf(err)
	if code == fault.Unknown {
		code = fault.UserCode
	}
	if name := fmt.Sprintf("rank %d", rank); !strings.HasPrefix(err.Error(), name+": ") {
		err = fmt.Errorf("%s%s: %w", name, c.ofNode(rank), err)
	}
	return &fault.Error{Code: code, Err: err}
}

// warn tells ranks of a notice: those that are connected by a message, others by SIGTERM.
func (c *controller) warn(a group.Action) {
	at := c.a
	for _, r := range a.Ranks {
		if at.peers[r] != nil {
			c.tell(r, wire.ToWorker{Preempt: &wire.Preempt{Reason: a.Err.Error(), Grace: a.Grace.Seconds(), Report: a.N}})
		} else if c.work == nil {
			c.others.Go(func() { _ = at.group.Signal(r, syscall.SIGTERM) }) // one that has ended needs no telling
		}
	}
	c.others.Go(func() {
		if err := c.feeder.Notice(c.ctx); err != nil {
			c.cfg.Log.Warn("ranks were not told of the notice at the same step", "run", c.cfg.Name, "error", err)
		}
	})
}

// stacks collects what workers do into the folder of logs.
func (c *controller) stacks(ranks []int) {
	at := c.a
	c.others.Go(func() {
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
		defer cancel()
		for _, r := range ranks {
			text, err := at.group.Stacks(ctx, r)
			if err == nil {
				file := filepath.Join(c.logs, group.StacksName(at.number, r))
				if err = os.MkdirAll(filepath.Dir(file), 0o755); err == nil {
					err = os.WriteFile(file, []byte(text), 0o644)
				}
			}
			if err != nil {
				c.cfg.Log.Warn(fmt.Sprintf("no stacks of rank %d", r), "run", c.cfg.Name, "rank", r, "error", err)
			}
		}
		c.post(func() { c.step(group.Event{Kind: group.StacksTaken, Attempt: at.number}) })
	})
}
