// Package freeport finds addresses for servers of tests and benchmarks that are ended and start again at the same place, beside many others that do.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
)

// Address is one of this machine at which nobody listens. Its port is below those that trainers draw for MASTER_PORT, at which frameworks listen by all addresses, and below those that systems
// give to connections: one of these could have it by the time that a server starts there again. On Linux its host is drawn from 127.0.0.0/8, all of which is the loopback interface's: nobody
// else knows it, and connections leave from 127.0.0.1. Elsewhere it is 127.0.0.1.
func Address() (address string, err error) {
	for range 100 {
		host := "127.0.0.1"
		if runtime.GOOS == "linux" {
			host = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		}
		address = fmt.Sprintf("%s:%d", host, 15_000+rand.IntN(5_000))
		var l net.Listener
		if l, err = net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", err
}
