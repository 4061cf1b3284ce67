package trainer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-data/penstock/trainer/store"
)

// statusWriter writes the last status that was set, one at a time.
type statusWriter struct {
	run  *store.Run
	lost func(error)

	mu     sync.Mutex
	now    store.Status
	fresh  bool
	wake   chan struct{}
	quit   chan struct{}
	closed bool
	done   sync.WaitGroup
	err    error // of the last write
}

func newStatusWriter(ctx context.Context, run *store.Run, lost func(error)) *statusWriter {
	w := &statusWriter{run: run, lost: lost, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	ctx = context.WithoutCancel(ctx) // the last one is of a run that was canceled
	w.done.Go(func() {
		for {
			select {
			case <-w.wake:
				w.writeNow(ctx)
			case <-w.quit:
				w.writeNow(ctx)
				return
			}
		}
	})
	return w
}

func (w *statusWriter) set(s store.Status) {
	w.mu.Lock()
	w.now, w.fresh = s, true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *statusWriter) writeNow(ctx context.Context) {
	w.mu.Lock()
	s, fresh := w.now, w.fresh
	w.fresh = false
	w.mu.Unlock()
	if !fresh {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, last)
	defer cancel()
	err := w.run.SetStatus(ctx, s)
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	if errors.Is(err, store.ErrSuperseded) {
		w.lost(err)
	}
}

// close writes what was set last, and returns what came of it. Idempotent.
func (w *statusWriter) close() error {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.quit)
	}
	w.mu.Unlock()
	w.done.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return fmt.Errorf("the status of the run: %w", w.err)
	}
	return nil
}
