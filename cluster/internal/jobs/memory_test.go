package jobs

import (
	"testing"

	"github.com/penstock-data/penstock/cluster/internal/place"
)

// Out of memory gives more to processes of the kind that ran out, and to no others: also after a restart of the head, and where the others have no limit or no room.
func TestMemoryOfAKind(t *testing.T) {
	s := of(3, Budgets{Memory: 9, Crash: 9})
	s.Data = 1
	s.Members[0].Needs.Memory, s.Members[1].Needs.Memory, s.Members[2].Needs.Memory = 100, 100, 30
	m := &Machine{Most: func(_ place.Demand, first, n int, _, most int64) int64 {
		if first == 0 && n == 2 {
			return min(most, 150)
		}
		if first != 2 || n != 1 {
			t.Errorf("%d members from %d on", n, first)
		}
		return most
	}}
	m.Step(submit(s))
	var rec Record
	wants := func(e Event, data, rest int64) {
		t.Helper()
		m.Step(e)
		for i := range 3 {
			if m.jobs["j"].procs[i] != nil {
				m.Step(at(e.At, exited(e.Process.Attempt, i, None)))
			}
		}
		rec, _ = m.Record("j")
		var d *place.Demand
		look := func(as []Action) {
			for _, a := range as {
				if a.Do == Want {
					d = &a.Demand
				}
			}
		}
		again := &Machine{Most: m.Most} // a head that starts again
		look(again.Step(Event{Kind: Load, Spec: s, Record: rec}))
		for range 2 {
			if d == nil || d.Members[0].Needs.Memory != rest || d.Members[1].Needs.Memory != rest || d.Members[2].Needs.Memory != data {
				t.Fatalf("%+v of %+v", d, rec)
			}
			if m.jobs["j"].again {
				look(m.Step(tick(m.jobs["j"].at)))
			}
		}
	}
	run := func(attempt int64) {
		m.Step(at(m.now, placed(attempt, "n1", "n2", "n3")))
	}
	run(1)
	wants(at(m.now, exited(1, 2, Memory)), 60, 100)
	run(2)
	wants(at(m.now, exited(2, 0, Memory)), 60, 150)
	run(3)
	wants(at(m.now, exited(3, 2, Memory)), 120, 150)
	run(4)
	wants(at(m.now, exited(4, 1, Crash)), 120, 150)
	if rec.OnData || rec.Memory != 150 || rec.DataMemory != 120 {
		t.Errorf("%+v", rec)
	}

	// A worker without a limit that the kernel ends takes nothing from data nodes that have one.
	free := of(2, Budgets{Memory: 1})
	free.Data, free.Members[1].Needs.Memory = 1, 50
	if got := free.With(0, 70); got[0].Needs.Memory != 0 || got[1].Needs.Memory != 70 || free.Members[1].Needs.Memory != 50 {
		t.Errorf("%+v", got)
	}
	n := &Machine{}
	for _, a := range n.Step(Event{Kind: Load, Spec: free, Record: Record{State: Restarting, Cause: Memory, Attempt: 1}}) {
		if a.Do == Want && (a.Demand.Members[0].Needs.Memory != 0 || a.Demand.Members[1].Needs.Memory != 50) {
			t.Errorf("%+v", a.Demand)
		}
	}
}
