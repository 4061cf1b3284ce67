//go:build !unix

package operators

import (
	"os"
	"syscall"
)

func procAttr() *syscall.SysProcAttr { return nil }

func killGroup(p *os.Process) { _ = p.Kill() } // gone is fine

func waitExit(int) bool { return false }
