package blobio

import (
	"os"
	"syscall"
)

// ctimeOf is Info.ctime.
func ctimeOf(fi os.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Ctim.Nano()
	}
	return 0
}
