package blobio

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// Parts are as many as services take, and not larger than need be.
func TestPartSize(t *testing.T) {
	for _, size := range []int64{0, 1, 8 << 20, 60 << 30, 62 << 30, 63 << 30, 100 << 30, 1 << 40, 5 << 40} {
		part := int64(partSize(size))
		if part != 0 && part <= 8<<20 {
			t.Errorf("%d bytes: parts of %d", size, part)
		}
		if part == 0 {
			part = 8 << 20
		}
		if n := size / part; n >= 10000 {
			t.Errorf("%d bytes: %d parts", size, n)
		}
	}
}

func TestHostError(t *testing.T) {
	if err := HostError("/x", nil); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/a/b": "/a/b: ", "rel/x": "rel/x: "} {
		for no, code := range map[error]fault.Code{syscall.ENOSPC: fault.Exhausted, syscall.EROFS: fault.Denied, syscall.ENOENT: fault.NotFound, syscall.EIO: fault.Unavailable} {
			err := HostError(path, &os.PathError{Op: "write", Path: path, Err: no})
			if fault.CodeOf(err) != code || !strings.HasPrefix(err.Error(), want) || strings.Count(err.Error(), path) != 1 {
				t.Errorf("%v: %v %v", no, fault.CodeOf(err), err)
			}
		}
	}
	if err := HostError("/x", fault.New(fault.Corrupt, "%w", io.ErrUnexpectedEOF)); fault.CodeOf(err) != fault.Corrupt || err.Error() != "/x: unexpected EOF" {
		t.Error(err)
	}
}
