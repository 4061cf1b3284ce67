package feeder

import "syscall"

// procAttr: a process group of its own, so that an interrupt at the terminal is for the controller alone; killed when the thread that
// starts it ends.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
