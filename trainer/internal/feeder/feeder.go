// Package feeder serves the data sets of a run to its workers: in the controller's own process ([Local]), or in a
// data process that the controller starts and drives ([Process], [Control]).
//
// A feeder outlives the groups of workers that it feeds: [Feeder.Stop] and [Feeder.Start] between two of them keep the listings, footers, schemas
// and caches that the data sets have found, so that the next group has its first batch at once.
package feeder

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// Feeder serves data sets on sockets of package shard/feed, one each. Safe for concurrent use, but Start, Stop and
// Close are called one after another.
type Feeder interface {
	// Start opens every data set for ranks, and serves each until Stop. at has what training sets go on
	// from; a set without begins anew. It returns the sockets by name once all of them listen, and a channel that gets the
	// first failure: of a job, of a consumer (WorkerLost), or of the data process ([ErrDied]). ctx bounds the opening only. After an error nothing is left to
	// stop; one because of a state that is of another plan, other data or another seed says so ([Refused]).
	Start(ctx context.Context, ranks int, at map[string]At) (sockets map[string]string, failed <-chan error, err error)
	// Ledger is how many samples the windows had that a training set has read since Start, and those of At.Ledger, as [shard.Ledger.WriteTo] writes it.
	Ledger(ctx context.Context, name string) ([]byte, error)
	// Notice tells the ranks of every training set that the machine will be taken away, at the same step; see feed.Options.
	Notice()
	// Stop ends what Start began: the connections of consumers end with an error, iterators and sockets are closed. Without a Start it does nothing.
	Stop() error
	// Close is Stop, and the end of the data process, where there is one. Idempotent.
	Close() error
}

// At is what a training set goes on from.
type At struct {
	State shard.State `json:"state"`
	// Ledger that was written with the state, as Feeder.Ledger gave it; nil: what was read before stays unknown.
	Ledger []byte `json:"ledger,omitempty"`
}

// Set is a data set of a run.
type Set struct {
	Name string
	// Eval is set where it is no part of checkpoints: once all ranks have given it up, it is opened again from its beginning. Until then a
	// rank that was given up is Exists, and its consumer waits.
	Eval bool
	// Open makes the iterators of all ranks, which go on from at, or stand at the beginning where at is nil. What it finds out about the data it keeps for
	// the next call. ctx ends the iterators too.
	Open func(ctx context.Context, ranks int, at *At) ([]*shard.Iterator, error)
}

// ErrDied is in the tree of a failure that is the end of the data process, and of nobody else.
var ErrDied = errors.New("the data process ended")

// Refused is the set whose state an error of Start is about: the set cannot go on from it, but could begin anew.
func Refused(err error) (name string, ok bool) {
	if r, is := errors.AsType[*refused](err); is {
		return r.name, true
	}
	return "", false
}

type refused struct {
	name string
	err  error
}

func (r *refused) Error() string { return r.err.Error() }
func (r *refused) Unwrap() error { return r.err }

// Of makes a set of a dataset. A training set is dealt as o says. An evaluation set gives every row once an epoch, in canonical order: each
// epoch begins at the first row and ends with a step that is padded, and there are as many as are asked for. Of o it takes the
// size of batches, their form, and how it runs. Opening it again neither lists nor reads footers again.
func Of(name string, d *dataset.Dataset, o dataset.ShardOptions, eval bool) Set {
	if eval {
		o.Shuffle, o.Tail = &shard.Shuffle{Mode: shard.ModeNone}, shard.TailPad
		o.Epochs, o.Endless, o.Epoch, o.State = 0, false, 0, nil
	}
	return Set{Name: name, Eval: eval, Open: func(ctx context.Context, ranks int, at *At) ([]*shard.Iterator, error) {
		o := o
		o.Ranks = nil
		if at != nil {
			o.State, o.Epoch = &at.State, at.State.Epoch
			if len(at.Ledger) > 0 {
				var err error
				if o.Ledger, err = shard.ReadLedger(bytes.NewReader(at.Ledger)); err != nil {
					return nil, err
				}
			}
		}
		return d.Shards(ctx, ranks, &o)
	}}
}

// check reports what is wrong with a Start.
func check(sets []Set, ranks int, at map[string]At) error {
	if ranks < 1 {
		return fault.New(fault.Invalid, "data for %d ranks: there is at least one", ranks)
	}
	training, seen := []string{}, map[string]bool{}
	for _, s := range sets {
		if s.Name == "" || seen[s.Name] {
			return fault.New(fault.Invalid, "two data sets of the name %q, or one without a name", s.Name)
		}
		if seen[s.Name] = true; !s.Eval {
			training = append(training, s.Name)
		}
	}
	for name := range at {
		if !slices.Contains(training, name) {
			return fault.New(fault.Invalid, "there is a state of data set %q to go on from, but no training set of that name; have %s: give it the name that it had", name, quoted(training))
		}
	}
	return nil
}
