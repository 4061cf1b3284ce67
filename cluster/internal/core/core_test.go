package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/place"
)

func nodeOf(id string) place.Node {
	return place.Node{ID: place.NodeID(id), Capacity: place.Resources{MilliCPUs: 1000}}
}

// jobOn is one of n processes, on nodes of their own, that each take all of a node.
func jobOn(n int) jobs.Spec {
	s := jobs.Spec{ID: "j", Distinct: n > 1}
	for range n {
		s.Members = append(s.Members, place.Member{Needs: place.Resources{MilliCPUs: 1000}})
	}
	return s
}

func text(as []Action) string {
	var parts []string
	for _, a := range as {
		switch a.Do {
		case SaveJob:
			parts = append(parts, fmt.Sprintf("job %s", a.Record.State))
		case SaveNode:
			s := fmt.Sprintf("%s %s %d", a.Node, a.State, a.Epoch)
			if a.Drained {
				s += " drained"
			}
			parts = append(parts, s)
		case Welcome:
			parts = append(parts, fmt.Sprintf("welcome %s %d %v", a.Node, a.Epoch, a.Processes))
		case Start:
			parts = append(parts, fmt.Sprintf("start %v on %s", a.Process, a.Node))
		case Kill:
			parts = append(parts, fmt.Sprintf("kill %v on %s", a.Process, a.Node))
		case Heard:
			parts = append(parts, fmt.Sprintf("heard %v", a.Process))
		}
	}
	return strings.Join(parts, ", ")
}

// Of sessions only the last of a node counts, and what is on record is taken up by the next head.
func TestSessions(t *testing.T) {
	p0, p1 := jobs.Process{Job: "j", Attempt: 1, Member: 0}, jobs.Process{Job: "j", Attempt: 1, Member: 1}
	attach := func(id string, epoch uint64, running ...jobs.Process) Event {
		return Event{Kind: Attach, Node: nodeOf(id), Epoch: epoch, Running: running}
	}
	at := func(k EventKind, id string, epoch uint64) Event {
		return Event{Kind: k, Node: place.Node{ID: place.NodeID(id)}, Epoch: epoch}
	}
	running := jobs.Record{State: jobs.Running, Attempt: 1, Placed: []place.Placement{{Member: 0, Node: "n1"}, {Member: 1, Node: "n2"}}}
	load := []Event{{Kind: LoadNode, Node: nodeOf("n1"), State: Alive, Epoch: 4}, {Kind: LoadNode, Node: nodeOf("n2"), State: Alive, Epoch: 4}, {Kind: LoadJob, Spec: jobOn(2), Record: running}}
	type step struct {
		e    Event
		want string
	}
	for name, x := range map[string]struct {
		load  []Event
		steps []step
	}{
		"an earlier session comes late": {nil, []step{
			{attach("n1", 2), "n1 alive 2, welcome n1 2 []"},
			{attach("n1", 2), ""}, {attach("n1", 1, p0), ""}, // nothing of it counts
			{at(Break, "n1", 1), ""}, {at(LeaseOver, "n1", 1), ""},
			{at(Break, "n1", 2), "n1 suspect 2"}, {at(Break, "n1", 2), ""},
			{attach("n1", 3), "n1 alive 3, welcome n1 3 []"},
			{at(LeaseOver, "n1", 2), ""},
			{at(LeaseOver, "n1", 3), "n1 lost 3"}, {at(LeaseOver, "n1", 3), ""},
			{attach("n1", 3), ""}, {attach("n1", 4), "n1 alive 4, welcome n1 4 []"},
		}},
		"what an earlier session says of processes": {nil, []step{
			{attach("n1", 1), "n1 alive 1, welcome n1 1 []"}, {attach("n2", 1), "n2 alive 1, welcome n2 1 []"},
			{Event{Kind: Submit, Spec: jobOn(2)}, "job queued, job starting, start j/1/0 on n1, start j/1/1 on n2"},
			{attach("n1", 2, p0), "n1 alive 2, welcome n1 2 [j/1/0]"},
			{Event{Kind: Exited, Node: nodeOf("n1"), Epoch: 1, Ended: []End{{Process: p0, Class: jobs.Crash}}}, ""},
			{Event{Kind: Started, Node: nodeOf("n1"), Epoch: 2, Process: p1}, ""}, // that of the other node
			{Event{Kind: Exited, Node: nodeOf("n1"), Epoch: 2, Ended: []End{{Process: p1, Class: jobs.Crash}}}, "heard j/1/1"},
			{Event{Kind: Started, Node: nodeOf("n2"), Epoch: 1, Process: p1}, "job running"},
		}},
		"a session that is not on record, as the head died, ends": {load, []step{
			{at(LeaseOver, "n1", 5), "n1 lost 4, job restarting, kill j/1/1 on n2"},
			{attach("n2", 5, p1), "n2 alive 5, welcome n2 5 [j/1/1], kill j/1/1 on n2"},
		}},
		"a member that its node does not have any more": {load, []step{
			{attach("n2", 5, p1), "n2 alive 5, welcome n2 5 [j/1/1]"},
			{attach("n1", 5), "n1 alive 5, welcome n1 5 [], job restarting, kill j/1/1 on n2"},
		}},
		"a node that the next head does not know": {load[1:], []step{
			{attach("n2", 5, p1), "n2 alive 5, welcome n2 5 [j/1/1], kill j/1/1 on n2"},
			{Event{Kind: Exited, Node: nodeOf("n2"), Epoch: 5, Ended: []End{{Process: p1, Class: jobs.Crash}}}, "job restarting, heard j/1/1"},
		}},
		"a node of a gang drains, and its successor waits for another": {load, []step{
			{attach("n1", 5, p0), "n1 alive 5, welcome n1 5 [j/1/0]"}, {attach("n2", 5, p1), "n2 alive 5, welcome n2 5 [j/1/1]"},
			{at(Drain, "n1", 0), "n1 draining 5 drained, kill j/1/0 on n1"},
			{Event{Kind: Exited, Node: nodeOf("n1"), Epoch: 5, Ended: []End{{Process: p0, Class: jobs.Crash}}}, "job restarting, kill j/1/1 on n2, heard j/1/0"},
			{Event{Kind: Exited, Node: nodeOf("n2"), Epoch: 5, Ended: []End{{Process: p1, Class: jobs.User}}}, "job restarting, heard j/1/1"},
			{Event{Kind: Tick, At: time.Second}, ""},
			{Event{Kind: Attach, At: time.Second, Node: nodeOf("n3"), Epoch: 1}, "n3 alive 1, welcome n3 1 [], job starting, start j/2/0 on n2, start j/2/1 on n3"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var m Machine
			for _, e := range x.load {
				m.Step(e)
			}
			for i, s := range x.steps {
				s.e.At = max(s.e.At, m.now)
				if got := text(m.Step(s.e)); got != s.want {
					t.Fatalf("step %d: %q, want %q", i, got, s.want)
				}
			}
		})
	}
}

// Processes that have not begun when their node attaches again are starting until it says that they run; what follows from the end of one is the same.
func TestWaiting(t *testing.T) {
	p := []jobs.Process{{Job: "j", Attempt: 1, Member: 0}, {Job: "j", Attempt: 1, Member: 1}}
	var m Machine
	attach := func(epoch uint64, waits bool) {
		for i, id := range []string{"n1", "n2"} {
			e := Event{Kind: Attach, Node: nodeOf(id), Epoch: epoch}
			if epoch > 1 {
				e.Running = p[i : i+1]
			}
			if waits {
				e.Waiting = e.Running
			}
			m.Step(e)
		}
	}
	state := func(want jobs.State) {
		t.Helper()
		if r, _ := m.Record("j"); r.State != want {
			t.Fatalf("the job is %s, not %s", r.State, want)
		}
	}
	attach(1, false)
	m.Step(Event{Kind: Submit, Spec: jobOn(2)})
	attach(2, true)
	state(jobs.Starting)
	m.Step(Event{Kind: Started, Node: nodeOf("n1"), Epoch: 2, Process: p[0]})
	state(jobs.Starting)
	attach(3, false)
	state(jobs.Running)
	m.Step(Event{Kind: Exited, Node: nodeOf("n1"), Epoch: 3, Ended: []End{{Process: p[0], Class: jobs.Crash}}})
	if got, want := text(m.Step(Event{Kind: Attach, Node: nodeOf("n2"), Epoch: 4, Running: p[1:], Waiting: p[1:]})), "n2 alive 4, welcome n2 4 [j/1/1], kill j/1/1 on n2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A machine with an older copy of the records gives numbers of jobs and attempts again: what its nodes still have of them, from the machine that was there before, is ended, and counts for nothing.
func TestOlderRecords(t *testing.T) {
	start := func(life string) *Machine {
		m := &Machine{Life: life}
		m.Step(Event{Kind: LoadNode, Node: nodeOf("n1"), State: Alive, Epoch: 4})
		return m
	}
	old := jobs.Process{Job: "j", Attempt: 1, Life: "a"}
	began := "n1 alive 5, welcome n1 5 [], job starting, start j/1/0/b on n1"
	for name, x := range map[string]struct {
		load []Event // of the machine that comes after
		then []Event
		want string // of Attach and then
		has  []jobs.Process
		ends []End
	}{
		"a new job, and the process runs":    {then: []Event{{Kind: Submit, Spec: jobOn(1)}}, want: "n1 alive 5, welcome n1 5 [], job queued, job starting, start j/1/0/b on n1", has: []jobs.Process{old}},
		"a new job, and the process ended":   {then: []Event{{Kind: Submit, Spec: jobOn(1)}}, want: "n1 alive 5, welcome n1 5 [], heard j/1/0/a, job queued, job starting, start j/1/0/b on n1", ends: []End{{Process: old}}},
		"the same job, and the process runs": {load: []Event{{Kind: LoadJob, Spec: jobOn(1), Record: jobs.Record{State: jobs.Queued}}}, want: began, has: []jobs.Process{old}},
	} {
		t.Run(name, func(t *testing.T) {
			m := start("a")
			m.Step(Event{Kind: Attach, Node: nodeOf("n1"), Epoch: 5})
			if got, want := text(m.Step(Event{Kind: Submit, Spec: jobOn(1)})), "job queued, job starting, start j/1/0/a on n1"; got != want {
				t.Fatalf("%q, want %q", got, want)
			}
			m = start("b")
			var got []string
			for _, e := range x.load {
				m.Step(e)
			}
			for _, e := range append([]Event{{Kind: Attach, Node: nodeOf("n1"), Epoch: 5, Running: x.has, Ended: x.ends}}, x.then...) {
				got = append(got, text(m.Step(e)))
			}
			if got := strings.Join(got, ", "); got != x.want {
				t.Errorf("%q, want %q", got, x.want)
			}
			for _, s := range []struct {
				e    Event
				want string
			}{
				{Event{Kind: Started, Node: nodeOf("n1"), Epoch: 5, Process: old}, ""},
				{Event{Kind: Exited, Node: nodeOf("n1"), Epoch: 5, Ended: []End{{Process: old}}}, "heard j/1/0/a"},
				{Event{Kind: Exited, Node: nodeOf("n1"), Epoch: 5, Ended: []End{{Process: jobs.Process{Job: "j", Attempt: 1, Life: "b"}}}}, "job finished, heard j/1/0/b"},
			} {
				if got := text(m.Step(s.e)); got != s.want {
					t.Errorf("%q, want %q", got, s.want)
				}
			}
		})
	}
	// What a machine of an older version has placed goes on.
	m := start("b")
	m.Step(Event{Kind: LoadJob, Spec: jobOn(1), Record: jobs.Record{State: jobs.Running, Attempt: 1, Placed: []place.Placement{{Node: "n1"}}}})
	if got, want := text(m.Step(Event{Kind: Attach, Node: nodeOf("n1"), Epoch: 5, Running: []jobs.Process{{Job: "j", Attempt: 1}}})), "n1 alive 5, welcome n1 5 [j/1/0]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Two of three nodes do not reach each other: a job on two nodes finds the others, whichever two they are; one on all three fails.
func TestNodesApart(t *testing.T) {
	all := []place.NodeID{"n1", "n2", "n3"}
	for size, want := range map[int]jobs.State{2: jobs.Finished, 3: jobs.Failed} {
		for k, a := range all {
			b := all[(k+1)%3]
			var m Machine
			for _, id := range all {
				m.Step(Event{Kind: Attach, Epoch: 1, Node: nodeOf(string(id))})
			}
			acts := m.Step(Event{Kind: Submit, Spec: jobOn(size)})
			for now := time.Duration(0); ; {
				at, where := map[place.NodeID]jobs.Process{}, []place.NodeID{}
				for _, x := range acts {
					if x.Do == Start {
						at[x.Node] = x.Process
						where = append(where, x.Node)
					}
				}
				if len(at) != size {
					t.Fatalf("%v", acts)
				}
				_, first := at[a]
				_, second := at[b]
				for _, id := range where {
					m.Step(Event{Kind: Started, At: now, Epoch: 1, Node: place.Node{ID: id}, Process: at[id]})
				}
				for _, id := range where {
					end := End{Process: at[id]}
					if first && second {
						end.Class, end.Code, end.Text = jobs.Preemption, 75, "others are not reached"
					}
					m.Step(Event{Kind: Exited, At: now, Epoch: 1, Node: place.Node{ID: id}, Ended: []End{end}})
				}
				r, _ := m.Record("j")
				if r.State.Over() {
					if r.State != want || want == jobs.Finished && r.Attempt > 3 || want == jobs.Failed && r.Attempt != 10 {
						t.Errorf("of %d, %s and %s apart: %+v", size, a, b, r)
					}
					break
				}
				now, _ = m.Deadline()
				acts = m.Step(Event{Kind: Tick, At: now})
			}
		}
	}
}
