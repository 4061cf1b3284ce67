package exectest

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
)

// Sink keeps ids in memory, by part, and checks its contract: [Sink.Problems].
type Sink struct {
	PerPart   int // splits of a part; 0: 1
	Done      []int
	Tallies   map[int]exec.Tally // of parts that are Done; Finish adds what it is given
	Committed bool
	FailWrite func(part, attempt int) error // asked before every Write
	FailPart  func(part, attempt int) error // asked by Finish

	mu       sync.Mutex
	parts    map[int][]int64
	open     map[int]bool
	commits  int
	aborts   int
	skipped  int
	problems []string
}

func (s *Sink) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// Result returns the ids of all parts in order, and what was done wrong.
func (s *Sink) Result() (ids []int64, commits, aborts int, problems []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range len(s.parts) + len(s.Done) {
		ids = append(ids, s.parts[i]...)
	}
	for p, open := range s.open {
		if open {
			s.problem("part %d is left open", p)
		}
	}
	return ids, s.commits, s.aborts, s.problems
}

// Skipped returns how many skipped rows all writers were shown.
func (s *Sink) Skipped() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.skipped
}

func (s *Sink) Begin(_ context.Context, _ *arrow.Schema, splits []exec.SinkSplit) (*exec.SinkPlan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts, s.open = map[int][]int64{}, map[int]bool{}
	n := max(s.PerPart, 1)
	p := &exec.SinkPlan{Committed: s.Committed}
	for i := 0; i < len(splits); i += n {
		p.Parts = append(p.Parts, exec.PartRange{First: i, End: min(i+n, len(splits))})
	}
	for _, d := range s.Done {
		p.Parts[d].Done, p.Parts[d].Tally = true, s.Tallies[d]
	}
	return p, nil
}

func (s *Sink) NewPart(_ context.Context, part int, env *exec.Env) (exec.PartWriter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[part] {
		s.problem("part %d has two writers", part)
	}
	if s.parts[part] != nil {
		s.problem("part %d is written again after Finish", part)
	}
	s.open[part] = true
	return &writer{s: s, part: part, attempt: env.Attempt}, nil
}

func (s *Sink) Commit(context.Context, *exec.CommitEnv) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, open := range s.open {
		if open {
			s.problem("commit while part %d is open", p)
		}
	}
	s.commits++
	return nil
}

func (s *Sink) Abort(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aborts++
	return nil
}

type writer struct {
	s             *Sink
	part, attempt int
	ids           []int64
	ended         bool
}

func (w *writer) Write(_ context.Context, b *exec.Block) error {
	if f := w.s.FailWrite; f != nil {
		if err := f(w.part, w.attempt); err != nil {
			return err
		}
	}
	w.ids = append(w.ids, Ids(b.Batch)...)
	w.s.mu.Lock()
	w.s.skipped += len(b.Skipped)
	w.s.mu.Unlock()
	return nil
}

func (w *writer) end() {
	w.s.mu.Lock()
	if w.ended {
		w.s.problem("part %d ended twice", w.part)
	}
	w.ended = true
	w.s.open[w.part] = false
	w.s.mu.Unlock()
}

func (w *writer) Finish(_ context.Context, t exec.Tally) error {
	w.end()
	if f := w.s.FailPart; f != nil {
		if err := f(w.part, w.attempt); err != nil {
			return err
		}
	}
	w.s.mu.Lock()
	w.s.parts[w.part] = append([]int64{}, w.ids...)
	if w.s.Tallies == nil {
		w.s.Tallies = map[int]exec.Tally{}
	}
	w.s.Tallies[w.part] = t
	w.s.mu.Unlock()
	return nil
}

func (w *writer) Abort(context.Context) error {
	w.end()
	return nil
}
