// Package place decides which processes run on which nodes: a pure state machine, events in, actions out, without clock, goroutine, randomness or I/O
// (docs/design/0005-cluster.md, "Placement").
//
// A demand is a gang of processes, placed all at once or not at all. Demands are served in order of arrival; one that does not fit now, but could, has nodes reserved for
// it, and later ones may take only what it does not need. So a large gang is not starved by small ones. Demands that are alike (same needs, labels, size) wait in one line; an event costs the lines that wait
// and what it changes, and a placement what it takes, or, of needs that nobody had lately, of unequal members and of demands that do not fit, the kinds of nodes that there are.
//
// Not safe for concurrent use.
package place

// Resources of a node or of a process. Named ones that are not there are 0.
type Resources struct {
	MilliCPUs int64
	GPUs      int64
	Memory    int64 // bytes
	Named     map[string]int64
}

// NodeID and DemandID are never used twice.
type (
	NodeID   string
	DemandID string
)

// Node is what a node offers. Devices are its GPUs, in order; there are Capacity.GPUs of them.
type Node struct {
	ID       NodeID
	Capacity Resources
	Labels   map[string]string
	Devices  []string
}

// Spread says on how many nodes a gang goes.
type Spread uint8

const (
	Pack   Spread = iota // as few as possible
	Spaced               // as many as possible
)

// Member is one process of a gang.
type Member struct {
	Needs  Resources
	Labels map[string]string // that its node must have
}

// Demand is a gang. Members of the same needs and labels that lie side by side are placed as one group, and groups one after another, those with most GPUs first: a gang of unequal members may be
// found not to fit where a cleverer search would place it, unless they are of two kinds and Distinct.
type Demand struct {
	ID       DemandID
	Members  []Member
	Spread   Spread
	Distinct bool     // no two members on one node
	Avoid    []NodeID // where it failed before, the last at the end: taken only if there is no other way, and from the beginning
}

// EventKind is what happened.
type EventKind uint8

const (
	NodeUp      EventKind = iota // Node attached: it is new, or back with what it offers now
	NodeSuspect                  // its stream broke: it gets nothing new
	NodeBack                     // a suspect, or drained, node gets work again
	NodeDrain                    // it gets nothing new; what runs there is its owner's to end
	NodeLost                     // its lease ended, or it left: what ran there is gone
	Want                         // a demand came
	Cancel                       // a demand that waits is not wanted any more, or all of a placed one has ended
	Ended                        // Member of Demand ended: what it held is free
	Restore                      // Placed is what a demand already has, when a head starts again; its nodes are up
)

// Event is an input.
type Event struct {
	Kind   EventKind
	Node   Node // ID in all events of nodes; the rest in NodeUp
	Demand Demand
	Member int
	Placed []Placement
}

// Placement is where a member is.
type Placement struct {
	Member  int
	Node    NodeID
	Devices []string
}

// ActionKind is what to do.
type ActionKind uint8

const (
	Place ActionKind = iota // start all members of Demand, as Placed says
	Lost                    // the members of Demand that Placed names were on a node that was lost: what they held is free; the others run on until they Ended or the demand is cancelled
)

// Action is an output.
type Action struct {
	Do     ActionKind
	Demand DemandID
	Placed []Placement
}
