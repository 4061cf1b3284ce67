package sched

// scanning is a scheduler that looks at all open tasks where Sched keeps those that matter in order: the reference of TestScanning. What it shares with Sched looks at no others.
type scanning struct{ *Sched }

func (s scanning) Step(e Event) []Action {
	s.acts = s.acts[:0]
	if s.over {
		if e.Kind == Emit {
			s.act(Action{Kind: Drop, Task: e.Task, Attempt: e.Attempt})
		}
		return s.acts
	}
	switch e.Kind {
	case Pull:
		s.pull = true
	case Emit:
		s.emit(e)
	case Finish:
		s.finish(e)
	case Fail:
		s.fail(e)
	case Timer:
		if t := s.find(e); t != nil && t.state == Asleep {
			t.state = Ready
			s.ready++
		}
	case Room:
		s.cfg.CPUs = e.CPUs
	case Stop:
		s.stop()
	}
	s.advance()
	return s.acts
}

func (s scanning) emit(e Event) {
	t := s.find(e)
	drop := Action{Kind: Drop, Task: e.Task, Attempt: e.Attempt}
	if t == nil || t.state != Running {
		s.act(drop)
		return
	}
	t.seen++
	if t.seen <= len(t.made) {
		s.act(drop)
		if m := t.made[t.seen-1]; m.Row != e.Block.Row || m.Span != e.Block.Span || m.Rows != e.Block.Rows {
			s.idle(t, Canceled)
			s.act(Action{Kind: Cancel, Task: t.Task, Attempt: t.attempt})
			s.abort(t, Unstable)
		}
		return
	}
	t.made = append(t.made, e.Block)
	t.queue = append(t.queue, e.Block)
	t.bytes += e.Block.Bytes
	t.out += e.Block.Bytes
	s.out = max(s.out, t.out)
	s.queued += e.Block.Bytes
	s.block = max(s.block, e.Block.Bytes)
	s.act(Action{Kind: Queue, Task: t.Task, Attempt: t.attempt})
	s.deliver()
	if t.state == Running && !s.room(t) {
		s.idle(t, Parked)
		s.parked++
		s.act(Action{Kind: Park, Task: t.Task, Attempt: t.attempt})
	}
}

func (s scanning) advance() {
	for more := true; more && !s.over; {
		more = s.deliver()
		more = s.resume() || more
		more = s.start() || more
	}
	if s.over {
		return
	}
	h := s.frontier(s.root)
	if h == nil {
		s.headOK = false
		return
	}
	if h.state == Failed && s.pull {
		s.abortNow(h)
		return
	}
	if !s.headOK || h.Task != s.head || s.pull != s.starved {
		s.head, s.headOK, s.starved = h.Task, true, s.pull
		s.act(Action{Kind: Head, Task: h.Task, Starved: s.pull})
	}
}

func (s scanning) deliver() bool {
	if !s.pull {
		return false
	}
	r, ok := s.take(s.root)
	switch {
	case ok:
		s.act(Action{Kind: Deliver, From: r.from, Take: r.take, Cut: r.cut})
	case s.exhausted(s.root):
		s.act(Action{Kind: End})
	default:
		return false
	}
	s.pull = false
	s.closeCut()
	return true
}

func (s scanning) take(st *stage) (ref, bool) {
	if st.closed {
		return ref{}, false
	}
	if !st.owns() {
		return s.takeInput(st)
	}
	for _, t := range st.tasks {
		if t != nil && len(t.queue) > 0 {
			m := t.queue[0]
			t.queue = t.queue[1:]
			t.bytes -= m.Bytes
			s.queued -= m.Bytes
			if t.state == Done && len(t.queue) == 0 {
				s.drained(t)
			}
			return ref{from: t.Task, take: m.Rows}, true
		}
		if t != nil && !s.cfg.Unordered {
			break
		}
	}
	return ref{}, false
}

func (s scanning) takeInput(st *stage) (ref, bool) {
	if st.left == 0 {
		return ref{}, false
	}
	for i := st.cur; i < len(st.Inputs); i++ {
		in := s.stages[st.Inputs[i]]
		r, ok := s.take(in)
		if ok {
			if st.left >= 0 {
				r.take = min(r.take, st.left)
				if st.left -= r.take; st.left == 0 {
					r.cut = true
					s.closing = append(s.closing, st)
				}
			}
			return r, true
		}
		if s.exhausted(in) {
			if i == st.cur {
				st.cur++
			}
		} else if !s.cfg.Unordered {
			break
		}
	}
	return ref{}, false
}

func (s scanning) frontier(st *stage) *task {
	if st.closed {
		return nil
	}
	for _, t := range st.tasks {
		if t != nil && t.state != Done && t.state != Canceled {
			return t
		}
	}
	if st.Inputs == nil || st.left == 0 {
		return nil
	}
	for _, i := range st.Inputs[st.cur:] {
		in := s.stages[i]
		if t := s.frontier(in); t != nil {
			return t
		}
		if !s.cfg.Unordered && !s.exhausted(in) {
			return nil
		}
	}
	return nil
}

func (s scanning) room(t *task) bool {
	if s.cfg.Unordered {
		return s.queued < s.enough() || t.bytes == 0 && t == s.frontier(s.root)
	}
	if h := s.frontier(s.root); h == t {
		return t.bytes < s.cfg.OwnBytes || s.queued < s.enough()
	}
	return s.ahead() < s.enough()
}

func (s scanning) ahead() int64 {
	if h := s.frontier(s.root); h != nil {
		return s.queued - h.bytes
	}
	return s.queued
}

func (s scanning) mayRun(st *stage, t *task) bool { return s.cpu(st) || t == s.frontier(s.root) }

func (s scanning) resume() bool {
	did := false
	for i := len(s.stages) - 1; i >= 0 && s.parked > 0; i-- {
		st := s.stages[i]
		for _, t := range st.tasks {
			if t != nil && t.state == Parked && s.mayRun(st, t) && s.room(t) {
				s.parked--
				s.work(st, t)
				s.act(Action{Kind: Resume, Task: t.Task, Attempt: t.attempt})
				did = true
			}
		}
	}
	return did
}

func (s scanning) start() bool {
	did := false
	for i := len(s.stages) - 1; i >= 0; i-- {
		if st := s.stages[i]; st.Chain && !st.closed {
			did = s.startCut(st) || did
		}
	}
	for i := len(s.stages) - 1; i >= 0 && s.ready > 0; i-- {
		st := s.stages[i]
		for _, t := range st.tasks {
			if t == nil || t.state != Ready || !s.mayRun(st, t) || t.last == Exhausted && t != s.frontier(s.root) {
				continue
			}
			s.ready--
			s.work(st, t)
			s.act(Action{Kind: Start, Task: t.Task, Attempt: t.attempt, From: t.Task})
			did = true
		}
	}
	for _, st := range s.stages {
		if st.Inputs != nil || st.closed {
			continue
		}
		did = s.startScan(st) || did
		if !s.cfg.Unordered && st.next() < st.Tasks {
			break // what comes later would take the room of what comes first
		}
	}
	return did
}

func (s scanning) startCut(st *stage) bool {
	did := false
	for (s.cpu(st) || st.running == 0) && len(st.tasks) < s.cfg.AheadTasks && (len(st.tasks) == 0 || s.ahead() < s.enough()) {
		r, ok := s.takeInput(st)
		if !ok {
			break
		}
		t := s.add(st)
		s.act(Action{Kind: Start, Task: t.Task, Attempt: 1, From: r.from, Take: r.take, Cut: r.cut})
		s.closeCut()
		did = true
	}
	return did
}

func (s scanning) startScan(st *stage) bool {
	if s.failed > 0 { // what starts now comes after what failed
		return false
	}
	window := s.cfg.AheadTasks
	if st.limited { // read no more than must be: begin with one, open up as they are used up
		window = min(window, 1+2*st.base)
	}
	did := false
	for st.next() < st.Tasks {
		if st.Empty != nil && st.Empty[st.next()] {
			st.tasks = append(st.tasks, nil)
			st.shift()
			st.done++
			did = true
			continue
		}
		if !s.cpu(st) || len(st.tasks) >= window {
			break
		}
		if s.ahead() >= s.enough() && s.frontier(s.root) != nil {
			break
		}
		t := s.add(st)
		s.act(Action{Kind: Start, Task: t.Task, Attempt: 1, From: t.Task})
		did = true
	}
	return did
}
