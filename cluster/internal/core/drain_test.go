package core

import (
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
)

// What a drain has asked to end is preempted when it does, also where another head hears it, and is asked again by that.
func TestDrainOverRestart(t *testing.T) {
	m := &Machine{}
	var job jobs.Record
	var node Action
	asked := 0
	step := func(e Event) {
		for _, a := range m.Step(e) {
			switch a.Do {
			case SaveJob:
				job = a.Record
			case SaveNode:
				node = a
			case Kill:
				asked++
			}
		}
	}
	n, p := nodeOf("a"), jobs.Process{Job: "j", Attempt: 1}
	step(Event{Kind: Attach, Node: n, Epoch: 1})
	step(Event{Kind: Submit, Spec: jobOn(1)})
	step(Event{Kind: Started, Node: n, Epoch: 1, Process: p})
	step(Event{Kind: Drain, Node: n, Grace: 10 * time.Second})
	if !node.Drained || asked != 1 {
		t.Fatalf("%+v, asked %d times", node, asked)
	}
	m, asked = &Machine{}, 0
	step(Event{Kind: LoadNode, Node: n, Epoch: 1, State: node.State, Drained: node.Drained})
	step(Event{Kind: LoadJob, Spec: jobOn(1), Record: job})
	step(Event{Kind: Attach, Node: n, Epoch: 2, Running: []jobs.Process{p}})
	if asked == 0 {
		t.Error("it is not asked again")
	}
	step(Event{Kind: Exited, Node: n, Epoch: 2, Ended: []End{{Process: p, Class: jobs.User, Code: 143, Text: "exit code 143"}}})
	if r, _ := m.Record("j"); r.State != jobs.Restarting || r.Failures[jobs.Preemption] != 1 || r.Failures[jobs.User] != 0 {
		t.Errorf("%+v", r)
	}
}
