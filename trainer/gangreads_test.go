package trainer

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/store"
)

// Workers that data nodes read for are given what those of one machine are, and compute what these do: programs, goroutines and processes; with evaluation, and where node 0 is the only one with workers.
func TestDataNodes(t *testing.T) {
	for _, c := range []struct {
		loop           string
		nodes, data    int
		async, process bool
	}{{"", 2, 1, false, true}, {"", 1, 2, true, false}, {"goroutines", 2, 2, false, false}, {"processes", 2, 1, true, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			var want outcome
			if c.loop == "" {
				want = onOne(t, 4)
			} else {
				_, want = loopOnOne(t, 4)
			}
			k := newConf(t, "reads")
			k.Loop, k.Workers, k.StepMS, k.Async, k.DataProcess, k.SaveAll = c.loop, 4, 0, c.async, c.process, true
			all, errs := trainedWith(t, c.nodes, c.data, func(g *gang.Gang, dir string) *Trainer {
				if g.Nodes() != c.nodes+c.data || g.DataNodes() != c.data {
					t.Errorf("%s: %d data nodes", g, g.DataNodes())
				}
				return k.trainer(k.quiet(t, g, dir))
			})
			for i, res := range all {
				if errs[i] != nil || res == nil || res.State != store.Finished || res.Reports != 8 || res.Checkpoint != 8 {
					t.Fatalf("node %d: %+v, %v", i, res, errs[i])
				}
			}
			sameLedger(t, k.Out)
			sameOutcome(t, outcomeOf(t, k, k.Storage), want)
			nothingLeft(t, k)
		})
	}
}

// An evaluation set is read at data nodes, too, again each time.
func TestDataNodesEvaluate(t *testing.T) {
	out := t.TempDir()
	k := newConf(t, "one")
	k.Workers = 4
	all, errs := trainedWith(t, 2, 1, func(g *gang.Gang, dir string) *Trainer {
		cfg := k.quiet(t, g, dir)
		cfg.Env = []string{"TRAINER_TEST=evaluator", "OUT=" + out}
		cfg.Data["eval"] = Data{Dataset: dataset.Range(evalRows), Eval: true, Options: dataset.ShardOptions{RunOptions: dataset.RunOptions{Memory: 64 << 20},
			Options: shard.Options{GlobalBatch: 16, Form: shard.Form{Tensors: true}}}}
		return k.trainer(cfg)
	})
	for node, err := range errs {
		if err != nil || all[node].State != store.Finished || all[node].Reports != 4 {
			t.Fatalf("node %d: %v, %+v", node, err, all[node])
		}
	}
	nothingLeft(t, k)
}

// A data node that is lost, or its data process, ends no run: it goes on, in the same gang or the next, with the losses of one that was left alone. A notice at one is one for all.
func TestDataNodesKilled(t *testing.T) {
	for _, c := range []struct {
		victim string
		signal syscall.Signal
		again  bool
	}{
		{"node2", syscall.SIGKILL, false}, // its data process
		{"member2", syscall.SIGKILL, true},
		{"member1", syscall.SIGKILL, true}, // with workers
	} {
		t.Run(fmt.Sprintf("%s %s", c.victim, c.signal), func(t *testing.T) {
			k := newConf(t, "killed")
			k.Workers, k.DataProcess, k.SaveAll, k.StepMS, k.DataNodes = 4, true, true, 5, 1
			k.outlives(t, c.victim, c.signal, c.again, onOne(t, 4))
		})
	}
	t.Run("notice", func(t *testing.T) {
		k := newConf(t, "notice")
		k.DataProcess, k.SaveAll, k.StepMS, k.Workers, k.DataNodes = true, true, 8, 4, 1
		m := k.noticed(t, 1, 2, 2)
		if !strings.Contains(m.outs[0].String(), "terminated at data node 2") {
			t.Error("the notice does not say where it came")
		}
		k.Resume, k.DataNodes = true, 0 // what was begun with data nodes goes on without
		k.noticed(t, 2, 2, -1)
		sameLedger(t, k.Out)
		nothingLeft(t, k)
	})
}

// Workers are spread over the nodes that are no data nodes; what differs between nodes is named by its kind.
func TestDataNodesBad(t *testing.T) {
	for name, c := range map[string]struct {
		change func(cfg *Config, node int)
		want   string
	}{
		"workers": {func(cfg *Config, _ int) { cfg.Workers = 3 }, "3 workers on 2 nodes"},
		"storage": {func(cfg *Config, node int) {
			if node == 2 {
				cfg.Storage += "x"
			}
		}, "data node 2 ("},
	} {
		t.Run(name, func(t *testing.T) {
			k := newConf(t, "bad")
			all, errs := trainedWith(t, 2, 1, func(g *gang.Gang, dir string) *Trainer {
				cfg := k.quiet(t, g, dir)
				c.change(&cfg, g.Node())
				return k.trainer(cfg)
			})
			for i, err := range errs {
				if all[i] != nil || fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
					t.Errorf("node %d: %v, %v, want %q", i, all[i], err, c.want)
				}
			}
			nothingLeft(t, k)
		})
	}
}
