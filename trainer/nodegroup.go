package trainer

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/launch"
	"golang.org/x/sync/errgroup"
)

// spread is the launcher of a gang: workers of this node are its local launcher's, those of others their hands'. Of these Worker.Env is what is their rank's own.
type spread struct {
	local   launch.Launcher
	nodes   *nodes
	attempt int // of the next launch
}

var _ launch.Spanning = (*spread)(nil)

// Machines are the hosts of all nodes.
func (s *spread) Machines() (names []string) {
	for k := range s.nodes.all {
		names = append(names, s.nodes.c.cfg.Gang.Host(k))
	}
	return names
}

const notStarted = "it was not started"

// Launch starts the workers of all nodes, or none.
func (s *spread) Launch(ctx context.Context, workers []launch.Worker) (launch.Group, error) {
	g := &spreadGroup{attempt: s.attempt, exits: make(chan launch.Exit, len(workers)), left: len(workers), done: make(chan struct{})}
	of := make([][]launch.Worker, len(s.nodes.all))
	for _, w := range workers {
		of[w.Node] = append(of[w.Node], w)
	}
	for _, n := range s.nodes.others() {
		if mine := of[n.number]; len(mine) > 0 {
			g.parts = append(g.parts, newNodeGroup(g, n, mine))
		}
	}
	all, actx := errgroup.WithContext(ctx)
	all.Go(func() (err error) {
		local, err := s.local.Launch(actx, of[s.nodes.c.node])
		if err == nil {
			g.local = local
		}
		return err
	})
	for _, p := range g.parts {
		all.Go(func() error { return p.launch(actx) })
	}
	err := all.Wait()
	if g.local != nil {
		g.forwards.Go(func() {
			for e := range g.local.Exits() {
				g.exit(e)
			}
		})
	} else {
		for _, w := range of[s.nodes.c.node] {
			g.exit(launch.Exit{Rank: w.Rank, Code: -1, Ours: true, At: time.Now(), Detail: notStarted})
		}
	}
	if err != nil {
		g.Stop(0)
		return nil, err
	}
	return g, nil
}

// spreadGroup is workers of several nodes.
type spreadGroup struct {
	attempt  int
	local    launch.Group // nil: none was started
	parts    []*nodeGroup
	forwards sync.WaitGroup

	mu    sync.Mutex
	left  int // workers without an exit
	exits chan launch.Exit
	done  chan struct{} // closed after the last exit
}

func (g *spreadGroup) exit(e launch.Exit) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.exits <- e
	if g.left--; g.left == 0 {
		close(g.exits)
		close(g.done)
	}
}

func (g *spreadGroup) Exits() <-chan launch.Exit { return g.exits }

func (g *spreadGroup) Signal(rank int, s os.Signal) error {
	for _, p := range g.parts {
		if rank == -1 || p.has(rank) {
			if err := p.signal(rank, s); rank != -1 {
				return err
			}
		}
	}
	return g.local.Signal(rank, s)
}

func (g *spreadGroup) Stacks(ctx context.Context, rank int) (string, error) {
	for _, p := range g.parts {
		if p.has(rank) {
			a, err := p.node.ask(ctx, wire.ToHand{Stacks: &wire.HandStacks{Attempt: g.attempt, Rank: rank}})
			return a.Stacks, err
		}
	}
	return g.local.Stacks(ctx, rank)
}

// Stop ends the workers of all nodes; of one that is lost nothing can be said.
func (g *spreadGroup) Stop(grace time.Duration) {
	var all sync.WaitGroup
	if g.local != nil {
		all.Go(func() { g.local.Stop(grace) })
	}
	for _, p := range g.parts {
		all.Go(func() { p.stop(grace) })
	}
	all.Wait()
	g.forwards.Wait()
}

func (g *spreadGroup) Usage() []launch.Usage {
	all := g.local.Usage()
	for _, p := range g.parts {
		all = append(all, p.usage()...)
	}
	return all
}

// nodeGroup is the workers of a node with a hand.
type nodeGroup struct {
	g       *spreadGroup
	node    *node
	workers []launch.Worker

	mu     sync.Mutex
	ended  map[int]bool
	usages []launch.Usage // last heard of
}

// newNodeGroup is one whose exits are heard.
func newNodeGroup(g *spreadGroup, n *node, workers []launch.Worker) *nodeGroup {
	p := &nodeGroup{g: g, node: n, workers: workers, ended: map[int]bool{}}
	for _, w := range workers {
		p.usages = append(p.usages, launch.Usage{Rank: w.Rank})
	}
	n.mu.Lock()
	n.exits = p.heard
	n.mu.Unlock()
	g.forwards.Go(func() { // until all have their exit
		select {
		case <-n.gone:
			for _, w := range workers {
				p.exit(launch.Exit{Rank: w.Rank, Code: -1, At: time.Now(), Err: n.lost()})
			}
		case <-g.done:
		}
	})
	return p
}

func (p *nodeGroup) has(rank int) bool {
	for _, w := range p.workers {
		if w.Rank == rank {
			return true
		}
	}
	return false
}

func (p *nodeGroup) launch(ctx context.Context) error {
	m := &wire.HandLaunch{Attempt: p.g.attempt}
	for _, w := range p.workers {
		m.Workers = append(m.Workers, wire.HandWorker{Rank: w.Rank, Env: w.Env})
	}
	_, err := p.node.ask(ctx, wire.ToHand{Launch: m})
	if err != nil {
		for _, w := range p.workers { // none was started, or the node is lost
			p.exit(launch.Exit{Rank: w.Rank, Code: -1, Ours: true, At: time.Now(), Detail: notStarted})
		}
	}
	return err
}

// heard takes the exit that a hand has seen.
func (p *nodeGroup) heard(e wire.HandExit) {
	if e.Attempt != p.g.attempt || !p.has(e.Rank) {
		return
	}
	p.exit(launch.Exit{Rank: e.Rank, Name: e.Name, PID: e.PID, Code: e.Code, Signal: syscall.Signal(e.Signal), Memory: e.Memory, Ours: e.Ours, At: time.Now(), Tail: e.Tail, Detail: e.Detail, Err: e.Error.Err()})
}

// exit reports a worker once.
func (p *nodeGroup) exit(e launch.Exit) {
	p.mu.Lock()
	twice := p.ended[e.Rank]
	p.ended[e.Rank] = true
	p.mu.Unlock()
	if !twice {
		p.g.exit(e)
	}
}

func (p *nodeGroup) signal(rank int, s os.Signal) error {
	n, ok := s.(syscall.Signal)
	if !ok {
		return fault.New(fault.Unsupported, "signal %v", s)
	}
	_, err := p.node.ask(context.Background(), wire.ToHand{Signal: &wire.HandSignal{Attempt: p.g.attempt, Rank: rank, Signal: int(n)}})
	return err
}

func (p *nodeGroup) stop(grace time.Duration) {
	_, _ = p.node.ask(context.Background(), wire.ToHand{Stop: &wire.HandStop{Attempt: p.g.attempt, Grace: max(grace, 0).Seconds()}}) // exits come ahead of the answer; who is lost says so
}

// usageTime is how long a hand may take to say what workers use.
const usageTime = time.Second

func (p *nodeGroup) usage() []launch.Usage {
	ctx, cancel := context.WithTimeout(context.Background(), usageTime)
	defer cancel()
	a, err := p.node.ask(ctx, wire.ToHand{Usage: &wire.HandUsage{Attempt: p.g.attempt}})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		for i := range p.usages {
			for _, u := range a.Usage {
				if u.Rank == p.usages[i].Rank {
					p.usages[i] = launch.Usage{Rank: u.Rank, PID: u.PID, Processes: u.Processes, Memory: u.Memory, CPU: time.Duration(u.CPU * float64(time.Second))}
				}
			}
		}
	}
	return append([]launch.Usage(nil), p.usages...)
}

// ofNode names the node of a rank in messages; "": it is the controller's.
func (c *controller) ofNode(rank int) string {
	if k := rank / c.cfg.perNode(); k > 0 {
		return fmt.Sprintf(" on node %d, %s", k, c.nodes.all[k].host)
	}
	return ""
}
