// Package oom tells whether the kernel ended a process for memory: of a SIGKILL the process itself says nothing.
package oom

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// claimFor is how long a process ended for memory may be the cause of an exit.
const claimFor = 5 * time.Second

// count is how many processes the kernel has ended for memory, in our control group if it says so, else on the machine. Safe for concurrent use.
type count struct {
	mu      sync.Mutex
	path    string // "": nothing says it
	claimed int64  // those that belong to an exit, or to nobody
	seen    int64
	at      time.Time // when seen grew
}

// shared is that of this process: what the kernel ended belongs to one exit, whoever waits for it.
var shared = sync.OnceValue(func() *count { return newCount(paths()) })

// Look forgets what was nobody's. Who watches processes calls it when it begins, and about once a second until they have ended.
func Look() { shared().look() }

// Killed says what is known of a SIGKILL that was not ours, in words that follow "signal killed". What it claims for memory is not claimed again.
func Killed() (memory bool, detail string) { return shared().killed() }

func newCount(paths []string) *count {
	c := &count{}
	for _, path := range paths {
		if n, ok := read(path); ok {
			c.path, c.claimed, c.seen = path, n, n
			break
		}
	}
	return c
}

// paths are files that may have the count, the nearest first.
func paths() []string {
	var out []string
	own, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) < 3:
		case f[1] == "memory": // version 1
			out = append(out, filepath.Join("/sys/fs/cgroup/memory", f[2], "memory.oom_control"), "/sys/fs/cgroup/memory/memory.oom_control")
		case f[1] == "":
			out = append(out, filepath.Join("/sys/fs/cgroup", f[2], "memory.events"), "/sys/fs/cgroup/memory.events")
		}
	}
	return append(out, "/proc/vmstat")
}

func read(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func (c *count) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := read(c.path)
	if !ok {
		return
	}
	if n != c.seen {
		c.seen, c.at = n, time.Now()
	}
	if c.claimed < n && time.Since(c.at) > claimFor {
		c.claimed = n
	}
}

// killed: the kernel counts before it kills.
func (c *count) killed() (memory bool, detail string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := read(c.path)
	switch {
	case !ok:
		return false, "perhaps by the kernel for memory"
	case n > c.claimed:
		c.claimed++
		return true, "the kernel ended it, as the machine or the control group was out of memory"
	}
	return false, "not by Penstock, and not by the kernel for memory"
}
