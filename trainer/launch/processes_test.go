//go:build linux

package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

func TestExits(t *testing.T) {
	before := fds(t)
	g := launch(t, Options{},
		sh(0, "exit 0"), sh(1, "echo one; echo two >&2; exit 3"), sh(2, "kill -KILL $$"), sh(3, "kill -SEGV $$"),
		sh(4, `printf 'bad\033[2J\377\n'; exit 1`), sh(5, "read x && exit 1; exit 0"))
	got := exits(t, g)
	g.Stop(time.Second)
	for rank, want := range map[int]string{0: "ended", 1: "ended with exit code 3", 2: "was ended by signal 9 (SIGKILL): not by Penstock, and not by the kernel for memory",
		3: "was ended by signal 11 (SIGSEGV)", 4: "ended with exit code 1", 5: "ended"} {
		e := got[rank]
		if want = fmt.Sprintf("rank %d (pid %d) %s", rank, e.PID, want); e.String() != want || e.PID == 0 {
			t.Errorf("%q, want %q", e, want)
		}
		if e.Ours || e.Memory || e.OK() != (rank == 0 || rank == 5) || e.At.IsZero() {
			t.Errorf("rank %d: %+v", rank, e)
		}
	}
	if tail := strings.Join(got[1].Tail, "|"); tail != "one|two" && tail != "two|one" {
		t.Errorf("tail %q", tail)
	}
	if tail := strings.Join(got[4].Tail, "|"); tail != `bad\xff` {
		t.Errorf("tail %q", tail)
	}
	if after := fds(t); after != before {
		t.Errorf("%d files open, %d before", after, before)
	}
}

// A process has the files that it is given from descriptor 3 on, and no others; they stay the caller's.
func TestFiles(t *testing.T) {
	before := fds(t)
	in, into, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, outOf, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", into.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	w := sh(0, "readlink /proc/$$/fd/*; read x <&3 && echo got $x >&4")
	w.Files = []*os.File{in, outOf}
	g := launch(t, Options{}, w, sh(1, "readlink /proc/$$/fd/*; true"))
	in.Close()
	outOf.Close()
	fmt.Fprintln(into, "this")
	into.Close()
	b, err := io.ReadAll(out)
	out.Close()
	if string(b) != "got this\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	got := exits(t, g)
	g.Stop(0)
	for rank, want := range []int{1, 0} {
		if e := got[rank]; !e.OK() || strings.Count(strings.Join(e.Tail, "\n"), pipe) != want {
			t.Errorf("rank %d: %v, %q; the pipe is %s", rank, e, e.Tail, pipe)
		}
	}
	if after := fds(t); after != before {
		t.Errorf("%d files open, %d before", after, before)
	}
}

func TestLaunchRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	plain := write("plain.sh", "#!/bin/sh\n", 0o644)
	lost := write("lost", "#!/no/such/interpreter\n", 0o755)
	noise := write("noise", "\x01\x02 no program\n", 0o755)
	write("python3", "#!/bin/sh\n", 0o755)
	env := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	for _, c := range []struct {
		w    Worker
		o    Options
		code fault.Code
		want string
	}{
		{Worker{Argv: []string{"no-such-program"}, Env: env}, Options{}, fault.NotFound, "rank 1: program no-such-program is not in PATH"},
		{Worker{Argv: []string{"plain.sh"}, Env: env[:0], Dir: dir}, Options{}, fault.NotFound, "no PATH"},
		{Worker{Argv: []string{"./no-such"}, Dir: dir}, Options{}, fault.NotFound, "is not there"},
		{Worker{Argv: []string{plain}}, Options{}, fault.Denied, "is not executable: chmod +x"},
		{Worker{Argv: []string{dir}}, Options{}, fault.Invalid, "is a folder"},
		{Worker{Argv: []string{"sh"}, Env: env, Dir: filepath.Join(dir, "none")}, Options{}, fault.NotFound, "working directory"},
		{Worker{Argv: []string{"sh"}, Env: env, Dir: plain}, Options{}, fault.Invalid, "is a file"},
		{Worker{}, Options{}, fault.Invalid, "the command is empty"},
		{Worker{Argv: []string{"python3", "train.py"}, Env: env}, Options{}, fault.NotFound, "script train.py is not there"},
		{Worker{Argv: []string{lost}}, Options{}, fault.NotFound, "interpreter"},
		{Worker{Argv: []string{noise}}, Options{}, fault.Invalid, "#!/bin/sh"},
		{Worker{Argv: []string{"sh", strings.Repeat("x", 1<<20)}, Env: env}, Options{}, fault.Invalid, "too long"},
		{Worker{Argv: []string{"sh"}, Env: env}, Options{Logs: plain}, fault.Denied, "log file cannot be made"},
	} {
		before := fds(t)
		c.w.Rank = 1
		id := filepath.Join(t.TempDir(), "0.pid")
		first := sh(0, "echo $$ > "+id+"; exec sleep 1000")
		g, err := Processes(c.o).Launch(t.Context(), []Worker{first, c.w})
		if err == nil {
			g.Stop(0)
		}
		if fault.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%v: %v: %v, want %v: %s", c.w.Argv, fault.CodeOf(err), err, c.code, c.want)
		}
		if n := len(ourChildren(t)); n != 0 {
			t.Errorf("%v: %d children are left", c.w.Argv, n)
		}
		if after := fds(t); after != before {
			t.Errorf("%v: %d files open, %d before", c.w.Argv, after, before)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("changed my mind"))
	if _, err := Processes(Options{}).Launch(ctx, []Worker{sh(0, "exit 0")}); fault.CodeOf(err) != fault.Canceled {
		t.Errorf("canceled: %v", err)
	}
	if _, err := Processes(Options{}).Launch(t.Context(), []Worker{sh(0, ""), sh(0, "")}); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("twice the same rank: %v", err)
	}
}

// ourChildren of any kind, zombies too.
func ourChildren(t *testing.T) []procStat {
	t.Helper()
	var out []procStat
	for _, s := range scan(make([]byte, 64<<10)) {
		if s.ppid == os.Getpid() {
			out = append(out, s)
		}
	}
	return out
}

// escapes starts six processes that leave the group in every way and ignore SIGTERM, each of which writes its id to a file. The one without an environment has its parent until there is a
// file of the name seen.
const escapes = `
cd "$DIR"
stay='trap "" TERM; echo $$ > $NAME.pid; exec sleep 1000'
NAME=child sh -c "$stay" &
NAME=session setsid sh -c "$stay" &
(NAME=orphan setsid sh -c "$stay" &)
NAME=deep setsid sh -c "(trap '' TERM; echo \$\$ > unused; setsid sh -c '$stay' &) ; trap '' TERM; echo \$\$ > parent.pid; exec sleep 1000" &
(env -i PATH="$PATH" NAME=bare setsid sh -c "$stay" & while [ ! -e seen ]; do sleep 0.05; done) &
`

// allSeen waits until the group knows the processes, and lets the parent of the one without an environment go.
func allSeen(t *testing.T, g Group, dir string, ids []int) {
	t.Helper()
	gr := g.(*group)
	until(t, "all are seen", func() bool {
		gr.mu.Lock()
		defer gr.mu.Unlock()
		n := 0
		for id := range gr.tree.known {
			if slices.Contains(ids, id.pid) {
				n++
			}
		}
		return n == len(ids)
	})
	if err := os.WriteFile(filepath.Join(dir, "seen"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	until(t, "it is an orphan", func() bool {
		for _, pid := range ids {
			if name, _ := envOf(environ(pid), "NAME"); string(name) == "bare" {
				s, ok := readStat(pid, make([]byte, 4096))
				return ok && s.ppid == os.Getpid()
			}
		}
		return false
	})
}

func TestTreesEnd(t *testing.T) {
	for _, c := range []struct {
		name, then string
		end        func(g Group, dir string)
		grace      bool
	}{
		{"stop", "exec sleep 1000", func(g Group, _ string) { g.Stop(300 * time.Millisecond) }, true},
		{"stop at once", "exec sleep 1000", func(g Group, _ string) { g.Stop(0) }, false},
		{"ends by itself", "while [ ! -e end ]; do sleep 0.05; done; exit 0", func(_ Group, dir string) { _ = os.Mkdir(filepath.Join(dir, "end"), 0o755) }, false},
		{"crashes", "exec sleep 1000", func(g Group, _ string) { _ = g.Signal(0, syscall.SIGKILL) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			g := launch(t, Options{}, sh(0, escapes+c.then, "DIR="+dir))
			ids := pids(t, dir, 6)
			allSeen(t, g, dir, ids)
			began := time.Now()
			c.end(g, dir)
			if took := time.Since(began); c.grace && (took < 300*time.Millisecond || took > 3*time.Second) {
				t.Errorf("took %v", took)
			}
			e := exits(t, g)[0]
			if ours := c.name != "ends by itself"; e.Ours != ours {
				t.Errorf("%+v", e)
			}
			gr := g.(*group)
			select {
			case <-gr.done:
			case <-time.After(20 * time.Second):
				t.Fatal("what is left does not end")
			}
			wantGone(t, ids)
		})
	}
}

// A main process that sees to its children ends them when it likes; those that it leaves behind are told.
func TestStopMain(t *testing.T) {
	const child = `(trap "echo told; exit" TERM; echo ready; while [ ! -e "$DIR/end" ]; do sleep 0.02; done; echo finished) & `
	for _, c := range []struct {
		then, want, not string
		code            int
	}{
		{`trap 'touch "$DIR/end"' TERM; wait; wait; exit 75`, "finished", "told", 75},
		{`wait`, "told", "finished", -1},
	} {
		g := launch(t, Options{Main: true}, sh(0, child+c.then, "DIR="+t.TempDir()))
		printed(t, g, 0)
		g.Stop(10 * time.Second)
		e := exits(t, g)[0]
		if got := strings.Join(e.Tail, " "); !strings.Contains(got, c.want) || strings.Contains(got, c.not) || e.Code != c.code || !e.Ours {
			t.Errorf("%s: %q, want %q: %+v", c.then, got, c.want, e)
		}
	}
}

func TestStopIsOneForAll(t *testing.T) {
	g := launch(t, Options{}, again(t, 0, "ignore"), sh(1, "exec sleep 1000"))
	printed(t, g, 0)
	done := make(chan struct{}, 3)
	gr := g.(*group)
	for _, grace := range []time.Duration{time.Hour, 2 * time.Hour, 200 * time.Millisecond} {
		go func() { g.Stop(grace); done <- struct{}{} }()
		until(t, "Stop has begun", func() bool {
			gr.mu.Lock()
			defer gr.mu.Unlock()
			return !gr.force.IsZero()
		})
	}
	for range 3 {
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("a Stop waits for the longest grace")
		}
	}
	got := exits(t, g)
	if got[0].Signal != syscall.SIGKILL || got[1].Signal != syscall.SIGTERM || !got[0].Ours || !got[1].Ours || got[0].Detail != "" {
		t.Errorf("%+v", got)
	}
	g.Stop(time.Hour)
	if err := g.Signal(0, syscall.SIGTERM); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("signal after the end: %v", err)
	}
	if err := g.Signal(7, syscall.SIGTERM); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("signal to nobody: %v", err)
	}
	if err := g.Signal(-1, syscall.SIGTERM); err != nil {
		t.Errorf("signal to all of none: %v", err)
	}
}

// printed waits until a worker has said something.
func printed(t *testing.T, g Group, i int) {
	t.Helper()
	o := g.(*group).workers[i].out
	until(t, "output", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.tail.lines) > 0
	})
}

// What is left keeps the pipes: the end of the worker is not held up.
func TestPipesKept(t *testing.T) {
	dir := t.TempDir()
	g := launch(t, Options{}, sh(0, `trap "" TERM; (while :; do echo more; sleep 0.01; done) & echo $! > `+dir+`/0.pid; echo last words; exit 7`))
	e := exits(t, g)[0]
	if took := time.Since(e.At); took >= readersFor || e.Code != 7 || !strings.Contains(strings.Join(e.Tail, " "), "more") {
		t.Errorf("%v: %+v", took, e)
	}
	ids := pids(t, dir, 1)
	g.Stop(0)
	wantGone(t, ids)
}

func TestSixtyFour(t *testing.T) {
	before := fds(t)
	var workers []Worker
	for rank := range 64 {
		workers = append(workers, sh(rank, fmt.Sprintf("echo from %d; exit %d", rank, rank)))
	}
	logs := t.TempDir()
	a := launch(t, Options{Logs: logs}, workers...)
	b := launch(t, Options{}, workers...) // two groups at once
	for _, g := range []Group{a, b} {
		got := exits(t, g)
		for rank := range 64 {
			if e := got[rank]; e.Code != rank || strings.Join(e.Tail, "") != fmt.Sprint("from ", rank) {
				t.Errorf("%+v", e)
			}
		}
		g.Stop(0)
	}
	for rank := range 64 {
		if got, err := os.ReadFile(filepath.Join(logs, "attempt-1", fmt.Sprintf("rank-%d.log", rank))); err != nil || string(got) != fmt.Sprintf("from %d\n", rank) {
			t.Errorf("log of rank %d: %q, %v", rank, got, err)
		}
	}
	if after := fds(t); after != before {
		t.Errorf("%d files open, %d before", after, before)
	}
	if n := len(ourChildren(t)); n != 0 {
		t.Errorf("%d children are left", n)
	}
}

// A process that the kernel does not let end is said, and does not hold the group up.
func TestGiveUp(t *testing.T) {
	g := launch(t, Options{}, sh(0, "exec sleep 1000"))
	gr := g.(*group)
	gr.mu.Lock()
	gr.giveUp()
	gr.mu.Unlock()
	e := exits(t, g)[0]
	if want := fmt.Sprintf("rank 0 (pid %d) did not end: SIGKILL has no effect, its state is s", e.PID); !strings.HasPrefix(e.String(), want) || e.OK() {
		t.Errorf("%q, want %q", e, want)
	}
	g.Stop(0) // that it ends now is no second exit
}

// One group's end is not another's.
func TestGroupsApart(t *testing.T) {
	dir := t.TempDir()
	a := launch(t, Options{}, sh(0, escapes+"exec sleep 1000", "DIR="+dir))
	b := launch(t, Options{}, sh(0, "exec sleep 1000"))
	ids := pids(t, dir, 6)
	allSeen(t, a, dir, ids)
	b.Stop(0)
	for _, pid := range ids {
		if !lives(pid) {
			t.Errorf("process %d of the other group was ended", pid)
		}
	}
	a.Stop(0)
	wantGone(t, ids)
}

func TestGigabyte(t *testing.T) {
	const size = 1 << 30
	logs := t.TempDir()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	g := launch(t, Options{Logs: logs, Rotate: 1 << 20}, again(t, 0, "print", fmt.Sprint("LAUNCH_BYTES=", size)), sh(1, "echo quick"))
	if e := <-g.Exits(); e.Rank != 1 {
		t.Errorf("the worker that prints little ended second: %v", e)
	}
	if e := <-g.Exits(); !e.OK() || len(e.Tail) != tailLines {
		t.Errorf("%+v", e)
	}
	g.Stop(0)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 200<<20 {
		t.Errorf("%d bytes were allocated to read %d", n, size)
	}
	files, _ := filepath.Glob(filepath.Join(logs, "attempt-1", "rank-0.log*"))
	var sum int64
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		sum += st.Size()
	}
	gone, err := Rotated(filepath.Join(logs, "attempt-1", "rank-0.log"))
	if len(files) != keepLogs+1 || sum > keepLogs<<20 || sum < (keepLogs-1)<<19 || gone+sum != size || err != nil { // one is empty
		t.Errorf("%d files of %d bytes, after %d: %v, %v", len(files), sum, gone, files, err)
	}
}

func TestMemoryLimit(t *testing.T) {
	lookedAt(t)
	w := again(t, 0, "hog", "LAUNCH_BYTES=100000000")
	w.Memory = 64 << 20
	other := sh(1, "exec sleep 1000")
	other.Memory = 64 << 20
	g := launch(t, Options{}, w, other)
	e := <-g.Exits()
	if e.Rank != 0 || !e.Memory || e.Ours || e.Signal != syscall.SIGKILL || !strings.Contains(e.String(), "was ended for its memory: it used ") || !strings.Contains(e.String(), "its limit is 64 MiB") {
		t.Errorf("%v: %+v", e, e)
	}
	if u := g.Usage()[1]; u.Processes != 1 || u.Memory > 16<<20 || u.PID == 0 {
		t.Errorf("%+v", u)
	}
}

// Memory that a fork shares counts once; that of descendants counts.
func TestMemoryShared(t *testing.T) {
	lookedAt(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		memtest.Skip(t, "no python3")
	}
	fork := `
import os, time, signal
x = bytearray(b"x") * (64 << 20)
for i in range(3):
    if os.fork() == 0:
        if %s: x = bytearray(b"y") * (64 << 20)
        time.sleep(1000)
print("forked", flush=True)
time.sleep(1000)`
	workers := []Worker{{Rank: 0, Argv: []string{python, "-c", fmt.Sprintf(fork, "False")}}, {Rank: 1, Argv: []string{python, "-c", fmt.Sprintf(fork, "True")}}}
	for i := range workers {
		workers[i].Env, workers[i].Memory = os.Environ(), 160<<20
	}
	g := launch(t, Options{}, workers...)
	e := <-g.Exits()
	if e.Rank != 1 || !e.Memory {
		t.Errorf("%v", e)
	}
	gr := g.(*group)
	until(t, "two looks at what is shared", func() bool {
		u := g.Usage()[0]
		return u.Processes == 4 && u.Memory > 60<<20 && u.Memory < 100<<20 || u.Processes == 0
	})
	gr.mu.Lock()
	defer gr.mu.Unlock()
	if gr.workers[0].used != 0 || !gr.workers[0].ended.IsZero() {
		t.Errorf("rank 0 was ended for memory that its processes share: %+v", gr.workers[0].usage)
	}
}

func TestUsage(t *testing.T) {
	loop := "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
	burn := "sh -c '" + loop + "'"
	dir := t.TempDir()
	pid, seen := filepath.Join(dir, "pid"), filepath.Join(dir, "seen") // what nobody sees alive is nobody's where it leaves its session
	left := "(setsid sh -c '" + loop + "; echo $$ > " + pid + ".new; mv " + pid + ".new " + pid + "; while [ ! -e " + seen + " ]; do sleep 0.02; done' &) ; exec sleep 1000"
	g := launch(t, Options{}, again(t, 3, "hog", "LAUNCH_BYTES=50000000"), sh(5, burn+"; exec sleep 1000"), sh(6, burn), sh(7, left))
	until(t, "the process of rank 7 with a session of its own", func() bool {
		text, err := os.ReadFile(pid)
		gr := g.(*group)
		gr.mu.Lock()
		defer gr.mu.Unlock()
		return err == nil && slices.ContainsFunc(gr.members, func(m member) bool { return strconv.Itoa(m.id.pid) == strings.TrimSpace(string(text)) && m.worker == 3 })
	})
	if err := os.WriteFile(seen, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "usage", func() bool {
		u := g.Usage()
		ok := u[0].Rank == 3 && u[0].Memory > 50000000 && u[0].Memory < 500000000
		for i, processes := range []int{1, 1, 0, 1} { // time of what has ended is kept, whoever waited for it
			ok = ok && u[i].Processes == processes && (i == 0 || u[i].CPU >= 50*time.Millisecond)
		}
		return ok
	})
	if e := <-g.Exits(); e.Rank != 6 || !e.OK() {
		t.Errorf("%v", e)
	}
}

func init() {
	children["launcher"] = func() {
		dir := os.Getenv("DIR")
		w := sh(0, escapes+"echo $$ > main.pid; exec sleep 1000", "LAUNCH_TEST=", "PENSTOCK_RUN="+os.Getenv("RUN"), "DIR="+dir)
		if _, err := Processes(Options{}).Launch(context.Background(), []Worker{w}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		select {}
	}
}

func TestLauncherKilled(t *testing.T) {
	dir, mine := t.TempDir(), t.TempDir()
	run := "sweep-" + filepath.Base(dir)
	w := again(t, 0, "launcher", "DIR="+dir, "RUN="+run)
	c := exec.Command(w.Argv[0])
	c.Env = w.Env
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	g := launch(t, Options{}, sh(0, `echo $$ > `+mine+`/0.pid; exec sleep 1000`, "PENSTOCK_RUN="+run)) // of the same run, and looked after
	alive := pids(t, mine, 1)
	ids := pids(t, dir, 7)
	if n, err := Sweep("PENSTOCK_RUN", run); n != 0 || err != nil {
		t.Errorf("the launcher lives, %d processes were ended: %v", n, err)
	}
	gr := g.(*group)
	until(t, "this process, a launcher too, has seen them before it is their parent", func() bool {
		gr.mu.Lock()
		defer gr.mu.Unlock()
		return !slices.ContainsFunc(ids, func(pid int) bool { return gr.tree.before[pid].id.pid == 0 })
	})
	_ = c.Process.Kill()
	_ = c.Wait()
	main, err := os.ReadFile(filepath.Join(dir, "main.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	fmt.Sscan(string(main), &pid)
	until(t, "the worker ends with its launcher", func() bool {
		s, ok := readStat(pid, make([]byte, 4096))
		return !ok || s.dead
	})
	n, err := Sweep("PENSTOCK_RUN", run)
	if err != nil || n < 4 {
		t.Errorf("%d processes were ended: %v", n, err)
	}
	if n, err := Sweep("PENSTOCK_RUN", run); n != 0 || err != nil {
		t.Errorf("%d processes were left: %v", n, err)
	}
	for _, id := range ids {
		if s, ok := readStat(id, make([]byte, 4096)); ok && !s.dead {
			t.Errorf("process %d is still there", id)
		}
	}
	if !lives(alive[0]) {
		t.Error("a process that is looked after was ended")
	}
	g.Stop(0)
	wantGone(t, alive)
	wantGone(t, ids) // and are no zombies
}

// What a worker writes to stdout and stderr in turn stays in that order where they are joined.
func TestJoined(t *testing.T) {
	dir, before := t.TempDir(), fds(t)
	g := launch(t, Options{Joined: true, Logs: dir}, sh(0, `i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; printf a; printf b >&2; echo c; echo said last >&2; exit 3`), again(t, 1, "hang"))
	printed(t, g, 1)
	if stacks, err := g.Stacks(t.Context(), 1); err != nil || !strings.Contains(stacks, "hangsHere") {
		t.Errorf("stacks: %v\n%s", err, stacks)
	}
	got := exits(t, g)
	g.Stop(0)
	var want []string
	for i := range 500 {
		want = append(want, fmt.Sprint("out ", i), fmt.Sprint("err ", i))
	}
	want = append(want, "abc", "said last")
	b, err := os.ReadFile(filepath.Join(dir, "attempt-1", "rank-0.log"))
	if lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"); err != nil || !slices.Equal(lines, want) {
		t.Errorf("%d lines of %d, in another order: %v", len(lines), len(want), err)
	}
	if e := got[0]; e.Code != 3 || !slices.Equal(e.Tail, want[len(want)-tailLines:]) {
		t.Errorf("exit code %d, %q", e.Code, e.Tail)
	}
	if after := fds(t); after != before {
		t.Errorf("%d files open, %d before", after, before)
	}
}

func TestStacks(t *testing.T) {
	ws := []Worker{again(t, 0, "hang"), sh(1, "exec sleep 1000")}
	python, err := exec.LookPath("python3")
	if err == nil {
		script := "import faulthandler, signal, time\nfaulthandler.register(signal.SIGQUIT, all_threads=True)\ndef waits_here():\n  while True: time.sleep(1000)\nprint('ready', flush=True)\nwaits_here()"
		ws = append(ws, Worker{Rank: 2, Argv: []string{python, "-c", script}, Env: os.Environ()})
	}
	g := launch(t, Options{}, ws...)
	printed(t, g, 0)
	if len(ws) == 3 {
		printed(t, g, 2)
	}
	check := func(rank int, want ...string) {
		t.Helper()
		got, err := g.Stacks(t.Context(), rank)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("rank %d lacks %q:\n%s", rank, w, got)
			}
		}
	}
	check(0, "rank 0 (pid ", "hangsHere", "S (sleeping)")
	check(1, "sleep", "does not handle SIGQUIT", "1 x sleep S (sleeping)")
	if len(ws) == 3 {
		check(2, "waits_here", "python")
		check(2, "waits_here") // it has gone on
	}
	if e := <-g.Exits(); e.Rank != 0 || e.Code != 2 || !e.Ours {
		t.Errorf("%+v", e)
	}
	if _, err := g.Stacks(t.Context(), 0); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("stacks of a worker that has ended: %v", err)
	}
	if len(ws) < 3 {
		memtest.Skip(t, "no python3: its stacks were not tested")
	}
}

// What it costs to look at a group, each half second.
func BenchmarkLook(b *testing.B) {
	var workers []Worker
	for rank := range 8 {
		workers = append(workers, sh(rank, "sleep 1000 & exec sleep 1000"))
	}
	g, err := Processes(Options{}).Launch(b.Context(), workers)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Stop(0)
	gr := g.(*group)
	for b.Loop() {
		gr.mu.Lock()
		gr.look()
		gr.mu.Unlock()
	}
	b.ReportMetric(float64(len(scan(gr.tree.buf))), "processes")
}
