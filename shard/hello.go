package shard

import (
	"cmp"
	"fmt"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// hello is all that must be the same on all nodes, in words.
func (j *job) hello(at *snap) [][2]string {
	n := j.Nodes
	h := [][2]string{
		{"version of the exchange", "1"}, {"order version", fmt.Sprint(order.Version)},
		{"on_error: skip of the run", fmt.Sprint(j.skips())}, {"plan", j.Plan}, {"data", j.Data}, {"seed", fmt.Sprint(j.Exec.Seed)}, {"schema", j.Schema.String()}, {"form of batches", fmt.Sprintf("%+v", j.Form)},
		{"lineage", fmt.Sprint(j.Lineage)}, {"ranks", fmt.Sprint(j.Job.Ranks)}, {"global batch", fmt.Sprint(j.global)}, {"tail", string(j.Tail)},
		{"steps per epoch", fmt.Sprint(j.StepsPerEpoch)}, {"epochs", fmt.Sprintf("%d from %d", j.Epochs, j.Exec.Epoch)}, {"endless", fmt.Sprint(j.Endless)},
		{"nodes", fmt.Sprint(n.Exchange.Nodes())}, {"nodes of ranks", fmt.Sprint(n.Ranks)}, {"nodes of lanes", fmt.Sprint(n.Lanes)},
		{"place", fmt.Sprintf("epoch %d, step %d, sample %d", at.epoch, at.step, at.sample)}, {"length of the epoch", fmt.Sprint(at.length)},
		{"weights", fmt.Sprint(at.weights)}, {"positions", fmt.Sprint(at.sources)},
	}
	for i := range j.Sources {
		s := &j.Sources[i]
		h = append(h, [2]string{"source " + s.Name, fmt.Sprintf("%s, %d lanes, windows of %d, limit %d, rows kept %v, repeats %v",
			s.Layout.Mode, s.Layout.shape.Lanes, s.Layout.shape.Window, s.Limit, s.KeepsRows, s.Repeat)})
	}
	return append(h, [2]string{"stop", fmt.Sprint("all ", j.StopAll)})
}

// differs names what another node's job has otherwise.
func differs(node int, mine, theirs [][2]string) error {
	short := func(s string) string {
		if len(s) > 80 {
			s = s[:77] + "..."
		}
		return s
	}
	for i := range max(len(mine), len(theirs)) {
		var a, b [2]string
		if i < len(mine) {
			a = mine[i]
		}
		if i < len(theirs) {
			b = theirs[i]
		}
		if a != b {
			return fault.New(fault.Invalid, "node %d does not run the same job: %s is %q there, %q here", node, cmp.Or(a[0], b[0]), short(b[1]), short(a[1]))
		}
	}
	return nil
}
