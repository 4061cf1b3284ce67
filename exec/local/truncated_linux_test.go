package local

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/internal/fault"
)

// A file that is cut short while what is mapped of it is used is an error that names it, without a stack.
func TestTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a file")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var x byte
	err = safely(func() error {
		defer unix.Munmap(b) // as a reader does that is closed
		defer tellTruncated()
		x = b[1<<19]
		return nil
	})
	if fault.CodeOf(err) != fault.Changed || !strings.Contains(err.Error(), "was cut short") || fault.PlaceOf(err).File != path || strings.Contains(err.Error(), "goroutine") {
		t.Errorf("%v (%d)", err, x)
	}
}
