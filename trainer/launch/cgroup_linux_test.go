package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lookedAt has no control groups in a test.
func lookedAt(t *testing.T) {
	was := cgroups
	t.Cleanup(func() { cgroups = was })
	cgroups = func() cgroupHost { return cgroupHost{} }
}

// limited skips where this process can make no control groups: in containers, under CI too.
func limited(t *testing.T) cgroupHost {
	h := cgroups()
	if h.parent == "" {
		t.Skip("no control group for memory can be made here")
	}
	return h
}

// ofThisProcess are the control groups that are there.
func ofThisProcess(t *testing.T, h cgroupHost) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(h.parent, fmt.Sprintf("%s%s.%d.*", cgroupPrefix, pidSpace(), os.Getpid())))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The kernel ends a worker, or a process that it has started, at its limit, and others go on; all of such a worker ends, by what it makes of the loss or by us.
func TestMemoryOfControlGroup(t *testing.T) {
	h := limited(t)
	hog := again(t, 0, "hog", "LAUNCH_BYTES=200000000")
	hogs := append(hog.Env, "HOG="+hog.Argv[0])
	workers := []Worker{hog, sh(1, `"$HOG"; exec sleep 1000`, hogs...), sh(2, `"$HOG"; exit 3`, hogs...), again(t, 3, "hog", "LAUNCH_BYTES=30000000"), sh(4, "exit 3")}
	for i := range workers {
		workers[i].Memory = 64 << 20
	}
	g := launch(t, Options{}, workers...)
	for range 4 {
		e := <-g.Exits()
		const detail = "the kernel ended one of its processes at its limit of 64 MiB"
		switch e.Rank {
		case 0, 1:
			if !e.Memory || e.Ours || e.Signal != syscall.SIGKILL || e.Detail != detail {
				t.Errorf("%v: %+v", e, e)
			}
		case 2:
			if !e.Memory || e.Ours || e.Code != 3 && e.Signal != syscall.SIGKILL || e.Detail != detail {
				t.Errorf("%v: %+v", e, e)
			}
		case 4:
			if e.Memory || e.Code != 3 {
				t.Errorf("%v: %+v", e, e)
			}
		default:
			t.Errorf("%v: %+v", e, e)
		}
	}
	if n := len(ofThisProcess(t, h)); n != len(workers) {
		t.Errorf("%d control groups for %d workers", n, len(workers))
	}
	g.Stop(0)
	if e := <-g.Exits(); e.Rank != 3 || !e.Ours || e.Memory {
		t.Errorf("%v: %+v", e, e)
	}
	if left := ofThisProcess(t, h); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Groups that a process has left which was killed are removed by the next; those of one that lives stay.
func TestControlGroupsLeft(t *testing.T) {
	h := limited(t)
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	me, _ := readStat(os.Getpid(), make([]byte, 4<<10))
	left := filepath.Join(h.parent, fmt.Sprintf("%s%s.%d.%d.1.0", cgroupPrefix, pidSpace(), c.Process.Pid, me.id.start))
	mine := filepath.Join(h.parent, fmt.Sprintf("%s%s.%d.%d.1.test", cgroupPrefix, pidSpace(), me.id.pid, me.id.start))
	for _, dir := range []string{left, mine} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(dir)
	}
	if !h.works() {
		t.Error("it does not work any more")
	}
	if _, err := os.Stat(left); err == nil {
		t.Errorf("%s is left", left)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

// With version 2 a process begins in its group. The limit is one of huge pages where the kernel has given memory to version 1.
func TestControlGroupVersion2(t *testing.T) {
	h := cgroupHost{v2: true}
	for _, c := range []struct {
		parent string
		ctl    controller
	}{
		{cgroupsFolder, memory2},
		{filepath.Join(cgroupsFolder, "unified"), memory2},
		{filepath.Join(cgroupsFolder, "unified"), controller{"hugetlb", "hugetlb.2MB.max", "none", "hugetlb.2MB.events", "none", ""}},
	} {
		h.parent, h.ctl = c.parent, c.ctl
		if h.works() {
			break
		}
		h.parent = ""
	}
	if h.parent == "" {
		t.Skip("no control group of version 2 can be made here")
	}
	c, err := h.new("two.test", 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if c.remove(); exists(c.dir) {
			t.Errorf("%s is left", c.dir)
		}
	}()
	if b, err := os.ReadFile(filepath.Join(c.dir, c.ctl.limit)); err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(64<<20) {
		t.Errorf("%s, %v", b, err)
	}
	cmd := exec.Command("cat", "/proc/self/cgroup")
	cmd.SysProcAttr = procAttr()
	var out []byte
	err = c.born(cmd.SysProcAttr, func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil || !strings.Contains(string(out), "0::/"+cgroupPrefix+"two.test\n") {
		t.Errorf("%v: %s", err, out)
	}
	if c.killed() {
		t.Error("nothing was killed")
	}
}

// Where a group cannot be made or entered memory is looked at.
func TestControlGroupRefused(t *testing.T) {
	for self, want := range map[string]string{
		"":                                "",
		"0::/no/such/group\n":             "",
		"4:memory:/no/such/group\n0::/\n": "",
		"nonsense\n:\n4:memory\n":         "",
	} {
		if h := findCgroups(self); h.parent != want && !h.v2 { // the root of version 2 may have memory
			t.Errorf("%q: %+v", self, h)
		}
	}
	was := cgroups
	defer func() { cgroups = was }()
	cgroups = func() cgroupHost { return cgroupHost{parent: t.TempDir(), ctl: memory1} } // no control groups
	w := again(t, 0, "hog", "LAUNCH_BYTES=100000000")
	w.Memory = 64 << 20
	select {
	case e := <-launch(t, Options{}, w).Exits():
		if !e.Memory || !strings.Contains(e.Detail, "its limit is 64 MiB") {
			t.Errorf("%v: %+v", e, e)
		}
	case <-time.After(30 * time.Second):
		t.Error("it lives")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
