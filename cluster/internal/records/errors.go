package records

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock-data/penstock/internal/fault"
)

// Conflict says that a record was not at the revision that a write named: another writer was first. Its code is fault.Exists. Read the record again and decide anew.
type Conflict struct {
	Table, ID string
	Want      int64 // 0: that there is none
	Have      int64 // 0: there is none
}

func (c *Conflict) Error() string {
	switch {
	case c.Want == 0:
		return fmt.Sprintf("%s/%s is there already (revision %d)", c.Table, c.ID, c.Have)
	case c.Have == 0:
		return fmt.Sprintf("%s/%s was deleted by another writer since revision %d was read", c.Table, c.ID, c.Want)
	}
	return fmt.Sprintf("%s/%s was changed by another writer: it has revision %d, not %d", c.Table, c.ID, c.Have, c.Want)
}

// errTimeout is the cause of the end of a call that took Options.Timeout.
var errTimeout = errors.New("no answer in time")

// errClosed is the cause of the end of calls when the store is closed.
var errClosed = errors.New("the store is closed")

// call is the context of a call: it ends with the caller's, after Options.Timeout, and when the store is closed or has failed.
func (s *Store) call(ctx context.Context) (context.Context, context.CancelFunc) {
	timed, stop := context.WithTimeoutCause(ctx, s.opts.Timeout, errTimeout)
	both, cancel := context.WithCancelCause(timed)
	unhook := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	return both, func() { unhook(); cancel(nil); stop() }
}

// transient reports whether the same request may succeed a moment later. If it was a write, it may have happened.
func transient(err error) bool {
	if isFault(err) {
		return fault.CodeOf(err) == fault.Unavailable
	}
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code() == codes.Unavailable || e.Code() == codes.DeadlineExceeded || errors.Is(err, rpctypes.ErrTooManyRequests) ||
			errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown:
		return true
	}
	return false
}

// repeat calls f until it does not fail, fails for good, or ctx ends; doubt says that an earlier call of f failed in a way that leaves open whether it did its work. The error is coded; where it leaves
// that open, hint is a part of it.
func (s *Store) repeat(ctx context.Context, what, hint string, f func(ctx context.Context, doubt bool) error) error {
	ctx, cancel := s.call(ctx)
	defer cancel()
	var last error // that is not only the end of ctx
	for wait := 10 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 200*time.Millisecond) {
		err := f(ctx, last != nil)
		if err == nil {
			return nil
		}
		if isFault(err) || ctx.Err() == nil && !transient(err) {
			return s.fault(ctx, err, what)
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
		case <-t.C:
		}
	}
	if last == nil {
		hint = ""
	}
	return s.fault(ctx, last, what+hint)
}

// read is repeat for what changes nothing, or may be done twice.
func (s *Store) read(ctx context.Context, what string, f func(ctx context.Context) error) error {
	return s.repeat(ctx, what, "", func(ctx context.Context, _ bool) error { return f(ctx) })
}

func isFault(err error) bool {
	_, ok := errors.AsType[*fault.Error](err)
	return ok
}

// fault codes an error of etcd's client, or says why ctx, that of the call, has ended; err is the last error before that, or nil.
func (s *Store) fault(ctx context.Context, err error, what string) error {
	if isFault(err) && (ctx.Err() == nil || err != context.Cause(ctx)) {
		return err
	}
	if ctx.Err() != nil {
		switch cause := context.Cause(ctx); {
		case s.ctx.Err() != nil && cause == context.Cause(s.ctx):
			return fault.New(fault.Unavailable, "%s: %w", what, cause)
		case cause != errTimeout:
			return fault.New(fault.Canceled, "%s: %w", what, cause)
		}
		return fault.New(fault.Unavailable, "%s: %s gave no answer in %v: %s", what, s.name(), s.opts.Timeout, lastWords(err))
	}
	code, fix := fault.Unavailable, ""
	e, known := errors.AsType[rpctypes.EtcdError](err)
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		if code, fix = fault.Exhausted, " is full: have its history compacted, its members defragmented and its alarm disarmed (etcdctl compact, defrag, alarm disarm), or its quota raised"; s.server != nil {
			fix = fmt.Sprintf(" is full, it may have %d bytes: remove records that are not needed, such as ended jobs, or start the head with a larger quota", s.opts.Quota)
		}
	case errors.Is(err, rpctypes.ErrCorrupt):
		code, fix = fault.Corrupt, ": its members disagree: restore it from a backup"
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		code, fix = fault.NotFound, ": the lease has ended"
	case errors.Is(err, rpctypes.ErrCompacted):
		code, fix = fault.Unavailable, ": the list took so long that etcd dropped what it was of: begin again"
	case errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrPermissionDenied), known && e.Code() == codes.Unauthenticated,
		status.Code(err) == codes.Unauthenticated, status.Code(err) == codes.PermissionDenied:
		code, fix = fault.Denied, ": check user, password and client certificate, and that etcd lets this user read and write below "+s.opts.Prefix
	case known && e.Code() == codes.InvalidArgument:
		code = fault.Invalid
	case known && e.Code() == codes.ResourceExhausted:
		code = fault.Exhausted
	}
	return fault.New(code, "%s: %s%s: %w", what, s.name(), fix, err)
}

// lastWords is what the last attempt said, if it is more than that time was over.
func lastWords(err error) string {
	switch code := status.Code(err); {
	case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), code == codes.DeadlineExceeded, code == codes.Canceled:
		return "check that it runs"
	}
	return err.Error()
}
