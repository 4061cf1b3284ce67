package device

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// leases is a folder of leases that nobody else has.
func leases(t testing.TB) string { return filepath.Join(t.TempDir(), "leases") }

// machineOf is the same machine for all who share dir.
func machineOf(t testing.TB, dir string, all []gpu, env *string) *Inventory {
	t.Helper()
	inv, err := Discover(context.Background(), &Options{sources: []source{&fake{all: all}}, visible: env, Leases: dir, poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestLease(t *testing.T) {
	dir := leases(t)
	inv := machineOf(t, dir, gpus(4), nil)
	bg := context.Background()
	l, err := inv.Lease(bg, "a", 2, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(l.Env(0), l.Env(1), l.Visible(1), names(l.Devices(1))); got != "[CUDA_VISIBLE_DEVICES=0,1 CUDA_DEVICE_ORDER=PCI_BUS_ID] [CUDA_VISIBLE_DEVICES=2,3 CUDA_DEVICE_ORDER=PCI_BUS_ID] [2 3]2, 3" {
		t.Error(got)
	}
	// Named as this process's own variable names them.
	env := "GPU-bd,GPU-aa"
	own := machineOf(t, leases(t), gpus(4), &env)
	lo, err := own.Lease(bg, "a", 1, 2, nil)
	if err != nil || fmt.Sprint(lo.Env(0), lo.Env(1)) != "[CUDA_VISIBLE_DEVICES=GPU-bd] [CUDA_VISIBLE_DEVICES=GPU-aa]" {
		t.Error(lo, err)
	}
	lo.Release()
	lo.Release()
	for _, c := range []struct {
		inv          *Inventory
		per, workers int
		says         string
	}{
		{inv, 2, 4, "asked for 8 GPUs (4 workers x 2), this machine has 4: 0-3"},
		{own, 3, 1, "asked for 3 GPUs for one worker, this machine has 2: 0, 3; CUDA_VISIBLE_DEVICES shows 2 of 4"},
		{machineOf(t, dir, nil, nil), 1, 1, "asked for 1 GPU, this machine has none"},
		{inv, -1, 1, "asked for -1 GPUs for each of 1 workers"},
		{inv, 0, 2, "asked for 0 GPUs for each of 2 workers"},
		{inv, 1, 0, "asked for 1 GPUs for each of 0 workers"},
	} {
		_, err := c.inv.Lease(bg, "r", c.per, c.workers, func(string) { t.Error("waits for what can never be") })
		if fault.CodeOf(err) != fault.Invalid || err.Error() != c.says {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
	// What is held is waited for, and the reason told once.
	ctx, cancel := context.WithCancelCause(bg)
	var reasons []string
	_, err = inv.Lease(ctx, "c", 1, 2, func(s string) {
		reasons = append(reasons, s)
		cancel(errors.New("enough"))
	})
	want := fmt.Sprintf("waits for 2 more GPUs: 0-3 held by run a (process %d)", os.Getpid())
	if fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "enough") || len(reasons) != 1 || reasons[0] != want {
		t.Errorf("%v: %q", err, reasons)
	}
	l.Release()
	if l, err = inv.Lease(bg, "d", 4, 1, func(s string) { t.Error(s) }); err != nil {
		t.Fatal(err)
	}
	l.Release()
	if left, _ := filepath.Glob(filepath.Join(dir, "wait-*")); len(left) != 0 {
		t.Error(left)
	}
}

// Who came first is served first, also where a later one asks for less.
func TestOrderOfArrival(t *testing.T) {
	dir := leases(t)
	inv := machineOf(t, dir, gpus(4), nil)
	bg := context.Background()
	held, err := inv.Lease(bg, "a", 1, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	big := make(chan *Lease)
	queued := make(chan string, 100)
	go func() {
		l, err := inv.Lease(bg, "big", 4, 1, func(s string) { queued <- s })
		if err != nil {
			t.Error(err)
		}
		big <- l
	}()
	if s := <-queued; !strings.Contains(s, "waits for 2 more GPUs: 0, 1 held by run a") {
		t.Error(s)
	}
	// Two are free, but big was here first.
	small := make(chan *Lease)
	behind := make(chan string, 100)
	go func() {
		l, err := inv.Lease(bg, "small", 1, 1, func(s string) { behind <- s })
		if err != nil {
			t.Error(err)
		}
		small <- l
	}()
	if s := <-behind; !strings.Contains(s, "waits for a GPU: 0, 1 held by run a") || !strings.Contains(s, "behind run big (process") || !strings.HasSuffix(s, "which waits for 4") {
		t.Error(s)
	}
	// Who can use none of what big wants does not wait for it.
	env := "3"
	other := machineOf(t, dir, append(gpus(3), gpu{Device: Device{Index: 3, UUID: "GPU-other"}}), &env)
	l, err := other.Lease(bg, "other", 1, 1, func(s string) { t.Error(s) })
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	held.Release()
	l = <-big
	select {
	case <-small:
		t.Error("both have the devices")
	default:
	}
	l.Release()
	(<-small).Release()
}

// Runs that ask for half of the machine and more, at random, in many places at once: no device has two holders, and all are served.
func TestNobodyWaitsForever(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dir := leases(t)
	const n = 5
	var users [n]atomic.Int32
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(k)))
			inv := machineOf(t, dir, gpus(n), nil)
			for range 15 {
				per := 1 + rng.IntN(2)
				workers := 1 + rng.IntN(n/per)
				l, err := inv.Lease(context.Background(), fmt.Sprint("r", k), per, workers, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for w := range workers {
					for _, d := range l.Devices(w) {
						if users[d.Index].Add(1) != 1 {
							t.Errorf("GPU %d has two users", d.Index)
						}
					}
				}
				for w := range workers {
					for _, d := range l.Devices(w) {
						users[d.Index].Add(-1)
					}
				}
				l.Release()
			}
		})
	}
	wg.Wait()
}

// child is a process that holds three of four devices until it is killed.
func child(dir string) {
	inv, err := Discover(context.Background(), &Options{sources: []source{&fake{all: gpus(4)}}, Leases: dir})
	if err == nil {
		_, err = inv.Lease(context.Background(), "victim", 3, 1, nil)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// A process that it started outlives it, and must not keep the lease.
	sleeper := exec.Command("sleep", "60")
	sleeper.Stdout = nil
	if err := sleeper.Start(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("holds", sleeper.Process.Pid)
	select {}
}

// A killed process holds nothing, and a killed one that waited is in nobody's way.
func TestKilledHolder(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := leases(t)
	start := func() (*exec.Cmd, *bufio.Reader) {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "PENSTOCK_DEVICE_CHILD="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, bufio.NewReader(out)
	}
	holder, out := start()
	line, err := out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "holds ") {
		t.Fatal(line, err)
	}
	var sleeper int
	fmt.Sscanf(line, "holds %d", &sleeper)
	defer func() {
		if p, err := os.FindProcess(sleeper); err == nil {
			p.Kill()
		}
	}()
	waiter, _ := start() // waits behind it
	inv := machineOf(t, dir, gpus(4), nil)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for tickets := []string(nil); len(tickets) == 0; tickets, _ = filepath.Glob(filepath.Join(dir, "wait-*")) {
		<-tick.C // another process makes the file
	}
	reasons := make(chan string, 100)
	got := make(chan *Lease)
	go func() {
		l, err := inv.Lease(context.Background(), "next", 1, 4, func(s string) { reasons <- s })
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	s := <-reasons
	if !strings.Contains(s, fmt.Sprintf("waits for 3 more GPUs: 0-2 held by run victim (process %d); behind run victim (process %d), which waits for 3", holder.Process.Pid, waiter.Process.Pid)) {
		t.Error(s)
	}
	waiter.Process.Kill()
	waiter.Wait()
	holder.Process.Kill()
	l := <-got
	l.Release()
	holder.Wait()
	if left, _ := filepath.Glob(filepath.Join(dir, "wait-*")); len(left) != 0 {
		t.Errorf("tickets of the dead remain: %q", left)
	}
}

// The folder has to be the user's own.
func TestForeignFolder(t *testing.T) {
	bg := context.Background()
	dir := t.TempDir()
	for name, prepare := range map[string]func(string) error{
		"open":    func(p string) error { return errors.Join(os.Mkdir(p, 0o755), os.Chmod(p, 0o755)) },
		"a file":  func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"a link":  func(p string) error { return os.Symlink(t.TempDir(), p) },
		"a pipe?": func(p string) error { return os.Symlink("/dev/null", p) },
	} {
		p := filepath.Join(dir, name)
		if err := prepare(p); err != nil {
			t.Fatal(err)
		}
		if _, err := machineOf(t, p, gpus(1), nil).Lease(bg, "r", 1, 1, nil); fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A link in place of a lock is not followed.
	p := filepath.Join(dir, "own")
	if err := os.Mkdir(p, 0o700); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(dir, "victim")
	os.Symlink(victim, filepath.Join(p, "table"))
	if _, err := machineOf(t, p, gpus(1), nil).Lease(bg, "r", 1, 1, nil); err == nil {
		t.Error("followed")
	}
	if _, err := os.Stat(victim); err == nil {
		t.Error("made a file elsewhere")
	}
	// Without a folder given: below the temporary one.
	t.Setenv("TMPDIR", dir)
	l, err := machineOf(t, "", gpus(1), nil).Lease(bg, "r", 1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	if fi, err := os.Stat(filepath.Join(dir, fmt.Sprint("penstock-", os.Getuid()), "gpus", "gpu-GPU-aa000000-0")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Error(fi, err)
	}
}
