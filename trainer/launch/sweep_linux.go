package launch

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// sweepFor is how long processes have to be gone after SIGKILL; they get it after half of that.
const sweepFor = 4 * time.Second

// Sweep ends what was left behind by one that is gone, as the controller of a run or the agent of a node: processes with the mark name=value in their environment that a launcher has started which does not live any more, and their descendants.
// They get SIGTERM, two seconds later SIGKILL. Nothing of a launcher that lives is touched, nor this process and those that started it, nor processes of other users or of other
// name spaces of process ids. It returns how many processes were ended.
func Sweep(name, value string) (int, error) {
	buf := make([]byte, 64<<10)
	space := pidSpace()
	found := map[procID]bool{}
	began := time.Now()
	empty := 0
	for pause := busyEvery; ; pause = min(2*pause, busyAtMost) {
		all := scan(buf)
		alive := 0
		for _, s := range strays(all, name, value, space, found) {
			found[s.id] = true
			alive++
			switch age := time.Since(began); {
			case age >= sweepFor/2:
				sendTo(s.id, syscall.SIGKILL, buf)
			case pause == busyEvery:
				sendTo(s.id, syscall.SIGTERM, buf)
				sendTo(s.id, syscall.SIGCONT, buf)
			}
		}
		if alive > 0 {
			empty = 0
		} else if empty++; empty == 2 || len(found) == 0 {
			return len(found), nil
		}
		if time.Since(began) > sweepFor {
			return len(found) - alive, fault.New(fault.Stalled, "%d processes that were left with %s=%s do not end; see ps", alive, name, value)
		}
		time.Sleep(pause)
	}
}

// strays are the living processes with a mark that nobody looks after, and those seen before.
func strays(all map[int]procStat, name, value, space string, found map[procID]bool) []procStat {
	kept := map[int]bool{} // this process and its ancestors
	for pid := os.Getpid(); pid > 0 && !kept[pid]; pid = all[pid].ppid {
		kept[pid] = true
	}
	mark := map[int]bool{}
	for pid, s := range all {
		mark[pid] = !kept[pid] && (found[s.id] || stray(all, pid, name, value, space))
	}
	for changed := true; changed; { // their descendants
		changed = false
		for pid, s := range all {
			if !mark[pid] && !kept[pid] && mark[s.ppid] {
				mark[pid], changed = true, true
			}
		}
	}
	var out []procStat
	for pid, s := range all {
		if mark[pid] && !s.dead {
			out = append(out, s)
		}
	}
	return out
}

// stray reports whether a process has the mark, and that of a launcher that is gone.
func stray(all map[int]procStat, pid int, name, value, space string) bool {
	env := environ(pid)
	if v, ok := envOf(env, name); !ok || string(v) != value {
		return false
	}
	v, ok := envOf(env, EnvLaunch)
	f := strings.Split(string(v), ".")
	if !ok || len(f) != 5 || f[0] != space {
		return false
	}
	launcher, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[2], 10, 64)
	if err1 != nil || err2 != nil {
		return false
	}
	now, there := all[launcher]
	return !there || now.dead || now.id.start != start
}
