package blobio

import (
	"os"
	"syscall"
)

func inodeOf(fi os.FileInfo) inode {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return inode{st.Ino, st.Ctim.Nano()}
	}
	return inode{}
}
