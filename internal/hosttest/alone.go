//go:build unix

package hosttest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// aloneFile is locked by the one test that has the machine: as the temporary folder was when the process began, which some tests set.
var aloneFile = filepath.Join(os.TempDir(), "penstock-chaos.lock")

// Alone makes a test the only one of this machine, in whatever process, that kills at moments which are drawn, or cuts wires: it waits for the one before it, and has the others wait until it ends. [New] does so
// by itself. Call it first, after t.Parallel, and once: the waiting counts against no limit of the test but that of its package. Tests that end one process at a place which they know do not need it.
func Alone(t testing.TB) {
	t.Helper()
	f, err := os.Open(aloneFile)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.OpenFile(aloneFile, os.O_CREATE, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	began := time.Now()
	for err = syscall.EINTR; err == syscall.EINTR; {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatalf("%s: %v", aloneFile, err)
	}
	if waited := time.Since(began); waited > time.Second {
		t.Logf("other tests had the machine for %v", waited.Round(100*time.Millisecond))
	}
}
