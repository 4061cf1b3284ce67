//go:build !linux

package launch

import (
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
)

var errConfine = fault.New(fault.Unsupported, "processes can be confined on Linux only")

// Try: see confine_linux.go.
func (Confine) Try() error { return errConfine }

func hasChildren() bool { return false }

func (Confine) enter() error { return errConfine }

func (*Confine) as(attr *syscall.SysProcAttr) *syscall.SysProcAttr { return attr }
