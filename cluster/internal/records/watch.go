package records

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/penstock-data/penstock/internal/fault"
)

// EventKind is what Watch says.
type EventKind uint8

const (
	Changed EventKind = iota // Record was written, or is in the list that is read again
	Gone                     // the record Record.ID was deleted, or its lease has ended; Record.Revision is that of the deletion, and no Value
	Reset                    // what is known is too old, or nothing is known yet: Changed for each record that there is now follows, then Current. No value
	Current                  // all records of the list were said (if Reset did not come again before): others that were known before Reset are gone. Record.Revision is that of the list
)

// Event of a table.
type Event[T any] struct {
	Kind   EventKind
	Record Record[T]
}

// Watch says what happens in a table after a revision, such as that of a List, in order and each once, by calling f, until ctx ends or f fails; it returns why: ctx's cause as fault.Canceled, or f's error
// as it is. From 0 it begins with the list. Of several writes to a record none is left out, but for those of a time that is read again as a list, after etcd has dropped its history (Reset).
//
// It waits as long as etcd is away. f is called by this goroutine; what comes meanwhile waits in memory.
//
// Errors besides: Unavailable: the store was closed, or has failed. Denied. Corrupt: a record that is no record.
func (t Table[T]) Watch(ctx context.Context, from int64, f func(Event[T]) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.store.ctx, func() { cancel(context.Cause(t.store.ctx)) })()
	var err error
	const first = 50 * time.Millisecond
	for wait := first; ; wait = min(2*wait, time.Second) {
		before := from
		if from == 0 {
			from, err = t.relist(ctx, f)
		}
		if err == nil {
			from, err = t.follow(ctx, from, f)
		}
		if e, ok := errors.AsType[*stop](err); ok {
			return e.err
		}
		if errors.Is(err, rpctypes.ErrCompacted) {
			from, err = 0, nil
			continue
		}
		if ctx.Err() == nil && !transient(err) {
			return t.store.fault(ctx, err, "watching "+t.name)
		}
		if from != before {
			wait = first
		}
		if ctx.Err() == nil && wait == first {
			t.store.opts.Log.LogAttrs(ctx, slog.LevelInfo, "the store does not answer; waiting for it", slog.String("watching", t.name), slog.Any("error", err))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return t.store.fault(ctx, context.Cause(ctx), "watching "+t.name)
		case <-timer.C:
		}
		err = nil
	}
}

// stop carries an error that ends a watch: f's, or a damaged record.
type stop struct{ err error }

func (s *stop) Error() string { return s.err.Error() }

// relist says the whole table, and returns its revision; 0 with an error: it is to be said again.
func (t Table[T]) relist(ctx context.Context, f func(Event[T]) error) (int64, error) {
	for at := (Cursor{}); ; {
		page, next, err := t.List(ctx, at, 500)
		if err != nil {
			return 0, err
		}
		if at == (Cursor{}) {
			if err := f(Event[T]{Kind: Reset}); err != nil {
				return 0, &stop{err}
			}
		}
		for _, r := range page {
			if err := f(Event[T]{Changed, r}); err != nil {
				return 0, &stop{err}
			}
		}
		if at = next; at.After == "" {
			if err := f(Event[T]{Kind: Current, Record: Record[T]{Revision: at.Revision}}); err != nil {
				return 0, &stop{err}
			}
			return at.Revision, nil
		}
	}
}

// follow says what comes after from, until an error, and returns how far it came.
func (t Table[T]) follow(ctx context.Context, from int64, f func(Event[T]) error) (int64, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	prefix := t.store.key(t.name, "")
	for r := range t.store.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from+1), clientv3.WithProgressNotify()) {
		if err := r.Err(); err != nil {
			return from, err
		}
		for _, e := range r.Events {
			out := Event[T]{Kind: Gone, Record: Record[T]{ID: strings.TrimPrefix(string(e.Kv.Key), prefix), Revision: e.Kv.ModRevision}}
			if e.Type == clientv3.EventTypePut {
				record, err := t.decode(string(e.Kv.Key), e.Kv.Value, e.Kv.ModRevision, e.Kv.Lease)
				if err != nil {
					return from, &stop{err}
				}
				out = Event[T]{Changed, record}
			}
			if err := f(out); err != nil {
				return from, &stop{err}
			}
		}
		// The header's revision is the store's, which may be ahead of the events.
		if n := len(r.Events); n > 0 {
			from = r.Events[n-1].Kv.ModRevision
		} else if r.IsProgressNotify() {
			from = r.Header.Revision
		}
	}
	return from, fault.New(fault.Unavailable, "etcd has ended the watch")
}
