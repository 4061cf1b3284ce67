package feed

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

const (
	helloTime = 10 * time.Second       // for a connection to say what it wants
	grace     = 500 * time.Millisecond // for the last frame of a connection to leave
)

// Serve gives the batches of its, one iterator per rank, to one consumer each. It takes the iterators
// over, and closes them when it returns. l must be a unix socket ([Listen] makes one); it stays
// open, so that the caller can serve other iterators on it.
//
// It returns nil when every rank was given up by its consumer; otherwise why it ended: ctx
// (Canceled), a failure of the job, or a consumer that was lost (WorkerLost). Consumers that are still
// connected get the same error.
func Serve(ctx context.Context, l net.Listener, its []*shard.Iterator, o *Options) (err error) {
	defer func() {
		for _, it := range its {
			err = errors.Join(err, it.Close())
		}
	}()
	ul, ok := l.(*net.UnixListener)
	if !ok || ul.Addr().Network() != "unix" {
		return fault.New(fault.Invalid, "batches are served on unix sockets only, not on %s: use feed.Listen", l.Addr().Network())
	}
	s := &server{seats: map[int]*seat{}, started: make(chan struct{}), wait: 5 * time.Minute, notice: &Notice{}}
	if o != nil {
		if s.again = o.Again; o.Notice != nil {
			s.notice = o.Notice
		}
		if o.Wait != 0 {
			s.wait = o.Wait
		}
		s.mask = o.Mask
	}
	if len(its) == 0 {
		return fault.New(fault.Invalid, "no iterators to serve")
	}
	for _, it := range its {
		if s.seats[it.Rank()] != nil {
			return fault.New(fault.Invalid, "two iterators of rank %d", it.Rank())
		}
		s.seats[it.Rank()] = &seat{it: it, wanted: make(chan struct{}, maxAhead)}
		s.ranks = append(s.ranks, it.Rank())
	}
	slices.Sort(s.ranks)
	parent := ctx
	ctx, s.end = context.WithCancelCause(context.WithoutCancel(parent))
	defer s.end(nil)
	canceled := func() { s.end(fault.WithCode(fault.Canceled, context.Cause(parent))) }
	if parent.Err() != nil {
		canceled() // before anybody is heard
	}
	stop := context.AfterFunc(parent, canceled)
	defer stop()
	woken := make(chan struct{})
	context.AfterFunc(ctx, func() {
		ul.SetDeadline(time.Unix(1, 0))
		close(woken)
	})
	for ctx.Err() == nil {
		c, err := ul.AcceptUnix()
		switch {
		case err == nil:
			s.conns.Go(func() { s.serve(ctx, c) })
		case ctx.Err() != nil:
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.ENOMEM):
			_ = pause(ctx, 50*time.Millisecond) // ctx is looked at next
		default:
			s.end(fault.New(fault.Unavailable, "the socket fails: %w", err))
		}
	}
	<-woken
	s.conns.Wait()
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	ul.SetDeadline(time.Time{})
	if err := context.Cause(ctx); err != errDone {
		return err
	}
	return nil
}

var errDone = errors.New("every rank was given up")

// server is one group of ranks.
type server struct {
	ranks   []int
	end     context.CancelCauseFunc // ends the group; the first cause counts
	conns   sync.WaitGroup
	closing sync.WaitGroup // of iterators, but the last
	wait    time.Duration
	again   bool
	notice  *Notice
	mask    func(string) string
	started chan struct{} // closed when all ranks have begun

	mu    sync.Mutex
	seats map[int]*seat // the map is constant
	timer *time.Timer
	open  bool // started is closed

	leaving int // ranks that are given up, or about to be
}

// seat is a rank.
type seat struct {
	it     *shard.Iterator
	wanted chan struct{} // one per frame that may be sent

	// guarded by server.mu
	pid      int  // of its consumer, where known
	taken    bool // by a connection
	restored bool
	begun    bool
	left     bool // given up
}

// take gives a rank to a connection.
func (s *server) take(rank, pid int) (*seat, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.seats[rank]
	switch {
	case st == nil:
		return nil, fault.New(fault.NotFound, "rank %d is not served here; have %s", rank, list(s.ranks))
	case st.left && s.again:
		return nil, fault.New(fault.Exists, "rank %d was given up by its consumer, and is free again when all others have been", rank)
	case st.left:
		return nil, fault.New(fault.Invalid, "rank %d was given up by its consumer: start the data process and all ranks again to have it back", rank)
	case st.taken:
		return nil, fault.New(fault.Exists, "rank %d is taken by process %d: every rank has one consumer", rank, st.pid)
	}
	st.taken, st.pid = true, pid
	return st, nil
}

// welcome says where a rank stands. Another may be restoring its state: not at the same time. What all ranks read ahead takes an eighth of the budget at most, but
// for two batches of each.
func (s *server) welcome(st *seat, ring int64) welcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return welcome{Rank: st.it.Rank(), Extent: st.it.Extent(), State: st.it.State(), Ring: ring, Ahead: min(st.it.Budget()/8/int64(len(s.ranks)), aheadBytes)}
}

// restore makes a rank go on from a state.
func (s *server) restore(st *seat, meta []byte) error {
	state, err := shard.ParseState(meta)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.begun {
		return fault.New(fault.Invalid, "restore: rank %d has begun: restore before the first batch is asked for", st.it.Rank())
	}
	if err := st.it.Restore(state); err != nil {
		return err
	}
	st.restored = true
	return nil
}

// begin notes that a rank wants its first batch.
func (s *server) begin(st *seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.begun = true
	if s.timer == nil && s.wait > 0 {
		s.timer = time.AfterFunc(s.wait, s.late)
	}
	s.check()
}

// vacate makes a rank free again whose consumer is lost before it restored or asked for anything: one
// that gave up while it waited to be heard, say. false: it is too late for that.
func (s *server) vacate(st *seat) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.begun || st.restored {
		return false
	}
	st.taken = false
	return true
}

// leave gives a rank up, and closes its iterator. The last one's feeds other nodes first, for as long as they need it.
func (s *server) leave(ctx context.Context, st *seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving++; s.leaving == len(s.ranks) {
		st.left = true
		s.conns.Go(func() {
			s.closing.Wait()
			if err := errors.Join(st.it.Feed(ctx), st.it.Close()); err != nil {
				s.end(err)
			}
			s.end(errDone)
		})
		return
	}
	s.closing.Add(1)
	s.mu.Unlock()
	err := st.it.Close()
	s.closing.Done()
	if err != nil {
		s.end(err)
	}
	s.mu.Lock()
	st.left = true
	s.check()
}

// check lets all ranks start once the last has begun; it needs mu.
func (s *server) check() {
	var with, without []int
	for _, r := range s.ranks {
		switch st := s.seats[r]; {
		case st.left:
		case !st.begun:
			return
		case st.restored:
			with = append(with, r)
		default:
			without = append(without, r)
		}
	}
	if s.open {
		return
	}
	if len(with) > 0 && len(without) > 0 {
		s.end(fault.New(fault.Invalid, "restore: %s restored a state, %s did not: all ranks go on from the same state", list(with), list(without)))
		return
	}
	s.open = true
	close(s.started)
}

// late ends a group that does not get together.
func (s *server) late() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open {
		return
	}
	var missing []int
	for _, r := range s.ranks {
		if st := s.seats[r]; !st.begun && !st.left {
			missing = append(missing, r)
		}
	}
	s.end(fault.New(fault.Stalled, "%s did not ask for a batch for %v, and all ranks begin together: start their consumers, or serve only the ranks that there are", list(missing), s.wait))
}

// serve talks with one consumer, until it leaves, is lost, or the group ends.
func (s *server) serve(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() {
		c.SetReadDeadline(time.Unix(1, 0))
		c.SetWriteDeadline(time.Now().Add(grace))
	})
	defer stop()
	// until bounds reads, unless the group has ended.
	until := func(t time.Time) {
		if c.SetReadDeadline(t); ctx.Err() != nil {
			c.SetReadDeadline(time.Unix(1, 0))
		}
	}
	var st *seat
	rank := -1
	err := samePeer(c)
	if err == nil {
		until(time.Now().Add(helloTime))
		rank, err = readHello(c)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return // only a look whether somebody listens, or too late
		}
	}
	if err == nil {
		_, pid, _, _ := peer(c) // for messages only
		st, err = s.take(rank, pid)
	}
	if err != nil {
		w := &sender{w: c, mask: s.mask}
		c.SetWriteDeadline(time.Now().Add(grace))
		w.write(preamble(nil))
		w.fail(err)
		return
	}
	until(time.Time{})
	w := &sender{w: c, mask: s.mask}
	pctx, quit := context.WithCancelCause(ctx)
	defer quit(errDone)
	var pump sync.WaitGroup
	left := false
	w.write(preamble(nil))
	if w.ring, err = newRing(st.it); err != nil {
		s.end(err)
	} else {
		defer w.ring.close()
		if err = w.welcome(c, s.welcome(st, w.ring.mem.Size())); err == nil || w.broken != nil {
			left, err = s.listen(c, st, w, func() { pump.Go(func() { s.pump(pctx, st, w) }) })
		}
	}
	switch {
	case left:
		c.SetWriteDeadline(time.Unix(1, 0))
	case ctx.Err() != nil:
	case s.vacate(st):
		if fault.CodeOf(err) == fault.Corrupt {
			w.fail(err)
		}
		return
	default:
		at := s.welcome(st, 0).State
		s.end(fault.New(fault.WorkerLost, "rank %d: its consumer, process %d, is lost (%v) after epoch %d, step %d was made ready for it: start all ranks again, and restore the last committed state",
			rank, st.pid, err, at.Epoch, at.Step))
	}
	quit(errDone)
	pump.Wait()
	st.it.SetMemory(nil)
	if left {
		s.leave(ctx, st)
		return
	}
	if w.broken == nil {
		cause := context.Cause(ctx)
		if fault.CodeOf(cause) == fault.Canceled {
			cause = fault.New(fault.Unavailable, "told to end (%w): start it again, and restore the last committed state", cause)
		}
		w.fail(cause)
	}
}

// listen reads what the consumer says: true when it gives its rank up, otherwise why the
// connection ended.
func (s *server) listen(c io.Reader, st *seat, w *sender, begin func()) (left bool, err error) {
	r := newReader(c, 0, 0)
	for {
		kind, meta, err := r.frame(maxState)
		if err != nil {
			return false, err
		}
		s.mu.Lock()
		begun := st.begun
		s.mu.Unlock()
		switch {
		case kind == frameBye:
			return true, nil
		case kind == frameRestore && !begun: // nobody else writes yet
			if err := s.restore(st, meta); err != nil {
				w.fail(err)
			} else {
				w.frame(frameDone, nil)
			}
		case kind == frameBegin && !begun && len(meta) == 8 && meta[4]&^beginPinned|meta[5]|meta[6]|meta[7] == 0 && st.want(binary.LittleEndian.Uint32(meta)):
			if meta[4]&beginPinned != 0 {
				w.ring.mem.Pin()
			}
			st.it.SetMemory(w.ring.mem) // before any rank makes the producer start
			s.begin(st)
			begin()
		case kind == frameMore && begun && len(meta) == 0 && st.want(1):
		case kind == frameFree && begun && len(meta) == 8 && w.ring.free(binary.LittleEndian.Uint64(meta)):
		default:
			return false, fault.New(fault.Corrupt, "a frame of kind %d that is wrong, or comes at the wrong time", kind)
		}
	}
}

// want lets n frames more be sent; false if that is too many.
func (st *seat) want(n uint32) bool {
	if n > maxAhead {
		return false
	}
	for range n {
		select {
		case st.wanted <- struct{}{}:
		default:
			return false
		}
	}
	return true
}

// pump sends batches until ctx ends or there are no more.
func (s *server) pump(ctx context.Context, st *seat, w *sender) {
	select {
	case <-s.started:
	case <-ctx.Done():
		return
	}
	at := st.it.State()
	err := w.json(frameStarted, at)
	ended := false // the last was the end of an epoch
	for err == nil {
		select {
		case <-st.wanted:
		case <-ctx.Done():
			return
		}
		var b *shard.Batch
		b, err = st.it.Next(ctx)
		switch {
		case err == io.EOF:
			last := at.Epoch
			if at = st.it.State(); ended && at.Epoch == last {
				w.frame(frameOver, nil)
				return
			}
			ended = true
			err = w.end(&at)
		case err == nil:
			at, ended = st.it.State(), false
			flags, ok := s.notice.flags(ctx, Step{b.Epoch(), b.Step()})
			if ok {
				err = w.batch(b, &at, flags)
			}
			if b.Release(); !ok {
				return
			}
		}
	}
	if _, ok := errors.AsType[*fault.Error](err); ok && ctx.Err() == nil {
		s.end(err) // of the job; what ends a connection is judged by who reads it
	}
}

// preamble appends what both sides begin with.
func preamble(b []byte) []byte {
	return binary.LittleEndian.AppendUint16(append(b, magic...), version)
}

// checkPreamble says what is wrong with the other side's.
func checkPreamble(b []byte, other string) error {
	if string(b[:len(magic)]) != magic {
		return fault.New(fault.Invalid, "what is at the other end of the socket is no %s of a feed", other)
	}
	if v := binary.LittleEndian.Uint16(b[len(magic):]); v != version {
		return fault.New(fault.Unsupported, "the %s speaks version %d of the feed, this process version %d: use one release for both", other, v, version)
	}
	return nil
}

// readHello reads what a consumer begins with: its rank.
func readHello(r io.Reader) (rank int, err error) {
	b := make([]byte, len(magic)+6)
	if _, err := io.ReadFull(r, b[:len(magic)+2]); err != nil {
		return 0, fault.New(fault.Unavailable, "no hello of a consumer: %w", err)
	}
	if err := checkPreamble(b, "consumer"); err != nil {
		return 0, err
	}
	if err := full(r, b[len(magic)+2:]); err != nil {
		return 0, fault.New(fault.Unavailable, "no hello of a consumer: %w", err)
	}
	return int(binary.LittleEndian.Uint32(b[len(magic)+2:])), nil
}
