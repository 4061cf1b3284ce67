package feed

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"golang.org/x/sys/unix"
)

// reader reads frames. One goroutine uses it.
type reader struct {
	r     *bufio.Reader
	rank  int
	ring  *window // a consumer's; nil: no batches come
	limit int64   // bytes of a batch
	head  [header]byte
	meta  []byte // reused
	base  shard.State
}

func newReader(r io.Reader, rank int, limit int64) *reader {
	return &reader{r: bufio.NewReaderSize(r, 16<<10), rank: rank, limit: limit}
}

// frame reads a header and meta, which is valid until the next call. io.EOF: none follows.
func (r *reader) frame(most int) (kind byte, meta []byte, err error) {
	if _, err := io.ReadFull(r.r, r.head[:1]); err != nil {
		return 0, nil, err // io.EOF between frames
	}
	if err := full(r.r, r.head[1:]); err != nil {
		return 0, nil, err
	}
	h := r.head[:]
	n := int64(binary.LittleEndian.Uint32(h[4:]))
	if h[1]|h[2]|h[3] != 0 || binary.LittleEndian.Uint64(h[8:]) != 0 {
		return 0, nil, fault.New(fault.Corrupt, "the feed is damaged: no header of a frame")
	}
	if n > int64(most) {
		return 0, nil, fault.New(fault.Corrupt, "the feed is damaged: a frame of kind %d with %d bytes of meta; at most %d", h[0], n, most)
	}
	for got := 0; got < int(n); {
		want := min(int(n), max(cap(r.meta), believed, 2*got))
		r.meta = slices.Grow(r.meta[:got], want-got)[:want]
		if err := full(r.r, r.meta[got:]); err != nil {
			return 0, nil, err
		}
		got = want
	}
	return h[0], r.meta[:n], nil
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
	batch   *shard.Batch
	size    int64       // of the batch, in bytes
	state   shard.State // after it
	noticed bool        // the notice counts from the batch on
	eof     bool        // the end of an epoch
	over    bool        // no epoch follows
	err     error
}

// next reads up to something that Next returns.
func (r *reader) next() (item, error) {
	for {
		kind, meta, err := r.frame(maxMeta)
		if err != nil {
			return item{}, err
		}
		switch kind {
		case frameStarted:
			if len(meta) > maxState {
				return item{}, errDamaged
			}
			if r.base, err = shard.ParseState(meta); err != nil {
				return item{}, err
			}
		case frameEnd:
			c := &cursor{b: meta}
			x := item{eof: true, state: c.position(&r.base)}
			if !c.whole() {
				return item{}, errDamaged
			}
			return x, nil
		case frameOver:
			return item{over: true}, nil
		case frameError:
			return item{}, remoteError(meta)
		case frameRecord, frameTensors:
			return r.batch(kind, meta)
		default:
			return item{}, fault.New(fault.Corrupt, "the feed is damaged: a frame of kind %d", kind)
		}
	}
}

// batch reads a batch, which the caller owns.
func (r *reader) batch(kind byte, meta []byte) (item, error) {
	h, ok := readHead(meta)
	if !ok {
		return item{}, errDamaged
	}
	x := item{state: h.position.position(&r.base), noticed: h.flags&flagNoticed != 0}
	p := shard.Parts{Rank: r.rank, Epoch: h.epoch, Step: h.step, Rows: int(h.rows), Real: int(h.real), Samples: h.samples.numbers()}
	if len(h.lineage.b) > 0 {
		p.Lineage = h.lineage.lineage()
	}
	if !h.position.whole() || !h.samples.whole() || !h.lineage.whole() ||
		p.Samples != nil && len(p.Samples) != p.Real || p.Lineage != nil && len(p.Lineage) != p.Real {
		return item{}, errDamaged
	}
	if h.in.length > uint64(r.limit) {
		return item{}, fault.New(fault.Exhausted, "a batch of %d bytes; at most %d: raise MaxBatch of DialOptions, or take smaller batches", h.in.length, r.limit)
	}
	buf, err := r.ring.take(h.in)
	if err != nil {
		return item{}, err
	}
	if kind == frameTensors {
		p.Tensors, p.Buffer = h.form.tensors(buf.Bytes()), buf
		if !h.form.whole() {
			err = errDamaged
		}
	} else {
		p.Record, err = readStream(buf, r.limit)
		if err == nil && (p.Record.NumRows() != h.rows || !h.form.whole()) {
			p.Record.Release()
			err = errDamaged
		}
	}
	if err != nil {
		buf.Release()
		return item{}, err
	}
	if kind == frameRecord {
		buf.Release() // the record's buffers are parts of it
	}
	x.batch, x.size = shard.NewBatch(p), int64(h.in.length)
	return x, nil
}

// remoteError is the error of a frame.
func remoteError(meta []byte) error {
	code, text := fault.Unknown, "without a text"
	if len(meta) > 0 && fault.Code(meta[0]).Known() {
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
	broken error  // the first error of w: what was sent may have ended anywhere
	ring   *ring  // nil: no batches are sent
	frames []byte // reused
	meta   []byte // reused
	mask   func(string) string
}

func (s *sender) write(b []byte) error {
	if s.broken == nil {
		_, s.broken = s.w.Write(b)
	}
	return s.broken
}

func (s *sender) frame(kind byte, meta []byte) error {
	s.frames = appendFrame(s.frames[:0], kind, meta)
	return s.write(s.frames)
}

func (s *sender) json(kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fault.New(fault.Internal, "feed: %w", err)
	}
	return s.frame(kind, b)
}

// welcome sends the welcome, and with it the file of the ring.
func (s *sender) welcome(c *net.UnixConn, w welcome) error {
	b, err := json.Marshal(w)
	if err != nil {
		return fault.New(fault.Internal, "feed: %w", err)
	}
	s.frames = appendFrame(s.frames[:0], frameWelcome, b)
	if s.broken != nil {
		return s.broken
	}
	var n int
	n, _, s.broken = c.WriteMsgUnix(s.frames[:header], unix.UnixRights(int(s.ring.mem.File().Fd())), nil)
	return s.write(s.frames[n:])
}

func (s *sender) fail(err error) error {
	text := err.Error()
	if s.mask != nil {
		text = s.mask(text)
	}
	return s.frame(frameError, append([]byte{byte(fault.CodeOf(err))}, text[:min(len(text), maxText-1)]...))
}

func (s *sender) end(at *shard.State) error {
	s.meta = appendPosition(s.meta[:0], at)
	return s.frame(frameEnd, s.meta)
}

// batch sends a batch, and the state after it: the ring keeps what the consumer looks at until that is
// freed; b is the caller's. A *fault.Error says that the batch cannot be sent, any other that the connection ended.
func (s *sender) batch(b *shard.Batch, at *shard.State, flags uint32) error {
	kind := byte(frameTensors)
	if b.Record() != nil {
		kind = frameRecord
	}
	in, done, err := s.ring.place(b)
	if err != nil {
		return err
	}
	s.meta = appendBatch(s.meta[:0], b, in, flags, at)
	if len(s.meta) > maxMeta {
		done()
		return fault.New(fault.Exhausted, "the numbers and the lineage of a batch take %d bytes; at most %d: take smaller batches", len(s.meta), maxMeta)
	}
	s.ring.hand(in, done)
	return s.frame(kind, s.meta)
}
