package blobio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
	"gocloud.dev/gcerrors"
)

var (
	errChanged = errors.New("the object changed after it was listed: list again, and do not replace data that is being read")
	errStalled = errors.New("no progress within the time limit")
	errShort   = errors.New("the answer ended early")
	errExists  = errors.New("the object exists")
	errAborted = errors.New("the write was aborted")
)

func isChanged(err error) bool { return errors.Is(err, errChanged) }

// fail wraps the error of an operation on key with its code and place. An error
// that came because ctx ended is Canceled, with the cause.
func (b *Bucket) fail(ctx context.Context, key string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return b.canceled(ctx, key)
	}
	return b.wrap(key, err)
}

// canceled returns an error if ctx has ended.
func (b *Bucket) canceled(ctx context.Context, key string) error {
	if ctx.Err() == nil {
		return nil
	}
	return fault.New(fault.Canceled, "%w", context.Cause(ctx)).At(b.place(key))
}

// wrap is fail where no context matters.
func (b *Bucket) wrap(key string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return fault.Wrap(err, b.place(key))
	}
	code := codeOf(err)
	if b.scheme == "s3" && isEndpoint(err) {
		err = fmt.Errorf("%w; set the environment variable AWS_REGION, or write the region into the URL: s3://bucket/key?region=eu-west-1", err)
	}
	if b.root != "" {
		// The path is in the place already.
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err
		}
	}
	return (&fault.Error{Code: code, Err: err}).At(b.place(key))
}

// isEndpoint reports that the AWS SDK could not tell from its settings where to send a
// request: no region, or a wrong one. It has no type for that.
func isEndpoint(err error) bool {
	s := err.Error()
	return strings.Contains(s, "resolve endpoint:") || strings.Contains(s, "bind auth scheme params:") || strings.Contains(s, "failed to resolve service endpoint")
}

// codeOf classifies an error of the operating system or of a gocloud driver.
func codeOf(err error) fault.Code {
	switch {
	case isChanged(err):
		return fault.Invalid
	case errors.Is(err, errExists):
		return fault.Exists
	}
	if no, ok := errors.AsType[syscall.Errno](err); ok {
		switch no {
		case syscall.ENOENT, syscall.ENOTDIR:
			return fault.NotFound
		case syscall.EEXIST, syscall.ENOTEMPTY:
			return fault.Exists
		case syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM:
			return fault.Exhausted
		case syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.EISDIR, syscall.ENAMETOOLONG,
			syscall.EINVAL, syscall.ELOOP, syscall.EFBIG:
			return fault.Invalid
		}
		return fault.Unavailable // EIO, ESTALE, connection errors
	}
	switch s := httpStatus(err); {
	case s == 404, s == 410:
		return fault.NotFound
	case s == 412:
		return fault.Exists
	case s == 409: // Azure says so for an existing blob, S3 for a race of two writers
		if gcerrors.Code(err) == gcerrors.FailedPrecondition {
			return fault.Exists
		}
		return fault.Unavailable
	case s == 408, s == 429, s >= 500:
		return fault.Unavailable
	case s >= 300:
		return fault.Invalid // not allowed, wrong region, malformed
	}
	switch gcerrors.Code(err) {
	case gcerrors.NotFound:
		return fault.NotFound
	case gcerrors.AlreadyExists, gcerrors.FailedPrecondition:
		return fault.Exists
	case gcerrors.InvalidArgument, gcerrors.PermissionDenied:
		return fault.Invalid
	case gcerrors.Unimplemented:
		return fault.Unsupported
	}
	if isEndpoint(err) {
		return fault.Invalid
	}
	// What no driver could name is the network: resets, timeouts, broken bodies.
	return fault.Unavailable
}

// httpStatus finds the status that a cloud SDK's error carries; 0 if none. The
// AWS SDK has a method; those of Google and Azure have a field only, and their
// types cannot be named without linking the SDKs.
func httpStatus(err error) int {
	if h, ok := errors.AsType[interface {
		error
		HTTPStatusCode() int
	}](err); ok {
		return h.HTTPStatusCode()
	}
	for err != nil {
		if v := reflect.Indirect(reflect.ValueOf(err)); v.Kind() == reflect.Struct {
			for _, name := range []string{"StatusCode", "Code"} {
				if f := v.FieldByName(name); f.IsValid() && f.CanInt() && f.Int() >= 300 && f.Int() < 600 {
					return int(f.Int())
				}
			}
		}
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			err = u.Unwrap()
		case interface{ Unwrap() []error }:
			for _, e := range u.Unwrap() {
				if s := httpStatus(e); s != 0 {
					return s
				}
			}
			return 0
		default:
			return 0
		}
	}
	return 0
}
