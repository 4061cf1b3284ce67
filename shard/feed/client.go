package feed

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"math"
	"net"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/shard"
)

// Client gives one rank its batches, as a [shard.Iterator] of this process would. One goroutine at a
// time calls Next, All and Restore; the rest may be called at any time. Close it.
type Client struct {
	rank  int
	hi    welcome
	conn  *net.UnixConn
	r     *reader // the reading goroutine's, once begun
	ring  *window
	queue chan item
	done  chan struct{} // closed by Close
	ahead ahead
	begun bool
	last  error // that every later Next returns; nil: none yet

	reading sync.WaitGroup
	writes  sync.Mutex
	out     []byte // guarded by writes: frees that go with the next frame; then reused
	freed   uint64 // guarded by writes: bytes of batches in them

	mu      sync.Mutex
	state   shard.State
	noticed bool
	closed  bool
}

// Dial takes a rank of the data process that serves the socket at path. It waits for one that is not
// there yet (DialOptions.Wait, Unavailable after that), and for a rank that another consumer has to
// become free, as far as it can (Exists). ctx is for the call only.
func Dial(ctx context.Context, path string, rank int, o *DialOptions) (*Client, error) {
	var opt DialOptions
	if o != nil {
		opt = *o
	}
	if opt.Wait == 0 {
		opt.Wait = 10 * time.Second
	}
	if opt.MaxBatch <= 0 {
		opt.MaxBatch = 1 << 30
	}
	at := fault.Place{File: path}
	if rank < 0 || rank > math.MaxInt32 {
		return nil, fault.New(fault.Invalid, "no rank %d: ranks begin at 0", rank).At(at)
	}
	until := time.Now().Add(opt.Wait)
	for {
		c, err := dial(ctx, path, rank, &opt, until)
		if err == nil {
			return c, nil
		}
		if code := fault.CodeOf(err); code != fault.Unavailable && code != fault.Exists || !time.Now().Before(until) {
			return nil, fault.Wrap(err, at)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return nil, fault.Wrap(err, at)
		}
	}
}

// dial tries once; Unavailable: once more may help.
func dial(ctx context.Context, path string, rank int, o *DialOptions, until time.Time) (_ *Client, err error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fault.New(fault.Canceled, "%w", context.Cause(ctx))
		}
		return nil, fault.New(fault.Unavailable, "no data process serves this socket: %w", err)
	}
	conn := nc.(*net.UnixConn)
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if err := samePeer(conn); err != nil {
		return nil, err
	}
	conn.SetDeadline(later(until, time.Now().Add(time.Second)))
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c := &Client{rank: rank, conn: conn, ahead: ahead{n: aheadLeast}, done: make(chan struct{})}
	most := aheadMost
	if o.Prefetch != 0 {
		c.ahead.fixed, c.ahead.n = true, min(max(o.Prefetch, 1), maxAhead-1)
		most = c.ahead.n
	}
	c.queue = make(chan item, most+1)
	if err := c.greet(o.MaxBatch); err != nil {
		if ctx.Err() != nil {
			err = fault.New(fault.Canceled, "%w", context.Cause(ctx))
		}
		return nil, fault.WithCode(fault.Unavailable, err)
	}
	if !stop() {
		c.ring.close()
		return nil, fault.New(fault.Canceled, "%w", context.Cause(ctx))
	}
	conn.SetDeadline(time.Time{})
	return c, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// greet says who this is, reads the answer, and maps the ring that comes with it.
func (c *Client) greet(limit int64) error {
	g := &greeting{c: c.conn}
	defer g.close()
	c.r = newReader(g, c.rank, limit)
	// A data process that refuses at once may not read it: its answer says more than a failure to write.
	_, _ = c.conn.Write(binary.LittleEndian.AppendUint32(preamble(nil), uint32(c.rank)))
	pre := make([]byte, len(magic)+2)
	if err := full(c.r.r, pre); err != nil {
		return err
	}
	if err := checkPreamble(pre, "data process"); err != nil {
		return err
	}
	kind, meta, err := c.r.frame(maxState)
	switch {
	case err != nil:
		return err
	case kind == frameError:
		return remoteError(meta)
	case kind != frameWelcome:
		return errDamaged
	}
	if c.hi, err = readWelcome(meta); err != nil {
		return err
	}
	if g.file == nil {
		return fault.New(fault.Corrupt, "the feed is damaged: no memory came with the welcome")
	}
	ring, err := mem.MapShared(g.file, c.hi.Ring)
	if err != nil {
		return err
	}
	c.ring = &window{ring: ring, free: c.free}
	c.r.ring = c.ring
	c.state, c.r.base = c.hi.State, c.hi.State
	c.ahead.bytes = c.hi.Ahead
	return nil
}

// free tells the data process that a batch is not looked at any more; one that is gone need not know. As a rule batches are asked
// for soon after some were given back, so small ones wait for the next frame, whatever it is.
func (c *Client) free(in span) {
	c.writes.Lock()
	defer c.writes.Unlock()
	c.out = binary.LittleEndian.AppendUint64(appendHeader(c.out, frameFree, 8), in.offset)
	if c.freed += in.length; c.freed >= freeBytes {
		_ = c.flush()
	}
}

func readWelcome(meta []byte) (w welcome, err error) {
	err = json.NewDecoder(bytes.NewReader(meta)).Decode(&w)
	switch {
	case fault.CodeOf(err) == fault.Unsupported:
		return w, fault.New(fault.Unsupported, "the data process: %w: use one release for both", err)
	case err != nil:
		return w, fault.New(fault.Corrupt, "the feed is damaged: %w", err)
	case w.State.Version != shard.StateVersion || w.Extent.Batch < 1: // nothing was said of it
		return w, errDamaged
	}
	return w, nil
}

// Rank is the rank whose batches the client gets.
func (c *Client) Rank() int { return c.rank }

// Len is that of the iterator: the batches of the current epoch, where known from metadata.
func (c *Client) Len() (int64, bool) {
	s := c.State()
	return c.hi.Extent.Steps(s.Step, s.Sample, s.Length)
}

// State is where the job stands after the last batch that Next gave; before, where it begins. What was
// read ahead does not count. The slices belong to the client: read them only.
func (c *Client) State() shard.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Epoch is the epoch of the next batch.
func (c *Client) Epoch() uint64 { return c.State().Epoch }

// Step is how many steps of the epoch were given.
func (c *Client) Step() int64 { return c.State().Step }

// Noticed reports whether Next has given a batch from which on the notice counts (Options.Notice): the
// same step on every rank.
func (c *Client) Noticed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noticed
}

// Restore makes the job go on from a state. Every rank restores the same one before its
// first Next; states that do not fit the job are refused with what differs.
func (c *Client) Restore(s shard.State) error {
	if err := c.open(); err != nil {
		return err
	}
	if c.begun {
		return fault.New(fault.Invalid, "restore: rank %d has begun: restore before the first Next, or start the data process and all ranks again", c.rank)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return fault.New(fault.Internal, "restore: %w", err)
	}
	if len(b) > maxState {
		return fault.New(fault.Invalid, "restore: the state takes %d bytes; at most %d", len(b), maxState)
	}
	if err := c.send(frameRestore, b); err != nil {
		return c.gone(err)
	}
	c.conn.SetReadDeadline(time.Now().Add(helloTime))
	defer c.conn.SetReadDeadline(time.Time{})
	kind, meta, err := c.r.frame(maxState)
	switch {
	case err != nil:
		return c.gone(err)
	case kind == frameError:
		return remoteError(meta)
	case kind != frameDone:
		return errDamaged
	}
	c.mu.Lock()
	c.state = s
	c.mu.Unlock()
	return nil
}

// Next gives the next batch, which the caller owns until Release, or io.EOF at the end of an epoch: the
// call after it begins the next one. The first waits until every rank has called it. A
// data process that died or ended is an Unavailable error; that and every other failure of the
// job is returned by all later calls. An end of ctx is no failure: nothing is lost.
func (c *Client) Next(ctx context.Context) (*shard.Batch, error) {
	if err := c.open(); err != nil {
		return nil, err
	}
	if c.last != nil {
		return nil, c.last
	}
	// A data process that is gone is seen when reading; what it said before is read all the same.
	n := c.ahead.ask()
	switch {
	case !c.begun:
		c.begun = true
		_ = c.send(frameBegin, binary.LittleEndian.AppendUint64(nil, uint64(n))) // no flags
		c.reading.Go(c.read)
	case n > 0:
		_ = c.more(n)
	}
	var x item
	select {
	case x = <-c.queue:
	case <-c.done:
		return nil, c.open()
	case <-ctx.Done():
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	if x.err != nil {
		c.last = c.gone(x.err)
		return nil, c.last
	}
	if x.over {
		c.last = io.EOF
		return nil, io.EOF
	}
	c.ahead.take(x.size, time.Now())
	c.mu.Lock()
	c.state = x.state
	c.noticed = c.noticed || x.noticed
	c.mu.Unlock()
	if x.eof {
		return nil, io.EOF
	}
	return x.batch, nil
}

// All iterates over one epoch. A batch is valid until the next turn; Retain to keep it.
func (c *Client) All(ctx context.Context) iter.Seq2[*shard.Batch, error] {
	return shard.All(ctx, c.Next)
}

// read fills the queue, which has room for all that was asked for.
func (c *Client) read() {
	for {
		x, err := c.r.next()
		x.err = err
		select {
		case c.queue <- x:
		case <-c.done:
			if x.batch != nil {
				x.batch.Release()
			}
			return
		}
		if x.err != nil || x.over {
			return
		}
	}
}

// send writes a frame.
func (c *Client) send(kind byte, meta []byte) error {
	c.writes.Lock()
	defer c.writes.Unlock()
	c.out = appendFrame(c.out, kind, meta)
	return c.flush()
}

// more asks for n frames.
func (c *Client) more(n int) error {
	c.writes.Lock()
	defer c.writes.Unlock()
	for range n {
		c.out = appendHeader(c.out, frameMore, 0)
	}
	return c.flush()
}

// flush needs c.writes.
func (c *Client) flush() error {
	_, err := c.conn.Write(c.out)
	c.out, c.freed = c.out[:0], 0
	return err
}

// gone makes a lost connection an error that says what to do; others stay.
func (c *Client) gone(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	at := c.State()
	why := "it ended the connection"
	if !isGone(err) {
		why = err.Error()
	}
	return fault.New(fault.Unavailable, "rank %d: the data process is gone (%s): start it again, and restore every rank from the same state: the last committed one. State has that after the last batch given (epoch %d, step %d)",
		c.rank, why, at.Epoch, at.Step)
}

// open reports a client that was closed.
func (c *Client) open() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fault.New(fault.Invalid, "the client of rank %d is closed", c.rank)
	}
	return nil
}

// Close gives the rank up for good: the other ranks go on without it. Batches given out stay valid until they are released.
// A consumer that ends without Close counts as lost, and ends the job of all ranks. Idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	close(c.done)
	c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = c.send(frameBye, nil) // a data process that is gone needs no goodbye
	c.conn.Close()
	c.reading.Wait()
	for len(c.queue) > 0 {
		if x := <-c.queue; x.batch != nil {
			x.batch.Release()
		}
	}
	c.ring.close()
	return nil
}
