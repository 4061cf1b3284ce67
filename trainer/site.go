package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/procs"
	"github.com/penstock-data/penstock/internal/program"
	"github.com/penstock-data/penstock/trainer/device"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/launch"
	"github.com/penstock-data/penstock/trainer/store"
	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/cluster/gang"
)

// site is what a process of a run has on its machine, to run the workers there and to feed them: the controller, and the hand of every other node (hand.go).
type site struct {
	cfg  Config
	call int64
	work func(*Context) error // nil: argv
	argv []string
	node int // of cfg.nodes()

	program string // its name, where there are several nodes

	run      *store.Run
	from     *origin // the checkpoint of another run to begin with; nil: none
	logs     string  // folder
	sockets  *tempFolder
	staging  *tempFolder   // of Checkpointing.Async; nil: none
	served   feeder.Feeder // of this machine
	dataLog  io.Closer     // of a data process; nil: none
	local    launch.Local  // of this machine
	launcher launch.Launcher
	lease    *device.Lease // nil: no devices
	measure  func(context.Context) map[string]float64
}

// nodes of the run, of which those from trains() on are data nodes, and perNode workers on each of the others.
func (c *Config) nodes() int {
	if c.Gang == nil {
		return 1
	}
	return c.Gang.Nodes()
}

func (c *Config) trains() int {
	if c.Gang == nil {
		return 1
	}
	return c.Gang.Nodes() - c.Gang.DataNodes()
}

func (c *Config) perNode() int { return c.Workers / c.trains() }

// reads are the nodes that read for all, where it is not those of the workers.
func (c *Config) reads() (nodes []int) {
	for k := c.trains(); k < c.nodes(); k++ {
		nodes = append(nodes, k)
	}
	return nodes
}

// gang of the run; nil where it has one node.
func (c *Config) gang() *gang.Gang {
	if c.nodes() == 1 {
		return nil
	}
	return c.Gang
}

// ranks of this node: so many from first on.
func (s *site) ranks() (first, n int) {
	if s.cfg.Gang.OnDataNode() {
		return s.cfg.Workers, 0
	}
	n = s.cfg.perNode()
	return s.node * n, n
}

// launches chooses the launcher and what it starts, and refuses a configuration that has none. All nodes say the same.
func (s *site) launches() error {
	cfg := &s.cfg
	s.launcher = cfg.Launcher
	var on []string
	if l, ok := s.launcher.(launch.Spanning); ok {
		on = l.Machines()
	}
	if g := cfg.gang(); g != nil {
		s.node = g.Node()
		var err error
		if s.program, err = program.Name(); err != nil {
			return err
		}
		for k := range cfg.nodes() {
			on = append(on, g.Host(k))
		}
	}
	if err := reachable(cfg, on); err != nil {
		return err
	}
	if s.launcher == nil && s.work != nil && !cfg.Processes {
		s.launcher = launch.Goroutines()
		switch {
		case cfg.Resources.Memory > 0:
			return fault.New(fault.Unsupported, "the memory of goroutines cannot be limited: set Processes")
		case cfg.Resources.GPUs > 0:
			return fault.New(fault.Unsupported, "goroutines cannot have devices of their own: set Processes")
		case cfg.Resources.CPUs > 0:
			return fault.New(fault.Unsupported, "the CPUs of goroutines cannot be limited: set Processes, or GOMAXPROCS for all")
		case len(cfg.Env) > 0 || cfg.Dir != "":
			return fault.New(fault.Unsupported, "goroutines have the environment and the working directory of this process: set Processes, or change those (Config.Env, Config.Dir)")
		}
	}
	if s.work != nil && cfg.Processes {
		exe, err := os.Executable()
		if err != nil {
			return fault.New(fault.Unsupported, "this program cannot be started again as a worker: %w", err)
		}
		s.argv = append([]string{exe}, os.Args[1:]...)
	}
	return nil
}

// reachable refuses a storage that not all machines of the run reach.
func reachable(cfg *Config, on []string) error {
	scheme, _, bucket := strings.Cut(cfg.Storage, "://")
	if len(on) > 1 && (!bucket || scheme == "file") && !cfg.SharedStorage {
		return fault.New(fault.Invalid, "the storage %s is a folder of one machine, and workers are on %d (%s): use a bucket, or set SharedStorage if the folder is on a file system that all of them have there", cfg.Storage, len(on), strings.Join(on, ", "))
	}
	return nil
}

// folders are made before anything else is.
func (s *site) folders() (err error) {
	if s.sockets, err = newTempFolder(socketBase()); err != nil {
		return err
	}
	if s.cfg.Checkpoint.Async {
		s.staging, err = newTempFolder(os.TempDir())
	}
	return err
}

// equip makes what needs to know the run: logs, the launcher of this machine, and the feeder.
func (s *site) equip() (err error) {
	logs, within, err := s.cfg.logs(s.run)
	if s.logs = logs; err != nil {
		return fault.Wrap(err, fault.Place{File: s.cfg.Logs})
	}
	s.local = launch.Processes(launch.Options{Logs: s.logs, Within: within, Terminal: s.cfg.Output})
	if s.launcher == nil {
		s.launcher = s.local
	}
	s.served, err = s.feeds()
	return err
}

// feeds makes the feeder of all data sets.
func (s *site) feeds() (feeder.Feeder, error) {
	if p := s.cfg.DataProcess; p != nil {
		return s.dataProcess(p)
	}
	var sets []feeder.Set
	for _, name := range s.cfg.dataNames() {
		sets = append(sets, s.cfg.Data[name].set(name))
	}
	return feeder.Local(s.sockets.path, sets, s.cfg.gang()), nil
}

// close frees what the site has. The feeder is closed by then.
func (s *site) close() (err error) {
	if s.dataLog != nil {
		err = errors.Join(err, s.dataLog.Close())
	}
	if s.lease != nil {
		s.lease.Release()
	}
	if s.from != nil {
		err = errors.Join(err, s.from.run.Close())
	}
	if s.run != nil {
		err = errors.Join(err, s.run.Close())
	}
	for _, f := range []*tempFolder{s.sockets, s.staging} {
		if f != nil {
			err = errors.Join(err, f.remove())
		}
	}
	return err
}

// meetings makes the folder in which the ranks of this machine listen for each other, in an attempt.
func (s *site) meetings(attempt int) error {
	dir := peersDir(s.sockets.path, attempt)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fault.Wrap(err, fault.Place{File: dir})
	}
	return nil
}

func peersDir(sockets string, attempt int) string {
	return filepath.Join(sockets, "p"+strconv.Itoa(attempt))
}

// starts is a worker of this machine as it is launched: a process with the environment base (environ) and vars of its rank, or the loop. socket is where it reports to.
func (s *site) starts(rank int, base, vars []string, socket string, attempt int) launch.Worker {
	first, _ := s.ranks()
	w := launch.Worker{Rank: rank, LocalRank: rank - first, Node: s.node, Dir: s.cfg.Dir, Memory: s.cfg.Resources.Memory}
	if s.argv != nil {
		w = s.process(w, base, vars, socket, attempt)
	}
	if s.work != nil {
		id := identity{socket: socket, run: s.run.Name(), attempt: attempt, rank: rank, gang: s.cfg.gang()}
		w.Run = func(ctx context.Context) error { return runLoop(ctx, id, s.work) }
	}
	return w
}

// process is a worker of this machine as a process.
func (s *site) process(w launch.Worker, base, vars []string, socket string, attempt int) launch.Worker {
	w.Argv = s.argv
	w.Env = append(append(base[:len(base):len(base)], vars...), wire.EnvSocket+"="+socket, wire.EnvRun+"="+s.run.Name(), wire.EnvAttempt+"="+strconv.Itoa(attempt))
	if s.work != nil {
		w.Env = append(w.Env, envCall+"="+strconv.FormatInt(s.call, 10))
		if g := s.cfg.gang(); g != nil {
			w.Env = append(w.Env, envGang+"="+g.Dir())
		}
	}
	if s.lease != nil {
		w.Env = append(w.Env, s.lease.Env(w.LocalRank)...)
	}
	return w
}

// environ is what workers inherit: nothing of a run that this process is a worker of, nor of its
// gang, and not the person's key for records.
func (s *site) environ(from []string) []string {
	var env []string
	threads, goThreads, gloo := false, s.work == nil || s.cfg.Resources.CPUs == 0, s.cfg.gang() == nil
	for _, kv := range append(from[:len(from):len(from)], s.cfg.Env...) {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case wire.EnvKey, wire.EnvSocket, wire.EnvRun, wire.EnvAttempt, envCall, envGang, launch.EnvLaunch, gang.EnvDir, gang.EnvFD:
			continue
		case "OMP_NUM_THREADS":
			threads = true
		case "GOMAXPROCS":
			goThreads = true
		case envGloo:
			gloo = true
		}
		env = append(env, kv)
	}
	n := int(s.cfg.Resources.CPUs)
	if s.cfg.Resources.CPUs == 0 {
		n = procs.CPUs() / s.cfg.perNode()
	}
	if !threads {
		env = append(env, "OMP_NUM_THREADS="+strconv.Itoa(max(n, 1)))
	}
	if !goThreads {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(max(n, 1)))
	}
	if !gloo {
		if name := interfaceOf(s.cfg.gang().Host(s.node)); name != "" {
			env = append(env, envGloo+"="+name)
		}
	}
	return env
}

// envGloo names the network interface that gloo uses. Without it that is where this machine's own name leads, which is often its loopback: then no other machine reaches it.
const envGloo = "GLOO_SOCKET_IFNAME"

// interfaceOf is the network interface of this machine that has an address; "": none has it, or it is no address.
func interfaceOf(host string) string {
	want, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	all, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == want.Unmap().WithZone("") {
				return i.Name
			}
		}
	}
	return ""
}

// leaseDevices leases GPUs to the workers of this machine; waiting is told why, while others have them.
func (s *site) leaseDevices(ctx context.Context, waiting func(reason string)) error {
	inv, err := device.Discover(ctx, nil)
	if err != nil {
		return err
	}
	first, n := s.ranks()
	if s.lease, err = inv.Lease(ctx, s.cfg.Name, s.cfg.Resources.GPUs, n, waiting); err != nil {
		return err
	}
	var of []device.Device
	var names []string
	for w := range n {
		for i, d := range s.lease.Devices(w) {
			of, names = append(of, d), append(names, fmt.Sprintf("rank%d/gpu%d/", first+w, i))
		}
	}
	s.measure = func(ctx context.Context) map[string]float64 {
		samples, err := inv.Sample(ctx, of...)
		if err != nil {
			return nil // it always fails from now on, and harms nobody
		}
		out := map[string]float64{}
		for i, v := range samples {
			for name, v := range map[string]float64{"utilisation": v.Utilisation, "memory": v.Memory, "temperature": v.Temperature, "power": v.Power} {
				if !math.IsNaN(v) {
					out[names[i]+name] = v
				}
			}
		}
		return out
	}
	return nil
}

// visible are the devices of a worker of this machine.
func (s *site) visible(local int) []string {
	if s.lease == nil {
		return nil
	}
	return s.lease.Visible(local)
}

// fetch makes the files of a checkpoint a folder of this machine.
func (s *site) fetch(ctx context.Context, run *store.Run, m *store.Manifest) (string, error) {
	cache, err := downloads()
	if err != nil {
		return "", err
	}
	return run.Fetch(ctx, m, cache)
}

// take moves the folders of ranks of this machine into one that is the site's, where nobody waits for their upload, and sets their places. After an error some may be there already.
func (s *site) take(parts []store.Part) (staged string, err error) {
	for i := range parts {
		p := &parts[i]
		p.Dir = leads(p.Dir) // a link would be moved itself, and its files would still be the loop's
		for _, o := range parts[:i] {
			if o.Dir == p.Dir {
				return "", fault.New(fault.Invalid, "ranks %d and %d both gave the folder %s: give each its own, or save on one rank only", o.Rank, p.Rank, p.Dir)
			}
			in, of := p, &o
			if within(of.Dir, in.Dir) {
				in, of = of, in
			}
			if within(in.Dir, of.Dir) {
				return "", fault.New(fault.Invalid, "rank %d gave the folder %s, which is in that of rank %d, %s, and both would be moved away (Checkpointing.Async): give each its own", in.Rank, in.Dir, of.Rank, of.Dir)
			}
		}
	}
	if staged, err = os.MkdirTemp(s.staging.path, "report-"); err != nil {
		return "", fault.Wrap(err, fault.Place{File: s.staging.path})
	}
	for i := range parts {
		to := filepath.Join(staged, "rank-"+strconv.Itoa(parts[i].Rank))
		if err := moveDir(parts[i].Dir, to); err != nil {
			return staged, err
		}
		parts[i].Dir = to
	}
	return staged, nil
}

// keptPrefix begins the names of folders in the temporary folder that hold files which were taken over and are in no checkpoint. They are the user's: nobody sweeps them.
const keptPrefix = "penstock-unsaved-"

// keep saves the files of a report that were taken over and could not be committed: nobody else has them. It returns their place; "": there are none.
func (s *site) keep(staged string, report int64) (string, error) {
	if staged == "" || os.Remove(staged) == nil { // empty: none was taken over
		return "", nil
	}
	to, err := os.MkdirTemp(filepath.Dir(s.staging.path), fmt.Sprintf("%s%s-report-%d-", keptPrefix, s.run.Name(), report))
	if err == nil {
		err = unix.Rename(staged, to) // in the place of the empty folder, which os.Rename refuses
	}
	if err != nil {
		return "", err
	}
	s.cfg.Log.Warn(fmt.Sprintf("the files of report %d are in no checkpoint; they are kept in %s", report, to), "run", s.run.Name(), "report", report) // workers that are ended already get no error
	return to, nil
}
