package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster"
	"github.com/penstock-data/penstock/internal/memtest"
)

func init() { roles["attack"] = attack }

// attack is a job that tries to be what its agent is. It prints what it got.
func attack() error {
	runtime.LockOSThread() // for ptrace
	var in struct{ Head, Node, Other string }
	if err := json.Unmarshal([]byte(os.Getenv("ATTACK")), &in); err != nil {
		return err
	}
	parent := os.Getppid()
	got := map[string]string{"uid": strconv.Itoa(os.Getuid())}
	note := func(name string, err error) {
		if err == nil {
			got[name] = "yes"
		}
	}
	proc := func(name string) string { return fmt.Sprintf("/proc/%d/%s", parent, name) }
	if b, err := os.ReadFile(proc("environ")); err == nil {
		got["environ"] = string(b)
	}
	got["own"] = strings.Join(os.Environ(), "\x00")
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range all { // of heads and agents that are not its parent, too
		if b, err := os.ReadFile(p); err == nil {
			got["all"] += string(b)
		}
	}
	if f, err := os.Open(proc("mem")); err == nil {
		note("mem", f.Close())
	}
	_, err := os.ReadDir(proc("fd"))
	note("fd", err)
	if _, err := os.Stat(proc("stat")); err == nil {
		got["seen"] = "yes"
	}
	if err := syscall.PtraceAttach(parent); err == nil {
		got["ptrace"] = "yes"
		var ws syscall.WaitStatus
		_, _ = syscall.Wait4(parent, &ws, syscall.WALL, nil)
		_ = syscall.PtraceDetach(parent)
	}
	for name, path := range map[string]string{"key": filepath.Join(in.Node, "node.pem"), "authority": filepath.Join(in.Head, "ca", "ca.pem"), "log": in.Other} {
		f, err := os.Open(path)
		if err == nil {
			f.Close()
		}
		note(name, err)
	}
	if c, err := net.Dial("unix", cluster.SocketIn(in.Head)); err == nil {
		note("socket", c.Close())
	}
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && filepath.Base(to) == "inherited" {
			got["inherited"] = "yes"
		}
	}
	note("write", os.WriteFile("mine", nil, 0o600))
	note("temp", os.WriteFile(filepath.Join(os.TempDir(), "mine"), nil, 0o600))
	return json.NewEncoder(os.Stdout).Encode(got)
}

const (
	hush  = "hush-hush-4711"
	stray = "penstock.a1.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

// victim is a head with a node, which has secrets in its environment and an inherited file, and
// what attacks it.
type victim struct {
	*daemon
	head, bin string
}

// publicProgram is this program in dir, which every user can reach: go test builds it where only
// its own can.
func publicProgram(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "penstock")
	if os.Link(self, bin) != nil { // another disk
		copyFile(t, self, bin)
	}
	return bin
}

// newVictim starts it in dir, as a user.
func newVictim(t *testing.T, dir string, uid uint32, more ...string) *victim {
	t.Helper()
	v := &victim{head: filepath.Join(dir, "head"), bin: publicProgram(t, dir)}
	inherited, err := os.Create(filepath.Join(dir, "inherited"))
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	v.daemon = stayBy(t, func(c *exec.Cmd) {
		c.Path, c.Args[0] = v.bin, v.bin
		c.Env = append(c.Env, "PENSTOCK_STORE_USER="+hush, "PENSTOCK_STORE_PASSWORD="+hush, "PENSTOCK_TOKEN="+hush, "PENSTOCK_RUN_KEY="+hush, "MY_TOKEN="+stray, "PLAIN=plain")
		c.ExtraFiles = []*os.File{inherited}
		if uid != 0 {
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		}
	}, append([]string{"start", "--head", "--dir", v.head, "--cpus", "2", "--gpus", "0"}, more...)...)
	v.hear("cluster ")
	return v
}

// attacked is what a job gets of it.
func (v *victim) attacked(t *testing.T, uid uint32) map[string]string {
	t.Helper()
	dir := t.TempDir()
	submit := func(script string) string {
		if err := os.WriteFile(filepath.Join(dir, "job"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		r := penstock(t, "submit", "--cluster", v.head, "--working-dir", dir, "--cpus", "0.5", "--", "./job")
		if r.code != 0 {
			t.Fatalf("exit %d: %s%s", r.code, r.out, r.err)
		}
		return r.out
	}
	submit("echo of another job")
	logs, err := filepath.Glob(filepath.Join(v.head, "node", "logs", "*", "*", "process.log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("%q, %v", logs, err)
	}
	in, err := json.Marshal(map[string]string{"Head": v.head, "Node": filepath.Join(v.head, "node"), "Other": logs[0]})
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(v.head, "node", "node.pem") // the head's own node has none
	if err := errors.Join(os.WriteFile(key, nil, 0o600), os.Chown(key, int(uid), int(uid))); err != nil {
		t.Fatal(err)
	}
	out := submit("PENSTOCK_TEST_MAIN=attack ATTACK='" + string(in) + "' exec " + v.bin + " attack")
	var got map[string]string
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, text := range got {
		if strings.Contains(text, hush) || strings.Contains(text, stray) {
			t.Errorf("%s has a secret: %q", name, text)
		}
	}
	if !strings.Contains(got["own"], "PLAIN=plain") || got["inherited"] != "" || got["write"] != "yes" || got["temp"] != "yes" {
		t.Errorf("its environment or files: %v", got)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", v.cmd.Process.Pid)) // as root
	if err != nil || strings.Contains(string(b), hush) || strings.Contains(string(b), stray) || !strings.Contains(string(b), "PLAIN=plain") {
		t.Errorf("%q, %v", b, err)
	}
	return got
}

// gets are the names of what a job got, sorted, of those that it should not get.
func gets(got map[string]string) (names []string) {
	for _, name := range []string{"authority", "environ", "fd", "key", "log", "mem", "ptrace", "seen", "socket"} {
		if got[name] != "" {
			names = append(names, name)
		}
	}
	return names
}

// A job gets neither the secrets of its agent nor, with a user of its own, anything else that is
// the agent's.
func TestJobAttacks(t *testing.T) {
	if os.Getuid() != 0 {
		memtest.Skip(t, "only root runs jobs as another user")
	}
	for name, x := range map[string]struct {
		uid  uint32
		more []string
		want []string // see docs/cluster.md
		says string
	}{
		"root":           {0, nil, []string{"authority", "environ", "fd", "key", "log", "mem", "ptrace", "seen", "socket"}, "jobs run as root on this machine"},
		"ordinary user":  {nobody, nil, []string{"authority", "key", "log", "seen", "socket"}, ""},
		"job user":       {0, []string{"--job-user", "nobody", "--isolate", "off"}, []string{"seen"}, ""},
		"isolated":       {0, []string{"--job-user", "nobody", "--isolate", "require"}, nil, ""},
		"as far as goes": {0, []string{"--job-user", "nobody"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if slices.Contains(x.more, "--job-user") && x.want == nil {
				mayMount(t)
			}
			dir := publicDir(t)
			if x.uid != 0 {
				if err := os.Chown(dir, int(x.uid), int(x.uid)); err != nil {
					t.Fatal(err)
				}
			}
			if len(x.more) > 0 {
				x.more = append(x.more, "--job-dir", filepath.Join(dir, "jobs"))
			}
			v := newVictim(t, dir, x.uid, x.more...)
			got := v.attacked(t, x.uid)
			if names := gets(got); !slices.Equal(names, x.want) {
				t.Errorf("it gets %q, want %q", names, x.want)
			}
			if want := strconv.Itoa(nobody); (got["uid"] == want) != (name != "root") {
				t.Errorf("it is user %s", got["uid"])
			}
			if says := strings.Contains(v.String(), "jobs run as root"); says != (x.says != "") || !strings.Contains(v.String(), x.says) {
				t.Errorf("it says %s", v)
			}
		})
	}
}

// mayMount skips where root has not the right to mount.
func mayMount(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt").CombinedOutput(); err != nil {
		memtest.Skip(t, "root may not mount here: %s", out)
	}
}

// Nodes whose jobs have a user of their own run jobs on several nodes as any, keep the log, and end
// all that they have started. Their tokens are not seen in lists of processes.
func TestJobUserOfNodes(t *testing.T) {
	if os.Getuid() != 0 {
		memtest.Skip(t, "only root runs jobs as another user")
	}
	c := newTestCluster(t)
	bin := publicProgram(t, publicDir(t))
	for _, name := range []string{"a", "b"} {
		token := strings.TrimSpace(c.ok("token", "create"))
		d := c.joinBy(name, func(cmd *exec.Cmd) { cmd.Path = bin }, "--token", token, "--job-user", "nobody", "--job-dir", filepath.Join(publicDir(t), "jobs"))
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.cmd.Process.Pid))
		if err != nil || strings.Contains(string(b), token[:60]) || !strings.Contains(string(b), "\x00--token\x00*****") {
			t.Errorf("%q, %v", b, err)
		}
	}
	dir := t.TempDir()
	script := "#!/bin/sh\ncat $PENSTOCK_GANG/*.pem > /dev/null && echo $(id -u) $HOME $(stat -c %u:%a . $TMPDIR $PENSTOCK_GANG)\nsetsid sh -c 'echo pid $$; exec sleep 1000' &\nwhile ! test -e done; do sleep 0.1; done\n"
	if err := os.WriteFile(filepath.Join(dir, "job"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r := penstock(t, "submit", "--cluster", c.head, "--working-dir", dir, "--nodes", "2", "--cpus", "0.5", "--detach", "--", "./job")
	if r.code != 0 {
		t.Fatal(r.err)
	}
	id := strings.TrimSpace(r.out)
	var pids []string
	var out string
	for end := time.Now().Add(30 * time.Second); len(pids) < 2; {
		if time.Now().After(end) {
			t.Fatalf("%s%s", out, c.ok("jobs", id))
		}
		pids = nil
		out = c.ok("logs", id)
		for _, f := range regexp.MustCompile(`(?m)pid (\d+)$`).FindAllStringSubmatch(out, -1) {
			pids = append(pids, f[1])
		}
	}
	want := fmt.Sprintf("%d %s %[1]d:700 %[1]d:700 %[1]d:700\n", nobody, homeOf(t, "nobody"))
	if strings.Count(out, want) != 2 {
		t.Errorf("%s, want %q twice", out, want)
	}
	c.ok("stop", id)
	for _, pid := range pids {
		isGone(t, pid)
	}
}

// What a job writes to a /tmp of its own is lost with it: it is refused in place of an exit code 0.
// Scratch of a program that is a job stays possible.
func TestOutputInOwnTemp(t *testing.T) {
	if os.Getuid() != 0 {
		memtest.Skip(t, "only root runs jobs as another user")
	}
	mayMount(t)
	c := newTestCluster(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	public := publicDir(t)
	bin := filepath.Join(public, "penstock") // which that user can run
	copyFile(t, self, bin)
	node := stayBy(t, func(cmd *exec.Cmd) { cmd.Path = bin }, "join", c.addr, "--token", strings.TrimSpace(c.ok("token", "create")), "--dir", filepath.Join(c.dir, "a"), "--name", "a", "--cpus", "1", "--gpus", "0", "--job-user", "nobody", "--job-dir", filepath.Join(public, "jobs"))
	node.hear("node ")
	for _, place := range []string{"/tmp/flights/", "file:///var/tmp/flights"} {
		r := penstock(t, "run", "examples/flights.yaml", "--cluster", c.head, "--working-dir", "examples", "--set", "sink.parquet.path="+place)
		if want := place + " is lost when this job ends"; r.code != 2 || !strings.Contains(r.err+r.out, want) {
			t.Errorf("exit %d: %s%s, want 2 with %q", r.code, r.out, r.err, want)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "job"), []byte("#!/bin/sh\ntest -z \"$PENSTOCK_JOB_TEMPS\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := penstock(t, "submit", "--cluster", c.head, "--working-dir", dir, "--", "./job"); r.code != 0 {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}
}

func homeOf(t *testing.T, name string) string {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return u.HomeDir
}

// What a job is given on a command line is the job's, whatever it looks like; the token of who
// submits it is not to be seen while the command goes on.
func TestSecretsOfClient(t *testing.T) {
	c := newTestCluster(t)
	access := strings.TrimSpace(c.ok("token", "create", "--scope", "submit"))
	d := stayBy(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "PENSTOCK_TOKEN="+access) }, "run", "examples/flights.yaml", "--cluster", c.addr, "--working-dir", "examples", "--env", "GIVEN="+stray, "--set", "sink.parquet.path=/absent/out", "--id", "waits")
	if !memtest.Poll(30*time.Second, func() bool { return c.call("jobs", "waits").code == 0 }) {
		t.Fatal("it is not submitted")
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", d.cmd.Process.Pid))
	if err != nil || strings.Contains(string(b), access[:60]) || !strings.Contains(string(b), "PENSTOCK_TOKEN=*****") {
		t.Errorf("%q, %v", b, err)
	}
	if b, err = os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.cmd.Process.Pid)); err != nil || !strings.Contains(string(b), "GIVEN="+stray) {
		t.Errorf("%q, %v", b, err)
	}
	c.ok("stop", "waits")
}

// A user that cannot be had is an error at the start, before anything is joined.
func TestJobUserRefused(t *testing.T) {
	dir := publicDir(t)
	for _, x := range []struct {
		more []string
		code int
		want string
	}{
		{[]string{"--job-user", "no-such-user"}, 2, "there is none on this machine"},
		{[]string{"--job-user", "root"}, 2, "neither root nor the agent's"},
		{[]string{"--job-user", "nobody", "--isolate", "perhaps"}, 2, "auto, require or off"},
		{[]string{"--isolate", "require"}, 2, "give them a user of their own"},
		{[]string{"--job-dir", dir}, 2, "give them a user of their own"},
		{[]string{"--job-user", "nobody", "--job-dir", filepath.Join(t.TempDir(), "jobs")}, 1, "user nobody cannot reach the folder for jobs"},
	} {
		if os.Getuid() != 0 && x.code == 1 {
			continue
		}
		r := penstock(t, append([]string{"start", "--head", "--dir", filepath.Join(dir, "head")}, x.more...)...)
		if r.code != x.code || !strings.Contains(r.err, x.want) {
			t.Errorf("%q: exit %d: %s", x.more, r.code, r.err)
		}
	}
}
