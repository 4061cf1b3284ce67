package trainer

import (
	"context"
	"errors"
	"strings"

	"github.com/penstock-data/penstock/trainer/store"
)

// origin is the checkpoint of another run that this one begins with.
type origin struct {
	run      *store.Run
	manifest *store.Manifest
}

// openOrigin opens what ref names: a name alone is in storage.
func openOrigin(ctx context.Context, ref, storage string) (*origin, error) {
	in, name, n, err := store.Ref(ref)
	if err != nil {
		return nil, err
	}
	if strings.Contains(ref, "/") {
		storage = in
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
