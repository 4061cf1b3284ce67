package head

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/internal/fault"
)

// meeting is what is known of an attempt of a job on several nodes: where its members listen, and who waits to hear it. It is nowhere on record: agents say it again in each session (docs/design/0006-nodes-of-a-job.md).
type meeting struct {
	addresses []string       // by member; "": it has not said
	asks      map[int][]byte // requests for certificates that were not answered, by member
}

// mostMembers of a job: a record of it has where they are.
const mostMembers = 256

// say takes what the agent of a member says, and returns the members that can be answered now: all have said where they are.
func (m *meeting) say(member int, address string, csr []byte) []int {
	m.addresses[member] = address
	if len(csr) > 0 {
		m.asks[member] = csr
	}
	if slices.Contains(m.addresses, "") {
		return nil
	}
	return slices.Sorted(maps.Keys(m.asks))
}

// listening: a node says where a process listens that is one of several, and may ask for its certificate. It gets one for a process that is on it, and for no other. Part of the loop.
func (h *Head) listening(s *session, x *pb.Listening) {
	p, ok := jobs.ParseProcess(x.GetProcess())
	node, there := h.core.Where(p)
	if !ok || !there || h.sessions[s.node] != s {
		return // it was of an attempt that is over: its agent hears of that otherwise
	}
	if string(node) != s.node {
		h.warn(s, fmt.Sprintf("it says that it has process %s, which is on node %s", p, node))
		return
	}
	n := members(h.jobs[p.Job].Value.Job)
	if n < 2 {
		return
	}
	if err := h.checkAddress(s, p, x.GetAddress()); err != nil {
		h.warn(s, err.Error())
		h.tell(s.node, &pb.FromHead{Say: &pb.FromHead_Peers{Peers: &pb.Peers{Process: p.String(), Error: err.Error()}}})
		return
	}
	m := h.meetings[p.Job]
	if m == nil { // it was forgotten when the attempt before had ended
		m = &meeting{make([]string, n), map[int][]byte{}}
		h.meetings[p.Job] = m
	}
	for _, i := range m.say(p.Member, x.GetAddress(), x.GetCsr()) {
		p.Member = i
		node, there := h.core.Where(p)
		if !there {
			continue // it has ended, and so does the attempt
		}
		answer := &pb.Peers{Process: p.String(), Addresses: m.addresses}
		var err error
		if answer.Chain, err = h.ca.IssueMember(m.asks[i], p.Job, p.Attempt, i); err != nil {
			h.warn(s, fmt.Sprintf("no certificate for process %s: %v", p, err))
			answer = &pb.Peers{Process: p.String(), Error: err.Error()}
		}
		delete(m.asks, i)
		h.tell(string(node), &pb.FromHead{Say: &pb.FromHead_Peers{Peers: answer}}) // one that is away asks again when it is back
	}
}

// checkAddress refuses what is not an address and a port that another machine could dial, and an
// address of another machine than the one that the node calls from: the other members would dial
// there.
func (h *Head) checkAddress(s *session, p jobs.Process, address string) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil || a.Port() == 0 || a.Addr().IsUnspecified() || a.Addr().IsMulticast() || len(address) > 64 {
		return fault.New(fault.Invalid, "a process listens at an address and a port, not at %.64q", address)
	}
	host := a.Addr().Unmap().WithZone("").String()
	ours := host == s.host || onThisMachine(s.host) && isThisMachine(a.Addr().Unmap())
	if m := h.meetings[p.Job]; !ours && (m == nil || m.addresses[p.Member] != address) { // it may have moved since it said where it is
		return fault.New(fault.Invalid, "a process listens where its node is, at %s, not at %s", cmp.Or(s.host, "the head's machine"), host)
	}
	return nil
}

// host is the address by which the other nodes of a job reach one of them: that from which it calls the head. One that is on the head's own machine is reached where the head is.
func (h *Head) host(node place.NodeID, placed []place.Placement) string {
	if s := h.sessions[string(node)]; s != nil && !onThisMachine(s.host) {
		return s.host
	}
	for _, p := range placed {
		if s := h.sessions[string(p.Node)]; s != nil && !onThisMachine(s.host) {
			return s.here
		}
	}
	return "127.0.0.1" // all of them are here
}

// onThisMachine says that a node's session comes from the head's own process, or by the loopback interface.
func onThisMachine(host string) bool {
	a, err := netip.ParseAddr(host)
	return err != nil || a.IsLoopback()
}

// isThisMachine says that an address is one of the head's own machine.
func isThisMachine(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return a.IsLoopback() || err == nil && slices.ContainsFunc(all, func(x net.Addr) bool {
		p, err := netip.ParsePrefix(x.String())
		return err == nil && p.Addr() == a.WithZone("")
	})
}
