package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mask"
	"github.com/penstock-data/penstock/internal/units"
	"github.com/penstock-data/penstock/internal/whereabouts"
	"github.com/penstock-data/penstock/trainer/launch"
)

// endGrace is what a process gets to end in that nobody wants any more.
const endGrace = 10 * time.Second

// exitPreempted is the exit code of a program that wants to be started again: EX_TEMPFAIL.
const exitPreempted = 75

// process is one that is to run, runs, or is being ended. It holds its devices until nothing of it is left.
type process struct {
	a     *agent
	id    string
	start *pb.Start
	gone  chan struct{} // closed when nothing of it is left, and its end is among a.ended

	mu     sync.Mutex
	cancel context.CancelFunc // of what is done before it runs
	ending bool
	member *member      // nil: it is alone, or not that far yet
	group  launch.Group // nil: it does not run

	ended time.Time // run's, then over's; zero: it did not run
}

// start begins a process. One that is there already is not begun again.
func (a *agent) start(s *pb.Start) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.procs[s.GetProcess()] != nil || slices.ContainsFunc(a.ended, func(e exit) bool { return e.GetProcess() == s.GetProcess() }) {
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	p := &process{a: a, id: s.GetProcess(), start: s, gone: make(chan struct{}), cancel: cancel}
	if a.leaving {
		p.ending = true
		cancel()
	}
	var before []*process // that hold its devices
	for _, o := range a.procs {
		if slices.ContainsFunc(o.start.GetDevices(), func(d string) bool { return slices.Contains(s.GetDevices(), d) }) {
			before = append(before, o)
		}
	}
	a.procs[p.id] = p
	a.work.Go(func() {
		defer cancel()
		for _, o := range before {
			select {
			case <-o.gone:
			case <-ctx.Done():
			}
		}
		a.over(p, p.run(ctx))
	})
}

// over: nothing of a process is left.
func (a *agent) over(p *process, e *pb.Exited) {
	e.Process = p.id
	e.Text = short(p.masked(e.Text), mostWords)
	for i, s := range e.At {
		e.At[i] = short(p.masked(s), mostPlace)
	}
	a.mu.Lock()
	if a.leaving && (e.Class == "worker" || e.Class == "user") {
		e.Class = "preemption" // its node went away under it
	}
	a.mu.Unlock()
	a.Log.Info(fmt.Sprintf("process %s has ended", p.id), "code", e.GetCode(), "class", e.GetClass(), "text", firstLine(e.GetText()))
	a.mu.Lock()
	delete(a.procs, p.id)
	a.ended = append(a.ended, exit{e, p.ended})
	e = a.ended[len(a.ended)-1].wire()
	a.sayLocked(&pb.FromAgent{Say: &pb.FromAgent_Exited{Exited: e}})
	a.mu.Unlock()
	close(p.gone)
	a.trimLogs()
}

// exit is the end of a process that the head is to hear of.
type exit struct {
	*pb.Exited
	at time.Time // zero: it did not run
}

// wire is what is said of it now.
func (e exit) wire() *pb.Exited {
	x := proto.CloneOf(e.Exited)
	if !e.at.IsZero() {
		x.AgoMs = time.Since(e.at).Milliseconds()
	}
	return x
}

// masked is text without the secrets of the job.
func (p *process) masked(text string) string {
	var secrets []string
	for _, k := range p.start.GetSecrets() {
		secrets = append(secrets, p.start.GetEnv()[k])
	}
	return mask.Text(text, secrets)
}

// mostWords and mostPlace are the bytes of an end's text and of a place in it in a message: more
// would end the session.
const mostWords, mostPlace = 16 << 10, 1 << 10

// short is the begin of a text, of whole characters: programs write what is none, and no message
// carries it.
func short(s string, most int) string {
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// mostHello is the bytes of ends in a hello that keep their words.
const mostHello = 1 << 20

// fit shortens ends until a hello has room for them: that they ended is what counts.
func fit(ends []*pb.Exited) {
	size := 0
	for _, x := range ends {
		if size += proto.Size(x); size > mostHello {
			x.Text, x.At = short(x.Text, 128), nil
		}
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// stop ends a process of that id.
func (a *agent) stop(id string, grace time.Duration) {
	a.mu.Lock()
	p := a.procs[id]
	a.mu.Unlock()
	if p != nil {
		p.stop(grace)
	}
}

// stop asks the process to end, and ends it after grace. It does not wait. The shortest grace counts.
func (p *process) stop(grace time.Duration) {
	p.mu.Lock()
	p.ending = true
	p.cancel()
	g := p.group
	p.mu.Unlock()
	if g != nil {
		p.a.work.Go(func() { g.Stop(grace) })
	}
}

// begun says that the process runs, or did.
func (p *process) begun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.group != nil
}

// run does all of a process's life, and says how it ended.
func (p *process) run(ctx context.Context) *pb.Exited {
	a, s := p.a, p.start
	if why := p.fits(); why != "" {
		return &pb.Exited{Code: -1, Class: "unfit", Text: why}
	}
	unfit := func(what string, err error) *pb.Exited {
		if ctx.Err() != nil {
			return &pb.Exited{Code: -1, Class: "worker", Text: "it was ended before it began"}
		}
		return &pb.Exited{Code: -1, Class: "unfit", Text: fmt.Sprintf("node %s could not %s: %v", a.Node, what, err)}
	}
	const prepareIt, startIt = "prepare it", "start it"
	dir, err := a.makeFolder(p.id)
	if err != nil {
		return unfit(prepareIt, err)
	}
	defer os.RemoveAll(dir)
	work, tmp, at := filepath.Join(dir, "work"), filepath.Join(dir, "tmp"), filepath.Join(dir, "at")
	if err := p.prepare(ctx, work, tmp, at); err != nil {
		return unfit(prepareIt, err)
	}
	logs := filepath.Join(a.Dir, "logs", fileName(p.id))
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return unfit(prepareIt, err)
	}
	argv := slices.Clone(s.GetArgv())
	if argv[0] == "penstock" {
		argv[0] = a.Binary
	}
	env := append(p.env(tmp), whereabouts.Env+"="+at)
	var m *member
	if s.GetMembers() > 1 {
		if m, err = p.meet(ctx, filepath.Join(dir, "gang")); err != nil {
			return unfit("bring it together with the other nodes of the job", err)
		}
		defer m.close()
		env = append(env, m.env()...)
	}
	if err := a.Jobs.give(dir); err != nil {
		return unfit(prepareIt, err)
	}
	w := launch.Worker{Argv: argv, Env: env, Dir: work, Memory: s.GetLimits().GetMemory(), Files: m.files()}
	group, err := launch.Processes(launch.Options{Logs: logs, Rotate: rotation(a.Rotate, s.GetLogBytes()), Name: func(int) string { return "process" }, Main: true, Joined: true, Confine: a.Jobs.launch(dir, tmp, a.Binary)}).Launch(ctx, []launch.Worker{w})
	if err != nil {
		if ctx.Err() != nil || lacks(err) {
			return unfit(startIt, err)
		}
		return &pb.Exited{Code: -1, Class: "refused", Text: fmt.Sprintf("it could not be started: %v", err)}
	}
	m.begun()
	p.mu.Lock()
	p.group = group
	ending := p.ending
	p.mu.Unlock()
	if ending {
		a.work.Go(func() { group.Stop(endGrace) })
	}
	a.Log.Info(fmt.Sprintf("process %s runs", p.id), "pid", group.Usage()[0].PID, "devices", s.GetDevices())
	a.say(&pb.FromAgent{Say: &pb.FromAgent_Started{Started: p.id}})
	exit := <-group.Exits()
	p.ended = exit.At // it comes when the output was read, up to two seconds later
	if exit.Lacks != nil {
		a.Log.Warn(fmt.Sprintf("the log of process %s lacks lines: see that the disk of %s has room", p.id, logs), "err", exit.Lacks)
	}
	for i, line := range exit.Tail {
		exit.Tail[i] = p.masked(line) // a line that was cut in a secret ends there
	}
	group.Stop(0) // what it left behind
	return ended(exit, limit{w.Memory, memoryFlag(s)}, placesIn(at, work, exit.PID))
}

// lacks says that the machine has not what a start needs: another may have it. Everything else is the program's fault.
func lacks(err error) bool {
	return fault.CodeOf(err) == fault.Unsupported || slices.ContainsFunc([]syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE}, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// mostAt is how many places of an end the head is told of, and sayAt how many its text names.
const (
	mostAt = 64
	sayAt  = 4
)

// placesIn is what the tasks of a process were at, by the folder that it had for that. Files of its working directory have the same names in another attempt.
func placesIn(dir, work string, pid int) []string {
	all := whereabouts.Read(dir, pid)
	for i, s := range all {
		all[i] = strings.TrimPrefix(s, work+"/")
	}
	return all[:min(len(all), mostAt)]
}

// limit of memory in bytes (0: none), and the flag that gave it.
type limit struct {
	bytes int64
	flag  string
}

// memoryFlag is that of the command line by which a process has its memory.
func memoryFlag(s *pb.Start) string {
	if id := strings.Split(s.GetProcess(), "/"); len(id) > 2 && s.GetData() > 0 { // JOB/ATTEMPT/MEMBER
		if member, err := strconv.ParseInt(id[2], 10, 64); err == nil && member >= s.GetMembers()-s.GetData() {
			return "--data-memory"
		}
	}
	return "--memory"
}

// ended is what the head is told of the exit of a process that has a limit, and was at some places of its data: what people need to know in the first line, and then all. Of a good end it is what its log lacks.
func ended(e launch.Exit, limit limit, at []string) *pb.Exited {
	x := &pb.Exited{Code: int64(e.Code)}
	if e.Signal != 0 {
		x.Code = -1
	}
	lacks := ""
	if e.Lacks != nil {
		lacks = fmt.Sprintf("its log lacks lines: %v", e.Lacks)
	}
	switch {
	case e.OK():
		x.Text = lacks
		return x
	case e.Memory:
		x.Class = "memory"
	case e.Signal != 0 || e.Err != nil:
		x.Class = "worker"
	case e.Code == exitPreempted:
		x.Class = "preemption"
	default:
		x.Class = "user"
	}
	first := matters(e, limit)
	if len(at) > 0 && x.Class != "preemption" {
		x.At = at
		first += "; it was at " + strings.Join(at[:min(len(at), sayAt)], ", and at ")
		if len(at) > sayAt {
			first += fmt.Sprintf(", and at %d more", len(at)-sayAt)
		}
	}
	lines := []string{first, e.String()}
	if lacks != "" {
		lines = append(lines, lacks)
	}
	x.Text = strings.Join(append(lines, e.Tail[max(0, len(e.Tail)-10):]...), "\n")
	return x
}

// matters is what of an end people need, in one line: that its limit was passed and what to do, or how it ended and the last word of its program.
func matters(e launch.Exit, limit limit) string {
	switch {
	case e.OverLimit:
		return fmt.Sprintf("it passed its limit of %s; give it more with %s", units.Bytes(limit.bytes), limit.flag)
	case e.Memory:
		return cmp.Or(e.Detail, "it was ended for its memory")
	case e.How() == "":
		return firstLine(e.String())
	}
	var parts []string
	for _, s := range []string{e.How(), e.Detail, lastSaid(e.Tail)} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// lastSaid is the line of a program's last ones that says why it ended: that of a panic, whose stack follows, else the last one.
func lastSaid(tail []string) (said string) {
	for _, line := range tail {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line
		}
		if line != "" {
			said = line
		}
	}
	return said
}

// fits says why this node cannot run a process: the head may know an older inventory.
func (p *process) fits() string {
	have, need := p.a.Inventory.GetCapacity(), p.start.GetLimits()
	for _, d := range p.start.GetDevices() {
		if !slices.Contains(p.a.Inventory.GetDevices(), d) {
			return fmt.Sprintf("node %s has no GPU %s", p.a.Node, d)
		}
	}
	if need.GetMilliCpus() > have.GetMilliCpus() || need.GetMemory() > have.GetMemory() || int64(len(p.start.GetDevices())) != need.GetGpus() {
		return fmt.Sprintf("node %s has %v, and not %v with %d GPUs", p.a.Node, have, need, len(p.start.GetDevices()))
	}
	return ""
}

// prepare makes the folders of a process: work is its own copy of the pack, others are empty.
func (p *process) prepare(ctx context.Context, work string, others ...string) error {
	for _, dir := range others {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if p.start.GetPack() == "" {
		return os.Mkdir(work, 0o700)
	}
	hash, err := packs.ParseHash(p.start.GetPack())
	if err != nil {
		return err
	}
	if err := p.a.bring(ctx, hash); err != nil {
		return err
	}
	return p.a.packs.Unpack(ctx, hash, work)
}

// env is the environment of a process: the agent's, but for what is the agent's own, and what the job says.
func (p *process) env(tmp string) []string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		if p.a.Jobs.inherits(k) {
			env[k] = v
		}
	}
	maps.Copy(env, p.a.Jobs.env())
	job, rest, _ := strings.Cut(p.id, "/")
	attempt, _, _ := strings.Cut(rest, "/")
	maps.Copy(env, p.start.GetEnv())
	env["TMPDIR"] = tmp
	if p.a.Jobs.temp {
		env["TMPDIR"] = "/tmp"                                // which is the same, by a path that is short and known
		if argv := p.start.GetArgv(); argv[0] == "penstock" { // another program may use what penstock writes there
			env["PENSTOCK_JOB_TEMPS"] = strings.Join(launch.Temps(), string(filepath.ListSeparator))
		}
	}
	if len(p.a.Inventory.GetDevices()) > 0 {
		var visible []string
		for i, d := range p.a.Inventory.GetDevices() {
			if slices.Contains(p.start.GetDevices(), d) {
				visible = append(visible, p.a.Visible[i])
			}
		}
		env["CUDA_VISIBLE_DEVICES"] = strings.Join(visible, ",")
		env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
	}
	env["PENSTOCK_JOB"], env["PENSTOCK_JOB_ATTEMPT"], env["PENSTOCK_JOB_CLUSTER"], env["PENSTOCK_NODE"], env[envFolder] = job, attempt, p.a.Cluster, p.a.Node, p.a.folder
	if n := p.start.GetLimits().GetMilliCpus(); n > 0 { // what it has booked, for programs that would take all
		env["PENSTOCK_JOB_CPUS"] = strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
	}
	if n := p.start.GetLimits().GetMemory(); n > 0 {
		env["PENSTOCK_JOB_MEMORY"] = strconv.FormatInt(n, 10)
	}
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// used is what the processes of the node use.
func (a *agent) used() *pb.Resources {
	a.mu.Lock()
	ps := a.all()
	a.mu.Unlock()
	r := &pb.Resources{}
	for _, p := range ps {
		p.mu.Lock()
		g := p.group
		p.mu.Unlock()
		if g == nil {
			continue
		}
		for _, u := range g.Usage() {
			r.Memory += u.Memory
		}
		r.Gpus += int64(len(p.start.GetDevices()))
	}
	return r
}

// fileName is a name for the files of a process.
func fileName(id string) string { return strings.ReplaceAll(id, "/", "-") }
