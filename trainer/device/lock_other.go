//go:build !unix

package device

import (
	"io/fs"
	"os"

	"github.com/penstock-data/penstock/internal/fault"
)

func lock(string) (*os.File, bool, error) {
	return nil, false, fault.New(fault.Unsupported, "GPUs are leased on Unix systems only")
}

func lockFolder(path string) (*os.File, bool, error) { return lock(path) }

func mine(fs.FileInfo) bool { return true }
