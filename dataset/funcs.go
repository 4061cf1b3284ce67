package dataset

import (
	"cmp"
	"context"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/ops"
)

// MapOptions belong to functions over batches; nil means defaults.
type MapOptions struct {
	// Schema of what the function returns; nil: found by one call with an empty batch.
	Schema *arrow.Schema
	// BatchRows is the most rows given to the function at once; 0: as they come.
	BatchRows int
}

func (o *MapOptions) or() MapOptions {
	if o == nil {
		return MapOptions{}
	}
	return *o
}

// MapBatches runs a function over record batches; it returns one row for each row
// it is given, and must look at each row by itself: batches are cut as memory and
// retries require. Plans with a closure run in this process only; see [Dataset.Apply].
func (d *Dataset) MapBatches(f ops.MapFunc, o *MapOptions) *Dataset {
	return d.apply("map_batches", &ops.Func{Map: f, Schema: o.or().Schema}, o)
}

// FlatMapBatches runs a function that makes any number of rows of each.
func (d *Dataset) FlatMapBatches(f ops.FlatMapFunc, o *MapOptions) *Dataset {
	return d.apply("flat_map_batches", &ops.Func{FlatMap: f, Schema: o.or().Schema}, o)
}

// FilterFunc keeps the rows for which the function's array is true.
func (d *Dataset) FilterFunc(f ops.FilterFunc) *Dataset {
	return d.apply("filter", &ops.Func{Filter: f}, nil)
}

// Apply runs a function of any of the three kinds that was registered by name
// (ops.RegisterMap, ...), so that the plan can be written down, resumed and sent elsewhere.
func (d *Dataset) Apply(f *ops.Func, o *MapOptions) *Dataset {
	switch {
	case f.Filter != nil:
		return d.apply("filter", f, o)
	case f.FlatMap != nil:
		return d.apply("flat_map_batches", f, o)
	}
	return d.apply("map_batches", f, o)
}

func (d *Dataset) apply(verb string, f *ops.Func, o *MapOptions) *Dataset {
	n := d.then(verb, nil)
	n.step = func(ctx context.Context, in []ops.Node, m ops.Meta) (ops.Node, error) {
		if f.Filter != nil {
			return ops.NewFilterFunc(in[0], f, m)
		}
		return ops.NewMap(ctx, in[0], f, o.or().BatchRows, m)
	}
	return n
}

// ExecOptions describe a pool of child processes that transform batches.
type ExecOptions struct {
	// Command and its arguments. For each Arrow IPC record batch on stdin the child
	// writes one to stdout.
	Command []string
	// Env names variables to pass on, or sets them (NAME=value); the child gets no
	// others but PATH and HOME.
	Env       []string
	Workers   int           // processes; 0: one per CPU
	BatchRows int           // most rows per batch; 0: 1024
	Timeout   time.Duration // per batch; 0: 5 minutes
	// Flat: the child may return any number of rows; it adds an int64 column
	// "__parent", ascending, with the row of its input that each row comes from.
	Flat   bool
	Schema *arrow.Schema // of what the child returns, without "__parent"; nil: that of its input
	// Program is what is started for Command[0], and Local is more of Env: what may be another on another machine, where the job is the same.
	Program string
	Local   []string
	Verb    string // what errors and plans call the step, no part of the job's fingerprint; "": exec
}

// Exec passes batches through child processes. The order is kept; a child that
// dies or hangs is replaced and its batch given to another. A job's fingerprint holds
// the command, not what the program does: give a RunID (of shards an ID) when that changes.
func (d *Dataset) Exec(o ExecOptions) *Dataset {
	return d.then(cmp.Or(o.Verb, "exec"), func(in ops.Node, m ops.Meta) (ops.Node, error) {
		out := o.Schema
		if out == nil {
			out = in.Schema()
		}
		return ops.NewExec(in, &ops.ExecSpec{Command: o.Command, Env: o.Env, Workers: o.Workers, BatchRows: o.BatchRows,
			TimeoutMS: o.Timeout.Milliseconds(), Flat: o.Flat, Out: out, Program: o.Program, Local: o.Local}, m)
	})
}
