// Package place decides which processes run on which nodes: a pure state machine, events in, actions out, without clock, goroutine, randomness or I/O
// (docs/design/0005-cluster.md, "Placement").
//
// A demand is a gang of processes, placed all at once or not at all. Demands are served in order of arrival; one that does not fit now, but could, reserves the nodes where it will fit
// first, and later ones may take only what it does not need. An event costs what it changes, not the number of nodes or demands.
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

// Demand is a gang. Members of the same needs and labels are to lie side by side in Members: they are placed as one group.
type Demand struct {
	ID      DemandID
	Members []Member
	Spread  Spread
	Avoid   []NodeID // where it failed before: taken only if there is no other way
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
	Lost                    // these members of Demand were on a node that was lost (what they held is given back); the others run on until they have Ended or the demand is cancelled
	Why                     // Demand waits for another reason than was said last; Never: no set of the nodes there are could take it
)

// Action is an output.
type Action struct {
	Do     ActionKind
	Demand DemandID
	Placed []Placement
	Why    string
	Never  bool
}
