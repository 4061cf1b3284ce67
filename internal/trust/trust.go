// Package trust says whether a file is this user's own: of this user or of root, where no other
// user may write. What acts on a file's content (runs its commands, reads its references, goes
// where it points) asks here first; what only looks at it does not.
//
// A file that came from elsewhere by this user's own hand, such as a download, is the user's own
// here. So what would send something away needs more than that: see docs/trust.md.
package trust

import (
	"os"
	"path/filepath"

	"github.com/penstock-data/penstock/internal/fault"
)

// File returns nil where the file or folder at path is this user's own, and otherwise a Denied
// error that says why not. Links are followed. It judges the file and the folder that it is in:
// their owners are this user or root, and others may not write to them (to the folder: unless it is
// sticky, as /tmp is). Others are also a group, but for the owner's own: the one that has the
// owner's name or number, and root's.
func File(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return fault.WithCode(fault.CodeOf(err), err)
	}
	if err := own(real, false); err != nil {
		return err
	}
	return own(filepath.Dir(real), true)
}

// Folder is the real path of a folder, and nil where what is found in it by name is this user's
// own: unlike with [File] no other user may put anything there, so that a sticky folder is not
// enough.
func Folder(path string) (real string, err error) {
	if real, err = filepath.EvalSymlinks(path); err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", fault.WithCode(fault.CodeOf(err), err)
	}
	if err := own(real, false); err != nil {
		return "", err
	}
	return real, own(filepath.Dir(real), true)
}

// Opened is File of a file that is open already, by the path that it was opened by: what is read
// from it is this user's own, also where somebody changes what the path leads to.
func Opened(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return fault.WithCode(fault.CodeOf(err), err)
	}
	if !fi.Mode().IsRegular() { // a pipe, of which nobody can say who fills it
		return fault.New(fault.Denied, "it is no regular file").At(fault.Place{File: f.Name()})
	}
	if err := File(f.Name()); err != nil {
		return err
	}
	return Judge(fi, f.Name(), false)
}

func own(path string, folder bool) error {
	fi, err := os.Stat(path)
	if err != nil {
		return fault.WithCode(fault.CodeOf(err), err)
	}
	return Judge(fi, path, folder)
}

// Judge returns nil where what was found at path is this user's own, and otherwise a Denied error
// that says why not. It looks at nothing else: not at the folder that it is in. sticky lets others
// write to a folder that is sticky: they may add to it, and not take away what is there.
func Judge(fi os.FileInfo, path string, sticky bool) error {
	if uid, ok := owner(fi); ok && uid != 0 && uid != os.Geteuid() {
		return fault.New(fault.Denied, "it belongs to another user (%s)", userName(uid)).At(fault.Place{File: path})
	}
	m := fi.Mode()
	if sticky && m&os.ModeSticky != 0 {
		return nil
	}
	if m.Perm()&0o002 != 0 {
		return fault.New(fault.Denied, "every user may write to it (mode %04o; chmod o-w takes that away)", m.Perm()).At(fault.Place{File: path})
	}
	if name, ok := othersGroup(fi); ok && m.Perm()&0o020 != 0 {
		return fault.New(fault.Denied, "every user of group %s may write to it (mode %04o; chmod g-w takes that away)", name, m.Perm()).At(fault.Place{File: path})
	}
	return nil
}
