package ops

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// MapFunc makes one row of each row of in. It borrows in and returns a reference.
// Row-wise: what it makes of a row must not depend on the other rows. It is called
// from several goroutines at once. [Allocator] gives budgeted memory.
type MapFunc func(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error)

// FlatMapFunc makes any number of rows of each row; parents[i] is the row of in
// that out row i comes from, ascending.
type FlatMapFunc func(ctx context.Context, in arrow.RecordBatch) (out arrow.RecordBatch, parents []int32, err error)

// FilterFunc returns one value per row; rows that are true stay.
type FilterFunc func(ctx context.Context, in arrow.RecordBatch) (*array.Boolean, error)

// Func is a function with what is known about it. Exactly one of Map, FlatMap
// and Filter is set.
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
}
