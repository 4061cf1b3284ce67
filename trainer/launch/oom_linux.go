package launch

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// oomCount is how many processes the kernel has ended for memory, in our control group if it says so, else on the machine. One goroutine uses it at a time.
type oomCount struct {
	path    string // "": nothing says it
	claimed int64  // those that belong to an exit, or to nobody
	seen    int64
	at      time.Time // when seen grew
}

// oomFor is how long a process ended for memory may be the cause of an exit.
const oomFor = 5 * time.Second

func newOOM() *oomCount {
	o := &oomCount{}
	for _, path := range oomPaths() {
		if n, ok := readOOM(path); ok {
			o.path, o.claimed, o.seen = path, n, n
			break
		}
	}
	return o
}

// oomPaths are files that may have the count, the nearest first.
func oomPaths() []string {
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

func readOOM(path string) (int64, bool) {
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

// look forgets what was nobody's.
func (o *oomCount) look() {
	n, ok := readOOM(o.path)
	if !ok {
		return
	}
	if n != o.seen {
		o.seen, o.at = n, time.Now()
	}
	if o.claimed < n && time.Since(o.at) > oomFor {
		o.claimed = n
	}
}

// killed says what is known of a SIGKILL that was not ours. The kernel counts before it kills.
func (o *oomCount) killed() (memory bool, detail string) {
	n, ok := readOOM(o.path)
	switch {
	case !ok:
		return false, "perhaps by the kernel for memory"
	case n > o.claimed:
		o.claimed++
		return true, "the kernel ended it, as the machine or the control group was out of memory"
	}
	return false, "not by Penstock, and not by the kernel for memory"
}
