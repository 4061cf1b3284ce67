package rpc

import (
	"context"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxText is the most bytes of an error's text that travel.
const maxText = 8 << 10

var grpcCodes = map[fault.Code]codes.Code{
	fault.Canceled: codes.Canceled, fault.Invalid: codes.InvalidArgument, fault.NotFound: codes.NotFound, fault.Exists: codes.AlreadyExists,
	fault.Corrupt: codes.DataLoss, fault.RowError: codes.InvalidArgument, fault.UserCode: codes.Aborted, fault.Exhausted: codes.ResourceExhausted,
	fault.Unavailable: codes.Unavailable, fault.WorkerLost: codes.Aborted, fault.Stalled: codes.Aborted, fault.Unsupported: codes.Unimplemented,
	fault.Internal: codes.Internal, fault.Denied: codes.PermissionDenied, fault.Changed: codes.Aborted,
}

// toStatus is how an error travels: gRPC's nearest code, the text, and the fault's code as a detail.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	code := fault.CodeOf(err)
	if s, ok := status.FromError(err); ok && code == fault.Unknown {
		return s.Err() // gRPC's own
	}
	c, ok := grpcCodes[code]
	if !ok {
		c = codes.Unknown
	}
	return statusAs(c, err)
}

// statusAs is err with a code of gRPC's.
func statusAs(c codes.Code, err error) error {
	s := status.New(c, cut(err.Error()))
	if d, e := s.WithDetails(&pb.Fault{Code: fault.CodeOf(err).String()}); e == nil {
		s = d
	}
	return s.Err()
}

// cut makes a text valid UTF-8 of at most maxText bytes.
func cut(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + " ..."
}

// remote is an error that came over a connection.
type remote struct {
	text   string
	status *status.Status
}

func (e *remote) Error() string              { return e.text }
func (e *remote) GRPCStatus() *status.Status { return e.status }

// fromStatus makes a fault of what gRPC gives. What the other side said keeps its code and text; what gRPC says itself gets the address in front. io.EOF stays.
func fromStatus(ctx context.Context, addr string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range s.Details() {
		if f, ok := d.(*pb.Fault); ok {
			code := fault.ParseCode(f.Code)
			if code == fault.Canceled && ctx.Err() == nil {
				code = fault.Unavailable // the other side gave up, not our caller
			}
			return fault.New(code, "%w", &remote{s.Message(), s})
		}
	}
	code := fault.Unknown
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded:
		if code = fault.Unavailable; ctx.Err() != nil {
			return fault.New(fault.Canceled, "the head at %s: %w", addr, context.Cause(ctx))
		}
		if s.Code() == codes.Canceled { // gRPC says so before anything of ours can
			return fault.New(code, "the head at %s ended the call: its message, or a part of what it sends, did not come in time: %w", addr, &remote{s.Message(), s})
		}
	case codes.Unavailable:
		code = fault.Unavailable
	case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition, codes.ResourceExhausted: // gRPC's own: a message over the limit
		code = fault.Invalid
	case codes.Unimplemented:
		code = fault.Unsupported
	case codes.Unauthenticated, codes.PermissionDenied:
		return fault.New(fault.Denied, "%w", &remote{s.Message(), s}) // the server's, said before the call began
	case codes.Internal:
		code = fault.Internal
	}
	return fault.New(code, "the head at %s: %w", addr, &remote{s.Message(), s})
}

// permanent says that trying again will not help: the peer was judged.
func permanent(err error) bool {
	f, ok := errors.AsType[*fault.Error](err)
	return ok && f.Code == fault.Denied
}
