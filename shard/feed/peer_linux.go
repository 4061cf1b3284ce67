package feed

import (
	"net"

	"golang.org/x/sys/unix"
)

// peer says who is at the other end; ok is false where the system cannot tell.
func peer(c *net.UnixConn) (uid, pid int, ok bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, false, err
	}
	var cred *unix.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) { cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, 0, false, err
	}
	if serr != nil {
		return 0, 0, false, serr
	}
	return int(cred.Uid), int(cred.Pid), true, nil
}
