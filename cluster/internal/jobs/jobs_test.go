package jobs

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/place"
)

// of is a job of n members.
func of(n int, b Budgets) Spec {
	return Spec{ID: "j", Members: make([]place.Member, n), Distinct: n > 1, Budgets: b}
}

func submit(s Spec) Event { return Event{Kind: Submit, Spec: s} }

// placed says that an attempt is on nodes, one member on each.
func placed(attempt int64, nodes ...place.NodeID) Event {
	e := Event{Kind: Placed, Job: "j", Demand: Demand("j", attempt)}
	for i, n := range nodes {
		e.Placed = append(e.Placed, place.Placement{Member: i, Node: n})
	}
	return e
}

func happens(k EventKind, attempt int64, member int) Event {
	return Event{Kind: k, Process: Process{"j", attempt, member, ""}}
}
func started(attempt int64, member int) Event { return happens(Started, attempt, member) }
func gone(attempt int64, member int) Event    { return happens(Gone, attempt, member) }
func exited(attempt int64, member int, c Class) Event {
	e := happens(Exited, attempt, member)
	e.Class, e.Text = c, "text"
	switch c {
	case None:
		e.Text = ""
	case User:
		e.Code = 7
	case Preemption:
		e.Code = exitAgain
	}
	return e
}
func noted(attempt int64, member int, text string) Event {
	e := exited(attempt, member, None)
	e.Text = text
	return e
}
func at(t time.Duration, e Event) Event       { e.At = t; return e }
func reading(e Event, places ...string) Event { e.Places = places; return e }
func ago(e Event, d time.Duration) Event      { e.Ago = d; return e }
func drain(attempt int64, member int) Event {
	e := happens(Drain, attempt, member)
	e.Grace = time.Minute
	return e
}
func stop() Event                 { return Event{Kind: Stop, Job: "j", Grace: 5 * time.Second} }
func tick(at time.Duration) Event { return Event{Kind: Tick, At: at} }

// text of actions, one after another.
func text(as []Action) string {
	var parts []string
	for _, a := range as {
		if a.Job != "j" {
			parts = append(parts, "of "+a.Job)
		}
		on := a.Process.String() + "@" + string(a.Placement.Node)
		switch a.Do {
		case Save:
			s := fmt.Sprintf("save %s", a.Record.State)
			if a.Record.Why != "" {
				s += fmt.Sprintf(" (%s)", a.Record.Why)
			}
			parts = append(parts, s)
		case Want:
			s := "want " + string(a.Demand.ID)
			if n := a.Demand.Members[0].Needs.Memory; n > 0 {
				s += fmt.Sprintf(" of %d", n)
			}
			if len(a.Demand.Avoid) > 0 {
				s += fmt.Sprint(" not ", a.Demand.Avoid)
			}
			parts = append(parts, s)
		case Cancel:
			parts = append(parts, "cancel "+string(a.Demand.ID))
		case Start:
			parts = append(parts, "start "+on)
		case Kill:
			parts = append(parts, fmt.Sprintf("kill %s %v", on, a.Grace))
		case Free:
			parts = append(parts, fmt.Sprintf("free %s/%d", a.Demand.ID, a.Process.Member))
		}
	}
	return strings.Join(parts, ", ")
}

type step struct {
	e    Event
	want string
}

// What becomes of jobs: attempts, budgets, drains, ends.
func TestSteps(t *testing.T) {
	one := of(1, Budgets{Crash: 1, Memory: 1, Unfit: 1})
	two := of(2, Budgets{Crash: 3})
	hungry := of(1, Budgets{Crash: 1, Memory: 2})
	hungry.Members[0].Needs.Memory = 100
	begin := func(s Spec, nodes ...place.NodeID) []step {
		starts, of := "", ""
		if n := s.Members[0].Needs.Memory; n > 0 {
			of = fmt.Sprintf(" of %d", n)
		}
		for i, n := range nodes {
			starts += fmt.Sprintf(", start j/1/%d@%s", i, n)
		}
		return []step{{submit(s), "save queued, want j/1" + of}, {placed(1, nodes...), "save starting" + starts}}
	}
	for name, steps := range map[string][]step{
		"to its end": append(begin(one, "n1"),
			step{started(1, 0), "save running"}, step{started(1, 0), ""}, // said twice
			step{exited(1, 0, None), "save finished, free j/1/0"},
			step{exited(1, 0, None), ""}, step{stop(), ""}, step{submit(one), ""}),
		"to its end, of which something is to be known": append(begin(one, "n1"),
			step{noted(1, 0, "it lacks lines"), "save finished (it lacks lines), free j/1/0"}),
		"what is to be known of an attempt that failed": append(begin(two, "n1", "n2"),
			step{noted(1, 1, "it lacks lines"), "save starting, free j/1/1"},
			step{exited(1, 0, Crash), "save restarting (node 0 of the job (n1), worker: text), free j/1/0"}, step{tick(time.Second), "want j/2"},
			step{placed(2, "n1", "n2"), "save starting (node 0 of the job (n1), worker: text), start j/2/0@n1, start j/2/1@n2"},
			step{exited(2, 0, None), "save starting (node 0 of the job (n1), worker: text), free j/2/0"}, step{exited(2, 1, None), "save finished, free j/2/1"}),
		"what is to be known of a gang": append(begin(two, "n1", "n2"),
			step{noted(1, 1, "it lacks lines"), "save starting, free j/1/1"},
			step{noted(1, 0, "it lacks more"), "save finished (node 1 of the job (n2): it lacks lines\nnode 0 of the job (n1): it lacks more), free j/1/0"}),
		"ended before it was heard that it began": append(begin(one, "n1"), step{exited(1, 0, None), "save finished, free j/1/0"}),
		"a crash within the budget, and one beyond": append(begin(one, "n1"), step{started(1, 0), "save running"},
			step{exited(1, 0, Crash), "save restarting (worker: text), free j/1/0"},
			step{tick(999 * time.Millisecond), ""}, step{tick(time.Second), "want j/2"},
			step{placed(2, "n2"), "save starting (worker: text), start j/2/0@n2"},
			step{exited(1, 0, None), ""}, step{started(1, 0), ""}, step{gone(1, 0), ""}, // of the attempt before
			step{exited(2, 0, Crash), "save failed (worker: text), free j/2/0"}),
		"memory has its own budget": append(begin(one, "n1"),
			step{exited(1, 0, Crash), "save restarting (worker: text), free j/1/0"}, step{tick(time.Second), "want j/2"}, step{placed(2, "n1"), "save starting (worker: text), start j/2/0@n1"},
			step{exited(2, 0, Memory), "save restarting (memory: text), free j/2/0"}, step{tick(3 * time.Second), "want j/3"}, step{placed(3, "n1"), "save starting (memory: text), start j/3/0@n1"},
			step{exited(3, 0, Memory), "save failed (memory: text), free j/3/0"}),
		"too little memory, and twice as much": append(begin(hungry, "n1"),
			step{exited(1, 0, Memory), "save restarting (memory: text; the next attempt gets twice as much, up to what nodes have), free j/1/0"}, step{tick(time.Second), "want j/2 of 200"},
			step{placed(2, "n1"), "save starting (memory: text; the next attempt gets twice as much, up to what nodes have), start j/2/0@n1"},
			step{gone(2, 0), "save restarting (node: node n1 was lost, or its agent was), free j/2/0, want j/3 of 200 not [n1]"}, // it keeps what it had
			step{placed(3, "n2"), "save starting (node: node n1 was lost, or its agent was), start j/3/0@n2"},
			step{exited(3, 0, Memory), "save restarting (memory: text; the next attempt gets twice as much, up to what nodes have), free j/3/0"}, step{tick(7 * time.Second), "want j/4 of 250 not [n1]"}, // all that there is
			step{placed(4, "n2"), "save starting (memory: text; the next attempt gets twice as much, up to what nodes have), start j/4/0@n2"},
			step{exited(4, 0, Memory), "save failed (memory: text; attempt 4 had 250 B, and the first one 100 B), free j/4/0"}),
		"an exit code is the end":   append(begin(one, "n1"), step{exited(1, 0, User), "save failed (user: text), free j/1/0"}),
		"what cannot start is, too": append(begin(of(1, Budgets{Crash: -1, Memory: -1, User: -1, Unfit: -1}), "n1"), step{exited(1, 0, Refused), "save failed (refused: text), free j/1/0"}),
		"an unfit node is avoided": append(begin(one, "n1"),
			step{exited(1, 0, Unfit), "save restarting (unfit: text), free j/1/0"}, step{tick(time.Second), "want j/2 not [n1]"}, step{placed(2, "n2"), "save starting (unfit: text), start j/2/0@n2"},
			step{exited(2, 0, Unfit), "save failed (unfit: text), free j/2/0"}),
		"a lost node is nobody's failure": append(begin(one, "n1"),
			step{gone(1, 0), "save restarting (node: node n1 was lost, or its agent was), free j/1/0, want j/2 not [n1]"},
			step{placed(2, "n2"), "save starting (node: node n1 was lost, or its agent was), start j/2/0@n2"},
			step{gone(2, 0), "save restarting (node: node n2 was lost, or its agent was), free j/2/0, want j/3 not [n1 n2]"},
			step{placed(3, "n1"), "save starting (node: node n2 was lost, or its agent was), start j/3/0@n1"},
			step{exited(3, 0, None), "save finished, free j/3/0"}),
		"nor is a drain, however it ends": append(begin(one, "n1"),
			step{drain(1, 0), "kill j/1/0@n1 1m0s"}, step{exited(1, 0, Crash), "save restarting (preemption: node n1 drained\ntext), free j/1/0, want j/2"},
			step{placed(2, "n2"), "save starting (preemption: node n1 drained\ntext), start j/2/0@n2"}, step{drain(2, 0), "kill j/2/0@n2 1m0s"},
			step{started(2, 0), "save running (preemption: node n1 drained\ntext), kill j/2/0@n2 1m0s"}, // it may not have heard
			step{exited(2, 0, User), "save restarting (preemption: node n2 drained\ntext), free j/2/0, want j/3"},
			step{placed(3, "n3"), "save starting (preemption: node n2 drained\ntext), start j/3/0@n3"}, step{drain(3, 0), "kill j/3/0@n3 1m0s"},
			step{exited(3, 0, None), "save finished, free j/3/0"}),
		"stopped while it waits": {{submit(one), "save queued, want j/1"}, {stop(), "cancel j/1, save stopped"}, {placed(1, "n1"), ""}},
		"stopped while it runs": append(begin(one, "n1"), step{stop(), "save stopping, kill j/1/0@n1 5s"}, step{stop(), "kill j/1/0@n1 5s"},
			step{started(1, 0), "kill j/1/0@n1 10s"}, step{exited(1, 0, Crash), "save stopped, free j/1/0"}),
		"stopped between attempts":   append(begin(one, "n1"), step{exited(1, 0, Crash), "save restarting (worker: text), free j/1/0"}, step{stop(), "save stopped (worker: text)"}, step{tick(time.Minute), ""}),
		"placed for another attempt": {{submit(one), "save queued, want j/1"}, {placed(2, "n1"), ""}, {placed(1, "n1"), "save starting, start j/1/0@n1"}, {placed(1, "n2"), ""}, {placed(2, "n2"), ""}},

		"a gang to its end": append(begin(two, "n1", "n2"),
			step{started(1, 1), ""}, step{started(1, 1), ""}, step{started(1, 0), "save running"},
			step{exited(1, 0, None), "save running, free j/1/0"}, step{exited(1, 1, None), "save finished, free j/1/1"}),
		"one of a gang fails: the others are ended, and the next attempt is of all": append(begin(two, "n1", "n2"), step{started(1, 0), ""}, step{started(1, 1), "save running"},
			step{exited(1, 1, Crash), "save restarting (node 1 of the job (n2), worker: text), kill j/1/0@n1 10s, free j/1/1"},
			step{placed(2, "n3", "n4"), ""}, step{placed(1, "n3", "n4"), ""}, // nobody asked
			step{tick(time.Minute), ""}, // one of them runs
			step{exited(1, 0, User), "save restarting (node 1 of the job (n2), worker: text), free j/1/0"},
			step{tick(61 * time.Second), "want j/2"},
			step{placed(2, "n1", "n3"), "save starting (node 1 of the job (n2), worker: text), start j/2/0@n1, start j/2/1@n3"},
			step{exited(2, 0, None), "save starting (node 1 of the job (n2), worker: text), free j/2/0"}, step{exited(2, 1, None), "save finished, free j/2/1"}),
		"one of a gang had ended well": append(begin(two, "n1", "n2"), step{exited(1, 0, None), "save starting, free j/1/0"},
			step{exited(1, 1, Preemption), "save restarting (node 1 of the job (n2), preemption: text), free j/1/1"},
			step{tick(time.Second), "want j/2 not [n1 n2]"}, step{placed(2, "n1", "n2"), "save starting (node 1 of the job (n2), preemption: text), start j/2/0@n1, start j/2/1@n2"}),
		"one of a gang fails beyond the budget": append(begin(two, "n1", "n2"),
			step{exited(1, 0, User), "save stopping (node 0 of the job (n1), user: text), kill j/1/1@n2 10s, free j/1/0"},
			step{stop(), "save stopping (node 0 of the job (n1), user: text), kill j/1/1@n2 5s"}, step{stop(), "kill j/1/1@n2 5s"}, // that it failed stays its end
			step{started(1, 1), "kill j/1/1@n2 10s"},
			step{exited(1, 1, Crash), "save failed (node 0 of the job (n1), user: text), free j/1/1"}),
		"a node of a gang is lost before it began": append(begin(two, "n1", "n2"), step{started(1, 0), ""},
			step{gone(1, 1), "save restarting (node 1 of the job (n2), node: node n2 was lost, or its agent was), kill j/1/0@n1 10s, free j/1/1"},
			step{gone(1, 0), "save restarting (node 1 of the job (n2), node: node n2 was lost, or its agent was), free j/1/0, want j/2 not [n2]"}),
		"a node of a gang drains": append(begin(two, "n1", "n2"), step{drain(1, 1), "kill j/1/1@n2 1m0s"},
			step{exited(1, 0, Preemption), "save restarting (node 0 of the job (n1), preemption: text), kill j/1/1@n2 10s, free j/1/0"},
			step{exited(1, 1, Crash), "save restarting (node 1 of the job (n2), preemption: node n2 drained\ntext), free j/1/1, want j/2"}),
		"the first of a gang to fail is heard of last": append(begin(two, "n1", "n2"),
			step{ago(exited(1, 1, Preemption), time.Second), "save restarting (node 1 of the job (n2), preemption: text), kill j/1/0@n1 10s, free j/1/1"},
			step{ago(exited(1, 0, User), 1100*time.Millisecond), "save failed (node 0 of the job (n1), user: text), free j/1/0"}),
		"one of a gang fails, and another for it": append(begin(two, "n1", "n2"),
			step{ago(exited(1, 1, Preemption), time.Second), "save restarting (node 1 of the job (n2), preemption: text), kill j/1/0@n1 10s, free j/1/1"},
			step{at(time.Second, ago(exited(1, 0, User), 900*time.Millisecond)), "save restarting (node 1 of the job (n2), preemption: text), free j/1/0"}), // after it was told
		"one of a gang has lost another, and is heard of first": append(begin(two, "n1", "n2"),
			step{ago(exited(1, 1, Preemption), time.Second), "save restarting (node 1 of the job (n2), preemption: text), kill j/1/0@n1 10s, free j/1/1"},
			step{ago(exited(1, 0, Crash), 900*time.Millisecond), "save restarting (node 0 of the job (n1), worker: text), free j/1/0"}, step{tick(time.Second), "want j/2"}),
		"or ended first, as its end was noted earlier": append(begin(two, "n1", "n2"),
			step{exited(1, 0, Crash), "save restarting (node 0 of the job (n1), worker: text), kill j/1/1@n2 10s, free j/1/0"},
			step{ago(exited(1, 1, Preemption), time.Second), "save restarting (node 0 of the job (n1), worker: text), free j/1/1"}),
		"a node of a gang drains, and the other fails for it": append(begin(two, "n1", "n2"), step{drain(1, 1), "kill j/1/1@n2 1m0s"},
			step{ago(exited(1, 1, Preemption), time.Second), "save restarting (node 1 of the job (n2), preemption: node n2 drained\ntext), kill j/1/0@n1 10s, free j/1/1"},
			step{ago(exited(1, 0, User), 900*time.Millisecond), "save restarting (node 1 of the job (n2), preemption: node n2 drained\ntext), free j/1/0, want j/2"}),
		"a node of a gang is lost, and the other fails for it": append(begin(two, "n1", "n2"),
			step{exited(1, 1, User), "save stopping (node 1 of the job (n2), user: text), kill j/1/0@n1 10s, free j/1/1"},
			step{gone(1, 0), "save restarting (node 0 of the job (n1), node: node n1 was lost, or its agent was), free j/1/0, want j/2 not [n1]"}),
		"a node of a gang is lost, and of the other's failure for it is heard later": append(begin(two, "n1", "n2"),
			step{gone(1, 0), "save restarting (node 0 of the job (n1), node: node n1 was lost, or its agent was), kill j/1/1@n2 10s, free j/1/0"},
			step{ago(exited(1, 1, User), time.Second), "save restarting (node 0 of the job (n1), node: node n1 was lost, or its agent was), free j/1/1, want j/2 not [n1]"}),
		"a gang that fails is stopped, and a node of it is lost": append(begin(two, "n1", "n2"),
			step{exited(1, 1, User), "save stopping (node 1 of the job (n2), user: text), kill j/1/0@n1 10s, free j/1/1"},
			step{stop(), "save stopping (node 1 of the job (n2), user: text), kill j/1/0@n1 5s"}, step{gone(1, 0), "save failed (node 1 of the job (n2), user: text), free j/1/0"}),
		"one of a gang waits": append(begin(two, "n1", "n2"), step{happens(Waits, 1, 0), ""}, step{started(1, 1), ""}, step{happens(Waits, 1, 0), ""}, step{started(1, 0), "save running"},
			step{exited(1, 1, Crash), "save restarting (node 1 of the job (n2), worker: text), kill j/1/0@n1 10s, free j/1/1"}, step{happens(Waits, 1, 0), "kill j/1/0@n1 10s"}),
		"a gang is stopped": append(begin(two, "n1", "n2"), step{stop(), "save stopping, kill j/1/0@n1 5s, kill j/1/1@n2 5s"},
			step{exited(1, 0, None), "save stopping, free j/1/0"}, step{exited(1, 1, Crash), "save stopped, free j/1/1"}),
	} {
		t.Run(name, func(t *testing.T) {
			m := Machine{Most: func(_ place.Demand, _, _ int, _, most int64) int64 { return min(most, 250) }}
			for i, s := range steps {
				if s.e.At == 0 {
					s.e.At = m.now
				}
				if got := text(m.Step(s.e)); got != s.want {
					t.Fatalf("step %d: %q, want %q", i, got, s.want)
				}
			}
		})
	}
}

// All members of a gang end with the exit code of the run, in whatever order: node 0 says why. Another code, and an end that was asked for, are no such thing.
func TestLeads(t *testing.T) {
	const ms = time.Millisecond
	end := func(member int, code int64, heard, ended time.Duration) Event {
		e := at(heard, ago(exited(1, member, User), heard-ended))
		e.Code = code
		return e
	}
	for name, c := range map[string]struct {
		ends []Event // by when they are heard of
		why  int     // the number of the process
	}{
		"node 1 ends first":                           {[]Event{end(1, 1, 40*ms, 20*ms), end(0, 1, 45*ms, 25*ms)}, 0},
		"and is heard of last":                        {[]Event{end(0, 1, 40*ms, 25*ms), end(1, 1, 45*ms, 20*ms)}, 0},
		"all others end first":                        {[]Event{end(2, 1, 40*ms, 20*ms), end(1, 1, 45*ms, 19*ms), end(0, 1, 50*ms, 38*ms)}, 0},
		"and one of them is heard of last":            {[]Event{end(2, 1, 40*ms, 20*ms), end(0, 1, 45*ms, 38*ms), end(1, 1, 50*ms, 19*ms)}, 0},
		"node 0 ends as it is told to, with an error": {[]Event{end(1, 1, 40*ms, 20*ms), end(0, 1, 60*ms, 50*ms)}, 1},
		"node 0 has another code":                     {[]Event{end(1, 2, 40*ms, 20*ms), end(0, 1, 45*ms, 25*ms)}, 1},
		"and ended first":                             {[]Event{end(1, 2, 40*ms, 20*ms), end(0, 1, 45*ms, 15*ms)}, 0},
		"another one had failed before all":           {[]Event{end(1, 1, 40*ms, 20*ms), end(0, 1, 45*ms, 25*ms), end(2, 7, 50*ms, 10*ms)}, 2},
		"another one failed for it":                   {[]Event{end(1, 1, 40*ms, 20*ms), end(0, 1, 45*ms, 25*ms), end(2, 7, 50*ms, 22*ms)}, 0},
		"of those without node 0 the first":           {[]Event{end(2, 1, 40*ms, 20*ms), end(1, 1, 45*ms, 19*ms), end(0, 143, 60*ms, 50*ms)}, 1},
		"one that lost the others is none":            {[]Event{at(40*ms, ago(exited(1, 1, Preemption), 25*ms)), end(2, 1, 45*ms, 30*ms), end(0, 1, 46*ms, 35*ms)}, 0},
		"a lost node always is":                       {[]Event{end(1, 1, 40*ms, 20*ms), end(0, 1, 45*ms, 25*ms), at(20*time.Second, gone(1, 2))}, 2},
	} {
		var m Machine
		m.Step(submit(of(3, Budgets{User: 5})))
		m.Step(placed(1, "n0", "n1", "n2"))
		for i := range int64(3) {
			m.Step(started(1, int(i)))
		}
		for _, e := range c.ends {
			m.Step(e)
		}
		r, _ := m.Record("j")
		if want := fmt.Sprintf("node %d of the job (n%d), ", c.why, c.why); !strings.HasPrefix(r.Why, want) || len(r.Failures) != 1 || r.Failures[r.Cause] != 1 {
			t.Errorf("%s: %q, %v, want %q", name, r.Why, r.Failures, want)
		}
	}
}

// What is on record is taken up again: what waited asks for nodes, what ran is what its nodes say, what was to end ends.
func TestLoad(t *testing.T) {
	on := []place.Placement{{Member: 0, Node: "n1"}, {Member: 1, Node: "n2"}}
	for name, x := range map[string]struct {
		r     Record
		want  string
		steps []step
	}{
		"waits":             {Record{State: Queued}, "want j/1", []step{{placed(1, "n1", "n2"), "save starting, start j/1/0@n1, start j/1/1@n2"}}},
		"waits for another": {Record{State: Restarting, Attempt: 3, Avoid: []place.NodeID{"n9"}}, "want j/4 not [n9]", []step{{placed(3, "n1", "n2"), ""}}},
		"to be stopped":     {Record{State: Queued, Stop: true}, "save stopped", nil},
		"over":              {Record{State: Finished, Attempt: 1}, "", []step{{stop(), ""}, {submit(of(2, Budgets{})), ""}}},
		"runs": {Record{State: Running, Attempt: 2, Placed: on}, "", []step{{started(2, 0), ""}, {started(2, 1), ""}, {exited(1, 0, Crash), ""},
			{exited(2, 1, None), "save running, free j/2/1"}, {exited(2, 0, None), "save finished, free j/2/0"}}},
		"one has ended":        {Record{State: Running, Attempt: 2, Placed: on[1:]}, "", []step{{gone(2, 0), ""}, {exited(2, 1, None), "save finished, free j/2/1"}}},
		"one began, and ended": {Record{State: Starting, Attempt: 2, Placed: on[1:]}, "", []step{{started(2, 1), "save running"}}},
		"began":                {Record{State: Starting, Attempt: 2, Placed: on}, "", []step{{started(2, 0), ""}, {started(2, 1), "save running"}}},
		"ends": {Record{State: Restarting, Why: "x", Failures: map[Class]int64{Crash: 1}, Attempt: 2, Placed: on[1:]}, "", []step{{started(2, 1), "kill j/2/1@n2 10s"}, {started(2, 0), ""},
			{gone(2, 1), "save restarting (x), free j/2/1"}, {tick(time.Second), "want j/3"}}},
		"failed, and ends": {Record{State: Stopping, Why: "x", Attempt: 2, Placed: on[:1]}, "", []step{{exited(2, 0, None), "save failed (x), free j/2/0"}}},
		"failed as it lost a node": {Record{State: Stopping, Why: "x", Cause: User, Failures: map[Class]int64{User: 1}, Attempt: 2, Placed: on[:1]}, "", []step{
			{gone(2, 0), "save restarting (node 0 of the job (n1), node: node n1 was lost, or its agent was), free j/2/0, want j/3 not [n1]"}}},
		"failed, at a time that is not known":   {Record{State: Stopping, Why: "x", Cause: User, Attempt: 2, Placed: on[:1]}, "", []step{{ago(exited(2, 0, Preemption), time.Hour), "save failed (x), free j/2/0"}}},
		"failed, and was stopped":               {Record{State: Stopping, Why: "x", Attempt: 2, Placed: on[:1]}, "", []step{{gone(2, 0), "save failed (x), free j/2/0"}}},
		"failed by a node, and another is lost": {Record{State: Restarting, Why: "x", Cause: Lost, Failures: map[Class]int64{Lost: 1}, Attempt: 2, Placed: on[:1]}, "", []step{{gone(2, 0), "save restarting (x), free j/2/0, want j/3"}}},
		"stopped, and ends":                     {Record{State: Stopping, Stop: true, Attempt: 2, Placed: on[:1]}, "", []step{{exited(2, 0, None), "save stopped, free j/2/0"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var m Machine
			if got := text(m.Step(Event{Kind: Load, Spec: of(2, Budgets{}), Record: x.r})); got != x.want {
				t.Fatalf("%q, want %q", got, x.want)
			}
			for i, s := range x.steps {
				if got := text(m.Step(s.e)); got != s.want {
					t.Fatalf("step %d: %q, want %q", i, got, s.want)
				}
			}
		})
	}
	hungry := of(1, Budgets{Memory: 2})
	hungry.Members[0].Needs.Memory = 100
	for want, r := range map[string]Record{
		"want j/2 of 200": {State: Restarting, Cause: Memory, Attempt: 1},
		"want j/3 of 400": {State: Restarting, Cause: Memory, Attempt: 2, Memory: 200},
		"want j/4 of 200": {State: Restarting, Cause: Lost, Attempt: 3, Memory: 200},
	} {
		var m Machine
		if got := text(m.Step(Event{Kind: Load, Spec: hungry, Record: r})); got != want {
			t.Errorf("%+v: %q, want %q", r, got, want)
		}
	}
}

// The end of each process is on record: to the next head it is no loss that its node does not have it any more.
func TestEndsOnRecord(t *testing.T) {
	for _, c := range []Class{None, User} {
		var m, next Machine
		m.Step(submit(of(2, Budgets{})))
		m.Step(placed(1, "n1", "n2"))
		r := m.Step(exited(1, 0, c))[0].Record
		if len(r.Placed) != 1 || r.Placed[0].Node != "n2" || r.Cause != c {
			t.Errorf("%+v", r)
		}
		next.Step(Event{Kind: Load, Spec: of(2, Budgets{}), Record: r})
		if got := text(next.Step(gone(1, 0))); got != "" {
			t.Errorf("%q: %q", c, got)
		}
	}
}

// run is an attempt of a job of one process that ends so after a time, and how long the job waits then.
func (m *Machine) run(t *testing.T, attempt int64, lasts time.Duration, end Event) (wait time.Duration) {
	t.Helper()
	m.Step(at(m.now, placed(attempt, "n1")))
	m.Step(at(m.now, started(attempt, 0)))
	m.Step(at(m.now+lasts, end))
	if r, _ := m.Record("j"); r.State.Over() {
		return -1
	}
	due, waits := m.Deadline()
	if !waits {
		return 0
	}
	wait = due - m.now
	if got := text(m.Step(tick(due))); !strings.HasPrefix(got, fmt.Sprintf("want j/%d", attempt+1)) {
		t.Fatalf("attempt %d: %q", attempt+1, got)
	}
	return wait
}

// The pause before the next attempt doubles with each failure, up to half a minute, until an attempt gets on. Lost and drained nodes are not waited for.
func TestDelays(t *testing.T) {
	var m Machine
	m.Step(submit(of(1, Budgets{Crash: -1})))
	a := int64(0)
	fails := func(lasts time.Duration, wants ...time.Duration) {
		t.Helper()
		for _, want := range wants {
			a++
			if got := m.run(t, a, lasts, exited(a, 0, Crash)); got != want*time.Second {
				t.Fatalf("after attempt %d it waits for %v; want %v", a, got, want*time.Second)
			}
		}
	}
	fails(0, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30, 30)
	fails(goodWhile, 1, 1)
	fails(goodWhile-1, 2, 4)
	a++
	if got := m.run(t, a, 0, gone(a, 0)); got != 0 {
		t.Errorf("a lost node is waited for: %v", got)
	}
	fails(0, 8) // it was in between
	a++
	m.Step(at(m.now, placed(a, "n1")))
	m.Step(at(m.now, drain(a, 0)))
	if got := text(m.Step(at(m.now, exited(a, 0, Crash)))); !strings.HasSuffix(got, fmt.Sprintf("want j/%d not [n1]", a+1)) {
		t.Errorf("a drained node is waited for: %s", got)
	}
	fails(0, 16)
	if _, ok := m.Deadline(); ok {
		t.Error("a tick is due, and nothing waits for it")
	}
	for i, id := range []string{"x", "y", "z"} { // of several the first
		m.Step(Event{Kind: Submit, At: m.now, Spec: Spec{ID: id, Members: make([]place.Member, 1), Budgets: Budgets{Crash: 1}}})
		m.Step(Event{Kind: Placed, At: m.now, Job: id, Demand: Demand(id, 1), Placed: []place.Placement{{Node: "n1"}}})
		m.Step(Event{Kind: Exited, At: m.now + time.Duration(i)*time.Millisecond, Process: Process{id, 1, 0, ""}, Class: Crash})
	}
	if at, ok := m.Deadline(); !ok || at != m.now-3*time.Millisecond+time.Second {
		t.Errorf("%v is due, %v; now is %v", at, ok, m.now)
	}
}

// What ends by exit code 75 goes on elsewhere, and fails where that was of no use ten times in a row. An attempt that got on begins the row anew; a head that starts again goes on with it.
func TestApart(t *testing.T) {
	var m Machine
	m.Step(submit(of(1, Budgets{})))
	a := int64(0)
	again := func(lasts time.Duration, times int) {
		t.Helper()
		for range times {
			a++
			if got := m.run(t, a, lasts, exited(a, 0, Preemption)); got < firstDelay {
				t.Fatalf("after attempt %d it waits for %v: %+v", a, got, m.jobs["j"].Record)
			}
		}
	}
	again(goodWhile, 2*mostApart)
	again(goodWhile-1, mostApart-1)
	again(goodWhile, 1)
	again(0, mostApart-1)
	r, _ := m.Record("j")
	if r.Apart != mostApart-1 || r.Failures[Preemption] != a || len(r.Avoid) != 1 {
		t.Errorf("%+v", r)
	}
	next := Machine{}
	next.Step(Event{Kind: Load, Spec: of(1, Budgets{}), Record: r})
	m = next
	a++
	if got := m.run(t, a, 0, exited(a, 0, Preemption)); got != -1 {
		t.Errorf("after attempt %d it waits for %v", a, got)
	}
	if r, _ := m.Record("j"); r.State != Failed || r.Why != "10 attempts in a row ended with exit code 75, on other nodes where there were any, and none ran for 2m0s: preemption: text" || r.Code != 75 {
		t.Errorf("%+v", r)
	}
}

// What is known of processes: where they are, by node, and that nothing is remembered of a job that is forgotten.
func TestWhere(t *testing.T) {
	var m Machine
	m.Step(submit(of(2, Budgets{})))
	m.Step(placed(1, "n1", "n2"))
	if at, ok := m.Where(Process{"j", 1, 1, ""}); at != "n2" || !ok {
		t.Error(at, ok)
	}
	for _, p := range []Process{{"j", 2, 1, ""}, {"j", 1, 2, ""}, {"k", 1, 1, ""}, {"j", 1, 1, "x"}} {
		if at, ok := m.Where(p); ok {
			t.Errorf("%v is on %s", p, at)
		}
	}
	if on := m.On("n2"); !slices.Equal(on, []Process{{"j", 1, 1, ""}}) {
		t.Error(on)
	}
	m.Forget("j") // it is not over
	m.Step(exited(1, 1, None))
	if _, ok := m.Where(Process{"j", 1, 1, ""}); ok || len(m.On("n2")) > 0 {
		t.Error("it has ended")
	}
	m.Step(exited(1, 0, None))
	if r, ok := m.Record("j"); !ok || r.State != Finished {
		t.Error(r, ok)
	}
	m.Forget("j")
	if _, ok := m.Record("j"); ok {
		t.Error("it was to be forgotten")
	}
	for _, s := range []string{"", "j1", "j1/1", "j1/1/x", "j1/01/0", "j1/1/0/", "j1/1/0/x/y", "/1/0", "j1/+1/0", "j1/1/-0"} {
		if p, ok := ParseProcess(s); ok {
			t.Errorf("%q is %v", s, p)
		}
	}
	for s, want := range map[string]Process{"j12/3/4": {"j12", 3, 4, ""}, "j12/3/4/x1": {"j12", 3, 4, "x1"}} {
		if p, ok := ParseProcess(s); !ok || p != want || p.String() != s || p.Short() != "j12/3/4" || Of(Demand("j12", 3)) != "j12" {
			t.Error(p, ok)
		}
	}
}

// Whatever happens in whatever order, an attempt never begins before all of the one before has ended, each process is freed once, and the records of a job only go on.
func TestRandom(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 5))
		n := 1 + r.IntN(4)
		var m Machine
		runs := map[Process]bool{}
		attempt, wanted, over := int64(0), int64(0), false
		do := func(e Event) {
			for _, a := range m.Step(e) {
				switch a.Do {
				case Save:
					if over || a.Record.Attempt < attempt {
						t.Fatalf("seed %d: it is over: %v, attempt %d; saved as %+v", seed, over, attempt, a.Record)
					}
					over = a.Record.State.Over()
					if over != (len(a.Record.Placed) == 0 && a.Record.State != Queued && a.Record.State != Restarting) {
						t.Fatalf("seed %d: %+v", seed, a.Record)
					}
				case Want:
					if len(runs) > 0 || over {
						t.Fatalf("seed %d: %s is wanted, and %v run", seed, a.Demand.ID, runs)
					}
					wanted = attempt + 1
				case Cancel:
					wanted = 0
				case Start:
					attempt = a.Process.Attempt
					runs[a.Process] = true
				case Kill:
					if !runs[a.Process] {
						t.Fatalf("seed %d: %v is to be ended, and does not run", seed, a.Process)
					}
				case Free:
					if !runs[a.Process] {
						t.Fatalf("seed %d: %v is freed, and does not run", seed, a.Process)
					}
					delete(runs, a.Process)
				}
			}
		}
		do(submit(of(n, Budgets{Crash: r.Int64N(3), User: r.Int64N(3), Memory: 1, Unfit: 1})))
		for i := range 200 {
			a, k := attempt-int64(r.IntN(8)/7), r.IntN(n+1)
			var e Event
			switch r.IntN(12) {
			case 0, 1, 2:
				if wanted > 0 {
					nodes := make([]place.NodeID, n)
					for i := range nodes {
						nodes[i] = place.NodeID(fmt.Sprint("n", r.IntN(9)))
					}
					e, wanted = placed(wanted, nodes...), 0
				}
			case 3, 4:
				e = started(a, k)
			case 5, 6, 7, 8:
				e = exited(a, k, []Class{None, None, None, Crash, Memory, User, Unfit, Preemption}[r.IntN(8)])
			case 9:
				e = gone(a, k)
			case 10:
				e = drain(a, k)
			case 11:
				if r.IntN(20) == 0 {
					e = stop()
				}
			}
			e.At = time.Duration(i) * time.Second
			if e.Kind == Submit && e.Spec.ID == "" {
				e.Kind = Tick
			}
			do(e)
		}
		if rec, _ := m.Record("j"); rec.State.Over() != over || over && len(runs) > 0 {
			t.Fatalf("seed %d: %+v, %v", seed, rec, runs)
		}
	}
}

// A place of the data that is the only one at which three processes in a row ended is poison, and is named; what says nothing of data does not count, also for a head that starts again.
func TestPoison(t *testing.T) {
	crash := func(attempt int64, places ...string) Event { return reading(exited(attempt, 0, Crash), places...) }
	for name, c := range map[string]struct {
		ends []Event // of attempts, from the first on
		want string  // why it failed; "": it goes on
	}{
		"three at one place":           {[]Event{crash(1, "a"), crash(2, "a"), crash(3, "a")}, "a ended 3 processes that read it: worker: text"},
		"two":                          {[]Event{crash(1, "a"), crash(2, "a")}, ""},
		"among others":                 {[]Event{crash(1, "a", "b"), crash(2, "b", "c"), crash(3, "b", "a")}, "b ended 3 processes that read it: worker: text"},
		"not alone":                    {[]Event{crash(1, "a", "b"), crash(2, "a", "b"), crash(3, "a", "b")}, ""},
		"alone in the fourth":          {[]Event{crash(1, "a", "b"), crash(2, "a", "b"), crash(3, "a", "b"), crash(4, "a")}, "a ended 4 processes that read it: worker: text"},
		"another between":              {[]Event{crash(1, "a"), crash(2, "b"), crash(3, "a")}, ""},
		"none between":                 {[]Event{crash(1, "a"), crash(2), crash(3, "a")}, ""},
		"another before":               {[]Event{crash(1, "b"), crash(2, "a"), crash(3, "a"), crash(4, "a")}, "a ended 3 processes that read it: worker: text"},
		"a node is lost between":       {[]Event{crash(1, "a"), gone(2, 0), crash(3, "a"), crash(4, "a")}, "a ended 3 processes that read it: worker: text"},
		"a node is lost after":         {[]Event{crash(1, "a"), crash(2, "a"), gone(3, 0)}, ""},
		"an exit code between":         {[]Event{crash(1, "a"), reading(exited(2, 0, User), "a"), crash(3, "a")}, ""}, // it is counted for itself
		"for its memory, then crashes": {[]Event{reading(exited(1, 0, Memory), "a"), crash(2, "a"), crash(3, "a")}, "a ended 3 processes that read it: worker: text"},
	} {
		for _, reload := range []bool{false, true} {
			m := &Machine{}
			spec := of(1, Budgets{Crash: 10, Memory: 1, User: 1})
			m.Step(submit(spec))
			for i, e := range c.ends {
				n := int64(i + 1)
				m.Step(tick(time.Duration(n) * time.Hour))
				m.Step(placed(n, "n1"))
				if reload {
					r, _ := m.Record("j")
					m = &Machine{}
					m.Step(Event{Kind: Load, Spec: spec, Record: r})
				}
				e.At = time.Duration(n) * time.Hour
				m.Step(e)
			}
			r, _ := m.Record("j")
			if (r.State == Failed) != (c.want != "") || c.want != "" && r.Why != c.want {
				t.Errorf("%s: %+v, want %q", name, r, c.want)
			}
		}
	}
	// What is heard later, and was earlier, counts instead.
	m := &Machine{}
	m.Step(submit(of(2, Budgets{Crash: 10})))
	for n := int64(1); n <= 3; n++ {
		m.Step(tick(time.Duration(n) * time.Hour))
		m.Step(placed(n, "n1", "n2"))
		for member, place := range []string{"b", "a"} {
			e := ago(reading(exited(n, member, Crash), place), time.Duration(member)*time.Second)
			e.At = time.Duration(n) * time.Hour
			m.Step(e)
		}
	}
	if r, _ := m.Record("j"); r.State != Failed || !strings.HasPrefix(r.Why, "a ended 3 processes that read it: node 1 of the job (n2), worker: ") {
		t.Errorf("%+v", r)
	}
}

// TestGraceOfReminders: a process that is to end has what is left of its grace where its node attaches again, and the shortest that it was given.
func TestGraceOfReminders(t *testing.T) {
	long := drain(1, 0)
	long.Grace = 10 * time.Minute
	for name, e := range map[string]Event{"drain": long, "stop": {Kind: Stop, Job: "j", Grace: 10 * time.Minute}} {
		m := &Machine{}
		m.Step(submit(of(1, Budgets{})))
		m.Step(placed(1, "n1"))
		m.Step(started(1, 0))
		m.Step(e)
		again := func(after time.Duration, want string) {
			t.Helper()
			if s := text(m.Step(at(after, started(1, 0)))); s != "kill j/1/0@n1 "+want {
				t.Errorf("%s: after %v: %s, want %s", name, after, s, want)
			}
		}
		again(time.Minute, "9m0s")
		again(time.Hour, "10s") // it never heard
		short := at(2*time.Hour, drain(1, 0))
		m.Step(short)
		again(3*time.Hour, "10s")
	}
	for state, want := range map[State]string{Stopping: "10m0s", Restarting: "10s"} { // of a head that starts again
		m := &Machine{}
		m.Step(Event{Kind: Load, Job: "j", Spec: of(1, Budgets{}), Record: Record{State: state, Attempt: 1, Placed: []place.Placement{{Member: 0, Node: "n1"}}}})
		if s := text(m.Step(started(1, 0))); s != "kill j/1/0@n1 "+want {
			t.Errorf("%s when the head starts again: %s", state, s)
		}
	}
}

// A node that says that its processes ended as it goes away, and is there again, is no place for
// the next attempts, where there are others: else one bad node could keep a job for ever.
func TestPreemptedAgain(t *testing.T) {
	var m Machine
	m.Step(submit(of(1, Budgets{})))
	m.Step(placed(1, "n1"))
	e := exited(1, 0, Preemption)
	e.Code = -1
	m.Step(e)
	for _, a := range m.Step(tick(time.Hour)) {
		if a.Do == Want && !slices.Equal(a.Demand.Avoid, []place.NodeID{"n1"}) {
			t.Errorf("the next attempt avoids %v", a.Demand.Avoid)
		}
	}
	if r, _ := m.Record("j"); !slices.Equal(r.Avoid, []place.NodeID{"n1"}) || r.State != Restarting {
		t.Errorf("%+v", r)
	}
}
