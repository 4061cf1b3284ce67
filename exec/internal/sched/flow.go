package sched

// advance does all that can be done now.
func (s *Sched) advance() {
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

// ref is a block taken from a queue.
type ref struct {
	from Task
	take int64
	cut  bool
}

func (s *Sched) deliver() bool {
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

// closeCut closes what lies below limits that were reached, after the action
// that hands on the last block.
func (s *Sched) closeCut() {
	for _, st := range s.closing {
		s.each(st, s.close)
	}
	s.closing = s.closing[:0]
}

// take removes the next block of st.
func (s *Sched) take(st *stage) (ref, bool) {
	if st.closed {
		return ref{}, false
	}
	if !st.owns() {
		return s.takeInput(st)
	}
	t := st.get(st.base)
	if s.cfg.Unordered {
		t = st.lowest(&st.full, (*task).hasBlock)
	}
	if t == nil || len(t.queue) == 0 {
		return ref{}, false
	}
	m := t.queue[0]
	t.queue = t.queue[1:]
	t.bytes -= m.Bytes
	s.queued -= m.Bytes
	if len(t.queue) == 0 {
		if s.cfg.Unordered {
			st.full.pop()
		}
		if t.state == Done {
			s.drained(t)
		}
	}
	return ref{from: t.Task, take: m.Rows}, true
}

// takeInput removes the next block of the inputs of st, as far as its limit goes.
func (s *Sched) takeInput(st *stage) (ref, bool) {
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

// exhausted reports whether st will never have another block.
func (s *Sched) exhausted(st *stage) bool {
	switch {
	case st.closed:
		return true
	case st.Inputs == nil:
		return len(st.tasks) == 0 && st.next() >= st.Tasks
	case len(st.tasks) > 0:
		return false
	case st.left == 0:
		return true
	}
	for _, i := range st.Inputs[st.cur:] {
		if !s.exhausted(s.stages[i]) {
			return false
		}
	}
	return true
}

// frontier returns the first unfinished task below st in canonical order; nil
// if it has not been started.
func (s *Sched) frontier(st *stage) *task {
	if st.closed {
		return nil
	}
	for st.first = max(st.first, st.base); st.first < st.next(); st.first++ { // a task that is finished stays so
		if t := st.get(st.first); t != nil && t.state != Done && t.state != Canceled {
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

// room reports whether t may go on emitting.
func (s *Sched) room(t *task) bool {
	switch {
	case t != s.frontier(s.root):
		return s.roomBehind()
	case s.cfg.Unordered:
		return t.bytes == 0 || s.queued < s.enough()
	}
	return t.bytes < s.cfg.OwnBytes || s.queued < s.enough()
}

// roomBehind is room for any task but the head.
func (s *Sched) roomBehind() bool {
	if s.cfg.Unordered {
		return s.queued < s.enough()
	}
	return s.ahead() < s.enough()
}

// enough is how much may be queued ahead.
func (s *Sched) enough() int64 {
	most := int64(s.most)
	return min(s.cfg.AheadBytes, max(s.cfg.EnoughBytes, 4*s.block*most, min(s.out*most, s.cfg.WholeBytes, s.cfg.AheadBytes/2)))
}

// ahead is what tasks other than the head have queued.
func (s *Sched) ahead() int64 {
	if h := s.frontier(s.root); h != nil {
		return s.queued - h.bytes
	}
	return s.queued
}

// cpu reports whether there is a CPU for one more task of st.
func (s *Sched) cpu(st *stage) bool {
	return s.running < max(s.cfg.CPUs, st.Max) && (st.Most == 0 || st.running < st.Most)
}

// resume lets tasks go on for whose output there is room again, those nearest
// to the consumer first. The head, which is the first of its stage, needs no CPU:
// those that hold the CPUs may be waiting for memory that only its progress frees.
// So each stage may have one task more at work than there are CPUs; a cut two, see
// startCut. For the others of a stage there is room, or for none.
func (s *Sched) resume() bool {
	did := false
	for i := len(s.stages) - 1; i >= 0 && s.parked > 0; i-- {
		st := s.stages[i]
		var waits *task // the head
		for {
			t := st.lowest(&st.parked, (*task).isParked)
			if t == nil {
				break
			}
			head := t == s.frontier(s.root)
			if !head && !(s.cpu(st) && s.roomBehind()) {
				break
			}
			st.parked.pop()
			if head && !s.room(t) {
				waits = t
				continue
			}
			s.parked--
			s.work(st, t)
			s.act(Action{Kind: Resume, Task: t.Task, Attempt: t.attempt})
			did = true
		}
		if waits != nil {
			st.parked.push(waits.N)
		}
	}
	return did
}

func (s *Sched) work(st *stage, t *task) {
	t.state = Running
	s.running++
	st.running++
}

// start starts tasks: of cuts first, then attempts again, then scans.
func (s *Sched) start() bool {
	did := false
	for i := len(s.stages) - 1; i >= 0; i-- {
		if st := s.stages[i]; st.Chain && !st.closed {
			did = s.startCut(st) || did
		}
	}
	for i := len(s.stages) - 1; i >= 0 && s.ready > 0; i-- {
		st := s.stages[i]
		if h := s.frontier(s.root); h != nil && h.Stage == st.id && h.state == Ready { // needs no CPU, as in resume
			s.again(st, h)
			did = true
		}
		for {
			t := st.lowest(&st.ready, (*task).isReady)
			if t == nil || !s.cpu(st) {
				break
			}
			st.ready.pop()
			s.again(st, t)
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

// again starts another attempt.
func (s *Sched) again(st *stage, t *task) {
	s.ready--
	s.work(st, t)
	s.act(Action{Kind: Start, Task: t.Task, Attempt: t.attempt, From: t.Task})
}

func (s *Sched) startCut(st *stage) bool {
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

func (s *Sched) startScan(st *stage) bool {
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

// add opens the next task of st and puts it to work.
func (s *Sched) add(st *stage) *task {
	t := &task{Task: Task{st.id, st.next()}, attempt: 1}
	st.tasks = append(st.tasks, t)
	s.work(st, t)
	return t
}
