//go:build unix && !linux

package operators

import (
	"os"
	"syscall"
)

func procAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) } // gone is fine

// waitExit: there is no way to wait and leave the process. Its group is killed on demand only.
func waitExit(int) bool { return false }

// readable is not known here: what was read already is looked at.
func readable(*os.File) bool { return false }
