//go:build unix

package trust

import (
	"fmt"
	"io/fs"
	"os/user"
	"strconv"
	"syscall"
)

// owner is the number of the user that a file belongs to.
func owner(fi fs.FileInfo) (uid int, known bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return fmt.Sprintf("user %d", uid)
}

// othersGroup is the group of a file, and whether there may be others in it than the file's owner.
func othersGroup(fi fs.FileInfo) (name string, ok bool) {
	st, is := fi.Sys().(*syscall.Stat_t)
	if !is || st.Gid == 0 || st.Gid == st.Uid {
		return "", false
	}
	number := strconv.Itoa(int(st.Gid))
	g, err := user.LookupGroupId(number)
	if err != nil {
		return number, true
	}
	u, err := user.LookupId(strconv.Itoa(int(st.Uid)))
	return g.Name, err != nil || u.Username != g.Name
}
