package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What the node does not have, as the head knows an older inventory, is not started: it is for another node, and why is said.
func TestFits(t *testing.T) {
	a := &agent{Config: Config{Node: "n1", Inventory: &pb.Inventory{Devices: []string{"GPU-1"}, Capacity: &pb.Resources{MilliCpus: 2000, Gpus: 1, Memory: 1 << 30}}}}
	for _, x := range []struct {
		start *pb.Start
		why   string
	}{
		{&pb.Start{Limits: &pb.Resources{MilliCpus: 2000, Gpus: 1, Memory: 1 << 30}, Devices: []string{"GPU-1"}}, ""},
		{&pb.Start{Limits: &pb.Resources{MilliCpus: 1}}, ""},
		{&pb.Start{Limits: &pb.Resources{Gpus: 1}, Devices: []string{"GPU-2"}}, "has no GPU GPU-2"},
		{&pb.Start{Limits: &pb.Resources{Gpus: 2}, Devices: []string{"GPU-1"}}, "with 1 GPUs"},
		{&pb.Start{Limits: &pb.Resources{MilliCpus: 2001}}, "2001"},
		{&pb.Start{Limits: &pb.Resources{Memory: 2 << 30}}, "node n1 has"},
	} {
		p := &process{a: a, id: "j1/1/0", start: x.start}
		if why := p.fits(); (why == "") != (x.why == "") || !strings.Contains(why, x.why) {
			t.Errorf("%v: %q, want %q", x.start, why, x.why)
		}
		if x.why != "" {
			if e := p.run(t.Context()); e.GetClass() != "unfit" || e.GetText() != p.fits() {
				t.Errorf("%v: %v", x.start, e)
			}
		}
	}
	for err, want := range map[error]bool{fmt.Errorf("its log: %w", syscall.ENOSPC): true, fmt.Errorf("fork: %w", syscall.EAGAIN): true, fmt.Errorf("exec: %w", syscall.ENOENT): false, nil: false} {
		if lacks(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
}

// What a node says and logs of an end is without secrets, also where a line was cut in one; and it logs that the log lacks lines.
func TestEndIsMasked(t *testing.T) {
	var said bytes.Buffer
	dir := t.TempDir()
	logs := filepath.Join(dir, "logs", "j1-1-0", "attempt-1")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", filepath.Join(logs, "process.log")); err != nil {
		t.Fatal(err)
	}
	a := &agent{Config: Config{Dir: dir, Inventory: &pb.Inventory{}, Log: slog.New(slog.NewTextHandler(&said, nil))}, ctx: t.Context(), procs: map[string]*process{}}
	key := "-----BEGIN KEY-----\nMIIEvQIBADAN\nBgkqhkiG9w0B\n-----END KEY-----\n"
	p := &process{a: a, id: "j1/1/0", gone: make(chan struct{}), start: &pb.Start{Argv: []string{"sh", "-c", `printf %s "$KEY"; echo "shown $LONG"; printf %1015d%s\\n 0 "$LONG"; exit 3`},
		Env: map[string]string{"KEY": key, "LONG": "hiddenhiddenhidden", "SHOWN": "shown"}, Secrets: []string{"KEY", "LONG"}}}
	a.over(p, p.run(t.Context()))
	e := a.ended[0]
	if got, want := e.GetText()[strings.LastIndex(e.GetText(), "its log"):], "its log lacks lines: write "+filepath.Join(logs, "process.log")+": no space left on device\n***\n***\n***\n***\nshown ***\n"+strings.Repeat(" ", 1014)+"0***"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for _, text := range []string{"hidd", "MIIE", "KEY"} {
		if strings.Contains(e.GetText(), text) || strings.Contains(said.String(), text) {
			t.Errorf("%s: %q\n%s", text, e.GetText(), &said)
		}
	}
	p = &process{a: a, id: "j2/1/0", gone: make(chan struct{}), start: &pb.Start{Argv: []string{"missing"}, Env: map[string]string{"PATH": "/hidden"}, Secrets: []string{"PATH"}}}
	a.over(p, p.run(t.Context()))
	if e := a.ended[1]; e.GetClass() != "refused" || !strings.Contains(e.GetText(), "program missing is not in PATH (***)") {
		t.Errorf("%v", e)
	}
	if !strings.Contains(said.String(), "the log of process j1/1/0 lacks lines") || !strings.Contains(said.String(), "no space left on device") {
		t.Errorf("%s", &said)
	}
}

// A process ended when it died: what it left behind may hold its output for a while, until which nothing is known of its end.
func TestEnded(t *testing.T) {
	a := &agent{Config: Config{Dir: t.TempDir(), Inventory: &pb.Inventory{}, Log: slog.New(slog.DiscardHandler)}, ctx: t.Context()}
	p := &process{a: a, id: "j1/1/0", start: &pb.Start{Argv: []string{"sh", "-c", `trap "" TERM; sleep 1000 & exit 7`}}}
	e := p.run(t.Context())
	if e.GetCode() != 7 {
		t.Fatal(e)
	}
	if ago := time.Since(p.ended); ago < 250*time.Millisecond { // package launch reads on for 300 ms
		t.Errorf("it ended %v ago", ago)
	}
}

// Why a process ended is what it said last, to whichever of stdout and stderr.
func TestCauseIsLast(t *testing.T) {
	a := &agent{Config: Config{Dir: t.TempDir(), Inventory: &pb.Inventory{}, Log: slog.New(slog.DiscardHandler)}, ctx: t.Context()}
	for i := range 20 {
		say, last := "echo a line; echo a hint; echo the cause >&2", "the cause"
		if i%2 == 1 {
			say, last = "echo a warning >&2; echo a hint >&2; echo the result", "the result"
		}
		p := &process{a: a, id: fmt.Sprintf("j1/%d/0", i+1), start: &pb.Start{Argv: []string{"sh", "-c", say + "; exit 7"}}}
		if first := firstLine(p.run(t.Context()).GetText()); first != "exit code 7: "+last {
			t.Errorf("%q", first)
		}
	}
}

// The folder of a node is free when its agent has given it back, also while a child that is being started has a copy of its descriptors.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); fault.CodeOf(err) != fault.Exists {
		t.Errorf("twice: %v", err)
	}
	copies := 0
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		memtest.Skip(t, "descriptors cannot be listed here: %v", err)
	}
	for _, e := range fds {
		fd, _ := strconv.Atoi(e.Name())
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || to != filepath.Join(dir, "lock") {
			continue
		}
		if fd, err = syscall.Dup(fd); err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		copies++
	}
	if copies == 0 {
		t.Fatal("the lock is no file")
	}
	unlock(true)
	unlock, err = Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock(true)
}
