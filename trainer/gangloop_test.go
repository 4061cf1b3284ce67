package trainer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/collective"
	"github.com/penstock-data/penstock/trainer/store"
)

// modelOf is the sum of the model in the last checkpoint of a run.
func modelOf(t *testing.T, k conf) string {
	t.Helper()
	run, err := store.Open(t.Context(), k.Storage, k.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	m, err := run.Latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m.Files {
		if f.Path == "model.json" {
			return f.Sum
		}
	}
	t.Fatalf("checkpoint %d has no model", m.Number)
	return ""
}

// loopOnOne is the outcome of the Go loop on one node.
func loopOnOne(t *testing.T, workers int) (conf, outcome) {
	t.Helper()
	k := newConf(t, "one")
	k.Workers, k.StepMS = workers, 0
	fitOK(t, k.loop, inGoroutines(k.config()))
	o := outcomeOf(t, k, k.Storage)
	if len(o.losses) != steps*epochs {
		t.Fatal("the test is wrong")
	}
	return k, o
}

// Go loops on several nodes are given what those of one machine are, compute the same bits, and save on all ranks.
func TestGangLoops(t *testing.T) {
	for _, c := range []struct {
		loop           string
		workers, nodes int
		async, process bool
	}{{"goroutines", 4, 2, false, false}, {"goroutines", 3, 3, true, true}, {"processes", 4, 2, true, false}, {"processes", 3, 3, false, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			one, want := loopOnOne(t, c.workers)
			k := newConf(t, "loops")
			k.Loop, k.Workers, k.StepMS, k.Async, k.DataProcess, k.SaveAll = c.loop, c.workers, 0, c.async, c.process, true
			all, errs := trained(t, c.nodes, func(g *gang.Gang, dir string) *Trainer { return k.trainer(k.quiet(t, g, dir)) })
			for i, res := range all {
				if errs[i] != nil || res == nil || res.State != store.Finished || res.Reports != 8 || res.Checkpoint != 8 {
					t.Fatalf("node %d: %+v, %v", i, res, errs[i])
				}
			}
			sameLedger(t, k.Out)
			sameOutcome(t, outcomeOf(t, k, k.Storage), want)
			if a, b := modelOf(t, one), modelOf(t, k); a != b {
				t.Errorf("the model of one machine is %s, that of %d nodes %s", a, c.nodes, b)
			}
			m := all[0].Checkpoints[len(all[0].Checkpoints)-1]
			from := map[int]bool{}
			for _, f := range m.Files {
				from[f.Rank] = true
			}
			if len(from) != c.workers {
				t.Errorf("files of ranks %v", from)
			}
			nothingLeft(t, k)
		})
	}
}

// Whichever process of a Go program on two nodes is killed: the run goes on, in the same gang or the next, with the losses of one that was left alone.
func TestGangLoopKilled(t *testing.T) {
	for _, c := range []struct {
		loop, victim string
		signal       syscall.Signal
		again        bool // a new gang goes on
	}{
		{"processes", "rank3", syscall.SIGKILL, false},
		{"processes", "rank0", syscall.SIGKILL, false},
		{"processes", "node1", syscall.SIGKILL, false}, // data process
		{"processes", "member1", syscall.SIGKILL, true},
		{"goroutines", "member1", syscall.SIGKILL, true},
		{"goroutines", "member0", syscall.SIGKILL, true},
		{"goroutines", "member1", syscall.SIGSTOP, true},
	} {
		process, async := c.victim == "node1" || rand.IntN(2) == 0, rand.IntN(2) == 0
		t.Run(fmt.Sprintf("%s %s %s, data process %v, async %v", c.loop, c.victim, c.signal, process, async), func(t *testing.T) {
			k := newConf(t, "killed")
			k.Loop, k.Workers, k.SaveAll, k.StepMS, k.DataProcess, k.Async = c.loop, 4, true, 5, process, async
			k.outlives(t, c.victim, c.signal, c.again, undisturbedOn(t, 4))
		})
	}
}

// A loop that fails on another node is the cause, with its rank, node, and stack; ranks that wait for it in a collective end with it.
func TestGangLoopFails(t *testing.T) {
	for _, loop := range []string{"goroutines", "processes"} {
		for fail, want := range map[string][]string{
			"error": {"rank 3 on node 1", "all is lost"},
			"panic": {"rank 3 on node 1", "panic: all is lost", "conf.fail("},
			"hang":  {"rank 3 gave no sign"},
		} {
			t.Run(loop+" "+fail, func(t *testing.T) {
				k := newConf(t, "fails")
				k.Loop, k.Workers, k.Fail, k.FailRank = loop, 4, fail, 3
				all, errs := trained(t, 2, func(g *gang.Gang, dir string) *Trainer {
					cfg := k.quiet(t, g, dir)
					cfg.Failures = Failures{Worker: -1, Hang: -1}
					if fail == "hang" {
						cfg.HangTimeout = 3 * time.Second
					}
					return k.trainer(cfg)
				})
				code := fault.UserCode
				if fail == "hang" {
					code = fault.Stalled
				}
				for i, err := range errs {
					if fault.CodeOf(err) != code || all[i] == nil || all[i].State != store.Failed {
						t.Fatalf("node %d: %v, %+v", i, err, all[i])
					}
					for _, w := range want {
						if !strings.Contains(err.Error(), w) {
							t.Errorf("node %d: %v: want %q", i, err, w)
						}
					}
				}
				if f := all[0].Failures; len(f) != 1 || f[0].Rank != 3 {
					t.Errorf("%+v", f)
				}
				if fail == "hang" {
					if b, err := os.ReadFile(filepath.Join(k.Out, "logs0", "attempt-1", "rank-3.stacks")); err != nil || !strings.Contains(string(b), "conf.fail(") {
						t.Errorf("%.300s, %v", b, err)
					}
				}
				nothingLeft(t, k)
			})
		}
	}
}

// A loop that fails once starts again on all nodes, from the last checkpoint, and its ring with it.
func TestGangLoopAgain(t *testing.T) {
	want := undisturbedOn(t, 4)
	k := newConf(t, "again")
	k.Loop, k.Workers, k.StepMS = "goroutines", 4, 0
	all, errs := trained(t, 2, func(g *gang.Gang, dir string) *Trainer {
		return New(func(c *Context) error {
			if c.Attempt() > 2 {
				return k.loop(c)
			}
			s, err := c.Shard("train")
			if err != nil {
				return err
			}
			b, err := s.Next(c)
			if err != nil {
				return err
			}
			b.Release()
			if err := c.Barrier(); err != nil {
				return err
			}
			if c.Rank() == 2 {
				return errors.New("not yet")
			}
			err = c.Barrier()
			if fault.CodeOf(err) != fault.WorkerLost && fault.CodeOf(err) != fault.Canceled {
				t.Errorf("rank %d: a barrier without rank 2: %v", c.Rank(), err)
			}
			return err
		}, k.quiet(t, g, dir))
	})
	if errs[0] != nil || errs[1] != nil || all[0].Attempts != 3 || len(all[0].Failures) != 2 || all[0].Failures[0].Rank != 2 || all[1].Attempts != 3 {
		t.Fatalf("%v, %+v", errs, all[0])
	}
	sameLedger(t, k.Out)
	sameOutcome(t, outcomeOf(t, k, k.Storage), want)
}

// A goroutine on another node that does not return when it is told to fails the run, which names it, and ends on all nodes.
func TestGangLoopDeaf(t *testing.T) {
	release, returned := make(chan struct{}), make(chan struct{})
	k := newConf(t, "deaf")
	k.Loop = "goroutines"
	all, errs := trained(t, 2, func(g *gang.Gang, dir string) *Trainer {
		cfg := k.quiet(t, g, dir)
		cfg.Data, cfg.StopTimeout = nil, 200*time.Millisecond
		return New(func(c *Context) error {
			if err := c.Barrier(); err != nil {
				return err
			}
			if c.Rank() == 0 {
				return errors.New("enough")
			}
			defer close(returned)
			<-release
			return nil
		}, cfg)
	})
	close(release)
	if all[1] == nil {
		t.Fatal(errs)
	}
	<-returned
	for i, err := range errs {
		if fault.CodeOf(err) != fault.UserCode && fault.CodeOf(err) != fault.Stalled || !strings.Contains(err.Error(), "rank 1 on node 1") || !strings.Contains(err.Error(), "runs on") || all[i].State != store.Failed {
			t.Errorf("node %d: %v", i, err)
		}
	}
}

// A notice at one node is one for all loops, at the same step; the run goes on with other numbers of nodes and workers.
func TestGangLoopNotice(t *testing.T) {
	k := newConf(t, "notice")
	k.SaveAll, k.StepMS = true, 8
	for i, c := range []struct {
		loop               string
		workers, nodes, at int
	}{{"goroutines", 4, 2, 1}, {"processes", 3, 3, 0}, {"goroutines", 2, 1, 0}, {"goroutines", 4, 2, -1}} {
		k.Loop, k.Workers, k.Resume = c.loop, c.workers, i > 0
		k.noticed(t, i+1, c.nodes, c.at)
	}
	sameLedger(t, k.Out)
	nothingLeft(t, k)
}

// All collectives work over nodes, and tell a loop where it is.
func TestGangCollectives(t *testing.T) {
	for _, c := range []struct {
		loop           string
		workers, nodes int
	}{{"goroutines", 6, 2}, {"goroutines", 4, 4}} {
		k := newConf(t, "collectives")
		k.Loop, k.Workers = c.loop, c.workers
		_, errs := trained(t, c.nodes, func(g *gang.Gang, dir string) *Trainer {
			cfg := k.quiet(t, g, dir)
			cfg.Data = nil
			return New(func(k *Context) error {
				per := c.workers / c.nodes
				if k.World() != c.workers || k.Nodes() != c.nodes || k.LocalWorld() != per || k.Node() != k.Rank()/per || k.LocalRank() != k.Rank()%per || k.Node() != g.Node() {
					return fmt.Errorf("%+v on node %d", k.w, g.Node())
				}
				for range 20 {
					if err := k.Barrier(); err != nil {
						return err
					}
					x := []float32{float32(k.Rank()), 1}
					if err := AllReduce(k, x, collective.Sum); err != nil {
						return err
					}
					all, err := k.AllGather(make([]byte, k.Rank()*50_000))
					if err != nil {
						return err
					}
					b, err := k.Broadcast(2, []byte{byte(k.Rank())})
					if err != nil {
						return err
					}
					for r, b := range all {
						if len(b) != r*50_000 {
							return fmt.Errorf("%d bytes of rank %d", len(b), r)
						}
					}
					if got := fmt.Sprint(x, b); got != fmt.Sprintf("[%d %d] [2]", c.workers*(c.workers-1)/2, c.workers) {
						return errors.New(got)
					}
				}
				return nil
			}, cfg)
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
}

// What loops on several nodes cannot be is refused on all of them.
func TestGangLoopBadInput(t *testing.T) {
	for want, change := range map[string]func(cfg *Config, node int){
		"the memory of goroutines cannot be limited": func(cfg *Config, _ int) { cfg.Resources.Memory = 1 << 30 },
		"is a folder of one machine":                 func(cfg *Config, _ int) { cfg.SharedStorage = false },
		`"processes" there, "goroutines" here`:       func(cfg *Config, node int) { cfg.Processes = node == 1 },
		`another settings than node 0`:               func(cfg *Config, node int) { cfg.Settings = map[string]any{"node": node} },
	} {
		k := newConf(t, "bad")
		k.Loop = "goroutines"
		all, errs := trained(t, 2, func(g *gang.Gang, dir string) *Trainer {
			cfg := k.quiet(t, g, dir)
			change(&cfg, g.Node())
			return New(nothing, cfg)
		})
		for i, err := range errs {
			if all[i] != nil || err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("node %d: %v, %v, want %q", i, all[i], err, want)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(k.Storage, "*")); len(left) > 0 {
			t.Errorf("the name is taken: %v", left)
		}
	}
}
