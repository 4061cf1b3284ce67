package head

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/jobs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/term"
)

const (
	// readWait is how long a node waits for more of a log before it says that there is none.
	readWait = 10 * time.Second
	// readMost is how long the head waits for a node.
	readMost = 15 * time.Second
	// mostAsked questions of a session wait for their answers, those included that nobody waits for
	// any more.
	mostAsked = 1024
	// mostChunk is the most of a log that answers a question, mostOffset what a process may have
	// printed before it, and mostError what a node may say of why there is none: bytes.
	mostChunk, mostOffset, mostError = 256 << 10, 1 << 60, 1 << 10
	// mostRead is the most of the log of a process that is read without following it: nodes keep
	// less.
	mostRead = 4 << 30
)

// question is what a session was asked: for a part of a log.
type question struct {
	process string
	offset  int64
	answer  chan *pb.LogChunk // has room for one: there is no other
}

// ask asks the node of a session for a part of a log, and returns where its answer comes. What is
// answered to an id that this session was not asked by is refused, and no other session knows the
// id.
func (s *session) ask(process string, offset int64, follow bool) (<-chan *pb.LogChunk, error) {
	q := &question{process, offset, make(chan *pb.LogChunk, 1)}
	var b [8]byte
	s.mu.Lock()
	if len(s.asked) >= mostAsked {
		s.mu.Unlock()
		return nil, fault.New(fault.Exhausted, "node %s has not answered %d questions for logs: try again", s.node, mostAsked)
	}
	rand.Read(b[:])
	id := binary.LittleEndian.Uint64(b[:])
	if s.asked == nil {
		s.asked = map[uint64]*question{}
	}
	s.asked[id] = q
	s.mu.Unlock()
	s.tell(&pb.FromHead{Say: &pb.FromHead_ReadLog{ReadLog: &pb.ReadLog{Request: id, Process: process, Offset: offset, Follow: follow, WaitMs: readWait.Milliseconds()}}})
	return q.answer, nil
}

// answer takes what the node of a session says to a question. An error: it was not asked that, or
// was not asked for such an answer. Who asked may have gone: that is no fault of the node.
func (s *session) answer(c *pb.LogChunk) error {
	s.mu.Lock()
	q := s.asked[c.GetRequest()]
	delete(s.asked, c.GetRequest())
	s.mu.Unlock()
	data := int64(len(c.GetData()))
	switch {
	case q == nil:
		return fault.New(fault.Corrupt, "node %s answers a question for a log that it was not asked", s.node)
	case c.GetProcess() != q.process:
		return fault.New(fault.Corrupt, "node %s was asked for the log of %s, and answers with that of %.100q", s.node, q.process, c.GetProcess())
	case data > mostChunk:
		return fault.New(fault.Corrupt, "node %s answers with %d bytes of a log: %d are the most", s.node, data, mostChunk)
	case c.GetOffset() < 0 || c.GetOffset() > mostOffset || data > 0 && c.GetOffset() < q.offset:
		return fault.New(fault.Corrupt, "node %s was asked for the log of %s from byte %d on, and answers with byte %d", s.node, q.process, q.offset, c.GetOffset())
	}
	q.answer <- &pb.LogChunk{Data: c.GetData(), Offset: c.GetOffset(), End: c.GetEnd(), Error: prefix(term.Line(prefix(c.GetError(), mostError)), mostError)}
	return nil
}

// Logs gives what a job printed, attempt after attempt; with follow until it is over. Of one on
// several nodes, with follow, as it comes; without, node after node.
func (c controlServer) Logs(q *pb.LogsRequest, stream grpc.ServerStreamingServer[pb.LogChunk]) error {
	h := c.h
	ctx := stream.Context()
	tail := q.GetTail()
	if tail < 0 {
		return fault.New(fault.Invalid, "the last %d bytes of a log: there are 0, for all, or more", tail)
	}
	var nodes int64
	var sending sync.Mutex
	send := func(c *pb.LogChunk) error {
		sending.Lock()
		defer sending.Unlock()
		c.Nodes = nodes
		return stream.Send(c)
	}
	for given := int64(0); ; { // attempts
		var a ran
		var id string
		var over bool
		var changed chan struct{}
		if err := h.do(ctx, func() error {
			r, err := h.jobFor(rpc.PeerOf(ctx), q.GetJob())
			if err != nil {
				return err
			}
			id, over, changed, a = r.ID, r.Value.Record.State.Over(), h.changed, ran{}
			nodes = members(r.Value.Job)
			for i, x := range r.Value.Ran {
				if x.Attempt > given && (tail == 0 || i == len(r.Value.Ran)-1) {
					a = x
					break
				}
			}
			return nil
		}); err != nil {
			return err
		}
		if a.Attempt == 0 {
			if over || !q.GetFollow() {
				return nil
			}
			if err := h.await(ctx, changed); err != nil {
				return err
			}
			continue
		}
		given = a.Attempt
		all, cancel := context.WithCancelCause(ctx)
		var reading sync.WaitGroup
		for i, node := range a.Nodes {
			read := func() {
				if err := h.logOf(all, jobs.Process{Job: id, Attempt: a.Attempt, Member: i, Life: a.Life}, node, -tail, q.GetFollow(), send); err != nil {
					cancel(err)
				}
			}
			if q.GetFollow() {
				reading.Go(read)
			} else if all.Err() == nil {
				read()
			}
		}
		reading.Wait()
		err := context.Cause(all)
		cancel(nil)
		if err != nil {
			return err
		}
		tail = 0
	}
}

// await waits until what the loop has changes, or returns why it does not wait for that.
func (h *Head) await(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return fault.WithCode(fault.Canceled, context.Cause(ctx))
	case <-h.ctx.Done():
		return h.ends("")
	}
}

// logOf gives the log of one process; with follow, of one that runs on a node that is away for now,
// when it is back.
func (h *Head) logOf(ctx context.Context, p jobs.Process, node string, offset int64, follow bool, send func(*pb.LogChunk) error) error {
	for read := int64(0); ; {
		var answer <-chan *pb.LogChunk
		var gone, runs bool
		var s *session
		var changed chan struct{}
		if err := h.do(ctx, func() (err error) {
			changed = h.changed
			if r := h.jobs[p.Job]; r != nil {
				runs = r.Value.Record.Attempt == p.Attempt && len(r.Value.Record.Placed) > 0
			}
			s = h.sessions[node]
			if gone = s == nil; !gone {
				answer, err = s.ask(p.String(), offset, follow)
			}
			return err
		}); err != nil {
			return err
		}
		if gone && runs && follow {
			if err := h.await(ctx, changed); err != nil {
				return err
			}
			continue
		}
		if gone {
			return send(&pb.LogChunk{Process: p.Short(), Error: fmt.Sprintf("the log of attempt %d is on node %s, which is not attached", p.Attempt, node)})
		}
		asked := time.Now()
		var c *pb.LogChunk
		timer := time.NewTimer(readMost)
		select {
		case c = <-answer:
		case <-s.done: // it may come back
			timer.Stop()
			if err := h.do(ctx, func() error {
				if changed = nil; h.sessions[node] == s { // the end of the session is not dealt with yet
					changed = h.changed
				}
				return nil
			}); err != nil {
				return err
			}
			if changed != nil {
				select {
				case <-changed:
				case <-time.After(time.Second):
				case <-ctx.Done():
					return fault.WithCode(fault.Canceled, context.Cause(ctx))
				}
			}
			continue
		case <-timer.C:
			c = &pb.LogChunk{Error: fmt.Sprintf("node %s does not say what the log of attempt %d holds", node, p.Attempt), End: true}
		case <-ctx.Done():
		}
		timer.Stop()
		if c == nil {
			return fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		n := int64(len(c.GetData()))
		if read += n; !follow && read > mostRead {
			c = &pb.LogChunk{Error: fmt.Sprintf("node %s gives more of the log of attempt %d than nodes keep", node, p.Attempt), End: true}
		}
		c.Process = p.Short()
		if n > 0 || c.GetError() != "" || c.GetEnd() {
			if err := send(c); err != nil {
				return err
			}
		}
		if c.GetEnd() || n == 0 && (c.GetError() != "" || !follow) {
			return nil
		}
		if n > 0 || offset < 0 {
			offset = c.GetOffset() + n
		}
		if n == 0 { // it waited for more, or says so: it is not asked more often for that
			select {
			case <-time.After(readWait - time.Since(asked)):
			case <-ctx.Done():
				return fault.WithCode(fault.Canceled, context.Cause(ctx))
			}
		}
	}
}
