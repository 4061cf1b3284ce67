package procs

import (
	"runtime"
	"testing"
)

func TestSpare(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	is := func(procs, cpus int) {
		t.Helper()
		if p, c := runtime.GOMAXPROCS(0), CPUs(); p != procs || c != cpus {
			t.Errorf("%d processors, %d CPUs; want %d and %d", p, c, procs, cpus)
		}
	}
	is(was, was)
	a, b := Spare(), Spare()
	is(was+1, was)
	a()
	a()
	is(was+1, was)
	b()
	is(was, was)

	c := Spare()
	runtime.GOMAXPROCS(was + 5) // somebody else's
	is(was+5, was+5)
	c()
	is(was+5, was+5)
}
