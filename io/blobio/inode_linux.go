package blobio

import (
	"os"
	"syscall"
)

func inodeOf(fi os.FileInfo) inode {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return inode{st.Ino, st.Ctim.Nano(), uint64(st.Nlink), st.Mode, [2]uint32{st.Uid, st.Gid}}
	}
	return inode{}
}
