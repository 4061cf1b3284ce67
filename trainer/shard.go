package trainer

import (
	"context"
	"io"
	"iter"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// Shard is what a rank gets of a data set. One goroutine calls Next and All at a time; the rest may be called at any time. It is closed with the loop.
type Shard struct {
	c      *Context
	name   string
	eval   bool
	f      *feed.Client
	closed atomic.Bool
}

// reopen is how long other ranks have to close an evaluation set that this one opens again.
const reopen = 5 * time.Minute

func openShard(c *Context, name string, d wire.Data) (*Shard, error) {
	o := &feed.DialOptions{}
	if d.Eval {
		o.Wait = reopen
	}
	f, err := feed.Dial(c, d.Socket, c.w.Rank, o)
	if err != nil {
		return nil, fault.New(fault.CodeOf(err), "data set %q: %w", name, err)
	}
	return &Shard{c: c, name: name, eval: d.Eval, f: f}, nil
}

// Next gives the next batch, which the caller owns until Release, or io.EOF at the end of an epoch: the call after it begins the next one.
func (s *Shard) Next(ctx context.Context) (*shard.Batch, error) {
	s.c.alive(false)
	b, err := s.f.Next(ctx)
	if err == nil && !s.eval {
		s.c.alive(s.c.steps.Add(1) == 1)
	}
	return b, err
}

// All iterates over one epoch, or what is left of it; of an evaluation set from the first row on. A batch is valid until the next turn; Retain to keep it.
func (s *Shard) All(ctx context.Context) iter.Seq2[*shard.Batch, error] {
	if !s.eval {
		return shard.All(ctx, s.Next)
	}
	return func(yield func(*shard.Batch, error) bool) {
		for s.Step() > 0 { // left early: to its end, which is the next one's beginning
			b, err := s.Next(ctx)
			if err == io.EOF {
				break
			}
			if err != nil {
				yield(nil, err)
				return
			}
			b.Release()
		}
		shard.All(ctx, s.Next)(yield)
	}
}

// Name of the data set.
func (s *Shard) Name() string { return s.name }

// State is where the data set stands after the last batch given: the same on all ranks that are at the same step. Reports send it.
func (s *Shard) State() shard.State { return s.f.State() }

// Epoch is the epoch of the next batch.
func (s *Shard) Epoch() uint64 { return s.f.Epoch() }

// Step is how many steps of the epoch were given.
func (s *Shard) Step() int64 { return s.f.Step() }

// Len is the number of batches of an epoch, where it is known from metadata.
func (s *Shard) Len() (int64, bool) { return s.f.Len() }

// Close gives the data set up. An evaluation set may be opened again. Idempotent.
func (s *Shard) Close() error {
	s.closed.Store(true)
	return s.f.Close()
}
