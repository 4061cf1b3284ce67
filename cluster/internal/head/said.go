package head

import (
	"fmt"
	"math"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/place"
	"github.com/penstock-data/penstock/internal/fault"
)

// A node is believed about what the head has placed on it, and about nothing else
// (docs/security.md). What it says is read here, where it enters: it becomes something that the
// loop does, which is of this session, and of processes that package core has on this node in the
// attempt that goes on. What is about others is passed over, as an honest node may be late with it.
// What no honest node says ends the session.

const (
	// mostSaid messages of a session wait for the loop, each of up to mostMessage bytes; those with
	// a log do not wait, and have more.
	mostSaid    = 256
	mostMessage = 128 << 10
	// mostProcesses are named by a hello, of each kind: there are not more on a node.
	mostProcesses = 2 * mostJobs
	// mostAttaches sessions of a node begin in a row, and attachesPerSecond after that: each costs
	// the store writes.
	mostAttaches, attachesPerSecond = 30, 2
	// mostWarned lines of the log are about what a session says of others.
	mostWarned = 20
)

// take reads what a node said, at a time, and returns what the loop does about it; nil: nothing.
func (h *Head) take(s *session, m *pb.FromAgent, at time.Time) (do func() error, err error) {
	if c := m.GetLog(); c != nil {
		return nil, s.answer(c)
	}
	if n := proto.Size(m); n > mostMessage {
		return nil, fault.New(fault.Corrupt, "node %s says something of %d bytes: %d are the most", s.node, n, mostMessage)
	}
	node := place.Node{ID: place.NodeID(s.node)}
	switch x := m.GetSay().(type) {
	case *pb.FromAgent_Beat:
		used := usedOf(x.Beat.GetUsed())
		return func() error {
			if h.sessions[s.node] == s {
				h.used[s.node], h.seen[s.node] = used, at
			}
			return nil
		}, nil
	case *pb.FromAgent_Started:
		p, ok := jobs.ParseProcess(x.Started)
		if !ok {
			return nil, nil
		}
		return func() error {
			return h.step(core.Event{Kind: core.Started, Node: node, Epoch: s.epoch, Process: p})
		}, nil
	case *pb.FromAgent_Exited:
		end, ok := endOf(x.Exited)
		if !ok {
			return nil, nil
		}
		return func() error {
			return h.step(core.Event{Kind: core.Exited, Node: node, Epoch: s.epoch, Ended: []core.End{h.ended(s, end, at)}})
		}, nil
	case *pb.FromAgent_Listening:
		return func() error { h.listening(s, x.Listening); return nil }, nil
	case *pb.FromAgent_Certified:
		return func() error { return h.certified(s, x.Certified) }, nil
	}
	return nil, fault.New(fault.Corrupt, "node %s says what no node says: %.20q", s.node, fmt.Sprintf("%T", m.GetSay()))
}

// checkHello refuses what no agent says of itself, beside its inventory.
func checkHello(node string, hello *pb.Hello) error {
	if a := hello.GetAgent(); len(a) > 64 || odd(a) {
		return fault.New(fault.Invalid, "node %s: hello.agent has up to 64 bytes without control characters; this has not: %.100q", node, a)
	}
	var ended []string
	for _, x := range hello.GetExited() {
		ended = append(ended, x.GetProcess())
	}
	for _, list := range []struct {
		field string
		of    []string
	}{{"running", hello.GetRunning()}, {"exited", ended}, {"waiting", hello.GetWaiting()}} {
		if len(list.of) > mostProcesses {
			return fault.New(fault.Invalid, "node %s: hello.%s has %d processes; %d are the most", node, list.field, len(list.of), mostProcesses)
		}
		seen := make(map[string]bool, len(list.of))
		for _, p := range list.of {
			if seen[p] {
				return fault.New(fault.Invalid, "node %s: hello.%s has process %.100q twice", node, list.field, p)
			}
			seen[p] = true
		}
	}
	return nil
}

// attaches counts a session that begins, and refuses one of a node that begins too many. Part of
// the loop.
func (h *Head) attaches(node string) error {
	if h.attached[node] == nil {
		h.attached[node] = rate.NewLimiter(attachesPerSecond, mostAttaches)
	}
	if !h.attached[node].Allow() {
		return fault.New(fault.Unavailable, "node %s attaches again and again: wait a few seconds", node)
	}
	return nil
}

// warn logs that a session says what it has no business with; after some lines nothing.
func (h *Head) warn(s *session, why string) {
	switch n := s.warned.Add(1); {
	case n < mostWarned:
		h.log.Warn(fmt.Sprintf("node %s: %s", s.node, why), "node", s.node)
	case n == mostWarned:
		h.log.Warn(fmt.Sprintf("node %s: %s; no more is logged of what it says in this session", s.node, why), "node", s.node)
	}
}

// processes reads names, and leaves out what is none.
func processes(names []string) (ps []jobs.Process) {
	for _, s := range names {
		if p, ok := jobs.ParseProcess(s); ok {
			ps = append(ps, p)
		}
	}
	return ps
}

// mostAgo is the most that counts of how long ago a process ended.
const mostAgo = 24 * time.Hour

// mostAt is how many places count at which a process ended.
const mostAt = 64

// mostEnd is of the words with which a process ended, in bytes, and mostPlace of a place.
const mostEnd, mostPlace = 4 << 10, 1 << 10

// endOf reads how a process ended. A class that there is not is a crash, and codes are those that a
// process can have, or -1.
func endOf(x *pb.Exited) (core.End, bool) {
	p, ok := jobs.ParseProcess(x.GetProcess())
	class := jobs.Class(x.GetClass())
	switch class {
	case jobs.None, jobs.Crash, jobs.Memory, jobs.User, jobs.Refused, jobs.Unfit, jobs.Preemption:
	default:
		class = jobs.Crash
	}
	at := x.GetAt()
	at = at[:min(len(at), mostAt)]
	for i, s := range at {
		at[i] = prefix(s, mostPlace)
	}
	ago := time.Duration(min(max(x.GetAgoMs(), 0), mostAgo.Milliseconds())) * time.Millisecond
	return core.End{Process: p, Class: class, Code: min(max(x.GetCode(), -1), math.MaxUint32), Text: prefix(x.GetText(), mostEnd), At: at, Ago: ago}, ok
}

// ended is an end that was heard at a time, as the loop comes to it: without the secrets of the
// job, where the process is on this node, and as long ago as it is now.
func (h *Head) ended(s *session, end core.End, heard time.Time) core.End {
	if node, ok := h.core.Where(end.Process); ok && string(node) == s.node {
		end = h.masked(end)
	}
	end.Ago += time.Since(heard)
	return end
}

// prefix is what a text begins with, up to n bytes in whole characters: no message carries others.
func prefix(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
