//go:build unix

package launch

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// signalName is "SIGKILL".
func signalName(s syscall.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return s.String()
}
