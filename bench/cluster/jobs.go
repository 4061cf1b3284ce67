package main

import (
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/cluster"
)

var perEvent = regexp.MustCompile(`(?m)^Benchmark(\w+)/nodes=(\d+)(/\w+=[\w,]+)?(?:-\d+)?\s.*?([0-9.e+]+) ns/event`)

// placement is what an event costs the machine that decides which process goes where, by its own benchmarks (package internal to cluster): a process ends and one comes while others wait, which
// is decided without a look at the nodes; and a demand is placed and ends, on nodes that are alike, and on nodes of which each has another size. And what it costs the leader of a plan on so many nodes
// of 2 CPUs: to decide what runs, with little or much that waits for the consumer, and where.
func placement(b *bench) error {
	nodes := []string{"10", "100", "1000"}
	args := []string{"test", "-run", "^$", "-bench", "^Benchmark(Step|Places?)$", "-benchtime", "200ms", "-count", "5"}
	if b.Quick {
		nodes = nodes[:1]
		args = []string{"test", "-run", "^$", "-bench", "^Benchmark(Step|Places?)$/nodes=10$", "-benchtime", "10x", "-count", "2"}
	}
	for _, p := range []string{"cluster/internal/place", "exec/internal/sched", "exec/local"} {
		args = append(args, "github.com/penstock-data/penstock/"+p)
	}
	cmd := exec.CommandContext(b.Ctx, "go", args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	got := map[string][]float64{}
	for _, m := range perEvent.FindAllStringSubmatch(string(out), -1) {
		ns, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			return err
		}
		got[m[1]+m[2]+m[3]] = append(got[m[1]+m[2]+m[3]], ns)
	}
	for _, x := range []struct{ name, kind, of, what string }{
		{"Step", "", "placement", "an end and a demand that waits behind another"},
		{"Place", "/kinds=one", "placement", "nodes that are alike, a demand that is placed, and its end"},
		{"Place", "/kinds=all", "placement", "no two nodes alike, a demand that is placed, and its end"},
		{"Step", "/consumer=fast", "scheduler of a plan", "the consumer keeps up"},
		{"Step", "/consumer=slow", "scheduler of a plan", "tasks wait for the consumer"},
		{"Step", "/consumer=slow,unordered", "scheduler of a plan", "tasks wait for the consumer, in any order"},
		{"Places", "", "places of a plan's tasks", "one ends, one begins, a node wants more"},
	} {
		for _, n := range nodes {
			ns := got[x.name+n+x.kind]
			if len(ns) == 0 {
				return fmt.Errorf("no figure of %s%s at %s nodes in\n%s", x.name, x.kind, n, out)
			}
			b.Add(fmt.Sprintf("%s, %s nodes: %s, per event", x.of, n, x.what), "<= 2 us, flat", "%s", kit.Spread("%.0f", " ns", ns))
		}
	}
	return nil
}

// empty is a job that does nothing.
var empty = cluster.Job{Argv: []string{"/bin/true"}, Needs: cluster.Resources{CPUs: 1}}

// nowhere is one that waits: no node has what it needs.
var nowhere = cluster.Job{Argv: empty.Argv, Needs: cluster.Resources{Named: map[string]int64{"nowhere": 1}}}

// ended waits until a job has ended, asking every pause.
func (g *group) ended(c *cluster.Client, id string, pause time.Duration) error {
	for {
		js, err := c.Jobs(g.b.Ctx, id)
		if err != nil {
			return err
		}
		if j := js[0]; j.Over() {
			if j.State != "finished" {
				return fmt.Errorf("job %s is %s: %s", id, j.State, j.Why)
			}
			return nil
		}
		if err := g.b.pause(pause); err != nil {
			return err
		}
	}
}

// trip is the time from submitting an empty job until the client knows that it has ended, nothing else going on: by asking every millisecond, and by following its log as
// `penstock run --cluster` does. Tasks inside of a job are not jobs: nothing is durable about them.
func trip(b *bench) error {
	b.Add("task round trip, other process, idle, p50 / p99", "<= 150 us / <= 2 ms", "of plans on several nodes: nodes.md (`ONLY=nodes bench/run.sh`)")
	g, err := b.group(cluster.HeadConfig{}, "")
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.join(2, 8); err != nil {
		return err
	}
	for _, way := range []struct {
		name         string
		rounds, jobs int
		wait         func(id string) error
	}{
		{"asking every ms", b.Few(5, 2), b.Few(100, 5), func(id string) error { return g.ended(g.client, id, time.Millisecond) }},
		{"following its log", b.Few(3, 1), b.Few(20, 3), func(id string) error { return g.client.Logs(b.Ctx, id, true, 0, io.Discard) }},
	} {
		var p50, p99 []float64
		for r := range way.rounds + 1 {
			var ms []float64
			for range way.jobs {
				begin := time.Now()
				id, _, err := g.client.Submit(b.Ctx, empty)
				if err != nil {
					return err
				}
				if err := way.wait(id); err != nil {
					return err
				}
				ms = append(ms, 1000*time.Since(begin).Seconds())
			}
			if r > 0 { // the first is for connections and caches
				p50, p99 = append(p50, kit.Median(ms)), append(p99, kit.Quantile(ms, 0.99))
			}
		}
		b.Add(fmt.Sprintf("job round trip, idle: an empty job is submitted until it is known to have ended, %s; rounds of %d", way.name, way.jobs), "", "p50 %s; p99 %s", kit.Spread("%.1f", " ms", p50), kit.Spread("%.1f", " ms", p99))
	}
	return nil
}

const callers = 16

// rate is what callers with a connection each get through: submissions of jobs that wait, as no node has what they need; and empty jobs, each until it has ended, on two nodes. A job's record, its
// number and each of its states are durable, so it is the disk that is measured, too.
func rate(b *bench) error {
	b.Add("dispatch of empty tasks, one by one / in batches", ">= 20,000/s / >= 50,000/s", "of plans on several nodes: nodes.md (`ONLY=nodes bench/run.sh`)")
	for _, way := range []struct {
		name string
		job  cluster.Job
		runs bool
	}{
		{"submissions, of jobs that wait", nowhere, false},
		{"empty jobs, from submission to end", empty, true},
	} {
		g, err := b.group(cluster.HeadConfig{}, "")
		if err != nil {
			return err
		}
		perSecond, err := g.rate(way.job, way.runs)
		g.close()
		if err != nil {
			return err
		}
		b.Add(fmt.Sprintf("%s, %d callers", way.name, callers), "", "%s", kit.Spread("%.0f", "/s", perSecond))
	}
	return nil
}

func (g *group) rate(j cluster.Job, runs bool) (perSecond []float64, err error) {
	if err := g.join(2, callers); err != nil {
		return nil, err
	}
	clients := make([]*cluster.Client, callers)
	for i := range clients {
		if clients[i], err = g.another(); err != nil {
			return nil, err
		}
		defer clients[i].Close()
	}
	length := time.Duration(g.b.Few(2000, 200)) * time.Millisecond
	for range g.b.Few(3, 2) {
		var done atomic.Int64
		var all errgroup.Group
		begin := time.Now()
		for _, c := range clients {
			all.Go(func() error {
				for time.Since(begin) < length && done.Load() < 3000 {
					id, _, err := c.Submit(g.b.Ctx, j)
					if err == nil && runs {
						err = g.ended(c, id, 10*time.Millisecond)
					}
					if err != nil {
						return err
					}
					done.Add(1)
				}
				return nil
			})
		}
		if err := all.Wait(); err != nil {
			return nil, err
		}
		perSecond = append(perSecond, float64(done.Load())/time.Since(begin).Seconds())
	}
	return perSecond, nil
}

// submitAll submits n jobs by as many callers.
func (g *group) submitAll(n int, j cluster.Job) error {
	var all errgroup.Group
	all.SetLimit(callers)
	for range n {
		all.Go(func() error {
			_, _, err := g.client.Submit(g.b.Ctx, j)
			return err
		})
	}
	return all.Wait()
}
