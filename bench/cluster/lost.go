package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/cluster"
)

// dead is the time from the end of a job's process by SIGKILL until its next attempt runs, on a cluster that does nothing else. Before a job starts again it waits a second, more after each end.
func dead(b *bench) error {
	g, err := b.group(cluster.HeadConfig{}, "")
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.join(2, 8); err != nil {
		return err
	}
	var seconds []float64
	for range b.Few(7, 2) {
		x, err := g.sleeper(cluster.Job{Needs: cluster.Resources{CPUs: 1}, Crashes: 3}, "")
		if err != nil {
			return err
		}
		r, err := x.next()
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := syscall.Kill(r.pid, syscall.SIGKILL); err != nil {
			return err
		}
		if r, err = x.next(); err != nil {
			return err
		}
		seconds = append(seconds, r.at.Sub(begin).Seconds())
	}
	b.Add("dead process of a job (SIGKILL): its next attempt runs after", "<= 2 s", "%s", kit.Spread("%.2f", " s", seconds))
	return nil
}

// lost is the time from the loss of a node until its job runs on another: nodes of a CPU with a job of a CPU each, and a node beside them that has room for all. Half of the agents are killed, half
// stand still (SIGSTOP), one after another within the time between two beats, so that the figures are of all phases between a beat and the next.
func lost(b *bench) error {
	cfg := cluster.HeadConfig{Lease: 15 * time.Second} // the default
	goal := "<= 20 s"
	if b.Quick {
		cfg.Lease, goal = 2*time.Second, ""
	}
	g, err := b.group(cfg, "")
	if err != nil {
		return err
	}
	defer g.close()
	n := b.Few(10, 2)
	if err := g.join(n, 1); err != nil {
		return err
	}
	jobs := map[string]*job{}
	for range n {
		x, err := g.sleeper(cluster.Job{Needs: cluster.Resources{CPUs: 1}}, "")
		if err != nil {
			return err
		}
		r, err := x.next()
		if err != nil {
			return err
		}
		jobs[r.node] = x
	}
	if len(jobs) != n {
		return fmt.Errorf("%d jobs run on %d nodes", n, len(jobs))
	}
	if err := g.join(1, float64(n)); err != nil {
		return err
	}
	if err := b.pause(cfg.Lease / 3); err != nil { // a beat
		return err
	}
	seconds := make([]float64, n)
	var all errgroup.Group
	for i, p := range g.nodes[:n] {
		s := []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP}[i%2]
		begin := time.Now()
		p.signal(s)
		all.Go(func() error {
			r, err := jobs[p.id].next()
			if err == nil && r.node == p.id {
				err = errors.New("a job starts again on the node that is lost")
			}
			seconds[i] = r.at.Sub(begin).Seconds()
			return err
		})
		if err := b.pause(cfg.Lease / 3 / time.Duration(n)); err != nil {
			return errors.Join(err, all.Wait())
		}
	}
	if err := all.Wait(); err != nil {
		return err
	}
	for k, what := range []string{"killed agent (SIGKILL): its job runs on another node after", "silent node (SIGSTOP): its job runs on another node after"} {
		var of []float64
		for i := k; i < n; i += 2 {
			of = append(of, seconds[i])
		}
		b.Add(fmt.Sprintf("%s, lease %v", what, cfg.Lease), goal, "%s", kit.Spread("%.1f", " s", of))
	}
	return nil
}

// headKilled is the time from the end of a head by SIGKILL, after which it is started again at once, until a new job has begun on each of its two nodes: so both are attached, and have work. Clusters
// are killed one after another, each once and after a while of quiet: an agent that loses its head often waits longer from try to try.
func headKilled(b *bench) error {
	var gs []*group
	defer func() {
		for _, g := range gs {
			g.close()
		}
	}()
	var jobs [][]*job
	var runs [][]run
	const nodes, each = 2, 4
	for range b.Few(5, 1) {
		g, err := b.group(cluster.HeadConfig{}, "")
		if err != nil {
			return err
		}
		gs = append(gs, g)
		if err := g.join(nodes, 8); err != nil {
			return err
		}
		var js []*job
		var rs []run
		for range each {
			x, err := g.sleeper(cluster.Job{Needs: cluster.Resources{CPUs: 1}}, "")
			if err != nil {
				return err
			}
			r, err := x.next()
			if err != nil {
				return err
			}
			js, rs = append(js, x), append(rs, r)
		}
		jobs, runs = append(jobs, js), append(runs, rs)
	}
	if err := b.pause(time.Duration(b.Few(11, 0)) * time.Second); err != nil {
		return err
	}
	var answers, works []float64
	kept := 0
	for i, g := range gs {
		begin := time.Now()
		g.head.kill()
		if err := g.startHead(); err != nil {
			return err
		}
		if err := g.dial(); err != nil {
			return err
		}
		if _, err := g.client.Status(b.Ctx); err != nil {
			return err
		}
		answers = append(answers, time.Since(begin).Seconds())
		var later []*job
		for n := range nodes {
			x, err := g.sleeper(cluster.Job{Needs: cluster.Resources{CPUs: 1}, Labels: map[string]string{"node": fmt.Sprint(n)}}, "")
			if err != nil {
				return err
			}
			later = append(later, x)
		}
		last := begin
		for _, x := range later {
			r, err := x.next()
			if err != nil {
				return err
			}
			last = r.at
		}
		works = append(works, last.Sub(begin).Seconds())
		for k, x := range jobs[i] {
			js, err := g.client.Jobs(b.Ctx, x.id)
			if err != nil {
				return err
			}
			argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", runs[i][k].pid))
			if err == nil && strings.HasPrefix(string(argv), "sleep\x00") && js[0].State == "running" && js[0].Attempts == 1 {
				kept++
			}
		}
	}
	b.Add("killed head (SIGKILL), started again at once: it answers after", "", "%s", kit.Spread("%.2f", " s", answers))
	b.Add("the same: both nodes are attached and a new job runs on each after", "<= 5 s", "%s; %d of %d running jobs kept their process", kit.Spread("%.2f", " s", works), kept, each*len(gs))
	return nil
}
