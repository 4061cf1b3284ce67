package operators

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// procAttr: a process group of its own, killed when the thread that starts it ends.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killGroup kills the group of p, which was not waited for yet.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // gone is fine

// waitExit returns true when the process has ended, and leaves it to be waited for, so that its
// id stays taken; false if that cannot be done.
func waitExit(pid int) bool {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			return err == nil
		}
	}
}

// readable reports whether a read of f would not wait.
func readable(f *os.File) (yes bool) {
	c, err := f.SyscallConn()
	if err != nil {
		return false
	}
	_ = c.Control(func(fd uintptr) { // closed is not readable
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		yes = n > 0 && err == nil
	})
	return yes
}
