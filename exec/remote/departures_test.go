package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
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
	gs := gangtest.New(t, 3)
	rs := leaving(t, gs)
	first, second, third := write(t, rs[0]), write(t, rs[1]), write(t, rs[2])
	for i, c := range []<-chan error{first, second, third} {
		if err := <-c; i == 0 && err != nil || i > 0 && !errors.Is(err, exec.ErrServed) {
			t.Fatalf("node %d: %v", i, err)
		}
	}
	for i := 2; i >= 0; i-- {
		begin := time.Now()
		rs[i].o.Departures.Leave()
		if d := time.Since(begin); d > goodbye/2 {
			t.Errorf("node %d: it took %v to leave", i, d)
		}
		gs[i].Close()
	}
}

// A leader may take its time before it begins, as a program does that works alone between two plans: who waits for it does so for as long as it may, and says so. Once it has begun it is not silent for long.
func TestLateLeader(t *testing.T) {
	for begins, want := range map[bool]string{true: "node 0: nothing came for 30s", false: "node 0 did not begin within 50m0s"} {
		synctest.Test(t, func(t *testing.T) {
			var said bytes.Buffer
			r := &Runner{o: Options{Log: slog.New(slog.NewTextHandler(&said, nil))}}
			gather, stop := context.WithTimeoutCause(t.Context(), 50*time.Minute, fault.New(fault.Unavailable, "%w: node 0 did not begin within 50m0s", ErrLost))
			defer stop()
			leads, c := net.Pipe()
			defer leads.Close()
			go io.Copy(io.Discard, leads)
			g := exectest.Scan(exectest.NewTable(1, 1))
			budget := exec.NewBudget(1 << 20)
			defer budget.Close()
			o := &exec.Options{Budget: budget, CPUs: 1}
			var h hello
			var err error
			if h.Settings, _, err = local.SettingsOf(o); err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(h)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				time.Sleep(45 * time.Minute) // of the bubble
				if begins {
					leads.Write(message(nil, kindHello, func(b []byte) []byte { return append(b, text...) }))
				}
			}()
			l := newLink(c)
			begun := sync.OnceFunc(r.waiting(func() string { return "0" }))
			began := time.Now()
			err = r.served(t.Context(), gather, begun, l, g, nil, o, &h)
			begun()
			l.close()
			took := 50 * time.Minute
			if begins {
				took = 45*time.Minute + silence
			}
			if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), ErrLost.Error()) != 1 || time.Since(began) != took {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
			if n := strings.Count(said.String(), "this node waits for others"); n != 5 || !strings.Contains(said.String(), `nodes=0 for=41m0s`) {
				t.Errorf("%s", said.String())
			}
		})
	}
}

// Of the loss of one node all others say the same, whoever ends first: the job may do better elsewhere.
func TestOneDoesNotCome(t *testing.T) {
	gs := gangtest.New(t, 3)
	var rs []*Runner
	for _, g := range gs {
		r, err := New(g, &Options{Gather: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		rs = append(rs, r)
	}
	for node, done := range []<-chan error{write(t, rs[0]), write(t, rs[1])} {
		if err := <-done; !errors.Is(err, ErrLost) || errors.Is(err, ErrEnded) || strings.Count(err.Error(), ErrLost.Error()) != 1 {
			t.Errorf("node %d: %v", node, err)
		}
	}
}

// A second run is refused while the first one is not over, and begins after it.
func TestOneRunAtATime(t *testing.T) {
	rs := leaving(t, gangtest.New(t, 2))
	serve := func() <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := rs[1].Run(t.Context(), empty(4), nil)
			done <- err
		}()
		return done
	}
	for range 2 {
		other := serve()
		st, err := rs[0].Run(t.Context(), empty(4), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = rs[0].Run(t.Context(), empty(4), nil)
		faulttest.Wants(t, err, fault.Invalid, "not over: close its stream")
		_, err = rs[0].Write(t.Context(), empty(4), sink.NewCount(), nil)
		faulttest.Wants(t, err, fault.Invalid, "not over: close its stream")
		_, err = rs[1].Run(t.Context(), empty(4), nil)
		faulttest.Wants(t, err, fault.Invalid, "not over: close its stream")
		if err := errors.Join(st.Close(), st.Close()); err != nil {
			t.Error(err)
		}
		if err := <-other; !errors.Is(err, exec.ErrServed) {
			t.Error(err)
		}
	}
}
