//go:build unix && !linux

package rpc

import (
	"net"

	"github.com/penstock-data/penstock/internal/fault"
)

// peerUID is known on Linux only; elsewhere the socket is nobody's, and the head is called over TLS.
func peerUID(*net.UnixConn) (int, error) {
	return -1, fault.New(fault.Unsupported, "who calls over a unix socket is known on Linux only: use an access token")
}
