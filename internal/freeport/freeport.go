// Package freeport finds addresses for servers of tests and benchmarks that are ended and start again at the same place.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Address is one of this machine at which nobody listens. Its port is below those that systems give to connections: one of these could have it by the time that a server starts there again.
func Address() (address string, err error) {
	for range 100 {
		address = fmt.Sprintf("127.0.0.1:%d", 15_000+rand.IntN(15_000))
		var l net.Listener
		if l, err = net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", err
}
