package feed

import (
	"context"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
)

// Step is a step of a job.
type Step struct {
	Epoch uint64 `json:"epoch"`
	Step  int64  `json:"step"`
}

// Before reports whether s comes before o. A step that an epoch has not is before all of the next epoch.
func (s Step) Before(o Step) bool { return s.Epoch < o.Epoch || s.Epoch == o.Epoch && s.Step < o.Step }

// Notice tells the consumers of one Serve (Options.Notice) that they are to stop, all after the same step: the machine will be taken away, say. It is for
// one job, whose ranks may be served by several processes; then somebody holds all of them, and marks the latest of their steps on all. The zero value is ready. Safe for concurrent use.
type Notice struct {
	mu     sync.Mutex
	first  Step          // that no rank was sent
	held   chan struct{} // closed when it is not held any more; nil: it is not
	marked bool
	from   Step // the first that is marked
}

// Give marks the first step that no rank was sent yet, and all later ones. Given again it does nothing.
func (n *Notice) Give() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mark(n.first)
}

// Hold keeps every rank from being sent more until Mark or Release, and returns the first step that no rank was sent. One that waits for a batch goes on waiting;
// nothing ends a hold by itself, as a rank that went on would make what others were told wrong.
func (n *Notice) Hold() Step {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.marked {
		return n.from
	}
	if n.held == nil {
		n.held = make(chan struct{})
	}
	return n.first
}

// Mark marks a step that is not before that of Hold, and all later ones, and ends the hold. The first mark counts.
func (n *Notice) Mark(from Step) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.marked:
	case n.held == nil:
		return fault.New(fault.Invalid, "notice: nothing is held, so a step may have been sent already: hold first")
	case from.Before(n.first):
		return fault.New(fault.Invalid, "notice: epoch %d, step %d is to be marked, but step %d of epoch %d was sent already", from.Epoch, from.Step, n.first.Step-1, n.first.Epoch)
	}
	n.mark(from)
	return nil
}

// Release ends a hold without a mark.
func (n *Notice) Release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.release()
}

func (n *Notice) mark(from Step) {
	if !n.marked {
		n.marked, n.from = true, from
	}
	n.release()
}

func (n *Notice) release() {
	if n.held != nil {
		close(n.held)
		n.held = nil
	}
}

// flags are those of a step that a rank is about to be sent, once nothing holds it; false: ctx ended first.
func (n *Notice) flags(ctx context.Context, at Step) (flags uint32, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.held != nil {
		held := n.held
		n.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
		}
		if n.mu.Lock(); ctx.Err() != nil {
			return 0, false
		}
	}
	if !at.Before(n.first) {
		n.first = Step{at.Epoch, at.Step + 1}
	}
	if n.marked && !at.Before(n.from) {
		flags = flagNoticed
	}
	return flags, true
}
