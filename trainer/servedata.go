package trainer

import (
	"context"
	"io"
	"maps"
	"slices"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
)

// ServeData is the work of a data process (see [DataProcess]): it serves what open makes, as the controller at the other ends of in and out says, until
// that closes in. What open refuses is the error of the run, and is returned.
//
// Where it is part of a job on several nodes (PENSTOCK_GANG), it listens to the data processes of the other nodes when the controller says so.
//
// The process must keep everything else from writing to out, and ignore the signals by which people and systems end a run: workers need their batches until
// they have saved, and the process ends with its controller.
func ServeData(ctx context.Context, in io.Reader, out io.Writer, open func() (map[string]Data, error)) error {
	data, err := open()
	for name, d := range data {
		if err == nil && d.Dataset == nil {
			err = fault.New(fault.Invalid, "data set %q is nil", name)
		}
	}
	if err != nil {
		feeder.Refuse(out, err)
		return err
	}
	var sets []feeder.Set
	for _, name := range slices.Sorted(maps.Keys(data)) {
		sets = append(sets, data[name].set(name))
	}
	return feeder.Control(ctx, in, out, sets, gang.Aide)
}

// set is what a feeder serves.
func (d Data) set(name string) feeder.Set {
	set := feeder.Of(name, d.Dataset, d.Options, d.Eval)
	if open := set.Open; d.Locate != nil {
		set.Open = func(ctx context.Context, ranks int, at *feeder.At, nodes *shard.Nodes) ([]*shard.Iterator, error) {
			its, err := open(ctx, ranks, at, nodes)
			if err != nil {
				err = d.Locate(err)
			}
			return its, err
		}
	}
	return set
}
