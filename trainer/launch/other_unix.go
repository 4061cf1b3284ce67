//go:build unix && !linux

package launch

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

const watchesMemory = false

func procAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// waitDead: there is no way to wait and leave the process.
func waitDead(int) bool { return false }

func adopt(bool) {}

func watchable() bool { return true }

func firstThread() bool { return false }

type procID struct{ pid int }

// cgroup is of Linux.
type cgroup struct{}

func newCgroup(string, int64) *cgroup { return nil }

func (*cgroup) born(_ *syscall.SysProcAttr, start func() error) error { return start() }

func (*cgroup) killed() bool { return false }
func (*cgroup) full() bool   { return false }
func (*cgroup) remove()      {}

// member is the process group of a worker.
type member struct {
	id     procID
	worker int
	memory int64
	cpu    time.Duration
}

func (m member) exact() (int64, bool) { return 0, false }

// tree knows the process groups that may have members.
type tree struct {
	token string
	roots map[int]int // group: worker
}

func newTree() *tree {
	return &tree{token: fmt.Sprintf("0.%d.0.%d.", os.Getpid(), groups.Add(1)), roots: map[int]int{}}
}

func (t *tree) add(worker, pid int) { t.roots[pid] = worker }

// look finds the groups that have members. A main process that is not waited for yet is one.
func (t *tree) look(func(int, time.Duration)) []member {
	var out []member
	for pid, w := range t.roots {
		if syscall.Kill(-pid, 0) == syscall.ESRCH {
			delete(t.roots, pid) // nobody joins it again
			continue
		}
		out = append(out, member{id: procID{pid}, worker: w})
	}
	return out
}

func (t *tree) send(m member, s syscall.Signal) { _ = syscall.Kill(-m.id.pid, s) } // gone is fine

func threadsOf([]member, int) string { return "" }

func whereabouts(int) string { return "the kernel does not say why" }

// catches: it cannot be seen, and what does not handle SIGQUIT would be ended.
func catches(int, syscall.Signal) bool { return false }
