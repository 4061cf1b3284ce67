package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/dataset"
	plan "github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/fault"
)

// Nodes other than the first can be processes of their own: the test binary again, with what to do in PENSTOCK_REMOTE_CHILD. As aides they
// dial as the members do.

const (
	childVar = "PENSTOCK_REMOTE_CHILD"
	poisonID = 4321
)

// child is what such a process does: "write DIR", "run", "poison", "held", "scan DIR|range", or "lead DIR", which leads a write and kills itself in its midst, as "lead" does with a run.
func child(what string) error {
	if f := os.Getenv("PENSTOCK_REMOTE_PROFILE"); f != "" {
		out, err := os.Create(f + strconv.Itoa(os.Getpid()))
		if err != nil {
			return err
		}
		defer out.Close()
		if err := pprof.StartCPUProfile(out); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if of, ok := strings.CutPrefix(what, "scan "); ok {
		return scan(of)
	}
	what, dir, _ := strings.Cut(what, " ")
	place := gang.Aide
	if what == "lead" {
		place = gang.Join
	}
	g, err := place()
	if err != nil {
		return err
	}
	defer g.Close()
	r, err := remote.New(g, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	ctx, o := context.Background(), &plan.Options{CPUs: 2}
	switch what {
	case "lead":
		var finished atomic.Int64
		o.Events = &plan.Events{TaskFinished: func(plan.TaskInfo, error) {
			if finished.Add(1) == leaderEnds {
				killSelf()
			}
		}}
		if dir != "" {
			_, err = r.Write(ctx, killGraph(), files(dir, "job"), o)
		} else {
			err = run(r, killGraph(), *o).err
		}
	case "write":
		_, err = r.Write(ctx, killGraph(), files(dir, "job"), o)
	case "run":
		_, err = r.Run(ctx, killGraph(), o)
	case "poison":
		_, err = r.Run(ctx, poisonGraph(func() error { os.Exit(9); return nil }), o)
	case "held":
		n, _ := strconv.Atoi(os.Getenv("PENSTOCK_REMOTE_TASKS"))
		_, err = r.Run(ctx, remote.Held(n, nil), o)
	}
	if errors.Is(err, plan.ErrServed) {
		return nil
	}
	return err
}

// leaderEnds is how many tasks are over when a leader kills itself that is to.
const leaderEnds = 3

func killSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until it is felt
}

// killed waits for the end of a process, and fails the test if it was not a SIGKILL.
func killed(t testing.TB, c *exec.Cmd) {
	t.Helper()
	err := c.Wait()
	if s, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || !s.Signaled() || s.Signal() != syscall.SIGKILL {
		t.Errorf("a process that was to be killed has ended otherwise: %v", err)
	}
}

// scan reads what a figure reads in batches, as a member of a gang if it is one, and says how long that took.
func scan(what string) error {
	var o dataset.BatchOptions
	var err error
	var g *gang.Gang
	if os.Getenv(gang.EnvFD) != "" {
		g, err = gang.Join()
	} else {
		g, err = gang.Aide()
	}
	if err != nil {
		return err
	}
	if g != nil {
		defer g.Close()
		r, err := remote.New(g, nil)
		if err != nil {
			return err
		}
		defer r.Close()
		o.Runner = r
	}
	at := time.Now()
	rows := 0
	for b, err := range remote.Scanned(what).IterBatches(context.Background(), &o) {
		if errors.Is(err, plan.ErrServed) {
			return nil
		}
		if err != nil {
			return err
		}
		rows += b.Rows()
	}
	fmt.Println(time.Since(at))
	return nil
}

func killGraph() *plan.Graph {
	tb := exectest.NewTable(60, 2000)
	tb.Width = func(id int) int { return id % 60 }
	return comparable(exectest.Scan(tb, exectest.Filter(func(id int64) bool { return id%5 != 3 }), exectest.Slow(3*time.Millisecond)))
}

func poisonGraph(die func() error) *plan.Graph {
	g := exectest.Scan(exectest.NewTable(8, 1000), &exectest.Op{Label: "poison", Process: func(_ context.Context, _ *plan.Env, in *plan.Block, emit plan.Emit) error {
		for _, id := range exectest.Ids(in.Batch) {
			if id == poisonID {
				if err := die(); err != nil {
					return err
				}
			}
		}
		in.Batch.Retain()
		return emit(in.With(in.Batch, in.Rows, in.Ords))
	}})
	return comparable(g)
}

// start starts a node of a gang as a process. The test ends it, if it has not ended.
func start(t testing.TB, dir, what string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0])
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	c.Env = append(os.Environ(), childVar+"="+what, gang.EnvDir+"="+dir)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
		if t.Failed() {
			t.Logf("%s: %s", dir, said.String())
		}
	})
	return c
}

// runner is that of a member.
func runner(t testing.TB, g *gang.Gang) *remote.Runner {
	t.Helper()
	r, err := remote.New(g, &remote.Options{Log: logTo(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// TestKilled: a node that is killed at any moment loses nothing and doubles nothing, of what is written and of what is delivered. The moment is that at which the leader starts its nth task.
func TestKilled(t *testing.T) {
	one := t.TempDir()
	var tasks atomic.Int64
	counts := plan.Options{CPUs: 1, Events: &plan.Events{TaskStarted: func(plan.TaskInfo) { tasks.Add(1) }}}
	if _, err := local.New(nil).Write(t.Context(), killGraph(), files(one, "job"), &counts); err != nil {
		t.Fatal(err)
	}
	want := digests(t, one)
	parts := tasks.Swap(0)
	rows := run(local.New(nil), killGraph(), counts)
	splits := tasks.Load()
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	d := rand.New(rand.NewPCG(seed, 1))
	for i := range rounds {
		gs, dirs := gangtest.WithFolders(t, 3)
		two, what, most := t.TempDir(), "run", splits
		if i%2 == 0 {
			what, most = "write "+two, parts
		}
		kids := []*exec.Cmd{start(t, dirs[1], what), start(t, dirs[2], what)}
		r := runner(t, gs[0])
		victim, at := kids[d.IntN(2)], 1+d.Int64N(most)
		var started atomic.Int64
		o := plan.Options{CPUs: 1, Events: &plan.Events{TaskStarted: func(plan.TaskInfo) {
			if started.Add(1) == at {
				if err := victim.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
		}}}
		if i%2 == 0 {
			_, err := r.Write(t.Context(), killGraph(), files(two, "job"), &o)
			if err != nil {
				t.Fatalf("killed at task %d of %d: %v", at, most, err)
			}
			if got := digests(t, two); !sameFiles(want, got) {
				t.Errorf("killed at task %d of %d: other files: %v, want %v", at, most, got, want)
			}
		} else {
			got := run(r, killGraph(), o)
			if got.err != nil || fmt.Sprint(got.ids) != fmt.Sprint(rows.ids) {
				t.Errorf("killed at task %d of %d: %d rows, want %d: %v", at, most, len(got.ids), len(rows.ids), got.err)
			}
		}
		killed(t, victim)
	}
}

// sameFiles leaves out what a killed process left: staged where its lock was still held when the job was committed, and half a record, which later runs remove.
func sameFiles(a, b map[string]string) bool {
	n := 0
	for name, sum := range b {
		if strings.Contains(name, "/stage/") || strings.Contains(name, "/.penstock-tmp-") {
			continue
		}
		n++
		if a[name] != sum {
			return false
		}
	}
	return n == len(a)
}

// TestPoison: a split that ends one process after the other ends the run, which names file and row group.
func TestPoison(t *testing.T) {
	gs, dirs := gangtest.WithFolders(t, 4)
	for _, dir := range dirs[1:] {
		start(t, dir, "poison")
	}
	// Where the leader itself has the split, a child process of a step is lost instead.
	g := poisonGraph(func() error { return fault.New(fault.WorkerLost, "a child died") })
	res := run(runner(t, gs[0]), g, plan.Options{CPUs: 1})
	if res.err == nil || fault.CodeOf(res.err) != fault.WorkerLost || !strings.Contains(res.err.Error(), "gave up after losing 3 workers") ||
		!strings.Contains(res.err.Error(), "mem, row group 4") {
		t.Fatalf("%v", res.err)
	}
}

// TestLeaderKilled: nodes whose leader is killed in the midst of a run end, with an error that says so; what it began to write is what another run goes on with.
func TestLeaderKilled(t *testing.T) {
	one := t.TempDir()
	if _, err := local.New(nil).Write(t.Context(), killGraph(), files(one, "job"), nil); err != nil {
		t.Fatal(err)
	}
	for _, writes := range []bool{false, true} {
		gs, dirs := gangtest.WithFolders(t, 2)
		dir, what := t.TempDir(), "lead"
		if writes {
			what += " " + dir
		}
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), childVar+"="+what)
		gangtest.Place(t, c, gs[0], dirs[0])
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
		r := runner(t, gs[1])
		var err error
		if writes {
			_, err = r.Write(t.Context(), killGraph(), files(dir, "job"), nil)
		} else {
			_, err = r.Run(t.Context(), killGraph(), nil)
		}
		if !errors.Is(err, remote.ErrLost) {
			t.Errorf("writes %v: %v", writes, err)
		}
		killed(t, c)
		if !writes {
			continue
		}
		if _, err := local.New(nil).Write(t.Context(), killGraph(), files(dir, "job"), nil); err != nil {
			t.Fatal(err)
		}
		if got, want := digests(t, dir), digests(t, one); !sameFiles(want, got) {
			t.Errorf("other files: %v, want %v", got, want)
		}
	}
}

// TestLeaderCanceled: nodes whose leader was told to end do so, too, and have not served.
func TestLeaderCanceled(t *testing.T) {
	gs := gangtest.New(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	errs := all(t, gs, func(node int, r *remote.Runner) error {
		g := killGraph()
		if node == 1 {
			_, err := r.Run(t.Context(), g, nil)
			return err
		}
		s, err := r.Run(ctx, g, nil)
		if err != nil {
			return err
		}
		b, err := s.Next(ctx)
		if err != nil {
			return err
		}
		b.Release()
		cancel()
		_, err = s.Next(context.Background())
		if e := s.Close(); e != nil {
			return e
		}
		return err
	})
	if fault.CodeOf(errs[0]) != fault.Canceled || errs[1] == nil || errors.Is(errs[1], plan.ErrServed) {
		t.Errorf("%v", errs)
	}
}
