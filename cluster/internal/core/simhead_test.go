package core

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// The head of a simulated cluster: one thing at a time, a store that may be slow, and a death between any two of its steps. See sim_test.go.

// step gives the head an event and does what it says, as far as it lives. While it writes it waits, and what comes waits for it.
func (s *sim) step(e Event) {
	switch {
	case s.head == nil:
	case s.saving:
		s.inbox = append(s.inbox, e)
	default:
		e.At = s.now
		for _, g := range s.agents {
			g.free = s.isFree(g)
		}
		s.acts = slices.Clone(s.head.Step(e))
		s.work()
	}
}

// work does what the head said.
func (s *sim) work() {
	for len(s.acts) > 0 {
		if s.dies == 0 {
			s.kill()
			return
		}
		if s.dies > 0 {
			s.dies--
		}
		a := s.acts[0]
		if (a.Do == SaveJob || a.Do == SaveNode) && !s.saving && s.slow() {
			s.saving = true
			s.slept++
			life := s.life
			s.after(s.upTo(3*time.Second), func() {
				if s.life == life {
					s.work()
					s.catchUp()
				}
			})
			return
		}
		s.saving = false
		s.acts = s.acts[1:]
		s.act(a)
	}
	if at, ok := s.head.Deadline(); ok && at != s.tick {
		s.tick = at
		life := s.life
		s.after(max(at-s.now, 0), func() {
			if s.life == life {
				s.tick = 0
				s.step(Event{Kind: Tick})
			}
		})
	}
}

// slow reports whether a write takes its time.
func (s *sim) slow() bool { return s.slows && s.r.IntN(20) == 0 }

// catchUp takes what came while the head wrote.
func (s *sim) catchUp() {
	for len(s.inbox) > 0 && !s.saving && s.head != nil {
		e := s.inbox[0]
		s.inbox = s.inbox[1:]
		s.step(e)
	}
}

// kill ends the head; another starts soon, with what the store has. What it was writing may be there.
func (s *sim) kill() {
	if s.saving && s.r.IntN(2) == 0 {
		s.act(s.acts[0])
	}
	s.acts, s.saving, s.inbox = nil, false, nil
	s.head, s.dies = nil, -1
	s.life++
	s.tick = 0
	for _, g := range s.agents {
		g.stream = 0
		s.dial(g)
	}
	s.after(s.upTo(20*time.Second), s.start)
}

func (s *sim) start() {
	s.head = &Machine{Life: fmt.Sprint(s.life)}
	s.dies = -1
	if !s.calm && s.r.IntN(2) == 0 {
		s.dies = s.r.IntN(60)
	}
	for _, id := range slices.Sorted(maps.Keys(s.nodes)) {
		n := s.nodes[id]
		s.step(Event{Kind: LoadNode, Node: n.node, State: n.state, Drained: n.drained, Epoch: n.epoch})
		if n.state != Gone && n.state != Left {
			s.renew(id, s.epochs[id]) // etcd gives leases their full time again, also that of a session that is not on record
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		if j := s.jobs[id]; j.saved && s.head != nil {
			s.step(Event{Kind: LoadJob, Spec: j.spec, Record: j.record})
		}
	}
}
