// Package feeder serves the data sets of a run to its workers: in the controller's own process ([Local]), or in a
// data process that the controller starts and drives ([Process], [Control]). Over several nodes there is one on each, which the controller drives over
// connections ([Remote], [Relay]) and as one ([Spread]).
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
	"github.com/penstock-data/penstock/shard/feed"
)

// Feeder serves data sets on sockets of package shard/feed, one each. Safe for concurrent use, but Start, Stop and
// Close are called one after another; Stop and Close also while a Start goes on, which they end.
type Feeder interface {
	// Listen makes the feeder one that others reach, and says at which address: for Nodes.Addresses of the next Start; "" where it is of no gang.
	Listen(ctx context.Context) (address string, err error)
	// Start opens every data set, and serves each to the ranks of this node until Stop. It returns the sockets by name once all of them listen, and a channel that gets the
	// first failure: of a job, of a consumer (WorkerLost), or of the data process ([ErrDied]). ctx bounds the opening only. After an error nothing is left to
	// stop; one because of a state that is of another plan, other data or another seed says so ([Refused]).
	Start(ctx context.Context, st Start) (sockets map[string]string, failed <-chan error, err error)
	// Ledger is how many samples the windows had that a training set has read since Start, and those of At.Ledger, as [shard.Ledger.WriteTo] writes it.
	Ledger(ctx context.Context, name string) ([]byte, error)
	// Hold keeps the ranks of training sets from being sent more, and returns the first step of each that none of them was sent: the first half of a notice
	// ([Spread.Notice]). Mark follows, whatever happens; a hold ends by itself only with what is served. Where nothing is served there is nothing to hold: nil.
	Hold(ctx context.Context) (map[string]feed.Step, error)
	// Mark tells the ranks of training sets that they are to stop from these steps on, which are not before those of Hold, and ends the hold. Nil steps end it without telling anybody.
	Mark(ctx context.Context, steps map[string]feed.Step) error
	// Stop ends what Start began: the connections of consumers end with an error, iterators and sockets are closed. Without a Start it does nothing.
	Stop() error
	// Close is Stop, and the end of the data process, where there is one. Idempotent.
	Close() error
}

// Start is what a feeder is to serve.
type Start struct {
	Ranks int           `json:"ranks"`        // of all nodes together
	At    map[string]At `json:"at,omitempty"` // what training sets go on from; a set without begins anew
	Nodes *Nodes        `json:"nodes,omitempty"`
}

// Nodes divides what is served among the feeders of a gang, one on each node; each opens the same sets with the same Start. Without them one feeder has all ranks.
type Nodes struct {
	Ranks     []int    `json:"ranks"`           // the node of each rank
	Lanes     []int    `json:"lanes,omitempty"` // the nodes that read lanes, in turn; none: those of the ranks (shard.Nodes)
	Addresses []string `json:"addresses"`       // of the feeders, by node, as Listen said them
	Opening   string   `json:"opening"`         // no other Start of the gang's attempt has it: what belongs to another one is not heard
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
	// Mask is applied to errors for consumers; it may be nil.
	Mask func(string) string
	// Open makes the iterators of all ranks, or those of this node (nodes, nil: one machine), which go on from at, or stand at the beginning where at is nil. What it
	// finds out about the data it keeps for the next call. ctx ends the iterators too.
	Open func(ctx context.Context, ranks int, at *At, nodes *shard.Nodes) ([]*shard.Iterator, error)
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
	return Set{Name: name, Eval: eval, Mask: o.Mask, Open: func(ctx context.Context, ranks int, at *At, nodes *shard.Nodes) ([]*shard.Iterator, error) {
		o := o
		o.Ranks, o.Nodes = nil, nodes
		if at != nil {
			o.State = &at.State
			if len(at.Ledger) > 0 {
				var err error
				if o.Ledger, err = shard.ReadLedger(bytes.NewReader(at.Ledger)); err != nil {
					return nil, err
				}
			}
		}
		its, err := d.Shards(ctx, ranks, &o)
		if err != nil || eval {
			return its, err
		}
		if steps, known := its[0].Len(); known && steps == 0 { // a loop over it would end at once, and the run with nothing done
			for _, it := range its {
				err = errors.Join(err, it.Close())
			}
			return nil, errors.Join(noStep(ctx, d, ranks, o), err)
		}
		return its, nil
	}}
}

// noStep says why an epoch of a training set has no step, where its length follows from metadata.
func noStep(ctx context.Context, d *dataset.Dataset, ranks int, o dataset.ShardOptions) error {
	batch := o.GlobalBatch
	if batch == 0 {
		batch = o.BatchPerRank * ranks
	}
	o.State, o.Ledger, o.Nodes = nil, nil, nil
	o.GlobalBatch, o.BatchPerRank = 1, 0 // so that each sample is a step
	its, err := d.Shards(ctx, 1, &o)
	if err != nil {
		return err
	}
	samples, _ := its[0].Len()
	err = fault.New(fault.Invalid, "an epoch has no step: the data set has no samples")
	if samples > 0 {
		err = fault.New(fault.Invalid, "an epoch has no step: %d samples are fewer than a global batch of %d, and tail drop leaves them out: make global_batch smaller, or give tail: pad", samples, batch)
	}
	return errors.Join(err, its[0].Close())
}

// check reports what is wrong with a Start.
func check(sets []Set, st Start) error {
	if st.Ranks < 1 {
		return fault.New(fault.Invalid, "data for %d ranks: there is at least one", st.Ranks)
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
	for name := range st.At {
		if !slices.Contains(training, name) {
			return fault.New(fault.Invalid, "there is a state of data set %q to go on from, but no training set of that name; have %s: give it the name that it had", name, quoted(training))
		}
	}
	return nil
}
