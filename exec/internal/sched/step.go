package sched

// Step takes an event and returns what to do, in order. The result is valid
// until the next call.
func (s *Sched) Step(e Event) []Action {
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
			s.await(t)
		}
	case Room:
		s.cfg.CPUs = e.CPUs
	case Stop:
		s.stop()
	}
	s.advance()
	return s.acts
}

func (s *Sched) act(a Action) { s.acts = append(s.acts, a) }

// find returns the task of e if e is of its current attempt.
func (s *Sched) find(e Event) *task {
	t := s.stages[e.Task.Stage].get(e.Task.N)
	if t == nil || t.attempt != e.Attempt {
		return nil
	}
	return t
}

func (s *Sched) emit(e Event) {
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
	if s.cfg.Unordered && len(t.queue) == 0 {
		s.stages[t.Stage].full.push(t.N)
	}
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
		s.stages[t.Stage].parked.push(t.N)
		s.act(Action{Kind: Park, Task: t.Task, Attempt: t.attempt})
	}
}

func (s *Sched) finish(e Event) {
	t := s.find(e)
	if t == nil {
		return
	}
	switch t.state {
	case Canceled:
		s.drained(t)
	case Running:
		s.idle(t, Done)
		if t.seen < len(t.made) {
			s.abort(t, Unstable)
			return
		}
		t.made = nil
		s.stages[t.Stage].done++
		if len(t.queue) == 0 {
			s.drained(t)
		}
	}
}

func (s *Sched) fail(e Event) {
	t := s.find(e)
	if t == nil {
		return
	}
	switch t.state {
	case Canceled:
		s.drained(t)
		return
	case Parked: // an attempt given up while it waited
		s.parked--
	case Running:
		s.idle(t, Asleep)
	default:
		return
	}
	if e.Class == Moved {
		t.attempt++
		t.seen = 0
		s.await(t)
		return
	}
	t.state = Asleep
	t.fails[e.Class]++
	t.last = e.Class
	switch {
	case e.Class == Fatal:
		s.abort(t, TaskFailed)
	case t.fails[e.Class] > s.cfg.Retry[e.Class] && e.Class == WorkerLost:
		s.abort(t, Poison)
	case t.fails[e.Class] > s.cfg.Retry[e.Class]:
		s.abort(t, TaskFailed)
	default:
		s.retries++
		t.attempt++
		t.seen = 0
		s.act(Action{Kind: Sleep, Task: t.Task, Attempt: t.attempt})
	}
}

// await has a task wait for its turn to start again.
func (s *Sched) await(t *task) {
	t.state = Ready
	s.ready++
	if t.isReady() {
		s.stages[t.Stage].ready.push(t.N)
	}
}

// idle takes a task off its CPU.
func (s *Sched) idle(t *task, to State) {
	t.state = to
	s.running--
	s.stages[t.Stage].running--
}

func (s *Sched) drained(t *task) {
	st := s.stages[t.Stage]
	st.tasks[t.N-st.base] = nil
	st.shift()
}

// abort ends the run because of t, which is at no CPU any more. An ordered run
// first delivers what comes before, so that it fails at the same row every time,
// and not at all if a limit is reached before.
func (s *Sched) abort(t *task, why Reason) {
	t.why = why
	if s.cfg.Unordered {
		s.abortNow(t)
		return
	}
	t.state = Failed
	s.failed++
}

func (s *Sched) abortNow(t *task) {
	why := t.why
	s.act(Action{Kind: Abort, Task: t.Task, Attempt: t.attempt, Reason: why, Lost: t.fails[WorkerLost]})
	s.stop()
}

func (s *Sched) stop() {
	for i := len(s.stages) - 1; i >= 0; i-- {
		s.close(s.stages[i])
	}
	s.over = true
}

// close gives up a stage and all that is queued in it.
func (s *Sched) close(st *stage) {
	if st.closed {
		return
	}
	st.closed = true
	for i, t := range st.tasks {
		if t == nil || t.state == Canceled {
			continue
		}
		if len(t.queue) > 0 {
			s.act(Action{Kind: Discard, Task: t.Task})
			s.queued -= t.bytes
			t.queue, t.bytes = nil, 0
		}
		switch t.state {
		case Running:
			s.idle(t, Canceled)
		case Parked:
			s.parked--
			t.state = Canceled
		case Ready:
			s.ready--
			st.tasks[i] = nil
			continue
		case Failed:
			s.failed--
			st.tasks[i] = nil
			continue
		default:
			st.tasks[i] = nil
			continue
		}
		s.act(Action{Kind: Cancel, Task: t.Task, Attempt: t.attempt})
	}
	st.shift()
}
