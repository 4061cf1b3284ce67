package packs

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// asNobody runs f on a thread whose access to files is that of a user without rights; the folders up to dir are opened for it.
func asNobody(t *testing.T, dir string, f func()) {
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		ok(os.Chmod(d, 0o755))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		unix.SetfsgidRetGid(65534)
		unix.SetfsuidRetUid(65534)
		f()
	}()
	<-done
}
