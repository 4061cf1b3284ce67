package trainer

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// envCall says which call of Fit, counted in the program, started a worker process.
const envCall = "PENSTOCK_FIT"

// envGang is the folder of the gang that the member is of which started a worker process. It has another name than the member's own (gang.EnvDir): a program takes no place in a gang as a worker.
const envGang = "PENSTOCK_FIT_GANG"

// atWork: this process is a worker, and its environment does not say so any more.
var atWork atomic.Bool

// workerProcess reports whether this process is a worker, and which one. It is so once: what the loop starts in turn is none.
func workerProcess() (id identity, ok bool) {
	id.socket = os.Getenv(wire.EnvSocket)
	if id.socket == "" || os.Getenv(envCall) == "" {
		return id, false
	}
	id.run, id.aide = os.Getenv(wire.EnvRun), os.Getenv(envGang)
	id.attempt, _ = strconv.Atoi(os.Getenv(wire.EnvAttempt)) // what is wrong here is refused by the controller
	id.rank, _ = strconv.Atoi(os.Getenv("RANK"))
	return id, true
}

// work is what a worker process does, and its exit code.
func (t *Trainer) work(ctx context.Context, id identity, call int64) int {
	if of := os.Getenv(envCall); of != strconv.FormatInt(call, 10) && t.cfg.Name != id.run {
		fmt.Fprintf(term.Err, "penstock: this worker belongs to call %s of Fit in its program, and comes by call %d first: give runs names (Config.Name), call Fit once per program, or train in goroutines\n", of, call)
		return 2
	}
	atWork.Store(true)
	os.Unsetenv(envCall)
	os.Unsetenv(envGang)
	// A run ends its workers with SIGTERM.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := make(chan os.Signal, 1)
	signal.Notify(in, syscall.SIGTERM)
	defer signal.Stop(in)
	go func() {
		select {
		case s := <-in:
			cancel(fault.New(fault.Canceled, "told to end (%v)", s))
		case <-ctx.Done():
		}
	}()
	if err := runLoop(ctx, id, t.loop); err != nil {
		if ctx.Err() != nil {
			return 1 // as it was told to
		}
		fmt.Fprintf(term.Err, "penstock: %v\n", err)
		return 1
	}
	return 0
}

// runLoop is a worker from its beginning to its end.
func runLoop(ctx context.Context, id identity, loop func(*Context) error) error {
	c, err := join(ctx, id)
	if err != nil {
		return err
	}
	defer c.leave()
	trace, err := call(loop, c)
	if err == nil {
		err = c.settled()
	}
	done := wire.FromError(err)
	if done != nil {
		done.Trace = trace
	}
	_ = c.send(wire.ToController{Done: &wire.Done{Error: done}}) // a controller that is gone sees the exit, if anything
	return err
}

// call runs the loop; a panic is an error with its stack. Errors without a code are the user's.
func call(loop func(*Context) error, c *Context) (trace string, err error) {
	defer func() {
		if p := recover(); p != nil {
			trace = string(debug.Stack())
			err = fault.New(fault.UserCode, "panic: %v", p)
		}
	}()
	if err = loop(c); err == nil {
		return "", nil
	}
	if c.Err() != nil && fault.CodeOf(err) == fault.Unknown {
		// The loop gives up because its context has ended, and says so in its own words.
		return "", fault.New(fault.Canceled, "%w", err)
	}
	if fault.CodeOf(err) == fault.Unknown {
		err = fault.WithCode(fault.UserCode, err)
	}
	return "", err
}
