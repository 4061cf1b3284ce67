package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/internal/freeport"
)

// pair is two processes that are connected in both ways: nodes of a gang, and a gRPC server and its client.
type pair struct {
	host  *kit.Host
	nodes [2]*child
}

type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// start is what a node is told.
type start struct {
	Node      int
	Addresses []string // of the exchange
	GRPC      string   // address of the server
	CA        []byte   // PEM
}

// said is what a node says when it listens.
type said struct {
	Address string
	GRPC    string
	CA      []byte
}

// task is something to measure; node 0 does it, a plan with node 1.
type task struct {
	Kind        string // exchange, plan or grpc; cpu: nothing but that
	Size, Count int
	Trip        bool // each message is answered
}

// answer is what it took.
type answer struct {
	Wall, Median, Tail, CPU time.Duration // CPU: all that the process has used
	Error                   string
}

type result struct {
	answer
	both time.Duration // CPU of the task, in both processes
}

// pair starts the processes at two hosts, by command lines in front of their own.
func (b *bench) pair(host0, host1 string, in0, in1 []string) (p *pair, err error) {
	p = &pair{host: kit.NewHost(b.Ctx, b.Dir, nil)}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	gs, dirs := gangtest.WithFolders(p.host, 2)
	self, err := os.Executable()
	if err != nil {
		return p, err
	}
	hosts := []string{host0, host1}
	for k, g := range gs {
		g.Close()
		address, err := freeport.Address()
		if err != nil {
			return p, err
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return p, err
		}
		hosts[k] = net.JoinHostPort(hosts[k], port)
	}
	var told start
	for k, dir := range dirs {
		file := filepath.Join(dir, gang.FileName)
		text, err := os.ReadFile(file)
		if err != nil {
			return p, err
		}
		var info gang.Info
		if err := json.Unmarshal(text, &info); err != nil {
			return p, err
		}
		info.Addresses = hosts
		if text, err = json.Marshal(info); err != nil {
			return p, err
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return p, err
		}
		argv := append(slices.Clone([][]string{in0, in1}[k]), self, "node", hosts[k])
		c := &child{cmd: exec.CommandContext(b.Ctx, argv[0], argv[1:]...)}
		c.cmd.Env = append(os.Environ(), gang.EnvDir+"="+dir)
		c.cmd.Stderr = os.Stderr
		if c.in, err = c.cmd.StdinPipe(); err != nil {
			return p, err
		}
		out, err := c.cmd.StdoutPipe()
		if err != nil {
			return p, err
		}
		c.out = json.NewDecoder(bufio.NewReader(out))
		if err := c.cmd.Start(); err != nil {
			return p, err
		}
		p.nodes[k] = c
		var s said
		if err := c.out.Decode(&s); err != nil {
			return p, fmt.Errorf("node %d does not start: %w", k, err)
		}
		told.Addresses = append(told.Addresses, s.Address)
		told.GRPC, told.CA = s.GRPC, s.CA // of the last: the server
	}
	for k, c := range p.nodes {
		told.Node = k
		if err := json.NewEncoder(c.in).Encode(told); err != nil {
			return p, err
		}
	}
	// Both ways once, so that nothing is measured that is done once.
	for _, kind := range []string{"exchange", "plan", "grpc"} {
		if _, err := p.run(task{Kind: kind, Size: mib, Count: 32}); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *pair) close() {
	for _, c := range p.nodes {
		if c != nil {
			c.in.Close()
		}
	}
	for k, c := range p.nodes {
		if c != nil {
			if err := c.cmd.Wait(); err != nil {
				log.Printf("node %d: %v", k, err)
			}
		}
	}
	p.host.Close()
}

func (c *child) ask(t task) (a answer, err error) {
	if err = json.NewEncoder(c.in).Encode(t); err != nil {
		return a, err
	}
	return c.answer()
}

func (c *child) answer() (a answer, err error) {
	err = c.out.Decode(&a)
	if err == nil && a.Error != "" {
		err = fmt.Errorf("%s", a.Error)
	}
	return a, err
}

// run measures a task.
func (p *pair) run(t task) (r result, err error) {
	var before, after [2]answer
	for k, c := range p.nodes {
		if before[k], err = c.ask(task{Kind: "cpu"}); err != nil {
			return r, err
		}
	}
	if t.Kind == "plan" {
		if err = json.NewEncoder(p.nodes[1].in).Encode(t); err != nil {
			return r, err
		}
	}
	if r.answer, err = p.nodes[0].ask(t); err != nil {
		return r, err
	}
	if t.Kind == "plan" {
		if _, err = p.nodes[1].answer(); err != nil {
			return r, err
		}
	}
	for k, c := range p.nodes {
		if after[k], err = c.ask(task{Kind: "cpu"}); err != nil {
			return r, err
		}
		r.both += after[k].CPU - before[k].CPU
	}
	return r, nil
}

// wire is a cable of a limited rate between two network namespaces.
type wire struct{ id string }

func newLink(rate string) (*wire, error) {
	l := &wire{id: strconv.Itoa(os.Getpid())}
	for k := range 2 {
		if err := command("ip", "netns", "add", l.space(k)); err != nil {
			l.remove()
			return nil, err
		}
	}
	steps := [][]string{{"ip", "link", "add", "eth0", "netns", l.space(0), "type", "veth", "peer", "name", "eth0", "netns", l.space(1)}}
	for k := range 2 {
		s := l.space(k)
		steps = append(steps, []string{"ip", "-n", s, "addr", "add", l.host(k) + "/24", "dev", "eth0"}, []string{"ip", "-n", s, "link", "set", "eth0", "up"}, []string{"ip", "-n", s, "link", "set", "lo", "up"},
			[]string{"tc", "-n", s, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"})
	}
	for _, argv := range steps {
		if err := command(argv...); err != nil {
			l.remove()
			return nil, err
		}
	}
	return l, nil
}

func command(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", argv, err, out)
	}
	return nil
}

func (l *wire) space(k int) string { return fmt.Sprintf("pxb%s-%d", l.id, k) }
func (l *wire) host(k int) string  { return fmt.Sprintf("198.18.255.%d", k+1) }
func (l *wire) in(k int) []string  { return []string{"ip", "netns", "exec", l.space(k)} }
func (l *wire) remove() {
	for k := range 2 {
		_ = command("ip", "netns", "del", l.space(k)) // the cable goes with it
	}
}
