//go:build !linux

package mem

import (
	"os"

	"github.com/penstock-data/penstock/internal/fault"
)

var errNotShared = fault.New(fault.Unsupported, "memory shared with other processes: this build has it on Linux only")

func newShared(int) (*os.File, uintptr, int, error)    { return nil, 0, 0, errNotShared }
func punch(*os.File, int64, int64) error               { return errNotShared }
func MapShared(f *os.File, size int64) ([]byte, error) { return nil, errNotShared }
func UnmapShared(b []byte)                             {}
