package rpc

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// pair makes two ends of a connection that has no name.
func pair() (a, b net.Conn, err error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	conn := func(fd int) (net.Conn, error) {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close() // FileConn has its own
		return net.FileConn(f)
	}
	a, err = conn(fds[0])
	b, e := conn(fds[1])
	if err == nil {
		err = e
	}
	if err != nil {
		if a != nil {
			a.Close()
		}
		if b != nil {
			b.Close()
		}
		return nil, nil, err
	}
	return a, b, nil
}
