package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clockTick is the unit of times in /proc: USER_HZ is 100 on every Linux that Go runs on.
const clockTick = 0.01

// tree follows a process and everything it starts, by sampling /proc. Orphans become children of
// this process (a subreaper), which has no other children than the one tree.
type tree struct {
	procs    map[int]proc
	lost     float64 // CPU seconds of processes whose parent never waited for them
	reaped   float64 // CPU seconds of orphans that were waited for here
	peak     int64   // bytes, proportional share of every process, at the worst sample
	most     int     // processes at once
	main     int     // the process that os/exec waits for
	overhead time.Duration
}

type proc struct {
	parent     int
	own, waits float64 // CPU seconds: its own; of children that it has waited for
}

func newTree(pid int) *tree { return &tree{procs: map[int]proc{}, main: pid} }

// sample looks at all processes once. With memory, also at how much memory they take.
func (t *tree) sample(memory bool) {
	start := time.Now()
	defer func() { t.overhead += time.Since(start) }()
	now := map[int]proc{}
	all := allProcs()
	self := os.Getpid()
	in := func(pid int) bool { // whether it descends from this process
		for pid != self {
			p, ok := all[pid]
			if !ok || pid <= 1 {
				return false
			}
			pid = p.parent
		}
		return true
	}
	for pid, p := range all {
		if pid != self && in(pid) {
			now[pid] = p
		}
	}
	t.settle(now)
	t.most = max(t.most, len(now))
	if memory {
		var sum int64
		for pid := range now {
			sum += pss(pid)
		}
		t.peak = max(t.peak, sum)
	}
	for pid, p := range now {
		if p.parent == self && pid != t.main {
			var u unix.Rusage
			if got, err := unix.Wait4(pid, nil, unix.WNOHANG, &u); err == nil && got == pid {
				t.reaped += seconds(u.Utime) + seconds(u.Stime)
				delete(now, pid)
			}
		}
	}
	t.procs = now
}

// settle finds processes that are gone since the last sample and whose time no ancestor got:
// a parent that ignores SIGCHLD never waits.
func (t *tree) settle(now map[int]proc) {
	dead := map[int]float64{} // by nearest ancestor that lives
	for pid, p := range t.procs {
		if _, ok := now[pid]; ok {
			continue
		}
		a := p.parent
		for {
			if _, ok := now[a]; ok {
				break
			}
			up, ok := t.procs[a]
			if !ok {
				a = 0
				break
			}
			a = up.parent
		}
		if a != 0 { // else an orphan, waited for here
			dead[a] += p.own + p.waits
		}
	}
	for a, sum := range dead {
		t.lost += max(0, sum-(now[a].waits-t.procs[a].waits))
	}
}

// cpu is what the tree has used so far, in seconds.
func (t *tree) cpu() float64 {
	sum := t.lost + t.reaped
	for _, p := range t.procs {
		sum += p.own + p.waits
	}
	return sum
}

// kill ends every process of the tree, by its id.
func (t *tree) kill() {
	for range 3 { // those that start while it works
		t.sample(false)
		for pid := range t.procs {
			_ = unix.Kill(pid, unix.SIGKILL) // gone already: as wanted
		}
	}
}

// drained says whether no process but the main one is left.
func (t *tree) drained() bool {
	t.sample(false)
	for pid := range t.procs {
		if pid != t.main {
			return false
		}
	}
	return true
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

func allProcs() map[int]proc {
	all := map[int]proc{}
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return all
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			continue // gone
		}
		pid, _ := strconv.Atoi(strings.Split(n, "/")[2])
		_, rest, ok := bytes.Cut(b, []byte(") ")) // a name with ") " in it is none of ours
		f := strings.Fields(string(rest))
		if !ok || len(f) < 16 {
			continue
		}
		num := func(i int) float64 { v, _ := strconv.ParseFloat(f[i], 64); return v }
		parent, _ := strconv.Atoi(f[1])
		all[pid] = proc{parent: parent, own: clockTick * (num(11) + num(12)), waits: clockTick * (num(13) + num(14))}
	}
	return all
}

// pss is the proportional share of memory of a process: shared pages count once in a tree.
func pss(pid int) int64 { return kilobytes(pid, "smaps_rollup", "Pss:") }

// highWater is the most memory that a process had at any time.
func highWater(pid int) int64 { return kilobytes(pid, "status", "VmHWM:") }

func kilobytes(pid int, file, field string) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if l, ok := strings.CutPrefix(s.Text(), field); ok {
			kb, _ := strconv.ParseInt(strings.Fields(l)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}
