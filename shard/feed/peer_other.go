//go:build !linux

package feed

import "net"

// peer says who is at the other end; here only the permissions of the folder do.
func peer(*net.UnixConn) (uid, pid int, ok bool, err error) { return 0, 0, false, nil }
