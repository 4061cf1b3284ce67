package ops

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
)

// MapFunc makes one row of each row of in. It borrows in and returns a reference.
// Row-wise: what it makes of a row must not depend on the other rows. It is called
// from several goroutines at once. [Allocator] gives budgeted memory, [RandFor]
// a generator that repeats itself in a retry.
type MapFunc func(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error)

// FlatMapFunc makes any number of rows of each row; parents[i] is the row of in
// that out row i comes from, ascending.
type FlatMapFunc func(ctx context.Context, in arrow.RecordBatch) (out arrow.RecordBatch, parents []int32, err error)

// FilterFunc returns one value per row; rows that are true stay.
type FilterFunc func(ctx context.Context, in arrow.RecordBatch) (*array.Boolean, error)

// Func is a function with what is known about it. Exactly one of Map, FlatMap
// and Filter is set. Immutable once it is in a plan.
type Func struct {
	Name    string // registered name; "" for a closure
	Version string
	Config  []byte // given to the registered constructor
	Map     MapFunc
	FlatMap FlatMapFunc
	Filter  FilterFunc
	// Schema of what it returns; nil: found at plan time by one call with an empty
	// batch. Filters have none.
	Schema *arrow.Schema
	// UsesRandom must be set by functions that call [RandFor].
	UsesRandom bool
	// Passes names columns that the function returns as it gets them. A filter over
	// these alone may run before the function, which then does not see (and cannot fail on)
	// the rows that the filter drops.
	Passes []string
}

// MapOf makes a Func of a closure. A plan with closures runs in this process
// only and cannot be resumed; register functions by name for more.
func MapOf(f MapFunc) *Func { return &Func{Map: f} }

// FlatMapOf is MapOf for functions that change the number of rows.
func FlatMapOf(f FlatMapFunc) *Func { return &Func{FlatMap: f} }

// FilterOf is MapOf for filters.
func FilterOf(f FilterFunc) *Func { return &Func{Filter: f} }

func (f *Func) String() string {
	switch {
	case f.Name == "":
		return "(closure)"
	case f.Version == "":
		return f.Name
	}
	return f.Name + "@" + f.Version
}

// kind is "map", "flat_map", "filter", or "" if not exactly one is set.
func (f *Func) kind() string {
	k := ""
	n := 0
	if f.Map != nil {
		k, n = "map", n+1
	}
	if f.FlatMap != nil {
		k, n = "flat_map", n+1
	}
	if f.Filter != nil {
		k, n = "filter", n+1
	}
	if n != 1 {
		return ""
	}
	return k
}

// probe finds the schema of what f returns by one call without rows.
func (f *Func) probe(ctx context.Context, in *arrow.Schema) (s *arrow.Schema, err error) {
	defer func() {
		if p := recover(); p != nil {
			s, err = nil, fault.New(fault.UserCode, "the function panicked on an empty batch, with which its schema is found (set the schema of the function to avoid the call): %v\n%s", p, debug.Stack())
		}
	}()
	empty := gather.None(in)
	defer empty.Release()
	ctx = WithCall(ctx, &Call{Alloc: memory.DefaultAllocator, Random: f.UsesRandom})
	var out arrow.RecordBatch
	if f.Map != nil {
		out, err = f.Map(ctx, empty)
	} else {
		out, _, err = f.FlatMap(ctx, empty)
	}
	if err != nil {
		return nil, fault.WithCode(fault.UserCode, fmt.Errorf("the function fails on an empty batch, with which its schema is found (set the schema of the function to avoid the call): %w", err))
	}
	if out == nil {
		return nil, fault.New(fault.UserCode, "the function returned no batch for an empty one, with which its schema is found; return a batch without rows, or set the schema of the function")
	}
	defer out.Release()
	if out.NumRows() != 0 {
		return nil, fault.New(fault.UserCode, "the function made %d rows of an empty batch", out.NumRows())
	}
	return out.Schema(), nil
}
