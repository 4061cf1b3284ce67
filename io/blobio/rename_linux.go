package blobio

import "golang.org/x/sys/unix"

// renameNoReplace renames unless newname exists, atomically. File systems without
// such a rename (NFS, older kernels) have hard links, which refuse as well.
func renameNoReplace(oldname, newname string) error {
	err := unix.Renameat2(unix.AT_FDCWD, oldname, unix.AT_FDCWD, newname, unix.RENAME_NOREPLACE)
	switch err {
	case unix.EINVAL, unix.ENOSYS, unix.ENOTSUP:
		return linkNoReplace(oldname, newname)
	}
	return err
}
