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
