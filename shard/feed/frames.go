package feed

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcmeta"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/shard"
)

// reader reads frames. One goroutine uses it.
type reader struct {
	r     *bufio.Reader
	rank  int
	alloc memory.Allocator
	limit int64 // bytes of a batch
	head  [header]byte
	meta  []byte // reused
	seen  int    // the largest body so far: as many bytes are believed
	base  shard.State
	ipc   *ipc.Reader
}

func newReader(r io.Reader, rank int, alloc memory.Allocator, limit int64) *reader {
	return &reader{r: bufio.NewReaderSize(r, 16<<10), rank: rank, alloc: alloc, limit: limit}
}

func (r *reader) close() {
	if r.ipc != nil {
		r.ipc.Release()
		r.ipc = nil
	}
}

// frame reads a header and meta, which is valid until the next call. io.EOF: none follows.
func (r *reader) frame(most int) (kind byte, meta []byte, body int64, err error) {
	if _, err := io.ReadFull(r.r, r.head[:1]); err != nil {
		return 0, nil, 0, err // io.EOF between frames
	}
	if err := full(r.r, r.head[1:]); err != nil {
		return 0, nil, 0, err
	}
	h := r.head[:]
	n := int64(binary.LittleEndian.Uint32(h[4:]))
	body = int64(binary.LittleEndian.Uint64(h[8:]))
	if h[1]|h[2]|h[3] != 0 || body < 0 || body > 0 && h[0] != frameTensors {
		return 0, nil, 0, fault.New(fault.Corrupt, "the feed is damaged: no header of a frame")
	}
	if n > int64(most) {
		return 0, nil, 0, fault.New(fault.Corrupt, "the feed is damaged: a frame of kind %d with %d bytes of meta; at most %d", h[0], n, most)
	}
	for got := 0; got < int(n); {
		want := min(int(n), max(cap(r.meta), believed, 2*got))
		r.meta = slices.Grow(r.meta[:got], want-got)[:want]
		if err := full(r.r, r.meta[got:]); err != nil {
			return 0, nil, 0, err
		}
		got = want
	}
	return h[0], r.meta[:n], body, nil
}

func full(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

var errDamaged = fault.New(fault.Corrupt, "the feed is damaged: a frame that does not decode")

// item is what a frame of the data process gives a consumer.
type item struct {
	batch *shard.Batch
	state shard.State // after it
	eof   bool        // the end of an epoch
	over  bool        // no epoch follows
	err   error
}

// next reads up to something that Next returns.
func (r *reader) next() (item, error) {
	for {
		kind, meta, size, err := r.frame(maxMeta)
		if err != nil {
			return item{}, err
		}
		c := &cursor{b: meta}
		switch kind {
		case frameStarted:
			if len(meta) > maxState {
				return item{}, errDamaged
			}
			if r.base, err = shard.ParseState(meta); err != nil {
				return item{}, err
			}
		case frameEnd:
			x := item{eof: true, state: c.position(&r.base)}
			if c.bad || len(c.b) > 0 {
				return item{}, errDamaged
			}
			return x, nil
		case frameOver:
			return item{over: true}, nil
		case frameError:
			return item{}, remoteError(meta)
		case frameRecord, frameTensors:
			return r.batch(kind, c, size)
		default:
			return item{}, fault.New(fault.Corrupt, "the feed is damaged: a frame of kind %d", kind)
		}
	}
}

// batch reads a batch, which the caller owns.
func (r *reader) batch(kind byte, c *cursor, size int64) (item, error) {
	x := item{state: c.position(&r.base)}
	p := shard.Parts{Rank: r.rank, Epoch: c.uint(), Step: c.int()}
	rows, real := c.int(), c.int()
	if rows > maxRows || real > rows {
		return x, errDamaged
	}
	p.Rows, p.Real = int(rows), int(real)
	if n, ok := c.list(1); ok {
		p.Samples = make([]int64, n)
		last := int64(0)
		for i := range p.Samples {
			last += c.signed()
			p.Samples[i] = last
		}
	}
	p.Lineage = c.lineage()
	if c.bad || p.Samples != nil && len(p.Samples) != p.Real || p.Lineage != nil && len(p.Lineage) != p.Real {
		return x, errDamaged
	}
	if size > r.limit {
		return x, r.tooLarge(size)
	}
	var err error
	if kind == frameRecord {
		if c.tensors(nil); c.bad || len(c.b) > 0 {
			return x, errDamaged
		}
		p.Record, err = r.record()
		if err == nil && int(p.Record.NumRows()) != p.Rows {
			p.Record.Release()
			err = errDamaged
		}
	} else {
		p.Buffer, err = r.body(int(size))
		if err == nil {
			if p.Tensors = c.tensors(p.Buffer.Bytes()); c.bad || len(c.b) > 0 {
				p.Buffer.Release()
				err = errDamaged
			}
		}
	}
	if err != nil {
		return x, err
	}
	x.batch = shard.NewBatch(p)
	return x, nil
}

func (r *reader) tooLarge(size int64) error {
	return fault.New(fault.Exhausted, "a batch of %d bytes; at most %d: raise MaxBatch of DialOptions, or take smaller batches", size, r.limit)
}

// body reads the buffer of all tensors.
func (r *reader) body(size int) (*memory.Buffer, error) {
	buf := memory.NewResizableBuffer(r.alloc)
	for got := 0; got < size; {
		want := min(size, max(r.seen, believed, 2*got))
		buf.Resize(want)
		if err := full(r.r, buf.Bytes()[got:]); err != nil {
			buf.Release()
			return nil, err
		}
		got = want
	}
	r.seen = max(r.seen, size)
	return buf, nil
}

// record reads messages up to a record batch.
func (r *reader) record() (_ arrow.RecordBatch, err error) {
	if r.ipc == nil {
		alloc := ipcmeta.Bounded{Allocator: r.alloc, Max: int(r.limit)}
		mr := ipcmeta.NewReader(r.r, ipcmeta.Limits{Meta: maxMeta, Body: r.limit}, alloc)
		if r.ipc, err = ipc.NewReaderFromMessageReader(mr, ipc.WithAllocator(alloc)); err != nil {
			mr.Release()
			return nil, damaged(err)
		}
	}
	if !r.ipc.Next() {
		if err := r.ipc.Err(); err != nil {
			return nil, damaged(err)
		}
		return nil, io.ErrUnexpectedEOF
	}
	rec := r.ipc.RecordBatch()
	if err := validate(rec); err != nil {
		return nil, damaged(err)
	}
	rec.Retain()
	return rec, nil
}

// damaged tells what was read from that nothing could be read.
func damaged(err error) error {
	if isGone(err) || errors.Is(err, net.ErrClosed) {
		return err
	}
	return fault.New(fault.Corrupt, "the feed is damaged: %w", err)
}

// validate checks offsets, lengths and text, so that nothing later reads outside of buffers.
func validate(rec arrow.RecordBatch) (err error) {
	defer func() {
		if p := recover(); p != nil { // some checks of arrow-go read what they are to check
			err = fmt.Errorf("%v", p)
		}
	}()
	return array.ValidateRecordFull(rec)
}

// remoteError is the error of a frame.
func remoteError(meta []byte) error {
	code, text := fault.Unknown, "without a text"
	if len(meta) > 0 && fault.Code(meta[0]) <= fault.Denied {
		code = fault.Code(meta[0])
	}
	if len(meta) > 1 {
		text = string(bytes.ToValidUTF8(meta[1:min(len(meta), maxText)], []byte("?")))
	}
	return fault.New(code, "data process: %s", text)
}

// isGone reports whether an error says that the process at the other end has ended the connection.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// isRefused reports whether an error says that nobody listens.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// sender writes frames. One goroutine at a time uses it.
type sender struct {
	w      io.Writer
	broken error // the first error of w: what was sent may have ended anywhere
	sent   int64
	alloc  memory.Allocator
	out    *bufio.Writer
	ipc    *ipc.Writer
	frames []byte // reused
	meta   []byte // reused
}

func newSender(w io.Writer, alloc memory.Allocator) *sender {
	s := &sender{w: w, alloc: alloc}
	s.out = bufio.NewWriterSize(writes(s.write), 64<<10)
	return s
}

type writes func([]byte) (int, error)

func (w writes) Write(b []byte) (int, error) { return w(b) }

func (s *sender) write(b []byte) (int, error) {
	if s.broken != nil {
		return 0, s.broken
	}
	n, err := s.w.Write(b)
	s.sent += int64(n)
	s.broken = err
	return n, err
}

// close frees what the sender keeps of records.
func (s *sender) close() {
	if s.ipc != nil {
		s.out.Reset(io.Discard)
		_ = s.ipc.Close() // writes to nowhere
	}
}

func (s *sender) frame(kind byte, meta []byte) error {
	s.frames = appendFrame(s.frames[:0], kind, meta, 0)
	_, err := s.write(s.frames)
	return err
}

func (s *sender) json(kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fault.New(fault.Internal, "feed: %w", err)
	}
	return s.frame(kind, b)
}

func (s *sender) fail(err error) error {
	text := err.Error()
	return s.frame(frameError, append([]byte{byte(fault.CodeOf(err))}, text[:min(len(text), maxText-1)]...))
}

func (s *sender) end(at *shard.State) error {
	s.meta = appendPosition(s.meta[:0], at)
	return s.frame(frameEnd, s.meta)
}

// batch sends a batch, and the state after it. Tensors are not copied on the way to the socket. A
// *fault.Error says that the batch cannot be sent, any other that the connection ended.
func (s *sender) batch(b *shard.Batch, at *shard.State) error {
	s.meta = appendBatch(s.meta[:0], b, at)
	if len(s.meta) > maxMeta {
		return fault.New(fault.Exhausted, "the numbers and the lineage of a batch take %d bytes; at most %d: take smaller batches", len(s.meta), maxMeta)
	}
	if rec := b.Record(); rec != nil {
		s.frames = appendFrame(s.frames[:0], frameRecord, s.meta, 0)
		sent := s.sent
		s.out.Write(s.frames)
		if s.ipc == nil {
			s.ipc = ipc.NewWriter(s.out, ipc.WithSchema(rec.Schema()), ipc.WithAllocator(mem.Zeroed{Allocator: s.alloc}))
		}
		if err := s.ipc.Write(rec); err != nil {
			if s.broken != nil {
				return s.broken
			}
			if s.out.Reset(writes(s.write)); s.sent > sent {
				s.broken = err // half a frame
			}
			return fault.WithCode(fault.Unsupported, fmt.Errorf("a batch that cannot be sent to another process: %w", err))
		}
		return s.out.Flush()
	}
	body := b.Buffer()
	s.frames = appendFrame(s.frames[:0], frameTensors, s.meta, len(body))
	if s.broken != nil {
		return s.broken
	}
	bufs := net.Buffers{s.frames, body}
	_, s.broken = bufs.WriteTo(s.w)
	return s.broken
}
