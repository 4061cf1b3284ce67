package launch

import (
	"bytes"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/internal/units"
)

// catches reports whether a process handles a signal, so that it can be sent without ending what does not.
func catches(pid int, s syscall.Signal) bool {
	b := readProc("/proc/"+strconv.Itoa(pid)+"/status", make([]byte, 8<<10))
	_, after, ok := bytes.Cut(b, []byte("\nSigCgt:"))
	if !ok {
		return false
	}
	line, _, _ := bytes.Cut(after, []byte{'\n'})
	mask, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return err == nil && mask&(1<<(s-1)) != 0
}

// threadsOf says in what state the threads of a worker's processes are, and where in the kernel they wait; equal ones are counted.
func threadsOf(members []member, worker int) string {
	var b strings.Builder
	sort.Slice(members, func(i, j int) bool { return members[i].id.start < members[j].id.start })
	for _, m := range members {
		if m.worker != worker {
			continue
		}
		dir := "/proc/" + strconv.Itoa(m.id.pid)
		command := term.Line(string(bytes.TrimSpace(bytes.ReplaceAll(readProc(dir+"/cmdline", make([]byte, 200)), []byte{0}, []byte{' '}))))
		fmt.Fprintf(&b, "process %d, %s, CPU %v: %s\n", m.id.pid, units.Bytes(m.memory), m.cpu, command)
		tids, _ := os.ReadDir(dir + "/task") // one that has ended has no threads
		count := map[string]int{}
		var order []string
		for _, t := range tids {
			k := thread(dir + "/task/" + t.Name())
			if count[k]++; count[k] == 1 {
				order = append(order, k)
			}
		}
		for _, k := range order {
			fmt.Fprintf(&b, "  %d x %s\n", count[k], k)
		}
	}
	return b.String()
}

// thread is "python S (sleeping) in futex_wait_queue".
func thread(dir string) string {
	buf := make([]byte, 8<<10)
	status := string(readProc(dir+"/status", buf))
	field := func(name string) string {
		_, after, _ := strings.Cut("\n"+status, "\n"+name+":\t")
		v, _, _ := strings.Cut(after, "\n")
		return term.Line(v)
	}
	text := field("Name") + " " + field("State")
	if at := string(readProc(dir+"/wchan", buf)); at != "" && at != "0" {
		text += " in " + at
	}
	return text
}

// whereabouts of a process that does not end.
func whereabouts(pid int) string { return thread("/proc/" + strconv.Itoa(pid)) }
