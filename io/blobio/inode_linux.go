package blobio

import (
	"os"
	"syscall"
)

// inodeOf is which file fi is of, and when anything about it changed last.
func inodeOf(fi os.FileInfo) inode {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return inode{st.Ino, st.Ctim.Nano()}
	}
	return inode{}
}
