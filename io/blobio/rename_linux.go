package blobio

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// renameNoReplace renames in a folder unless newname exists, atomically. errors.ErrUnsupported is
// of file systems without such a rename (NFS, older kernels).
func renameNoReplace(dir *os.File, oldname, newname string) error {
	fd := int(dir.Fd())
	err := unix.Renameat2(fd, oldname, fd, newname, unix.RENAME_NOREPLACE)
	switch err {
	case unix.EINVAL, unix.ENOSYS, unix.ENOTSUP:
		return errors.ErrUnsupported
	}
	return err
}
