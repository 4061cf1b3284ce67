package launch

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const watchesMemory = true

// procAttr: the leader of a session, ended with the thread that starts it. A process group alone would stop when it uses our terminal.
func procAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// waitDead returns true when the process has ended, and leaves it to be waited for, so that its
// id stays taken; false if that cannot be done.
func waitDead(pid int) bool {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			return err == nil
		}
	}
}

var adopting struct {
	sync.Mutex
	groups int
	before int32 // whether the process had asked for it itself
}

// adopt makes this process the parent of orphans among its descendants, while it has groups.
func adopt(on bool) {
	adopting.Lock()
	defer adopting.Unlock()
	if on {
		if adopting.groups++; adopting.groups == 1 {
			_ = unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&adopting.before)), 0, 0, 0) // since Linux 3.4
			_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
		}
		return
	}
	if adopting.groups--; adopting.groups == 0 && adopting.before == 0 {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	}
}

// procID is a process for all time: ids are used again, together with the time of the start they are not.
type procID struct {
	pid   int
	start uint64 // ticks since the machine's start
}

// procStat is /proc/PID/stat.
type procStat struct {
	id        procID
	ppid, sid int
	dead      bool // a zombie
	cpu       time.Duration
	threads   int
}

const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture that Go runs on

// readStat of a process; false: it is gone.
func readStat(pid int, buf []byte) (procStat, bool) {
	b := readProc("/proc/"+strconv.Itoa(pid)+"/stat", buf)
	i := bytes.LastIndexByte(b, ')') // the name before may hold anything
	if i < 0 {
		return procStat{}, false
	}
	f := bytes.Fields(b[i+1:]) // f[0] is field 3, the state
	if len(f) < 20 {
		return procStat{}, false
	}
	num := func(field int) uint64 {
		n, _ := strconv.ParseUint(string(f[field-3]), 10, 64) // those read are never negative
		return n
	}
	s := procStat{id: procID{pid, num(22)}, ppid: int(num(4)), sid: int(num(6)), threads: int(num(20))}
	s.cpu = time.Duration(num(14)+num(15)+num(16)+num(17)) * tick
	s.dead = (f[0][0] == 'Z' || f[0][0] == 'X') && s.threads <= 1
	return s, true
}

// watchable reports whether there is a /proc.
func watchable() bool {
	_, ok := readStat(os.Getpid(), make([]byte, 4<<10))
	return ok
}

// readProc reads a file into buf, as much as has room; nil: it cannot be read.
func readProc(path string, buf []byte) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) {
		m, err := unix.Read(fd, buf[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || m == 0 {
			break
		}
		n += m
	}
	return buf[:n]
}

// scan is all processes of the machine that can be seen.
func scan(buf []byte) map[int]procStat {
	all := map[int]procStat{}
	d, err := os.Open("/proc")
	if err != nil {
		return all
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			if s, ok := readStat(pid, buf); ok {
				all[pid] = s
			}
		}
	}
	return all
}

// member is a living process of a worker.
type member struct {
	id     procID
	worker int
	memory int64
	cpu    time.Duration
}

// tree knows the processes of a group. One goroutine uses it at a time.
type tree struct {
	self    int
	session int
	token   string          // begins the value of EnvLaunch
	roots   map[procID]int  // main processes: worker
	known   map[procID]int  // all that were seen: worker
	foreign map[procID]bool // our children that are not of this group
	orphans map[procID]bool // our children that had another parent
	before  map[int]procStat
	buf     []byte
}

// newTree: the token names the name space of process ids, this process by id and start, and the group.
func newTree() *tree {
	t := &tree{self: os.Getpid(), roots: map[procID]int{}, known: map[procID]int{}, foreign: map[procID]bool{}, orphans: map[procID]bool{}, buf: make([]byte, 64<<10)}
	me, _ := readStat(t.self, t.buf) // watchable
	t.session = me.sid
	t.token = fmt.Sprintf("%s.%d.%d.%d.", pidSpace(), t.self, me.id.start, groups.Add(1))
	return t
}

// pidSpace is the number of the name space in which ids of processes are ours.
func pidSpace() string {
	s, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "0"
	}
	return string(bytes.Trim([]byte(s), "pid:[]"))
}

// add makes a process that has not been waited for the main process of a worker.
func (t *tree) add(worker, pid int) {
	s, ok := readStat(pid, t.buf)
	if !ok {
		s.id.pid = pid
	}
	t.roots[s.id] = worker
	t.known[s.id] = worker
}

// look finds the living processes of the group. Zombies that nobody else can wait for are waited for, and their time goes to reaped.
func (t *tree) look(reaped func(worker int, cpu time.Duration)) []member {
	all := scan(t.buf)
	for id := range t.known {
		if all[id.pid].id != id {
			delete(t.known, id)
			delete(t.roots, id)
		}
	}
	for _, seen := range []map[procID]bool{t.foreign, t.orphans} {
		for id := range seen {
			if all[id.pid].id != id {
				delete(seen, id)
			}
		}
	}
	for pid, s := range all {
		if was, ok := t.before[pid]; ok && was.id == s.id && s.ppid == t.self && was.ppid != t.self {
			t.orphans[s.id] = true
		}
	}
	t.before = all
	none := map[int]bool{} // not of the group, at this look
	var members []member
	for pid, s := range all {
		w, ours := t.owner(all, s, none)
		_, root := t.roots[s.id]
		if s.dead && s.ppid == t.self && !root {
			// Nobody else waits for a child that was adopted. One in another session than ours and its own was not started by this process.
			if ours || t.orphans[s.id] || s.sid != t.session && s.sid != pid && s.sid != 0 {
				var use unix.Rusage
				if n, _ := unix.Wait4(pid, nil, unix.WNOHANG, &use); n == pid && ours {
					reaped(w, time.Duration(use.Utime.Nano()+use.Stime.Nano()))
				}
			}
		}
		if ours && !s.dead {
			members = append(members, member{id: s.id, worker: w, memory: t.memory(pid), cpu: s.cpu})
		}
	}
	return members
}

// owner is the worker that a process descends from.
func (t *tree) owner(all map[int]procStat, s procStat, none map[int]bool) (int, bool) {
	if w, ok := t.known[s.id]; ok {
		return w, true
	}
	if none[s.id.pid] {
		return 0, false
	}
	none[s.id.pid] = true // until known
	w, ok := 0, false
	if s.ppid == t.self {
		w, ok = t.adopted(all, s)
	} else if p, there := all[s.ppid]; there {
		w, ok = t.owner(all, p, none)
	}
	if ok {
		t.known[s.id] = w
		delete(none, s.id.pid)
	}
	return w, ok
}

// adopted is the worker of a child of ours that is not a main process: by its session, or its environment.
func (t *tree) adopted(all map[int]procStat, s procStat) (int, bool) {
	if t.foreign[s.id] {
		return 0, false
	}
	for id, w := range t.known { // a session has the id of a process that was seen
		if id.pid == s.sid && all[id.pid].id == id {
			return w, true
		}
	}
	if s.dead {
		return 0, false
	}
	env := environ(s.id.pid)
	if v, ok := envOf(env, EnvLaunch); ok {
		if rest, ok := bytes.CutPrefix(v, []byte(t.token)); ok {
			w, err := strconv.Atoi(string(rest))
			return w, err == nil
		}
	}
	t.foreign[s.id] = len(env) > 0 // one that begins a program has none for a moment
	return 0, false
}

// environ of a process, NUL-terminated, at most 1 MiB; nil: it cannot be read.
func environ(pid int) []byte {
	path := "/proc/" + strconv.Itoa(pid) + "/environ"
	for n := 16 << 10; ; n *= 8 {
		if b := readProc(path, make([]byte, n)); len(b) < n || n >= 1<<20 {
			return b
		}
	}
}

// envOf finds a variable.
func envOf(env []byte, name string) ([]byte, bool) {
	for len(env) > 0 {
		var e []byte
		e, env, _ = bytes.Cut(env, []byte{0})
		if v, ok := bytes.CutPrefix(e, []byte(name)); ok && len(v) > 0 && v[0] == '=' {
			return v[1:], true
		}
	}
	return nil, false
}

// memory of a process, shared by others or not, without pages of files.
func (t *tree) memory(pid int) int64 {
	b := readProc("/proc/"+strconv.Itoa(pid)+"/status", t.buf)
	return kiloBytes(b, "\nRssAnon:") + kiloBytes(b, "\nRssShmem:")
}

// exact is the same with what is shared divided by those who share it; false: the kernel does not say. It walks the page tables of the process.
func (m member) exact() (int64, bool) {
	b := readProc("/proc/"+strconv.Itoa(m.id.pid)+"/smaps_rollup", make([]byte, 4<<10))
	if !bytes.Contains(b, []byte("\nPss_Anon:")) { // since Linux 5.4
		return 0, false
	}
	return kiloBytes(b, "\nPss_Anon:") + kiloBytes(b, "\nPss_Shmem:"), true
}

// kiloBytes reads "\nName:  12 kB" in bytes; 0: there is no such line.
func kiloBytes(b []byte, name string) int64 {
	i := bytes.Index(b, []byte(name))
	if i < 0 {
		return 0
	}
	line, _, _ := bytes.Cut(b[i+len(name):], []byte{'\n'})
	n, _ := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(line, []byte("kB")))), 10, 64)
	return n << 10
}

// send sends a signal to the process that was seen, never to another that has its id now.
func (t *tree) send(m member, s syscall.Signal) { sendTo(m.id, s, t.buf) }

func sendTo(id procID, s syscall.Signal, buf []byte) {
	fd, err := unix.PidfdOpen(id.pid, 0)
	if err == nil {
		defer unix.Close(fd)
	}
	if now, ok := readStat(id.pid, buf); !ok || now.id != id {
		return // gone is fine
	}
	if err == nil && unix.PidfdSendSignal(fd, s, nil, 0) == nil {
		return
	}
	_ = syscall.Kill(id.pid, s) // without pidfds: before Linux 5.3, and where they are forbidden
}
