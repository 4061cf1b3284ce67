package trainer

import (
	"context"
	"errors"
	"log/slog"

	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/store"
)

// origin is the checkpoint of another run that this one begins with.
type origin struct {
	run      *store.Run
	manifest *store.Manifest
}

func openOrigin(ctx context.Context, ref string) (*origin, error) {
	storage, name, n, err := store.Ref(ref)
	if err != nil {
		return nil, err
	}
	run, err := store.Open(ctx, storage, name)
	if err != nil {
		return nil, err
	}
	m, err := run.Checkpoint(ctx, n)
	if err != nil {
		return nil, errors.Join(err, run.Close())
	}
	return &origin{run: run, manifest: m}, nil
}

// lenient makes a set one that begins anew where the origin's state of it is of another plan, or of other data.
func (o *origin) lenient(s feeder.Set, log *slog.Logger) feeder.Set {
	open := s.Open
	d, ok := o.manifest.Data[s.Name]
	if !ok {
		return s
	}
	first, err := shard.ParseState(d.State)
	if err != nil {
		return s // the start says what is wrong with it
	}
	s.Open = func(ctx context.Context, ranks int, at *shard.State) ([]*shard.Iterator, error) {
		if at == nil || at.Plan != first.Plan || at.Data != first.Data || at.Seed != first.Seed || at.Epoch != first.Epoch || at.Step != first.Step {
			return open(ctx, ranks, at) // the run's own
		}
		its, err := open(ctx, ranks, nil)
		if err != nil || len(its) == 0 {
			return its, err
		}
		is := its[0].State()
		if is.Plan == at.Plan && is.Data == at.Data && is.Seed == at.Seed {
			for _, it := range its {
				err = errors.Join(err, it.Close())
			}
			if err != nil {
				return nil, err
			}
			return open(ctx, ranks, at)
		}
		log.Info("a data set begins anew: that of the checkpoint has another plan, other data, or another seed", "data", s.Name)
		return its, nil
	}
	return s
}
