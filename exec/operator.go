package exec

import (
	"context"
	"errors"
	"log/slog"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Operator is one step of a chain. Immutable and shared by all tasks: no
// goroutines, no channels, no retries; the engine does those. Every operator's
// comment says: order kept? rows kept? memory bound?
type Operator interface {
	Name() string // one line for Explain: `filter fare > 0.0`
	Step() string // the user's position, for errors: `step 3 (filter)`
	Schema() *arrow.Schema
	// NewTask makes the state of one attempt over one split (or one block behind a
	// cut). Called once per split: keep it cheap.
	NewTask(env *Env) (Task, error)
}

// Task is one operator at work. One goroutine calls it. It is row-wise: what it
// makes of a row depends on that row, its position and the seed alone, so a
// block may be cut anywhere and processed again.
type Task interface {
	// Process borrows in and emits any number of blocks, in order. A block it
	// emits covers the span of in, or a part of it: spans of successive blocks
	// follow each other, and the last ends where in ends.
	Process(ctx context.Context, in *Block, emit Emit) error
	// Close frees everything. Idempotent.
	Close() error
}

// Emit takes over the block, also when it fails, and blocks under backpressure.
// It returns ErrDone when downstream wants no more: return it unchanged.
type Emit func(b *Block) error

// ErrDone says that nothing more is wanted. Not a failure.
var ErrDone = errors.New("no more rows wanted")

// Closer is implemented by operators that hold something for a whole run
// (a pool of child processes). The engine calls Close once, after all tasks.
type Closer interface{ Close() error }

// Parallel is implemented by operators that want more tasks at once than there
// are CPUs (they wait for something else).
type Parallel interface{ Tasks() int }

// Env is what a task may use. One per attempt.
type Env struct {
	// Alloc charges the task's share of the budget; it may block while memory is
	// short. Everything that a task emits should come from it.
	Alloc memory.Allocator
	// Seed and Epoch key random(); with Origin and the row they make a retry repeat itself.
	Seed, Epoch uint64
	Origin      Origin
	Attempt     int // 1 is the first
	// TrackRows says that a later step, or an on_error policy, needs Block.Rows.
	TrackRows bool
	Log       *slog.Logger // never nil
}

// Tracks is implemented by operators that need Block.Rows of what they are given
// (random(), sample).
type Tracks interface{ NeedsRows() bool }
