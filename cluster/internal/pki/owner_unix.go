//go:build unix

package pki

import (
	"io/fs"
	"os"
	"syscall"
)

// owned says whether a file is this user's. Root may use what belongs to others.
func owned(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && (int(st.Uid) == os.Geteuid() || os.Geteuid() == 0)
}
