//go:build !unix

package launch

import "syscall"

func signalName(s syscall.Signal) string { return s.String() }
