// Package procs says how many tasks compute at once, and keeps a processor of Go's scheduler free beside them.
package procs

import (
	"runtime"
	"sync"
)

var spare struct {
	sync.Mutex
	users int
	set   int // GOMAXPROCS as Spare made it
}

// CPUs is how many tasks compute at once where nobody says otherwise: GOMAXPROCS, without what [Spare] adds.
func CPUs() int {
	spare.Lock()
	defer spare.Unlock()
	n := runtime.GOMAXPROCS(0)
	if spare.users > 0 && n == spare.set {
		n--
	}
	return n
}

// Spare adds a processor to Go's scheduler until release is called, once for all that ask for it at the same time.
//
// Tasks that compute take as many processors as there are CPUs. Whoever waits for a connection is then woken by the scheduler's monitor, which looks
// every 10 ms, and runs when a task is preempted, which takes as long again: a process whose word others wait for keeps them waiting. With a processor that
// waits for the network and nothing else, the kernel shares the CPUs out, at once.
//
// Where somebody else sets GOMAXPROCS meanwhile, that stays. What a container may use is not followed any more from the first call on, as with any call of
// runtime.GOMAXPROCS that sets it.
func Spare() (release func()) {
	spare.Lock()
	defer spare.Unlock()
	if spare.users++; spare.users == 1 {
		spare.set = runtime.GOMAXPROCS(0) + 1
		runtime.GOMAXPROCS(spare.set)
	}
	return sync.OnceFunc(func() {
		spare.Lock()
		defer spare.Unlock()
		if spare.users--; spare.users == 0 && runtime.GOMAXPROCS(0) == spare.set {
			runtime.GOMAXPROCS(spare.set - 1)
		}
	})
}
