package ops

import (
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/ops/expr"
)

// Call is what a user's function may ask about the call it is in: the engine
// puts it into the context with [WithCall].
type Call struct {
	Alloc memory.Allocator
	// Rows are the rows of the batch; only set where Random is.
	Rows   expr.Rows
	Site   int
	Random bool // the function declared UsesRandom
}

type callKey struct{}

// WithCall returns a context for one call of a function.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// WithAllocator returns a context whose [Allocator] is a; for tests of functions.
func WithAllocator(ctx context.Context, a memory.Allocator) context.Context {
	c := Call{}
	if p, ok := ctx.Value(callKey{}).(*Call); ok {
		c = *p
	}
	c.Alloc = a
	return WithCall(ctx, &c)
}

// Allocator is the memory that a user's function should build its batches from:
// it is part of the run's budget. Outside a run it is memory.DefaultAllocator.
func Allocator(ctx context.Context) memory.Allocator {
	if c, ok := ctx.Value(callKey{}).(*Call); ok && c.Alloc != nil {
		return c.Alloc
	}
	return memory.DefaultAllocator
}

// RandFor returns a generator for row i of the batch that the function was called
// with. It depends on the run's seed and epoch and on where the row comes from, never on
// batches, attempts or machines, so a retry repeats itself. Two calls for one row give
// the same numbers. It panics in a function that does not declare UsesRandom: the rows' positions
// are not tracked for it.
func RandFor(ctx context.Context, i int) *rand.Rand {
	c, ok := ctx.Value(callKey{}).(*Call)
	if !ok || !c.Random {
		panic("ops: RandFor is for functions in a run whose Func has UsesRandom set")
	}
	r := &c.Rows
	row := r.Row + int64(i)
	if r.At != nil {
		row = r.At[i]
	}
	var ord uint64
	if r.Ords != nil {
		ord = r.Ords[i]
	}
	b := make([]byte, 0, 128)
	b = append(b, "penstock/rand/1\x00"...)
	b = strconv.AppendUint(b, r.Seed, 10)
	b = append(b, 0)
	b = strconv.AppendUint(b, r.Epoch, 10)
	b = append(b, 0)
	b = strconv.AppendInt(b, int64(r.Source), 10)
	b = append(b, 0)
	b = append(b, r.Split...)
	b = append(b, 0)
	b = strconv.AppendInt(b, row, 10)
	b = append(b, 0)
	b = strconv.AppendUint(b, ord, 10)
	b = append(b, 0)
	b = strconv.AppendInt(b, int64(c.Site), 10)
	return rand.New(rand.NewChaCha8(sha256.Sum256(b)))
}
