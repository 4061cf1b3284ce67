//go:build unix

package launch

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	stacksFor   = 2 * time.Second        // a worker has so long to print its stacks
	stacksQuiet = 300 * time.Millisecond // and has done so when it prints nothing for so long
)

// Stacks: what the worker prints to stderr on SIGQUIT, if it handles that, and what the kernel says of all threads of its processes.
func (g *group) Stacks(ctx context.Context, rank int) (string, error) {
	g.mu.Lock()
	at := -1
	for i, w := range g.workers {
		if w.Rank == rank {
			at = i
		}
	}
	if at < 0 {
		g.mu.Unlock()
		return "", errNoRank(rank)
	}
	w := g.workers[at]
	if w.p == nil || !w.ended.IsZero() {
		g.mu.Unlock()
		return "", fault.New(fault.NotFound, "%s has ended", w.name)
	}
	g.look()
	var b strings.Builder
	fmt.Fprintf(&b, "%s (pid %d): %s\n", w.name, w.pid, strings.Join(w.Argv, " "))
	threads := threadsOf(g.members, at) // before they print
	handles := catches(w.pid, syscall.SIGQUIT)
	var seen *watch
	if handles {
		seen = w.out.startWatch()
		w.quit = time.Now()
		_ = w.p.Signal(syscall.SIGQUIT) // has it ended, then there is its Exit
	}
	g.mu.Unlock()

	if !handles {
		b.WriteString("It does not handle SIGQUIT, so only the kernel's view is known (Python: import faulthandler, signal; faulthandler.register(signal.SIGQUIT)).\n")
	} else {
		err := seen.quiet(ctx, w.streams[len(w.streams)-1].done)
		said := w.out.endWatch(seen)
		if err != nil {
			return "", err
		}
		if said == "" {
			said = "(it printed nothing)"
		}
		b.WriteString(strings.TrimRight(said, "\n") + "\n")
	}
	b.WriteString(threads)
	return b.String(), nil
}

// quiet returns when there is no more to come.
func (w *watch) quiet(ctx context.Context, ended <-chan struct{}) error {
	end := time.NewTimer(stacksFor)
	defer end.Stop()
	pause := time.NewTimer(stacksFor)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return fault.WithCode(fault.Canceled, context.Cause(ctx))
		case <-ended:
			return nil
		case <-end.C:
			return nil
		case <-pause.C:
			return nil
		case <-w.more:
			pause.Reset(stacksQuiet)
		}
	}
}
