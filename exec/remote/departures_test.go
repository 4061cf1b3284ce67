package remote

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	plan "github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/faulttest"
)

// leaving makes the Runners of a gang whose processes say when they leave.
func leaving(t *testing.T, gs []*gang.Gang) (rs []*Runner) {
	for _, g := range gs {
		d, err := NewDepartures(g)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(g, &Options{Departures: d})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { errors.Join(r.Close(), d.Close()) })
		rs = append(rs, r)
	}
	return rs
}

func write(t *testing.T, r *Runner) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := r.Write(t.Context(), empty(4), sink.NewCount(), nil)
		done <- err
	}()
	return done
}

// A node that makes no more runs is waited for by nobody: one whose leader leaves, and a leader that has begun to wait, or begins to.
func TestDepartures(t *testing.T) {
	rs := leaving(t, gangtest.New(t, 3))
	first, third := write(t, rs[0]), write(t, rs[2])
	rs[1].o.Departures.Leave()
	faulttest.Wants(t, <-first, fault.Invalid, "node 1 has ended its program")
	faulttest.Wants(t, <-write(t, rs[0]), fault.Invalid, "node 1 has ended its program")
	rs[0].o.Departures.Leave()
	if err := <-third; !errors.Is(err, ErrEnded) && !isDeparture(err) {
		t.Errorf("node 2: %v", err)
	}
	faulttest.Wants(t, <-write(t, rs[2]), fault.Invalid, "node 0 has ended its program")
}

// All that have ended in order say so to each other without waiting.
func TestAllLeave(t *testing.T) {
	rs := leaving(t, gangtest.New(t, 3))
	first, second, third := write(t, rs[0]), write(t, rs[1]), write(t, rs[2])
	for i, c := range []<-chan error{first, second, third} {
		if err := <-c; i == 0 && err != nil || i > 0 && !errors.Is(err, plan.ErrServed) {
			t.Fatalf("node %d: %v", i, err)
		}
	}
	for i := 2; i >= 0; i-- {
		begin := time.Now()
		rs[i].o.Departures.Leave()
		if d := time.Since(begin); d > goodbye/2 {
			t.Errorf("node %d: it took %v to leave", i, d)
		}
		rs[i].g.Close()
	}
}

// A leader may take its time before it begins, as a program does that works alone between two plans: who waits for it does so longer than for one that has begun.
func TestLateLeader(t *testing.T) {
	was := silence
	silence = 2 * time.Second
	t.Cleanup(func() { silence = was })
	rs := leaving(t, gangtest.New(t, 2))
	other := write(t, rs[1])
	select {
	case err := <-other:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(silence + silence/4):
	}
	if err := <-write(t, rs[0]); err != nil {
		t.Error(err)
	}
	if err := <-other; !errors.Is(err, plan.ErrServed) {
		t.Error(err)
	}
}
