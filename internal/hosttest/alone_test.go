//go:build unix

package hosttest

import (
	"os"
	"syscall"
	"testing"
)

// Nobody else has the machine until the test ends, also none that changes the temporary folder; then the next one has it.
func TestAlone(t *testing.T) {
	for range 2 {
		t.Run("", func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			Alone(t)
			f, err := os.Open(aloneFile)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EWOULDBLOCK {
				t.Errorf("another test can have the machine: %v", err)
			}
		})
	}
}
