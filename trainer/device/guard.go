package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// errNext says that a source is not there, so that the next one is tried.
var errNext = errors.New("not there")

// guard is the one place that calls a driver. A call of NVML after a failed Init ends the process (the linker finds no symbol), and one that hangs cannot be ended; so calls are made one
// at a time, each in a goroutine that may be left behind, and none after the first failure or timeout.
type guard struct {
	sources []source
	turn    chan struct{} // holds one token

	mu   sync.Mutex
	open source // that answered
	dead error
}

func newGuard(sources []source) *guard {
	g := &guard{sources: sources, turn: make(chan struct{}, 1)}
	g.turn <- struct{}{}
	return g
}

func (g *guard) source() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		return ""
	}
	return g.open.name()
}

// broken is the first failure.
func (g *guard) broken() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dead
}

// kill makes err the answer of all calls from now on, but for an earlier one.
func (g *guard) kill(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead == nil {
		g.dead = err
	}
	return g.dead
}

// call runs f with the source. It returns when f does, or limit has passed, or ctx has ended; in the latter two cases f may go on, so what f writes may be
// read only after nil. What f gets as its context ends after limit, and not with ctx: a call that is given up must not look like a failure of the driver.
func (g *guard) call(ctx context.Context, limit time.Duration, what string, f func(context.Context, source) error) error {
	if err := g.broken(); err != nil {
		return err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	late := func() error {
		return g.kill(fault.New(fault.Unavailable, "the GPUs' driver hangs: %s took more than %s, and it is not asked again by this process; see whether nvidia-smi answers", what, limit))
	}
	select {
	case <-g.turn:
	case <-timer.C:
		return late()
	case <-ctx.Done():
		return fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	done := make(chan error, 1)
	go func() {
		err := g.broken() // while this one waited
		if err == nil {
			inner, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
			err = g.attempt(inner, f)
			cancel()
		}
		if err != nil {
			err = g.kill(err)
		}
		done <- err
		g.turn <- struct{}{}
	}()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return late()
	case <-ctx.Done():
		return fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
}

// attempt opens a source the first time, and calls f.
func (g *guard) attempt(ctx context.Context, f func(context.Context, source) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.Internal, "asking the GPUs' driver: %v", p)
		}
	}()
	g.mu.Lock()
	s := g.open
	g.mu.Unlock()
	var missing error
	for i := 0; s == nil && i < len(g.sources); i++ {
		err := g.sources[i].open(ctx)
		switch {
		case err == nil:
			s = g.sources[i]
			g.mu.Lock()
			g.open = s
			g.mu.Unlock()
		case !errors.Is(err, errNext):
			return err
		case missing == nil:
			missing = err
		default:
			missing = fmt.Errorf("%w, %w", missing, err)
		}
	}
	if s == nil {
		return fault.New(fault.NotFound, "no NVIDIA driver is installed: %w", missing)
	}
	return f(ctx, s)
}
