package trainer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
)

func init() {
	programs["worker"] = workerProgram
	programs["member"] = memberProgram
}

// reduceAll is how the workers of a test add up; nil: by collectives.
var reduceAll func(c *Context, x []float64) error

// workerProgram is a worker of Command: its collectives go over MASTER_ADDR, as those of frameworks do.
func workerProgram() error {
	k, err := confOf()
	if err != nil {
		return err
	}
	id := identity{socket: os.Getenv(wire.EnvSocket), run: os.Getenv(wire.EnvRun)}
	id.attempt, _ = strconv.Atoi(os.Getenv(wire.EnvAttempt))
	id.rank, _ = strconv.Atoi(os.Getenv("RANK"))
	if err := os.WriteFile(filepath.Join(k.Out, fmt.Sprintf("pid-rank%d-%d", id.rank, os.Getpid())), nil, 0o600); err != nil {
		return err
	}
	s := &star{}
	defer s.close()
	reduceAll = s.reduce
	return runLoop(context.Background(), id, k.loop)
}

// star adds numbers of all ranks at rank 0, in the order of ranks.
type star struct {
	conns []net.Conn // of other ranks; of them: that to rank 0
	l     net.Listener
}

func (s *star) meet(c *Context) (err error) {
	addr := net.JoinHostPort(os.Getenv("MASTER_ADDR"), os.Getenv("MASTER_PORT"))
	if c.Rank() > 0 {
		for {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				s.conns = []net.Conn{conn}
				_, err = conn.Write([]byte{byte(c.Rank())})
				return err
			}
			select {
			case <-c.Done():
				return fault.New(fault.Unavailable, "rank 0 is not reached: %w", err)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	s.conns = make([]net.Conn, c.World())
	if s.l, err = net.Listen("tcp", addr); err != nil {
		return err
	}
	for range c.World() - 1 {
		conn, err := s.l.Accept()
		if err != nil {
			return err
		}
		var b [1]byte
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			return err
		}
		s.conns[b[0]] = conn
	}
	return nil
}

func (s *star) reduce(c *Context, x []float64) error {
	if s.conns == nil {
		if err := s.meet(c); err != nil {
			return err
		}
	}
	read := func(conn net.Conn, x []float64) error { return binary.Read(conn, binary.LittleEndian, x) }
	if c.Rank() > 0 {
		if err := binary.Write(s.conns[0], binary.LittleEndian, x); err != nil {
			return fault.New(fault.Unavailable, "rank 0: %w", err)
		}
		if err := read(s.conns[0], x); err != nil {
			return fault.New(fault.Unavailable, "rank 0: %w", err)
		}
		return nil
	}
	y := make([]float64, len(x))
	for r := 1; r < len(s.conns); r++ {
		if err := read(s.conns[r], y); err != nil {
			return fault.New(fault.Unavailable, "rank %d: %w", r, err)
		}
		for i := range x {
			x[i] += y[i]
		}
	}
	for _, conn := range s.conns[1:] {
		if err := binary.Write(conn, binary.LittleEndian, x); err != nil {
			return fault.New(fault.Unavailable, "a rank: %w", err)
		}
	}
	return nil
}

func (s *star) close() {
	for _, conn := range s.conns {
		if conn != nil {
			conn.Close()
		}
	}
	if s.l != nil {
		s.l.Close()
	}
}

// member is the configuration of a process of a gang whose folder is dir.
func (k conf) member(g *gang.Gang, dir string) Config {
	cfg := k.config()
	cfg.Gang, cfg.SharedStorage, cfg.Processes = g, true, k.Loop == "processes"
	switch k.Loop {
	case "":
		cfg.Env = append(k.env(), "TRAINER_TEST=worker")
	case "goroutines":
		cfg.Env = nil
	}
	cfg.StartTimeout = 30 * time.Second
	if cfg.DataProcess != nil && dir != "" {
		cfg.DataProcess.Env = append(cfg.DataProcess.Env, gang.EnvDir+"="+dir)
	}
	return cfg
}

// trainer is what a member calls Fit of.
func (k conf) trainer(cfg Config) *Trainer {
	if k.Loop == "" {
		return Command([]string{os.Args[0]}, cfg)
	}
	return New(k.loop, cfg)
}

// memberProgram is a process of a gang.
func memberProgram() error {
	k, err := confOf()
	if err != nil {
		return err
	}
	dir := os.Getenv(gang.EnvDir)
	b, err := os.ReadFile(filepath.Join(dir, gang.FileName))
	if err != nil {
		return err
	}
	var info gang.Info
	if err := json.Unmarshal(b, &info); err != nil {
		return err
	}
	l, err := net.Listen("tcp", info.Addresses[info.Node])
	if err != nil {
		return err
	}
	g, err := gang.Open(dir, l)
	if err != nil {
		return err
	}
	defer g.Close()
	if err := os.WriteFile(filepath.Join(k.Out, fmt.Sprintf("pid-member%d-%d", info.Node, os.Getpid())), nil, 0o600); err != nil {
		return err
	}
	cfg := k.member(g, dir)
	cfg.Log, cfg.Logs, cfg.Output = slog.New(slog.NewTextHandler(os.Stderr, nil)), filepath.Join(k.Out, fmt.Sprintf("logs%d", info.Node)), os.Stderr
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cfg.Preemption.Notice = Signals(ctx)
	res, err := k.trainer(cfg).Fit(ctx)
	if res != nil {
		fmt.Printf("RESULT %s %d %v\n", res.State, res.Checkpoint, res.Err)
	}
	if res != nil && res.State == store.Preempted {
		os.Exit(75)
	}
	return err
}

// together calls Fit of all members of a gang in this process, and returns their results.
func together(t *testing.T, n int, config func(g *gang.Gang, dir string) Config) (all []*Result, errs []error) {
	t.Helper()
	return trained(t, n, func(g *gang.Gang, dir string) *Trainer { return Command([]string{os.Args[0]}, config(g, dir)) })
}

func trained(t *testing.T, n int, member func(g *gang.Gang, dir string) *Trainer) (all []*Result, errs []error) {
	t.Helper()
	return trainedWith(t, n, 0, member)
}

// trainedWith is trained, with so many data nodes besides.
func trainedWith(t *testing.T, n, data int, member func(g *gang.Gang, dir string) *Trainer) (all []*Result, errs []error) {
	t.Helper()
	gs, dirs := gangtest.WithData(t, n+data, data)
	all, errs = make([]*Result, n+data), make([]error, n+data)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for i, g := range gs {
		m := member(g, dirs[i])
		wg.Go(func() { all[i], errs[i] = m.Fit(ctx) })
	}
	wg.Wait()
	return all, errs
}

// quiet is a configuration for a test, of which node 0 logs.
func (k conf) quiet(t *testing.T, g *gang.Gang, dir string) Config {
	cfg := k.member(g, dir)
	cfg.Logs = filepath.Join(k.Out, fmt.Sprintf("logs%d", g.Node()))
	if testing.Verbose() {
		cfg.Log, cfg.Output = slog.New(slog.NewTextHandler(testWriter{t}, nil)).With("node", g.Node()), testWriter{t}
	}
	return cfg
}

// onOne is the outcome of the same program on one node.
func onOne(t *testing.T, workers int) outcome {
	t.Helper()
	if o, ok := alone.Load(-workers); ok {
		return o.(outcome)
	}
	k := newConf(t, "alone")
	k.Workers, k.StepMS = workers, 0
	cfg := k.member(nil, "")
	if res, err := Command([]string{os.Args[0]}, cfg).Fit(t.Context()); err != nil || res.State != store.Finished {
		t.Fatal(res, err)
	}
	o := outcomeOf(t, k, k.Storage)
	if len(o.losses) != steps*epochs {
		t.Fatalf("%d losses: the test is wrong", len(o.losses))
	}
	alone.Store(-workers, o)
	return o
}

func sameOutcome(t *testing.T, got, want outcome) {
	t.Helper()
	if !maps.Equal(got.losses, want.losses) {
		t.Errorf("losses are not those of one node:\n%v\n%v", got.losses, want.losses)
	}
	for n, m := range want.metrics {
		if !maps.Equal(got.metrics[n], m) {
			t.Errorf("report %d is %v, want %v", n, got.metrics[n], m)
		}
	}
}

// Four ranks on two nodes are given what four on one are, and compute what these do; ranks of both save.
func TestGang(t *testing.T) {
	for _, async := range []bool{false, true} {
		for _, process := range []bool{false, true} {
			t.Run(fmt.Sprintf("async %v, data process %v", async, process), func(t *testing.T) {
				want := onOne(t, 4)
				k := newConf(t, "gang")
				k.Workers, k.StepMS, k.Async, k.DataProcess, k.SaveAll = 4, 0, async, process, true
				all, errs := together(t, 2, func(g *gang.Gang, dir string) Config { return k.quiet(t, g, dir) })
				for i, res := range all {
					if errs[i] != nil || res == nil || res.State != store.Finished || res.Reports != 8 || res.Checkpoint != 8 {
						t.Fatalf("node %d: %+v, %v", i, res, errs[i])
					}
				}
				sameLedger(t, k.Out)
				sameOutcome(t, outcomeOf(t, k, k.Storage), want)
				m := all[0].Checkpoints[len(all[0].Checkpoints)-1]
				var from []string
				for _, f := range m.Files {
					if strings.HasPrefix(f.Path, "of-rank") {
						from = append(from, fmt.Sprintf("%s:%d", f.Path, f.Rank))
					}
				}
				if s := strings.Join(from, " "); s != "of-rank-0:0 of-rank-1:1 of-rank-2:2 of-rank-3:3" {
					t.Error(s)
				}
				nothingLeft(t, k)
			})
		}
	}
}
