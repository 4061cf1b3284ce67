package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-data/penstock/cluster"
	"github.com/penstock-data/penstock/internal/freeport"
)

// role is what a process of this program is: a head or a node.
type role struct {
	Head *cluster.HeadConfig
	Node *cluster.NodeConfig
	Addr string // of the head, for a node
	Join string // token
}

const roleEnv = "PENSTOCK_BENCH_CLUSTER_ROLE"

// play is main of such a process. It ends at SIGTERM, and when its standard input does: with the program that started it.
func play(text string) error {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	os.Unsetenv(roleEnv)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var it interface {
		Done() <-chan struct{}
		Close() error
	}
	var err error
	if r.Head != nil {
		it, err = cluster.StartHead(ctx, *r.Head)
	} else {
		it, err = cluster.Join(ctx, r.Addr, r.Join, *r.Node)
	}
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-it.Done():
	}
	return it.Close()
}

// process is a head or a node.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
	id    string // of a node
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) } // it may have ended

func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// start starts a process: of this program in a role, or of the command.
func start(r role, argv ...string) (*process, error) {
	env := os.Environ()
	if len(argv) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		argv, env = []string{self}, append(env, roleEnv+"="+string(text))
	}
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = env, os.Stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is not asked
		close(p.ended)
	}()
	return p, nil
}

// group is a cluster of processes, and a client of it by TLS. Of one goroutine, but for submit and what jobs do.
type group struct {
	b      *bench
	dir    string
	cfg    cluster.HeadConfig
	token  string // of the client
	client *cluster.Client
	head   *process
	nodes  []*process
	binary string // "": this program
	jobs   int
}

// group starts a head. The caller closes it.
func (b *bench) group(cfg cluster.HeadConfig, binary string) (g *group, err error) {
	g = &group{b: b, cfg: cfg, binary: binary}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	if g.dir, err = os.MkdirTemp(b.Dir, "g"); err != nil {
		return g, err
	}
	g.cfg.Dir = filepath.Join(g.dir, "h")
	if g.cfg.Listen, err = freeport.Address(); err != nil {
		return g, err
	}
	if err := g.startHead(); err != nil {
		return g, err
	}
	local, err := g.atSocket()
	if err != nil {
		return g, err
	}
	defer local.Close()
	if g.token, err = local.CreateAccessToken(b.Ctx, "admin", "", 0); err != nil {
		return g, err
	}
	return g, g.dial()
}

// startHead starts the head, again at the same place. It does not wait for it.
func (g *group) startHead() (err error) {
	if g.binary == "" {
		g.head, err = start(role{Head: &g.cfg})
		return err
	}
	g.head, err = start(role{}, g.binary, "start", "--head", "--cpus", "0", "--quiet", "--dir", g.cfg.Dir, "--listen", g.cfg.Listen, "--keep-jobs", strconv.Itoa(g.cfg.KeepJobs))
	return err
}

// atSocket is a client of a head that has just been started.
func (g *group) atSocket() (*cluster.Client, error) {
	ctx, cancel := context.WithTimeout(g.b.Ctx, 30*time.Second)
	defer cancel()
	for {
		if _, err := os.Stat(cluster.SocketIn(g.cfg.Dir)); err == nil {
			return cluster.DialLocal(ctx, g.cfg.Dir)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-g.head.ended:
			return nil, errors.New("the head has ended before it was ready")
		case <-ctx.Done():
			return nil, errors.New("the head is not ready after 30 s")
		}
	}
}

// dial makes the client, another one where there was one.
func (g *group) dial() error {
	c, err := g.another()
	if err != nil {
		return err
	}
	if g.client != nil {
		g.client.Close()
	}
	g.client = c
	return nil
}

// another client. The caller closes it.
func (g *group) another() (*cluster.Client, error) {
	ctx, cancel := context.WithTimeout(g.b.Ctx, 30*time.Second)
	defer cancel()
	return cluster.Dial(ctx, g.cfg.Listen, g.token)
}

// prefix of the names of nodes.
const prefix = "bench"

// join starts n nodes at once, and waits until they are attached. Their labels say their numbers: node=0 is the first.
func (g *group) join(n int, cpus float64) error {
	first := len(g.nodes)
	g.nodes = append(g.nodes, make([]*process, n)...)
	var all errgroup.Group
	for i := first; i < first+n; i++ {
		all.Go(func() (err error) {
			name := prefix + strconv.Itoa(i)
			token, err := g.client.CreateJoinToken(g.b.Ctx, name, 0)
			if err != nil {
				return err
			}
			cfg := cluster.NodeConfig{Dir: filepath.Join(g.dir, name), Name: name, CPUs: cpus, Memory: 1 << 30, GPUs: -1, Grace: time.Second, Labels: map[string]string{"node": strconv.Itoa(i)}}
			if g.binary == "" {
				g.nodes[i], err = start(role{Node: &cfg, Addr: g.cfg.Listen, Join: token})
				return err
			}
			file := cfg.Dir + ".token"
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				return err
			}
			g.nodes[i], err = start(role{}, g.binary, "join", g.cfg.Listen, "--token-file", file, "--dir", cfg.Dir, "--name", name, "--gpus", "0", "--cpus", fmt.Sprint(cpus), "--memory", "1GiB", "--quiet")
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return g.until(30*time.Second, "not all nodes are attached", func() (bool, error) {
		s, err := g.client.Status(g.b.Ctx)
		if err != nil {
			return false, err
		}
		for _, p := range g.nodes[first:] {
			select {
			case <-p.ended:
				return false, errors.New("a node has ended before it was attached")
			default:
			}
		}
		alive := 0
		for _, x := range s.Nodes {
			if i, err := strconv.Atoi(strings.TrimPrefix(x.Name, prefix)); err == nil && x.State == "alive" {
				g.nodes[i].id = x.ID
				alive++
			}
		}
		return alive == first+n, nil
	})
}

// until asks every few milliseconds.
func (g *group) until(most time.Duration, not string, ok func() (bool, error)) error {
	for end := time.Now().Add(most); ; {
		if yes, err := ok(); yes || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s after %v", not, most)
		}
		if err := g.b.pause(5 * time.Millisecond); err != nil {
			return err
		}
	}
}

// pause sleeps, unless the program is to end.
func (b *bench) pause(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-b.Ctx.Done():
		return b.Ctx.Err()
	}
}

// close ends the processes, the nodes first, and removes what they wrote.
func (g *group) close() {
	if g.client != nil {
		g.client.Close()
	}
	for _, p := range g.nodes {
		end(p)
	}
	wait(g.nodes...)
	end(g.head)
	wait(g.head)
	os.RemoveAll(g.dir)
}

func end(p *process) {
	if p != nil {
		p.signal(syscall.SIGCONT)
		p.signal(syscall.SIGTERM)
		p.stdin.Close()
	}
}

// wait waits for processes that were told to end, and kills those that take too long.
func wait(ps ...*process) {
	late := time.After(10 * time.Second)
	for _, p := range ps {
		if p == nil {
			continue
		}
		select {
		case <-p.ended:
		case <-late:
			p.kill()
		}
	}
}

// job is one that writes a line whenever it begins: its node and its process; then it sleeps.
type job struct {
	g    *group
	id   string
	file string
	seen int // lines
}

// run is an attempt of a job.
type run struct {
	node string
	pid  int
	at   time.Time // when its line was seen, a millisecond late at most
}

// sleeper submits such a job; then is what it does instead of sleeping.
func (g *group) sleeper(j cluster.Job, then string) (*job, error) {
	g.jobs++
	x := &job{g: g, file: filepath.Join(g.dir, fmt.Sprintf("ran%d", g.jobs))}
	if then == "" {
		then = "exec sleep 600"
	}
	j.Argv = []string{"/bin/sh", "-c", fmt.Sprintf(`echo "$PENSTOCK_NODE $$" >> %s; %s`, x.file, then)}
	var err error
	x.id, _, err = g.client.Submit(g.b.Ctx, j)
	return x, err
}

// next waits for the next attempt.
func (x *job) next() (r run, err error) {
	for end := time.Now().Add(time.Minute); ; {
		text, err := os.ReadFile(x.file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return r, err
		}
		if lines := strings.SplitAfter(string(text), "\n"); len(lines) > x.seen+1 { // the last one is empty
			r.at = time.Now()
			_, err := fmt.Sscan(lines[x.seen], &r.node, &r.pid)
			x.seen++
			return r, err
		}
		if time.Now().After(end) {
			return r, fmt.Errorf("attempt %d of job %s does not begin within a minute", x.seen+1, x.id)
		}
		if err := x.g.b.pause(time.Millisecond); err != nil {
			return r, err
		}
	}
}
