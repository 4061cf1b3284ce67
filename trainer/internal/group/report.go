package group

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// pending is a report that some ranks have made.
type pending struct {
	made  []bool // by rank
	files []int  // ranks that gave some, ascending
	sets  []ranksSet
	wants time.Duration // when the first of them did
}

// ranksSet is where one rank stands in a data set.
type ranksSet struct {
	Set
	rank int
}

// commit is a checkpoint on its way.
type commit struct {
	n        int64
	ranks    []int
	answered bool
}

// report takes rank's report N.
func (g *Group) report(e Event) {
	r := &g.ranks[e.Rank]
	if g.phase == asked || g.phase == stopping { // it was made before that was known: it is kept, where nothing more is asked
		if e.N != r.made+1 || e.Files || e.Err != nil {
			return
		}
	}
	if e.N != r.made+1 || r.done {
		g.act(Action{Do: Ack, Attempt: g.attempt, Rank: e.Rank, N: e.N, Err: fault.New(fault.Invalid, "report %d of rank %d does not follow its report %d", e.N, e.Rank, r.made)})
		g.hear(fatalCause(e.Rank, fault.New(fault.Invalid, "rank %d: report %d does not follow report %d: reports are made by one thread of one process", e.Rank, e.N, r.made)))
		return
	}
	r.made++
	r.step = max(r.step, e.Step)
	g.progress = true
	i := int(e.N - g.base - 1)
	for len(g.pending) <= i {
		g.pending = append(g.pending, pending{made: make([]bool, g.cfg.World)})
	}
	p := &g.pending[i]
	p.made[e.Rank] = true
	for _, s := range e.Sets {
		p.sets = append(p.sets, ranksSet{s, e.Rank})
	}
	switch {
	case e.Err != nil: // counts as one without files, so that the loop may go on
		g.act(Action{Do: Ack, Attempt: g.attempt, Rank: e.Rank, N: e.N, Err: e.Err})
	case e.Files:
		if len(p.files) == 0 {
			p.wants = g.now
		}
		at, _ := slices.BinarySearch(p.files, e.Rank)
		p.files = slices.Insert(p.files, at, e.Rank)
		g.wait(r)
	case e.N-g.least() > g.cfg.Lag:
		r.held = e.N
		g.wait(r)
	default:
		g.act(Action{Do: Ack, Attempt: g.attempt, Rank: e.Rank, N: e.N})
	}
	g.fold()
}

func (g *Group) wait(r *rank) {
	if r.owed++; r.owed == 1 {
		r.since = g.now
	}
}

// least is the report that the slowest rank has made.
func (g *Group) least() int64 {
	n := g.ranks[0].made
	for i := range g.ranks {
		n = min(n, g.ranks[i].made)
	}
	return n
}

// fold takes the reports that all ranks have made.
func (g *Group) fold() {
	for len(g.pending) > 0 && !slices.Contains(g.pending[0].made, false) {
		p := g.pending[0]
		g.pending = g.pending[1:]
		g.base++
		if err := differ(g.base, p.sets); err != nil {
			for _, r := range p.files {
				g.ack(r, Action{N: g.base, Err: err})
			}
			g.hear(fatalCause(-1, err))
			return
		}
		g.together = true
		g.act(Action{Do: Complete, Attempt: g.attempt, N: g.base})
		if len(p.files) > 0 {
			g.queue = append(g.queue, commit{n: g.base, ranks: p.files})
		}
	}
	for i := range g.ranks { // those that were far ahead
		if r := &g.ranks[i]; r.held > 0 && r.held-g.least() <= g.cfg.Lag {
			g.ack(i, Action{N: r.held})
			r.held = 0
		}
	}
}

// ack answers a report that waited.
func (g *Group) ack(rank int, a Action) {
	r := &g.ranks[rank]
	r.owed--
	r.sign = g.now
	a.Do, a.Attempt, a.Rank = Ack, g.attempt, rank
	g.act(a)
}

// differ reports ranks that stand at different places of a data set after one report.
func differ(n int64, all []ranksSet) error {
	for i, a := range all {
		for _, b := range all[:i] {
			if a.Name != b.Name {
				continue
			}
			if a.Epoch == b.Epoch && a.Step == b.Step {
				if a.Key == b.Key || a.Key == "" || b.Key == "" {
					continue
				}
				return fault.New(fault.Invalid, "report %d: ranks %d and %d are at step %d of epoch %d of data set %q with different states: their batches are not of one job", n, b.rank, a.rank, a.Step, a.Epoch, a.Name)
			}
			return fault.New(fault.Invalid, "report %d was made after different steps of data set %q: %s. All ranks report after the same step", n, a.Name, places(a.Name, all))
		}
	}
	return nil
}

// places says where ranks are: "rank 0 after step 4, rank 1 after step 5".
func places(name string, all []ranksSet) string {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b ranksSet) int { return a.rank - b.rank })
	epochs := slices.ContainsFunc(all, func(a ranksSet) bool { return a.Name == name && a.Epoch != all[0].Epoch })
	var out []string
	for _, s := range all {
		if s.Name != name {
			continue
		}
		if len(out) == 8 {
			out = append(out, "...")
			break
		}
		at := fmt.Sprintf("rank %d after step %d", s.rank, s.Step)
		if epochs {
			at += fmt.Sprintf(" of epoch %d", s.Epoch)
		}
		out = append(out, at)
	}
	return strings.Join(out, ", ")
}

// next begins the next commit; one is under way at a time.
func (g *Group) next() {
	if g.upload != nil || len(g.queue) == 0 || g.phase == stopping {
		return
	}
	c := g.queue[0]
	g.queue = g.queue[1:]
	g.upload = &c
	g.act(Action{Do: Commit, Attempt: g.attempt, N: c.n, Ranks: c.ranks})
}

// answer tells the ranks that gave files.
func (g *Group) answer(c *commit, number int, err error) {
	if c.answered {
		return
	}
	c.answered = true
	for _, r := range c.ranks {
		a := Action{N: c.n, Err: err}
		if err == nil {
			a.Checkpoint = number
		}
		g.ack(r, a)
	}
}

// uploaded ends a commit.
func (g *Group) uploaded(e Event) {
	c := g.upload
	if c == nil || c.n != e.N {
		return
	}
	g.upload = nil
	if e.Err == nil {
		g.newest, g.reports = e.Checkpoint, c.n
		g.fails, g.starts, g.last = [Fatal]int{}, 0, ""
		g.answer(c, e.Checkpoint, nil)
		return
	}
	g.answer(c, 0, e.Err)
	if g.phase != stopping {
		g.hear(uploadCause(c.n, e.Err))
	}
}
