//go:build !unix

package operators

import (
	"os"
	"syscall"
)

func procAttr() *syscall.SysProcAttr { return nil }

func killGroup(p *os.Process) { _ = p.Kill() } // gone is fine

func waitExit(int) bool { return false }

// readable is not known here: what was read already is looked at.
func readable(*os.File) bool { return false }
