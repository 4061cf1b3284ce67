package place

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock-data/penstock/internal/units"
)

// Wait is why a demand waits.
type Wait struct {
	Demand DemandID
	Why    string
	Never  bool // the nodes there are could not take it if nothing else ran: it waits for nodes
}

// Waiting says why demands wait, the oldest first. It costs a pass over the nodes for each.
func (m *Machine) Waiting() []Wait {
	var ds []*demand
	for _, l := range m.kinds {
		ds = append(ds, l.queue...)
	}
	slices.SortFunc(ds, func(a, b *demand) int { return int(a.at - b.at) })
	ws := make([]Wait, len(ds))
	for i, d := range ds {
		ws[i] = Wait{Demand: d.ID}
		if m.ever(d) == nil {
			ws[i].Why, ws[i].Never = m.never(d), true
		} else {
			ws[i].Why = m.why(d)
		}
	}
	return ws
}

// never says what the nodes lack.
func (m *Machine) never(d *demand) string {
	if len(m.order) == 0 {
		return "there are no nodes"
	}
	for _, g := range d.groups {
		var labelled, single int
		var most Resources // of each kind on one node
		room := int64(0)
		var drains []NodeID // that would have room
		for _, n := range m.order {
			if !n.has(g.Labels) {
				continue
			}
			if n.draining {
				if n.Capacity.holds(g.Needs, 1) > 0 {
					drains = append(drains, n.ID)
				}
				continue
			}
			labelled++
			c := n.Capacity.holds(g.Needs, min(d.most(), int64(g.n)))
			room += c
			if c > 0 {
				single++
			}
			most.MilliCPUs, most.GPUs, most.Memory = max(most.MilliCPUs, n.Capacity.MilliCPUs), max(most.GPUs, n.Capacity.GPUs), max(most.Memory, n.Capacity.Memory)
			for k := range g.Needs.Named {
				if v := n.Capacity.Named[k]; v > most.Named[k] {
					most.take(Resources{Named: map[string]int64{k: v - most.Named[k]}}, 1)
				}
			}
		}
		switch {
		case labelled == 0 && len(g.Labels) > 0:
			return fmt.Sprintf("no node that takes work has the labels %s", labelText(g.Labels)) + drainText(drains)
		case labelled == 0:
			return "no node takes work: all are draining"
		case single == 0:
			return fmt.Sprintf("it needs %s on one node; the most that one%s has is %s", g.Needs, ofLabels(g.Labels), lacking(g.Needs, most)) + drainText(drains)
		case room < int64(g.n) && d.Distinct:
			return fmt.Sprintf("it needs %s on each of %d nodes%s; there would be room on %d, if nothing else ran", g.Needs, g.n, ofLabels(g.Labels), room) + drainText(drains)
		case room < int64(g.n):
			return fmt.Sprintf("it needs %d times %s; the nodes there are have room for %d, if nothing else ran", g.n, g.Needs, room) + drainText(drains)
		}
	}
	return "the nodes there are cannot hold all of it at once"
}

// drainText names nodes that a demand cannot have as they drain.
func drainText(nodes []NodeID) string {
	const most = 3
	switch n := len(nodes); {
	case n == 0:
		return ""
	case n == 1:
		return fmt.Sprintf("; node %s, which has room for it, drains", nodes[0])
	case n > most:
		return fmt.Sprintf("; %d nodes that have room for it drain", n)
	}
	var ids []string
	for _, id := range nodes {
		ids = append(ids, string(id))
	}
	return fmt.Sprintf("; nodes %s, which have room for it, drain", strings.Join(ids, ", "))
}

// why says what d waits for where nodes could take it.
func (m *Machine) why(d *demand) string {
	for i, g := range d.groups {
		switch has := d.line.sum[i]; {
		case has < int64(g.n) && d.Distinct:
			return fmt.Sprintf("it needs %s on each of %d nodes%s; there is room on %d now", g.Needs, g.n, ofLabels(g.Labels), has)
		case has < int64(g.n):
			return fmt.Sprintf("it needs %d times %s; there is room for %d now", g.n, g.Needs, has)
		}
	}
	if m.first != nil && m.first != d {
		return fmt.Sprintf("what is free is kept for %s, which came first", m.first.ID)
	}
	return "what is free does not hold all of it at once"
}

// lacking is what there is of the kinds that are needed.
func lacking(needs, have Resources) string {
	if needs.MilliCPUs == 0 {
		have.MilliCPUs = 0
	}
	if needs.GPUs == 0 {
		have.GPUs = 0
	}
	if needs.Memory == 0 {
		have.Memory = 0
	}
	return have.String()
}

// String is for people: "2 CPUs, 1 GPU, 4 GiB".
func (r Resources) String() string {
	var parts []string
	if r.MilliCPUs != 0 {
		parts = append(parts, plural(fmt.Sprintf("%g", float64(r.MilliCPUs)/1000), "CPU"))
	}
	if r.GPUs != 0 {
		parts = append(parts, plural(fmt.Sprint(r.GPUs), "GPU"))
	}
	if r.Memory != 0 {
		parts = append(parts, units.Bytes(r.Memory))
	}
	for _, k := range slices.Sorted(maps.Keys(r.Named)) {
		if r.Named[k] != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", r.Named[k], k))
		}
	}
	if parts == nil {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func plural(n, what string) string {
	if n == "1" {
		return n + " " + what
	}
	return n + " " + what + "s"
}

// ofLabels says what nodes are meant, where not all are.
func ofLabels(labels map[string]string) string {
	if len(labels) == 0 {
		return ""
	}
	return " with the labels " + labelText(labels)
}

func labelText(labels map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ",")
}
