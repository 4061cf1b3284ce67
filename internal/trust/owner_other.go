//go:build !unix

package trust

import "io/fs"

// owner is not known on this system, whose files have no numbers of users.
func owner(fs.FileInfo) (uid int, known bool) { return 0, false }

func userName(int) string { return "" }

func othersGroup(fs.FileInfo) (name string, ok bool) { return "", false }
