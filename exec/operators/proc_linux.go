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
