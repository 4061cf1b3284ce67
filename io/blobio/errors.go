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
	if err := b.leadsOut(key, err); err != nil {
		return err
	}
	code := codeOf(err)
	if b.root != "" {
		// The path is in the place already.
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err
		}
	}
	return (&fault.Error{Code: code, Err: b.advise(code, err)}).At(b.place(key))
}

// HostError gives an error of the operating system about a file of this machine, outside of any bucket, the code that it would have
// in a local one, and the path. HostError(path, nil) is nil.
func HostError(path string, err error) error {
	if err == nil {
		return nil
	}
	return (&Bucket{scheme: "file", root: "/"}).wrap(path, err)
}

// advise says with err, whose code is code, what to check.
func (b *Bucket) advise(code fault.Code, err error) error {
	check := whatToCheck[b.scheme]
	if check == "" {
		check = "check the credentials and what they allow"
	}
	switch {
	case b.scheme == "s3" && isEndpoint(err):
		return fmt.Errorf("%w; set the environment variable AWS_REGION, or write the region into the URL: s3://bucket/key?region=eu-west-1", err)
	case code == fault.Denied && isNoCredentials(err):
		return fmt.Errorf("no credentials were found: %w; %s", err, check)
	case code == fault.Denied:
		return fmt.Errorf("access denied: %w; %s", err, check)
	case code == fault.NotFound && isNoBucket(err):
		return fmt.Errorf("there is no such bucket as %s: %w; check its name, and the region and the endpoint that the URL or the environment give", strings.TrimSuffix(b.base, "/"), err)
	}
	return err
}

// whatToCheck are the settings that a service's Denied may be due to.
var whatToCheck = map[string]string{
	"s3": "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE), the policy (s3:ListBucket, s3:GetObject, to write s3:PutObject), " +
		"the region (AWS_REGION) and the name: what does not exist is denied, too, to who may not list",
	"gs": "check the credentials (gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS) and the role (storage.objectViewer, to write storage.objectUser); " +
		"a public bucket is read with ?anonymous=true",
	"file":   "check the owner and the mode of the file and of the folders above it",
	"azblob": "check the credentials (AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN) and the role (Storage Blob Data Reader, to write Contributor)",
}

// isNoCredentials reports that an SDK found nothing to sign requests with. None has a type for that.
func isNoCredentials(err error) bool {
	s := err.Error()
	return strings.Contains(s, "get credentials:") || strings.Contains(s, "could not find default credentials")
}

// noBucket is what a listing did not find: that of a key which is not there is empty.
type noBucket struct{ error }

func (e noBucket) Unwrap() error { return e.error }

// isNoBucket reports that it is the bucket, not the object, that does not exist. SDKs say
// so in several types; the answer to a HEAD request does not tell.
func isNoBucket(err error) bool {
	if _, ok := errors.AsType[noBucket](err); ok {
		return true
	}
	return serviceCode(err) == "NoSuchBucket" || strings.Contains(err.Error(), "ContainerNotFound")
}

// isEndpoint reports that the AWS SDK could not tell from its settings where to send a
// request: no region, or a wrong one. It has no type for that.
func isEndpoint(err error) bool {
	s := err.Error()
	return strings.Contains(s, "resolve endpoint:") || strings.Contains(s, "bind auth scheme params:") || strings.Contains(s, "failed to resolve service endpoint")
}

// codeOf classifies an error of the operating system or of a gocloud driver.
func codeOf(err error) fault.Code {
	if _, ok := errors.AsType[elsewhere](err); ok {
		return fault.Denied
	}
	switch {
	case isChanged(err):
		return fault.Changed
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
		case syscall.EACCES, syscall.EPERM, syscall.EROFS:
			return fault.Denied
		case syscall.EISDIR, syscall.ENAMETOOLONG, syscall.EINVAL, syscall.ELOOP, syscall.EFBIG:
			return fault.Invalid
		}
		return fault.Unavailable // EIO, ESTALE, connection errors
	}
	switch s := httpStatus(err); {
	case s == 401, s == 403, deniedBy[serviceCode(err)]:
		return fault.Denied
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
		return fault.Invalid // wrong region, malformed
	}
	switch gcerrors.Code(err) {
	case gcerrors.NotFound:
		return fault.NotFound
	case gcerrors.AlreadyExists, gcerrors.FailedPrecondition:
		return fault.Exists
	case gcerrors.InvalidArgument:
		return fault.Invalid
	case gcerrors.PermissionDenied:
		return fault.Denied
	case gcerrors.Unimplemented:
		return fault.Unsupported
	}
	if isEndpoint(err) {
		return fault.Invalid
	}
	if isNoCredentials(err) {
		return fault.Denied
	}
	// What no driver could name is the network: resets, timeouts, broken bodies.
	return fault.Unavailable
}

// deniedBy are the codes of S3 services for credentials that they do not take, some of them under another status than 403.
var deniedBy = map[string]bool{"ExpiredToken": true, "InvalidToken": true, "TokenRefreshRequired": true, "InvalidAccessKeyId": true, "XAdminUserNotFound": true}

// serviceCode is the code in the answer of an S3 service; "" if there is none.
func serviceCode(err error) string {
	if e, ok := errors.AsType[interface {
		error
		ErrorCode() string
	}](err); ok {
		return e.ErrorCode()
	}
	return ""
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
