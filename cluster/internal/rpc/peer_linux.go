package rpc

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerUID is the user of the process at the other side, as the kernel knows it from when the connection was made.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	var e error
	if err := raw.Control(func(fd uintptr) { cred, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return -1, err
	}
	if e != nil {
		return -1, os.NewSyscallError("getsockopt SO_PEERCRED", e)
	}
	return int(cred.Uid), nil
}
