package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
)

const (
	// newsEvery is how often statistics are said while tasks are at work.
	newsEvery = 500 * time.Millisecond
	// ahead is how much work a node wants to have waiting at least, so that it does not idle while the leader hears that a task is over; it is more where the
	// leader takes longer to answer. mostAhead is the most tasks of it.
	ahead     = 4 * time.Millisecond
	mostAhead = 512
	mostLag   = 100 * time.Millisecond // of a leader that is merely slow: no more would help
	// waitingBytes of blocks of a task, and mostWaiting of them, may wait for the leader before the task does: so much is on its way while the leader answers.
	waitingBytes = 8 << 20
	mostWaiting  = 64
	// allBytes of blocks of all tasks may wait before another task begins, unless everything waits for that.
	allBytes = 4 * waitingBytes
)

// server runs tasks for a leader.
type server struct {
	l    *link
	w    *local.Worker
	work sync.WaitGroup // of tasks

	ctx    context.Context // of all tasks
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	joined  bool // the sink is there: tasks may begin
	queue   []*task
	tasks   map[uint64]*task // queued or at work
	free    int              // tasks that may still be put to work
	resume  []*task          // that have what they waited for, and wait for a CPU
	bytes   int64            // of blocks that wait
	inline  int64            // bytes of blocks of all tasks that may be sent without asking
	room    int              // as last said
	mean    time.Duration    // how long a task of late was at work
	lag     time.Duration    // how long the leader took of late to let a block come
	counts  []int64          // as last said
	moves   int64
	failed  error // nothing more is done
	refused error // why this node cannot work
}

// task is one that the leader sent.
type task struct {
	s       *server
	id      uint64
	job     *local.Job
	part    bool
	began   time.Time
	waited  time.Duration
	urgent  bool
	dropped bool

	waiting []*parcel // blocks that have been asked for
	bytes   int64     // of waiting
	inline  int64     // bytes that may be sent without asking, if server.inline allows it too
	changed chan struct{}
}

// parcel is a block that waits to be sent.
type parcel struct {
	b    *exec.Block
	head blockHead
	rec  *ipcrecord.Record
	rest []byte
	at   time.Time // when it was asked for
}

func (k *parcel) release() {
	if k.rec != nil {
		k.rec.End()
	}
	k.b.Release()
}

// add queues a task.
func (s *server) add(t *local.Task) error {
	k := &task{s: s, id: t.ID, part: t.Part >= 0, inline: inlineBytes, urgent: t.Urgent, changed: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tasks[t.ID] != nil || len(s.tasks) >= maxOpen {
		return errWords
	}
	var err error
	if k.job, err = s.w.Prepare(t, k.emit); err != nil {
		return err
	}
	s.tasks[k.id] = k
	at := len(s.queue)
	if k.urgent { // those before it may wait for what it frees
		at = 0
	}
	s.queue = slices.Insert(s.queue, at, k)
	s.schedule()
	return nil
}

// schedule puts tasks to work: first those that go on. It needs s.mu.
func (s *server) schedule() {
	for len(s.resume) > 0 && s.free > 0 {
		k := s.resume[0]
		s.resume = s.resume[1:]
		s.free--
		k.wake()
	}
	for len(s.queue) > 0 && s.joined && (s.free > 0 && s.bytes < allBytes || s.queue[0].urgent) {
		k := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.free--
		s.work.Go(func() {
			for k != nil {
				k = s.run(k)
			}
		})
	}
}

func (k *task) wake() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// urge says whether everything waits for a task: then it does not wait for a CPU.
func (s *server) urge(id uint64, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.tasks[id]
	if k == nil {
		return
	}
	k.urgent = on
	k.job.Urge(on)
	if !on {
		return
	}
	if i := slices.Index(s.queue, k); i > 0 {
		s.queue = slices.Insert(slices.Delete(s.queue, i, i+1), 0, k)
	}
	if i := slices.Index(s.resume, k); i >= 0 {
		s.resume = slices.Delete(s.resume, i, i+1)
		s.free--
		k.wake()
	}
	s.schedule()
}

var errDropped = fault.New(fault.Canceled, "it had not begun")

// drop ends a task. One that has not begun is gone at once: the leader waits for the end of parts, and for nothing else.
func (s *server) drop(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.tasks[id]
	if k == nil {
		return
	}
	k.dropped = true
	if i := slices.Index(s.queue, k); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
		delete(s.tasks, id)
		k.job.Drop()
		if k.part {
			s.l.say(kindFail, func(b []byte) []byte { return putError(putUint(b, id), errDropped) })
		}
		return
	}
	k.job.Cancel()
	k.wake()
}

// grant is room for a block of a task at the leader.
func (s *server) grant(id uint64, inline bool, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.tasks[id]
	if inline { // perhaps of a task that is over
		if s.inline += n; n > mostInline || s.inline > mostInline {
			return errWords
		}
		if k != nil {
			k.inline = min(k.inline+n, inlineBytes)
		}
		return nil
	}
	if k == nil {
		return nil
	}
	if len(k.waiting) == 0 || k.waiting[0].head.bytes() != n {
		return errWords
	}
	p := k.waiting[0]
	k.waiting = k.waiting[1:]
	k.bytes -= n
	s.bytes -= n
	s.lag += (time.Since(p.at) - s.lag) / 8
	s.send(p)
	k.wake()
	s.schedule()
	return nil
}

// send leaves a block to the writer.
func (s *server) send(p *parcel) {
	s.l.sayLong(kindBlock, p.head.put, func(w io.Writer) error {
		if p.rec != nil {
			if err := p.rec.Write(w); err != nil {
				return err
			}
		}
		_, err := w.Write(p.rest)
		return err
	}, p.release)
}

// emit takes over a block that the task made; on its goroutine.
func (k *task) emit(b *exec.Block, read int64) (err error) {
	p := &parcel{b: b, head: blockHead{id: k.id, split: b.Origin.Task, row: b.Row, span: b.Span, rows: b.Batch.NumRows(), read: read}}
	if p.head.rows > 0 {
		if p.rec, err = ipcrecord.New(b.Batch); err != nil {
			p.release()
			return err
		}
		p.head.meta, p.head.record = p.rec.Meta, p.rec.Size
	}
	if p.rest, err = putRest(nil, b); err != nil {
		p.release()
		return err
	}
	p.head.rest = int64(len(p.rest))
	n := p.head.bytes()
	if n > maxBlock {
		p.release()
		return fault.New(fault.Unsupported, "a block of %s cannot be sent to another node: at most %s", exec.Bytes(n), exec.Bytes(maxBlock))
	}
	s := k.s
	s.mu.Lock()
	if k.dropped || s.failed != nil {
		s.mu.Unlock()
		p.release()
		return exec.ErrDone
	}
	if c := p.head.cost(); len(k.waiting) == 0 && c <= min(k.inline, s.inline) {
		k.inline -= c
		s.inline -= c
		p.head.inline = true
		s.send(p)
		s.mu.Unlock()
		return nil
	}
	p.at = time.Now()
	k.waiting = append(k.waiting, p)
	k.bytes += n
	s.bytes += n
	s.l.say(kindWant, func(b []byte) []byte { return putUint(putUint(b, k.id), n) })
	s.mu.Unlock()
	return k.wait(mostWaiting-1, waitingBytes)
}

// wait returns once no more than so many blocks, of so many bytes, wait. Meanwhile the task takes no CPU.
func (k *task) wait(most int, bytes int64) error {
	s := k.s
	s.mu.Lock()
	defer s.mu.Unlock()
	over := func() bool { return len(k.waiting) > most || k.bytes > bytes }
	if !over() {
		return nil
	}
	start := time.Now()
	s.free++
	s.schedule()
	for over() && !k.dropped && s.failed == nil {
		s.mu.Unlock()
		<-k.changed
		s.mu.Lock()
	}
	if k.urgent || k.dropped || s.failed != nil {
		s.free--
	} else {
		s.resume = append(s.resume, k)
		s.schedule()
		for slices.Contains(s.resume, k) && !k.dropped && s.failed == nil {
			s.mu.Unlock()
			<-k.changed
			s.mu.Lock()
		}
		if i := slices.Index(s.resume, k); i >= 0 {
			s.resume = slices.Delete(s.resume, i, i+1)
			s.free--
		}
	}
	k.waited += time.Since(start)
	if k.dropped || s.failed != nil {
		return exec.ErrDone
	}
	return nil
}

// run is a task at work. It returns the next one for its goroutine, if there is one.
func (s *server) run(k *task) (next *task) {
	k.began = time.Now()
	s.l.say(kindBegun, func(b []byte) []byte { return putUint(b, k.id) })
	res, err := s.w.Do(s.ctx, k.job)
	if err == nil {
		err = k.wait(0, 0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range k.waiting {
		p.release()
	}
	s.bytes -= k.bytes
	k.waiting, k.bytes = nil, 0
	delete(s.tasks, k.id)
	k.dropped = true // where its code was left behind, and comes to emit just now
	k.wake()
	s.free++
	took := time.Since(k.began) - k.waited
	s.mean = max(took, s.mean+(took-s.mean)/8) // at once up, slowly down: what lies here cannot be done elsewhere
	if len(s.queue) > 0 && len(s.resume) == 0 && s.free == 1 && s.bytes < allBytes && s.failed == nil {
		next = s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.free--
	} else {
		s.schedule()
	}
	if len(s.tasks) == 0 {
		s.news() // all that was done is counted before it is said to be done
	}
	switch {
	case err != nil && s.ctx.Err() != nil: // it was stopped because the connection ends, which says so: perhaps the leader still hears this node
	case err != nil:
		s.l.say(kindFail, func(b []byte) []byte { return putError(putUint(b, k.id), err) })
	default:
		s.l.say(kindDone, func(b []byte) []byte {
			b = putUint(putUint(b, k.id), max(res.Rows, 0))
			return putBytes(putUint(putUint(b, max(res.Ratio, 0)), k.job.Read()), res.Report)
		})
	}
	s.ask()
	return next
}

// ask says how many tasks are wanted, where that has changed much. It needs s.mu.
func (s *server) ask() {
	n := s.w.Tasks()
	work := max(ahead, min(2*s.lag, mostLag)) * time.Duration(s.w.CPUs())
	more := min(int(work/max(s.mean, time.Microsecond)), mostAhead)
	if more == 0 && 10*work > s.mean { // or much of the time is spent waiting
		more = 1
	}
	n += more
	if n > s.room*5/4 || n < s.room*3/4 {
		s.room = n
		s.l.say(kindRoom, func(b []byte) []byte { return putUint(b, n) })
	}
}

// news says what the statistics grew by. It needs s.mu.
func (s *server) news() {
	now, moves := s.w.Counts(), s.w.Moves()
	if slices.Equal(now, s.counts) && moves == s.moves {
		return
	}
	held, peak := s.w.Memory()
	s.l.say(kindNews, func(b []byte) []byte {
		b = putGrown(b, now, s.counts)
		b = putUint(putUint(b, max(held, 0)), max(peak, 0))
		return putFlag(b, moves != s.moves)
	})
	s.counts, s.moves = now, moves
}

// stop ends all tasks and waits for them.
func (s *server) stop(err error) {
	s.mu.Lock()
	s.failed = err
	s.cancel(exec.ErrDone)
	queue := s.queue
	s.queue = nil
	for _, k := range queue {
		delete(s.tasks, k.id)
		k.job.Drop()
	}
	for _, k := range s.tasks {
		k.job.Cancel()
		k.wake()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// serve is a run on a node that does not lead: it does what the leader sends, until that says that the run is over.
func (r *Runner) serve(ctx context.Context, g *exec.Graph, joint exec.Joint, o *exec.Options) error {
	mine, err := r.words(ctx, g, joint, o)
	if err != nil {
		return err // the leader finds the same
	}
	gather, stop := context.WithTimeoutCause(ctx, r.o.Gather, fault.New(fault.Unavailable, "%w: node 0 did not begin within %v", ErrLost, r.o.Gather))
	defer stop()
	gather, stopWatch := r.o.Departures.watch(gather, 0)
	defer stopWatch()
	begun := sync.OnceFunc(r.waiting(func() string { return "0" }))
	defer begun()
	c, err := r.g.Dial(gather, 0, service)
	if err = departure(gather, err); err != nil {
		if isDeparture(err) {
			return err
		}
		if ctx.Err() == nil && fault.CodeOf(err) == fault.Unavailable { // it did not begin in time, or nobody answers there
			err = fault.New(fault.Unavailable, "%w: %w", ErrLost, err)
		}
		return err
	}
	l := newLink(c)
	defer l.close()
	unwatch := context.AfterFunc(ctx, func() { l.fail(fault.WithCode(fault.Canceled, context.Cause(ctx))) })
	defer unwatch()
	err = r.served(ctx, gather, begun, l, g, joint, o, &mine)
	if cause := context.Cause(ctx); cause != nil && err != nil && err != exec.ErrServed {
		err = fault.WithCode(fault.Canceled, cause)
	}
	return err
}

// served is serve over a connection. gather is how long the leader may take to begin: it accepts nobody before, and pings nobody. begun is called once it has.
func (r *Runner) served(ctx, gather context.Context, begun func(), l *link, g *exec.Graph, joint exec.Joint, o *exec.Options, mine *hello) error {
	var h hello
	l.patient = true
	late := context.AfterFunc(gather, func() { l.fail(context.Cause(gather)) })
	err := l.hear(kindHello, &h)
	late()
	begun()
	l.patient = false
	if errors.Is(err, ErrEnded) {
		return err
	}
	if err != nil && r.o.Departures != nil { // who leaves says so before its connections end: that may be heard after this
		select {
		case <-gather.Done():
		case <-time.After(goodbye):
		}
	}
	if err = departure(gather, err); isDeparture(err) {
		return err
	}
	if err != nil {
		if cause := context.Cause(gather); cause != nil {
			err = cause
		}
		return lostLeader(err)
	}
	answer := func(a ready) {
		said, _ := json.Marshal(a) // numbers and texts
		l.say(kindReady, func(b []byte) []byte { return append(b, said...) })
	}
	refuse := func(err error) error {
		answer(ready{Code: fault.CodeOf(err).String(), Text: err.Error()})
		return err
	}
	if err := differs(mine.Words, h.Words); err != nil {
		return refuse(err)
	}
	if h.Parts != mine.Parts || h.Settings.BatchRows < 1 || h.Settings.BatchBytes < 1 || h.Inline < 0 || h.Inline > mostInline {
		return refuse(errWords)
	}
	if !h.Parts {
		joint = nil
	}
	s := &server{l: l, tasks: map[uint64]*task{}, mean: ahead, joined: joint == nil, inline: h.Inline}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.cancel(nil)
	s.w, err = local.New(&local.Options{Log: r.o.Log}).Worker(s.ctx, g, joint, o, h.Settings)
	if err != nil {
		return refuse(err)
	}
	s.free, s.room = s.w.Tasks(), s.w.Tasks()
	s.counts = s.w.Counts()
	answer(ready{CPUs: s.w.CPUs(), Room: s.room})
	var join sync.WaitGroup
	quit := make(chan struct{})
	join.Go(func() { s.tell(quit) })
	err = s.listen(func() {
		join.Go(func() { s.join(ctx, joint) })
	})
	why := err
	if why == nil {
		why = exec.ErrServed
	}
	s.stop(why)
	close(quit)
	join.Wait()
	if e := s.w.Close(); err == nil {
		err = e
	}
	if joint != nil {
		if e := joint.Leave(); err == nil {
			err = e
		}
	}
	s.mu.Lock()
	if s.refused != nil {
		err = s.refused
	}
	s.mu.Unlock()
	if err == nil {
		l.say(kindEnd, func(b []byte) []byte { return putFlag(b, true) })
		err = exec.ErrServed
	}
	return err
}

func lostLeader(err error) error {
	if errors.Is(err, ErrLost) {
		return err
	}
	return fault.New(fault.WorkerLost, "%w: node 0: %w", ErrLost, err)
}

// tell says from time to time how far tasks are.
func (s *server) tell(quit chan struct{}) {
	t := time.NewTicker(newsEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.mu.Lock()
			s.news()
			s.mu.Unlock()
		case <-quit:
			return
		}
	}
}

// join joins the leader's sink; tasks wait for it.
func (s *server) join(ctx context.Context, joint exec.Joint) {
	err := s.w.Join(ctx, joint)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.refused = err
		s.l.say(kindEnd, func(b []byte) []byte { return putError(putFlag(b, false), err) })
		return // the leader ends the run
	}
	s.joined = true
	s.schedule()
}

// listen does what the leader says until the run is over; an error is that of the run, or of the connection.
func (s *server) listen(begin func()) error {
	var buf []byte
	s.mu.Lock()
	begun, joined := false, s.joined // no sink
	s.mu.Unlock()
	for {
		kind, said, err := s.l.next(buf)
		if err != nil {
			return lostLeader(err)
		}
		buf = said
		w := &words{b: said}
		switch kind {
		case kindPing:
		case kindBegin:
			if begun || joined {
				return errWords
			}
			begun = true
			begin()
		case kindTask:
			t := takeTask(w)
			if err := w.end(); err != nil {
				return err
			}
			err = s.add(t)
		case kindCancel:
			s.drop(w.uint())
		case kindUrge:
			id, on := w.uint(), w.flag()
			s.urge(id, on)
		case kindGrant:
			id, inline, n := w.uint(), w.flag(), w.num(maxBlock)
			err = s.grant(id, inline, n)
		case kindEnd:
			if w.flag() {
				return w.end()
			}
			e := takeError(w)
			if err := w.end(); err != nil {
				return err
			}
			return fault.New(e.Code, "%w: %w", ErrEnded, e)
		default:
			return errWords
		}
		if err == nil {
			err = w.end()
		}
		if err != nil {
			return err
		}
	}
}
