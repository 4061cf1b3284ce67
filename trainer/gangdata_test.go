package trainer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
)

func init() { programs["evaluator"] = evaluatorProgram }

// evaluatorProgram is a worker that trains a little, evaluates, gives folders that are none, saves on every rank, and looks at what it is told of its place and its checkpoint.
func evaluatorProgram() error {
	id := identity{socket: os.Getenv(wire.EnvSocket), run: os.Getenv(wire.EnvRun)}
	id.attempt, _ = strconv.Atoi(os.Getenv(wire.EnvAttempt))
	id.rank, _ = strconv.Atoi(os.Getenv("RANK"))
	s := &star{}
	defer s.close()
	return runLoop(context.Background(), id, func(c *Context) error { return evaluate(c, s) })
}

const evalRows = 70

func evaluate(c *Context, s *star) error {
	per := c.World() / c.Nodes()
	place := fmt.Sprintf("%d %d %d %d %d %d", c.Rank(), c.World(), c.LocalRank(), c.LocalWorld(), c.Node(), c.Nodes())
	if want := fmt.Sprintf("%s %s %s %s %s %s", os.Getenv("RANK"), os.Getenv("WORLD_SIZE"), os.Getenv("LOCAL_RANK"), os.Getenv("LOCAL_WORLD_SIZE"), os.Getenv("NODE_RANK"), os.Getenv("GROUP_WORLD_SIZE")); place != want ||
		c.Node() != c.Rank()/per || c.LocalRank() != c.Rank()%per || os.Getenv(gang.EnvDir) != "" {
		return fmt.Errorf("this is %s, and %s in the environment", place, want)
	}
	if _, err := c.Group(); err == nil || !strings.Contains(err.Error(), envGang) {
		return fmt.Errorf("collectives over nodes: %w", err)
	}
	if k := c.Checkpoint(); (k != nil) != (c.Run() != "one") {
		return fmt.Errorf("run %s has checkpoint %v", c.Run(), k)
	} else if k != nil {
		dir, err := k.Dir(c)
		if err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(dir, "of-rank-*"))
		if err != nil || len(files) != 4 {
			return fmt.Errorf("%s has %v", dir, files)
		}
		if err := os.WriteFile(filepath.Join(os.Getenv("OUT"), fmt.Sprintf("dir-%s-%d", c.Run(), c.Rank())), []byte(dir), 0o600); err != nil {
			return err
		}
	}
	train, err := c.Shard("train")
	if err != nil {
		return err
	}
	for round := range 2 {
		for range 3 {
			b, err := train.Next(c)
			if err != nil {
				return err
			}
			b.Release()
		}
		eval, err := c.Shard("eval")
		if err != nil {
			return err
		}
		sums := make([]float64, 2) // rows, and their ids
		for b, err := range eval.All(c) {
			if err != nil {
				return err
			}
			ids, _ := b.Tensor("id")
			for _, id := range shard.Values[int64](ids)[:b.Real()] {
				sums[1] += float64(id)
			}
			sums[0] += float64(b.Real())
		}
		if err := eval.Close(); err != nil {
			return err
		}
		if err := s.reduce(c, sums); err != nil {
			return err
		}
		if sums[0] != evalRows || sums[1] != evalRows*(evalRows-1)/2 {
			return fmt.Errorf("round %d evaluated %v", round, sums)
		}
		dir := ""
		if c.Rank() == 3 {
			dir = "/nonexistent/folder"
		}
		if err := c.Report(map[string]float64{"rows": sums[0]}, dir); (err != nil) != (dir != "") || err != nil && !strings.Contains(err.Error(), "the folder of a checkpoint") {
			return fmt.Errorf("a report of a folder that is none: %w", err)
		}
		if dir, err = (conf{}).own(c, ""); err != nil {
			return err
		}
		if err := c.Report(nil, dir); err != nil {
			return err
		}
	}
	return nil
}

// Workers of all nodes evaluate every row once, are told their place, get errors of folders where these are, and the files of a checkpoint on their node: one download each.
func TestGangEvaluates(t *testing.T) {
	out := t.TempDir()
	var k conf
	for i, name := range []string{"one", "two", "one again"} {
		if i == 0 {
			k = newConf(t, "")
		}
		k.Workers, k.Name = 4, strings.Fields(name)[0]
		all, errs := together(t, 2, func(g *gang.Gang, dir string) Config {
			cfg := k.quiet(t, g, dir)
			cfg.Env = []string{"TRAINER_TEST=evaluator", "OUT=" + out}
			cfg.Data["eval"] = Data{Dataset: dataset.Range(evalRows), Eval: true, Options: dataset.ShardOptions{RunOptions: dataset.RunOptions{Memory: 64 << 20},
				Options: shard.Options{GlobalBatch: 16, Form: shard.Form{Tensors: true}}}}
			if name == "two" {
				cfg.From = "one"
			}
			return cfg
		})
		if name == "one again" { // its name is taken
			for node, err := range errs {
				if err == nil || !strings.Contains(err.Error(), `there is a run "one"`) || all[node] != nil {
					t.Errorf("node %d: %v", node, err)
				}
			}
			break
		}
		for node, err := range errs {
			if err != nil || all[node].State != store.Finished || all[node].Reports != 4 {
				t.Fatalf("%s, node %d: %v, %+v", name, node, err, all[node])
			}
		}
	}
	dirs := map[string]int{}
	for r := range 4 {
		b, err := os.ReadFile(filepath.Join(out, fmt.Sprintf("dir-two-%d", r)))
		if err != nil {
			t.Fatal(err)
		}
		dirs[string(b)]++
	}
	if len(dirs) != 1 { // nodes of this test have one cache
		t.Errorf("%v", dirs)
	}
}
