package remote_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/parquetio"
)

// TestRefused: a node that does not run the same is refused, by name of what differs, on both sides.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(g *exec.Graph, o *exec.Options)
		says   string
	}{
		"plan":     {func(g *exec.Graph, o *exec.Options) { g.Words = words("other") }, `plan is "other" here, "test" there`},
		"seed":     {func(g *exec.Graph, o *exec.Options) { o.Seed = 7 }, `seed is "7" here, "0" there`},
		"on_error": {func(g *exec.Graph, o *exec.Options) { o.OnError.Policy = exec.Skip }, "on_error"},
		"steps":    {func(g *exec.Graph, o *exec.Options) { g.Root.Ops = nil }, "steps"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
				g, _ := graph(3, 10)
				var o exec.Options
				if node == 1 {
					c.change(g, &o)
				}
				_, err := r.Run(t.Context(), g, &o)
				return err
			})
			for i, err := range errs {
				if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.says) {
					t.Errorf("node %d: %v", i, err)
				}
			}
			if p := fault.PlaceOf(errs[0]); p.Node != "1" {
				t.Errorf("node 0 does not say which: %v", errs[0])
			}
		})
	}
}

func words(plan string) func(context.Context) ([][2]string, error) {
	return func(context.Context) ([][2]string, error) { return [][2]string{{"plan", plan}}, nil }
}

// TestUnsupported: what several nodes cannot do is said before anything starts.
func TestUnsupported(t *testing.T) {
	g, _ := graph(3, 10)
	bare := exectest.Scan(exectest.NewTable(3, 10))
	errs := all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
		var all []error
		_, err := r.Run(t.Context(), g, &exec.Options{Spans: true})
		all = append(all, err)
		_, err = r.Run(t.Context(), bare, nil)
		all = append(all, err)
		_, err = r.Write(t.Context(), g, &exectest.Sink{}, nil)
		all = append(all, err)
		closure := dataset.Range(100).Filter("id > 3").MapBatches(func(_ context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
			rec.Retain()
			return rec, nil
		}, nil)
		_, err = closure.Drain(t.Context(), &dataset.RunOptions{Runner: r})
		all = append(all, err)
		for i, want := range []string{"shard.Nodes", "cannot be compared", "exec.Joint", "register it"} {
			if err := all[i]; fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), want) {
				t.Errorf("node %d: %v, want %s", node, err, want)
			}
		}
		return nil
	})
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestOutputElsewhere: nodes that do not see the leader's output do not write one of their own.
func TestOutputElsewhere(t *testing.T) {
	errs := all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
		g, _ := graph(30, 1000)
		g.Root.Ops = append(g.Root.Ops, exectest.Fuse(exectest.Slow(5*time.Millisecond))...)
		_, err := r.Write(t.Context(), g, files(t.TempDir(), "job"), &exec.Options{CPUs: 1})
		return err
	})
	for i, err := range errs {
		if fault.CodeOf(err) != fault.NotFound || !strings.Contains(err.Error(), "file system that all of them have") {
			t.Errorf("node %d: %v", i, err)
		}
	}
}

// TestSlowNode: a node that computes slowly gets less to do, and what it has is delivered in order.
func TestSlowNode(t *testing.T) {
	var did [2]atomic.Int64
	var got result
	all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
		g, _ := graph(120, 100)
		slow := time.Millisecond
		if node == 1 {
			slow = 20 * time.Millisecond
		}
		count := &exectest.Op{Label: "count", Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
			did[node].Add(1)
			in.Batch.Retain()
			return emit(in.With(in.Batch, in.Rows, in.Ords))
		}}
		g.Root.Ops = append(g.Root.Ops, exectest.Fuse(&named{exectest.Slow(slow), "slow"}, count)...)
		res := run(r, g, exec.Options{CPUs: 1})
		if node == 0 {
			got = res
		}
		return res.err
	})
	g, _ := graph(120, 100)
	if want := run(local.New(nil), g, exec.Options{}); got.err != nil || fmt.Sprint(want.ids) != fmt.Sprint(got.ids) {
		t.Errorf("%d rows, want %d: %v", len(got.ids), len(want.ids), got.err)
	}
	t.Log(did[0].Load(), did[1].Load())
	if a, b := did[0].Load(), did[1].Load(); b == 0 || b*3 > a {
		t.Errorf("the slow node did %d tasks, the other %d", b, a)
	}
}

// named is an operator by another name.
type named struct {
	*exectest.Op
	name string
}

func (n *named) Name() string { return n.name }

// TestBackpressure: a leader with little memory and a slow consumer holds back nodes that have much.
func TestBackpressure(t *testing.T) {
	const limit = 8 << 20
	budgets := []*exec.Budget{exec.NewBudget(limit), exec.NewBudget(256 << 20)}
	var rows int64
	served(t, all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
		tb := exectest.NewTable(200, 256)
		tb.Width = func(int) int { return 4 << 10 }
		s, err := r.Run(t.Context(), comparable(exectest.Scan(tb)), &exec.Options{Budget: budgets[node], CPUs: 4})
		if err != nil {
			return err
		}
		for {
			b, err := s.Next(t.Context())
			if err != nil {
				return errors.Join(s.Close(), notEOF(err))
			}
			if rows += b.Batch.NumRows(); rows%4096 == 0 {
				<-time.After(2 * time.Millisecond) // others get far ahead, if they may
			}
			b.Release()
		}
	}))
	if rows != 200*256 {
		t.Errorf("%d rows", rows)
	}
	t.Log(budgets[0].Peak(), budgets[1].Peak())
	if p := budgets[0].Peak(); p > limit+4<<20 {
		t.Errorf("the leader held %s of %s", exec.Bytes(p), exec.Bytes(limit))
	}
	if p := budgets[1].Peak(); p > 64<<20 {
		t.Errorf("the node held %s: it did not wait for the leader", exec.Bytes(p))
	}
	for i, b := range budgets {
		if b.Used() != 0 {
			t.Errorf("node %d holds %s", i, b.Holders())
		}
		b.Close()
	}
}

// TestRuns: one Runner, several runs, of rows, counts and files with dead letters; a finished job is no work for anybody.
func TestRuns(t *testing.T) {
	skip := exec.Options{OnError: exec.OnError{Policy: exec.Skip}}
	bad := func() *exec.Graph {
		g, _ := graph(20, 500)
		g.Root.Ops = append(g.Root.Ops, exectest.Fuse(exectest.FailRows(fault.UserCode, func(id int64) bool { return id%997 == 5 }))...)
		return g
	}
	deadly := func(out, dead string) *sink.Files {
		enc, err := parquetio.NewEncoding(nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := sink.New(sink.Options{Path: out, Encoding: enc, Job: "job", TargetBytes: 16 << 10, DeadLetter: dead})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one, oneDead, two, twoDead := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	want, err := local.New(nil).Write(t.Context(), bad(), deadly(one, oneDead), &skip)
	if err != nil {
		t.Fatal(err)
	}
	errs := all(t, gangtest.New(t, 3), func(node int, r *remote.Runner) error {
		leads := func(err error) error {
			if node > 0 && errors.Is(err, exec.ErrServed) {
				return nil
			}
			return err
		}
		if res := run(r, bad(), skip); leads(res.err) != nil {
			return res.err
		}
		c := sink.NewCount()
		if _, err := r.Write(t.Context(), bad(), c, &skip); leads(err) != nil {
			return err
		}
		if n := c.Result(); node == 0 && (n.Rows != want.RowsOut || n.Skipped != want.Skipped) {
			t.Errorf("counted %+v, want %d and %d", n, want.RowsOut, want.Skipped)
		}
		cut := comparable(exectest.Graph(exectest.Cut(700, []*exec.Stage{bad().Root})))
		c = sink.NewCount()
		if _, err := r.Write(t.Context(), cut, c, &skip); leads(err) != nil {
			return err
		}
		if n := c.Result(); node == 0 && n.Rows != 700 {
			t.Errorf("counted %+v behind a limit", n)
		}
		for range 2 {
			st, err := r.Write(t.Context(), bad(), deadly(two, twoDead), &skip)
			if leads(err) != nil {
				return err
			}
			if node == 0 && st.SplitsDone != 20 {
				t.Errorf("%+v", st)
			}
		}
		return nil
	})
	for i, err := range errs {
		if err != nil {
			t.Errorf("node %d: %v", i, err)
		}
	}
	if a, b := digests(t, one), digests(t, two); fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("the files differ:\n%v\n%v", a, b)
	}
	if a, b := digests(t, oneDead), digests(t, twoDead); len(a) == 0 || len(a) != len(b) {
		t.Errorf("the dead letters differ:\n%v\n%v", a, b)
	}
}

// TestFails: an error of a node's row names its place and node, and ends all of them with its code.
func TestFails(t *testing.T) {
	errs := all(t, gangtest.New(t, 2), func(node int, r *remote.Runner) error {
		g, _ := graph(50, 100)
		if node == 1 {
			g.Root.Ops = append(g.Root.Ops, exectest.Fuse(&named{exectest.FailRows(fault.UserCode, func(int64) bool { return true }), "x"})...)
		} else {
			g.Root.Ops = append(g.Root.Ops, exectest.Fuse(&named{exectest.Slow(5 * time.Millisecond), "x"})...)
		}
		_, err := r.Write(t.Context(), g, sink.NewCount(), &exec.Options{CPUs: 1})
		return err
	})
	p := fault.PlaceOf(errs[0])
	if fault.CodeOf(errs[0]) != fault.UserCode || p.Node != "1" || p.File != "mem" || p.RowGroup == 0 || p.Step == "" {
		t.Errorf("%v: %+v", errs[0], p)
	}
	if fault.CodeOf(errs[1]) != fault.Canceled || !errors.Is(errs[1], remote.ErrEnded) {
		t.Errorf("node 1: %v", errs[1])
	}
}

// TestGather: a leader does not wait for ever, and says for whom.
func TestGather(t *testing.T) {
	gs := gangtest.New(t, 2)
	r, err := remote.New(gs[0], &remote.Options{Gather: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	g, _ := graph(2, 2)
	if _, err := r.Run(t.Context(), g, nil); fault.CodeOf(err) != fault.Unavailable || !errors.Is(err, remote.ErrLost) || !strings.Contains(err.Error(), "1 of 2 nodes") {
		t.Errorf("%v", err)
	}
	n, err := remote.New(gs[1], &remote.Options{Gather: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if _, err := n.Run(t.Context(), g, nil); !errors.Is(err, remote.ErrLost) {
		t.Errorf("%v", err)
	}
}

// TestStoppedInGreeting: a leader that is told to stop while a node has not answered yet was canceled, whatever the reason.
func TestStoppedInGreeting(t *testing.T) {
	gs := gangtest.New(t, 2)
	r, err := remote.New(gs[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c, err := gs[1].Dial(t.Context(), 0, "plan")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	why := errors.New("somebody wants the machines")
	go func() {
		_, _ = c.Read(make([]byte, 1)) // of the hello
		cancel(why)
	}()
	g, _ := graph(2, 2)
	if _, err := r.Run(ctx, g, nil); fault.CodeOf(err) != fault.Canceled || !errors.Is(err, why) {
		t.Errorf("%v: %v", fault.CodeOf(err), err)
	}
}
