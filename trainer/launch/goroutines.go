package launch

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Goroutines runs Worker.Run in goroutines of this process.
//
// Panics are errors with their stack. A goroutine cannot be ended: signals that ask to end cancel its context, others are refused, and after the grace of Stop a worker that has
// not returned is reported with an error that names it, and runs on. What a worker runs in goroutines of its own is its own: a panic there ends this process. Memory
// is not limited per worker, and Usage has the ranks only.
func Goroutines() Launcher { return goroutines{} }

type goroutines struct{}

func (goroutines) Launch(ctx context.Context, workers []Worker) (Group, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	if err := checkRanks(workers); err != nil {
		return nil, err
	}
	for _, w := range workers {
		switch {
		case w.Run == nil:
			return nil, fault.New(fault.Invalid, "rank %d has no function to run: Worker.Run is nil", w.Rank)
		case w.Memory > 0:
			return nil, fault.New(fault.Unsupported, "rank %d: the memory of a goroutine cannot be limited; run workers as processes", w.Rank)
		}
	}
	g := &goGroup{exits: make(chan Exit, len(workers)), done: make(chan struct{}), left: len(workers)}
	for _, w := range workers {
		r := &routine{rank: w.Rank, id: make(chan string, 1)}
		r.ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		g.workers = append(g.workers, r)
		go g.run(r, w.Run) // joined through done, unless it does not return
	}
	if len(workers) == 0 {
		close(g.exits)
		close(g.done)
	}
	return g, nil
}

// checkRanks refuses two workers of one rank.
func checkRanks(workers []Worker) error {
	seen := map[int]bool{}
	for _, w := range workers {
		if w.Rank < 0 || seen[w.Rank] {
			return fault.New(fault.Invalid, "rank %d: ranks of a group are distinct and not negative", w.Rank)
		}
		seen[w.Rank] = true
	}
	return nil
}

type goGroup struct {
	workers []*routine
	exits   chan Exit
	done    chan struct{} // closed after the last exit

	mu   sync.Mutex
	left int // workers without an exit
}

type routine struct {
	rank   int
	ctx    context.Context
	cancel context.CancelCauseFunc
	id     chan string // of the goroutine, for its stacks: put back by who takes it

	asked, over bool // under goGroup.mu: told to end; has its exit
}

func (g *goGroup) run(r *routine, f func(context.Context) error) {
	r.id <- goroutineID()
	var out error = fault.New(fault.UserCode, "the goroutine was ended by runtime.Goexit (or FailNow of a test)")
	defer func() {
		if p := recover(); p != nil {
			out = fault.New(fault.UserCode, "panic: %v\n%s", p, debug.Stack())
		}
		r.cancel(nil)
		g.end(r, out, "")
	}()
	out = f(r.ctx)
}

// end reports a worker once.
func (g *goGroup) end(r *routine, err error, detail string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.over {
		return
	}
	r.over = true
	e := Exit{Rank: r.rank, Ours: r.asked, At: time.Now(), Err: err, Detail: detail}
	if err != nil {
		e.Code = 1
		text := strings.Split(strings.TrimSpace(err.Error()), "\n")
		e.Tail = text[max(0, len(text)-tailLines):]
	}
	g.exits <- e
	if g.left--; g.left == 0 {
		close(g.exits)
		close(g.done)
	}
}

func (g *goGroup) Exits() <-chan Exit { return g.exits }

func (g *goGroup) Signal(rank int, s os.Signal) error {
	if !asks(s) {
		return fault.New(fault.Unsupported, "a goroutine gets no signals: %v can be sent to workers that are processes only", s)
	}
	return g.each(rank, func(r *routine) {
		r.asked = true
		r.cancel(fault.New(fault.Canceled, "told to end (%v)", s))
	})
}

// each calls f for the worker of this rank, or for all that run.
func (g *goGroup) each(rank int, f func(*routine)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.workers {
		switch {
		case rank == -1 && !r.over:
			f(r)
		case rank == r.rank && r.over:
			return fault.New(fault.NotFound, "rank %d has ended", rank)
		case rank == r.rank:
			f(r)
			return nil
		}
	}
	if rank != -1 {
		return errNoRank(rank)
	}
	return nil
}

// Stop cancels the contexts, and waits for at most grace.
func (g *goGroup) Stop(grace time.Duration) {
	_ = g.each(-1, func(r *routine) { // all: never an error
		r.asked = true
		r.cancel(fault.New(fault.Canceled, "the group was stopped"))
	})
	t := time.NewTimer(max(grace, 0))
	defer t.Stop()
	select {
	case <-g.done:
		return
	case <-t.C:
	}
	for _, r := range g.workers {
		g.end(r, fault.New(fault.Stalled, "did not return within %v of being told to end; a goroutine cannot be ended and runs on: its loop must watch its context", grace), "")
	}
}

func (g *goGroup) Usage() []Usage {
	out := make([]Usage, len(g.workers))
	for i, r := range g.workers {
		out[i].Rank = r.rank
	}
	return out
}

// Stacks gives the stacks of the worker's goroutine and of those that it started, directly or through others. Nothing is ended.
func (g *goGroup) Stacks(ctx context.Context, rank int) (string, error) {
	var r *routine
	if err := g.each(rank, func(f *routine) { r = f }); err != nil {
		return "", err
	}
	if rank == -1 || r == nil {
		return "", fault.New(fault.Invalid, "stacks are of one rank")
	}
	select {
	case id := <-r.id:
		r.id <- id
		return family(allStacks(), id), nil
	case <-ctx.Done():
		return "", fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
}

// goroutineID of the caller, as tracebacks print it.
func goroutineID() string {
	b := make([]byte, 64)
	id := strings.TrimPrefix(string(b[:runtime.Stack(b, false)]), "goroutine ")
	id, _, _ = strings.Cut(id, " ")
	return id
}

// allStacks of this process, at most 16 MiB.
func allStacks() string {
	for n := 64 << 10; ; n *= 4 {
		b := make([]byte, n)
		if m := runtime.Stack(b, true); m < n || n >= 16<<20 {
			return string(b[:m])
		}
	}
}

// family picks goroutine id and those that descend from it out of a traceback of all.
func family(all, id string) string {
	blocks := strings.Split(all, "\n\n")
	mine := map[string]bool{id: true}
	var out []string
	for added := true; added; { // a goroutine may be printed before the one that started it
		added = false
		for i, b := range blocks {
			own, _, _ := strings.Cut(strings.TrimPrefix(b, "goroutine "), " ")
			_, by, _ := strings.Cut(b, " in goroutine ")
			by, _, _ = strings.Cut(by, "\n")
			if b != "" && (own == id || mine[by]) {
				mine[own], added = true, true
				out = append(out, b)
				blocks[i] = ""
			}
		}
	}
	if len(out) == 0 {
		return fmt.Sprintf("goroutine %s has ended", id)
	}
	return strings.Join(out, "\n\n")
}
