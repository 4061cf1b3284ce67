package collective

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

func TestRanksThatDoNotComeAreNamed(t *testing.T) {
	dir := folder(t)
	errs := each(5, func(r int) error {
		if r == 1 || r == 3 {
			return nil
		}
		_, err := Join(context.Background(), dir, r, 5, &Options{Timeout: 200 * time.Millisecond})
		return err
	})
	for _, r := range []int{0, 2, 4} {
		if fault.CodeOf(errs[r]) != fault.Unavailable || !strings.Contains(errs[r].Error(), "ranks 1, 3 did not come") {
			t.Errorf("rank %d: %v: %v", r, fault.CodeOf(errs[r]), errs[r])
		}
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	_, err := Join(ctx, dir, 0, 2, &Options{Group: "other"})
	if fault.CodeOf(err) != fault.Canceled || !errors.Is(err, cause) || !strings.Contains(err.Error(), "rank 1 did not come") {
		t.Errorf("%v: %v", fault.CodeOf(err), err)
	}
}

func TestRefusedMeetings(t *testing.T) {
	bg := context.Background()
	dir := folder(t)
	for _, c := range []struct {
		dir         string
		rank, world int
		group       string
		code        fault.Code
	}{
		{dir, 0, 0, "", fault.Invalid},
		{dir, 2, 2, "", fault.Invalid},
		{dir, -1, 2, "", fault.Invalid},
		{dir, 0, 2, strings.Repeat("x", maxName+1), fault.Invalid},
		{filepath.Join(dir, "none"), 0, 2, "", fault.NotFound},
		{filepath.Join(dir, "open"), 0, 2, "", fault.Denied},
		{filepath.Join(dir, strings.Repeat("x", 100)), 0, 2, "", fault.Invalid},
	} {
		os.Mkdir(filepath.Join(dir, "open"), 0o755)
		os.Mkdir(filepath.Join(dir, strings.Repeat("x", 100)), 0o700)
		if _, err := Join(bg, c.dir, c.rank, c.world, &Options{Group: c.group}); fault.CodeOf(err) != c.code {
			t.Errorf("rank %d of %d in %s: %v: %v", c.rank, c.world, c.dir, fault.CodeOf(err), err)
		}
	}
	// Different numbers of ranks.
	errs := each(2, func(r int) error {
		_, err := Join(bg, dir, r, 2+r, nil)
		return err
	})
	for r, err := range errs {
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "counts 2 ranks, others 3") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// A rank that waits is not displaced by another process with its number.
func TestRankTwice(t *testing.T) {
	dir := folder(t)
	m := meeting{dir: dir, me: hello{Rank: 0, World: 2}}
	l, err := m.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Join(context.Background(), dir, 0, 2, nil); fault.CodeOf(err) != fault.Exists {
		t.Fatal(err)
	}
}

// Sockets of a group whose ranks are gone are no obstacle, nor is whoever talks nonsense to one.
func TestRemainsAndStrangers(t *testing.T) {
	dir := folder(t)
	for r := range 3 {
		m := meeting{dir: dir, me: hello{Rank: r, World: 3}}
		l, err := m.listen()
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	stranger := func(path string, say any) (r reply) {
		for {
			c, err := net.Dial("unix", path)
			if err != nil {
				continue // not there yet
			}
			defer c.Close()
			if send(c, say) == nil {
				_ = receive(c, &r)
			}
			return r
		}
	}
	path := (&meeting{dir: dir}).path(1)
	errs := each(4, func(r int) error {
		if r == 3 {
			stranger(path, "nonsense")
			if a := stranger(path, hello{Version: version, Group: "earlier", Rank: 0, World: 3}); !strings.Contains(a.Refused, `is of group "earlier"`) {
				return fmt.Errorf("a rank of an earlier group is told %+v", a)
			}
			// Now the neighbour may come.
			g, err := Join(context.Background(), dir, 0, 3, nil)
			if err == nil {
				err = g.Barrier(context.Background())
				g.Close()
			}
			return err
		}
		if r == 0 {
			return nil
		}
		g, err := Join(context.Background(), dir, r, 3, nil)
		if err == nil {
			err = g.Barrier(context.Background())
			g.Close()
		}
		return err
	})
	must(t, errs)
}

// Two attempts of one run in the same folder, at the same time: each finds its own.
func TestAttemptsDoNotMix(t *testing.T) {
	dir := folder(t)
	must(t, each(6, func(i int) error {
		g, err := Join(context.Background(), dir, i%3, 3, &Options{Group: fmt.Sprint("run/", i/3)})
		if err != nil {
			return err
		}
		defer g.Close()
		x := []int64{int64(i / 3)}
		if err := AllReduce(context.Background(), g, x, Sum); err != nil {
			return err
		}
		if x[0] != 3*int64(i/3) {
			return fmt.Errorf("sum %d of attempt %d", x[0], i/3)
		}
		return nil
	}))
}

type childConfig struct {
	Dir         string
	Rank, World int
	Numbers     int
	Die         int // the call in which to die; 0: never
	Calls       int
}

// child is a rank in a process of its own.
func child(cfg string) {
	var c childConfig
	if err := json.Unmarshal([]byte(cfg), &c); err != nil {
		panic(err)
	}
	g, err := Join(context.Background(), c.Dir, c.Rank, c.World, &Options{Timeout: time.Minute})
	if err != nil {
		fmt.Println("join:", err)
		os.Exit(1)
	}
	x := make([]float32, c.Numbers)
	for n := 1; n <= c.Calls; n++ {
		if n == c.Die {
			self, _ := os.FindProcess(os.Getpid())
			time.AfterFunc(time.Duration(c.Rank)*100*time.Microsecond, func() { self.Kill() })
		}
		for i := range x {
			x[i] = float32(c.Rank + n)
		}
		if err := AllReduce(context.Background(), g, x, Sum); err != nil {
			fmt.Printf("%s: %v\n", fault.CodeOf(err), err)
			os.Exit(3)
		}
		if want := float32(c.World*n + c.World*(c.World-1)/2); len(x) > 0 && (x[0] != want || x[len(x)-1] != want) {
			fmt.Printf("call %d: %v, want %v\n", n, x[0], want)
			os.Exit(4)
		}
	}
	g.Close()
	os.Exit(0)
}

// Processes: one is killed in the middle of an all-reduce, and all others say which it was.
func TestKilledProcessIsNamed(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ world, victim, numbers int }{{2, 1, 1 << 20}, {4, 2, 1 << 20}, {4, 0, 10}, {3, -1, 100_000}} {
		dir := folder(t)
		cmds := make([]*exec.Cmd, c.world)
		outs := make([]strings.Builder, c.world)
		for r := range cmds {
			cfg := childConfig{Dir: dir, Rank: r, World: c.world, Numbers: c.numbers, Calls: 20}
			if c.victim >= 0 {
				cfg.Calls = 1 << 30
			}
			if r == c.victim {
				cfg.Die = 4
			}
			b, _ := json.Marshal(cfg)
			cmds[r] = exec.Command(self)
			cmds[r].Env = append(os.Environ(), "PENSTOCK_COLLECTIVE_CHILD="+string(b))
			cmds[r].Stdout, cmds[r].Stderr = &outs[r], &outs[r]
			if err := cmds[r].Start(); err != nil {
				t.Fatal(err)
			}
		}
		for r, cmd := range cmds {
			err := cmd.Wait()
			switch {
			case c.victim < 0:
				if err != nil {
					t.Errorf("rank %d: %v: %s", r, err, outs[r].String())
				}
			case r == c.victim:
				if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() {
					t.Errorf("the victim ended with %v: %s", err, outs[r].String())
				}
			default:
				want := fmt.Sprintf("worker_lost: rank %d (process %d) is lost", c.victim, cmds[c.victim].Process.Pid)
				if out := outs[r].String(); !strings.HasPrefix(out, want) {
					t.Errorf("%d ranks, rank %d says %q, want %q", c.world, r, out, want)
				}
			}
		}
	}
}
