//go:build !linux

package store

import (
	"errors"
	"syscall"
)

// startOf reports whether there is a process of this number; when it was started is not asked for.
func startOf(pid int) (started string, there bool) {
	return "", !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func bootID() string { return "" }
