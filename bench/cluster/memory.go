package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/cluster"
)

// sizes are of processes, sample after sample, in MB: what is resident; the same with shared pages by their share (PSS: the processes of this table share one binary, which those of different machines do not);
// and what is no part of a file: the rest is the binary, which the system may drop and read again.
type sizes struct{ rss, pss, anonymous []float64 }

func (s *sizes) String() string {
	return fmt.Sprintf("%s; PSS %s; anonymous %s", kit.Spread("%.1f", " MB", s.rss), kit.Spread("%.1f", " MB", s.pss), kit.Spread("%.1f", " MB", s.anonymous))
}

// look takes a sample.
func (s *sizes) look(p *process) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.cmd.Process.Pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		for key, to := range map[string]*[]float64{"Rss:": &s.rss, "Pss:": &s.pss, "Anonymous:": &s.anonymous} {
			if rest, ok := strings.CutPrefix(line, key); ok {
				var kib float64
				if _, err := fmt.Sscan(rest, &kib); err != nil {
					return err
				}
				*to = append(*to, kib*1024/1e6)
			}
		}
	}
	return nil
}

// footprint is what a head and its two nodes take when nothing has happened for a while, a sample in each second after it; and a head that has just run a thousand jobs, which it remembers, and has a hundred
// others that wait. Processes of this program hold fewer packages than those of the command: with -penstock both are measured, and of the command the busy head.
func footprint(b *bench) error {
	var gs []*group
	defer func() {
		for _, g := range gs {
			g.close()
		}
	}()
	over, waiting := b.Few(1000, 10), b.Few(100, 3)
	for _, binary := range []string{"", b.penstock} {
		if binary == "" && len(gs) > 0 {
			continue
		}
		g, err := b.group(cluster.HeadConfig{KeepJobs: over}, binary)
		if err != nil {
			return err
		}
		gs = append(gs, g)
		if err := g.join(2, 8); err != nil {
			return err
		}
	}
	idle := time.Duration(b.Few(50, 1)) * time.Second
	if err := b.pause(idle); err != nil {
		return err
	}
	heads, agents := make([]sizes, len(gs)), make([]sizes, len(gs))
	for range b.Few(5, 2) {
		for i, g := range gs {
			if err := errors.Join(heads[i].look(g.head), agents[i].look(g.nodes[0]), agents[i].look(g.nodes[1])); err != nil {
				return err
			}
		}
		if err := b.pause(time.Second); err != nil {
			return err
		}
	}
	for i, g := range gs {
		of := "of this program"
		if g.binary != "" {
			of = "of the command"
		}
		b.Add(fmt.Sprintf("memory: agent, processes %s, idle for %v", of, idle), "<= 60 MB", "%s", &agents[i])
		b.Add(fmt.Sprintf("memory: head with 2 nodes, processes %s, idle for %v", of, idle), "<= 150 MB", "%s", &heads[i])
		if i < len(gs)-1 {
			continue
		}
		if err := g.work(over, waiting); err != nil {
			return err
		}
		var busy sizes
		for range b.Few(5, 2) {
			if err := errors.Join(busy.look(g.head), b.pause(time.Second)); err != nil {
				return err
			}
		}
		b.Add(fmt.Sprintf("memory: the same head, %d jobs over just now and %d waiting", over, waiting), "<= 150 MB", "%s", &busy)
	}
	return nil
}

// work has jobs run until they are over, beside others that wait.
func (g *group) work(over, waiting int) error {
	if err := g.submitAll(waiting, nowhere); err != nil {
		return err
	}
	if err := g.submitAll(over, empty); err != nil {
		return err
	}
	return g.until(2*time.Minute, "not all jobs are over", func() (bool, error) {
		if err := g.b.pause(200 * time.Millisecond); err != nil { // the answer is large
			return false, err
		}
		js, err := g.client.Jobs(g.b.Ctx)
		n := map[string]int{}
		for _, j := range js {
			n[j.State]++
		}
		return n["finished"] == over && n["queued"] == waiting, err
	})
}

// packed is the time from submitting a job with a working directory of 100 MB, which zstd does not make smaller, until it has begun on a node: when nobody has the folder, and again when head and node
// have it, and each job gets a copy. Both times the client reads, packs and hashes the folder.
func packed(b *bench) error {
	g, err := b.group(cluster.HeadConfig{}, "")
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.join(1, 8); err != nil {
		return err
	}
	const files = 100
	size := b.Few(1_000_000, 10_000)
	dir, data := filepath.Join(g.dir, "work"), make([]byte, size)
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	submitted, began := make([][]float64, 2), make([][]float64, 2)
	for r := range b.Few(3, 2) {
		rnd := rand.NewChaCha8([32]byte{byte(r)})
		for i := range files {
			_, _ = rnd.Read(data) // never an error
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%02d", i)), data, 0o666); err != nil {
				return err
			}
		}
		for k := range 2 {
			unix.Sync() // what was written before is not to be waited for
			begin := time.Now()
			x, err := g.sleeper(cluster.Job{Needs: cluster.Resources{CPUs: 1}, WorkingDir: dir}, ":")
			if err != nil {
				return err
			}
			submitted[k] = append(submitted[k], time.Since(begin).Seconds())
			run, err := x.next()
			if err != nil {
				return err
			}
			began[k] = append(began[k], run.at.Sub(begin).Seconds())
			if err := g.ended(g.client, x.id, 10*time.Millisecond); err != nil {
				return err
			}
		}
	}
	for k, what := range []string{"the first time", "again"} {
		b.Add(fmt.Sprintf("working directory of %d MB, %d files, %s: submitted until the job runs on a node", files*size/1e6, files, what), "", "%s; of these until it is submitted %s", kit.Spread("%.2f", " s", began[k]), kit.Spread("%.2f", " s", submitted[k]))
	}
	return nil
}
