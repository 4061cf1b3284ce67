package blobio

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 10 * time.Second
	// An attempt that brought this much, or half of what was missing, was worth
	// its while: retries are counted afresh.
	progressEnough = 64 << 10
)

// backoff waits before try number tries+1: exponential, full jitter.
func backoff(ctx context.Context, tries int) {
	t := time.NewTimer(rand.N(min(backoffFirst<<min(tries, 20), backoffMost)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// try runs one request that either works or not, in a slot, retrying what is
// transient. f must obey its context, which ends after Timeout.
func (b *Bucket) try(ctx context.Context, key string, f func(context.Context) error) error {
	return b.tryFor(ctx, key, b.o.Timeout, f)
}

func (b *Bucket) tryFor(ctx context.Context, key string, limit time.Duration, f func(context.Context) error) error {
	for tries := 0; ; tries++ {
		if err := b.slots.Acquire(ctx, 1); err != nil {
			return b.fail(ctx, key, err)
		}
		err := watched(ctx, limit, func(ctx context.Context, _ *time.Timer) error { return f(ctx) })
		b.slots.Release(1)
		if err == nil || !b.again(ctx, err, tries) {
			return b.fail(ctx, key, afterTries(err, tries))
		}
		backoff(ctx, tries)
	}
}

// again reports whether one more try may help and is allowed.
func (b *Bucket) again(ctx context.Context, err error, tries int) bool {
	return ctx.Err() == nil && codeOf(err) == fault.Unavailable && tries < b.o.Retries
}

func afterTries(err error, tries int) error {
	if err == nil || tries == 0 {
		return err
	}
	return fmt.Errorf("after %d tries: %w", tries+1, err)
}

// watched runs f with a context that ends when the timer has not been reset for
// limit; then the error is errStalled.
func watched(ctx context.Context, limit time.Duration, f func(context.Context, *time.Timer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dog := time.AfterFunc(limit, func() { cancel(errStalled) })
	defer dog.Stop()
	err := f(ctx, dog)
	if err != nil && context.Cause(ctx) == errStalled {
		err = fmt.Errorf("%w (%s): %v", errStalled, limit, err)
	}
	return err
}

// get fills dst from off, going on after an error from the offset reached.
func (o *Object) get(ctx context.Context, dst []byte, off int64) error {
	for tries := 0; ; tries++ {
		if err := o.b.slots.Acquire(ctx, 1); err != nil {
			return o.b.fail(ctx, o.info.Key, err)
		}
		n, err := o.hedged(ctx, dst, off)
		if err == nil {
			return nil
		}
		dst, off = dst[n:], off+int64(n)
		if n >= progressEnough || n > 0 && n >= len(dst) {
			tries = 0
		}
		if !o.b.again(ctx, err, tries) {
			return o.b.fail(ctx, o.info.Key, afterTries(err, tries))
		}
		backoff(ctx, tries)
		o.count(func(s *Stats) { s.Retries.Add(1) })
	}
}

// attempt sends one request and reads what it brings, in a slot that it
// releases. It returns how much of dst is filled; done, if not nil, follows.
func (o *Object) attempt(ctx context.Context, dst []byte, off int64, done *atomic.Int64) (n int, err error) {
	defer o.b.slots.Release(1)
	o.count(func(s *Stats) { s.Requests.Add(1) })
	begin := time.Now()
	limit := o.b.o.Timeout
	err = watched(ctx, limit, func(ctx context.Context, dog *time.Timer) error {
		r, err := o.b.remote.NewRangeReader(ctx, o.info.Key, off, int64(len(dst)), o.b.readOptions(o.info.Key))
		if err != nil {
			if httpStatus(err) == 416 { // the range is no longer inside the object
				return errChanged
			}
			return err
		}
		defer r.Close() // read only; what matters was the last Read
		if err := o.checkAnswer(r); err != nil {
			return err
		}
		for n < len(dst) {
			k, err := r.Read(dst[n:])
			n += k
			if k > 0 {
				dog.Reset(limit)
				o.count(func(s *Stats) { s.Bytes.Add(int64(k)) })
				if done != nil {
					done.Store(int64(n))
				}
			}
			if n == len(dst) {
				if err == nil { // read the end, so that the connection can be used again
					r.Read(make([]byte, 1))
				}
				break
			}
			if err == io.EOF {
				return errShort
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		o.b.hedge.record(len(dst), time.Since(begin))
	}
	return n, err
}
