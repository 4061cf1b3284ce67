package collective

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	callBarrier = iota + 1
	callBroadcast
	callGather
	callReduce
)

// maxBlock is the most bytes of one rank in AllGather and Broadcast.
const maxBlock = 16 << 30

// head is what a rank calls. Each sends its own to the right, with or ahead of the first numbers, and compares the one from the left before it looks at those: as every
// result depends on all ranks in turn, nobody has a result before all neighbours have compared.
type head struct {
	kind  byte
	op    Op
	typ   byte // index in types
	root  int
	seq   uint64
	count int // of numbers
}

var types = [...]string{"float32", "float64", "int32", "int64"}

func (h *head) String() string {
	switch h.kind {
	case callBarrier:
		return "Barrier"
	case callBroadcast:
		return fmt.Sprintf("Broadcast from rank %d", h.root)
	case callGather:
		return "AllGather"
	case callReduce:
		return fmt.Sprintf("AllReduce (%s of %d %s)", h.op, h.count, types[h.typ&3])
	}
	return fmt.Sprintf("call of kind %d", h.kind)
}

const headSize = 24

func (h *head) encode() (b [headSize]byte) {
	b[0], b[1], b[2] = h.kind, byte(h.op), h.typ
	binary.LittleEndian.PutUint32(b[4:], uint32(h.root))
	binary.LittleEndian.PutUint64(b[8:], h.seq)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.count))
	return b
}

func decodeHead(b *[headSize]byte) head {
	return head{kind: b[0], op: Op(b[1]), typ: b[2], root: int(binary.LittleEndian.Uint32(b[4:])), seq: binary.LittleEndian.Uint64(b[8:]),
		count: int(binary.LittleEndian.Uint64(b[16:]))}
}

// agree makes sure that the left neighbour calls the same.
func (g *Group) agree(h *head) error {
	b := h.encode()
	if err := g.write(b[:]); err != nil {
		return err
	}
	if err := g.read(b[:]); err != nil {
		return err
	}
	return g.compare(h, decodeHead(&b))
}

// compare ends the group if the left neighbour does not call the same.
func (g *Group) compare(h *head, theirs head) error {
	if theirs != *h {
		left := (g.rank + g.world - 1) % g.world
		g.fail(fault.New(fault.Invalid, "in call %d %s makes %s where %s makes %s: every rank has to make the same calls in the same order, with as many numbers of the same type", h.seq,
			g.name(g.rank), h, g.name(left), &theirs))
		return g.err
	}
	return nil
}

// write to the right.
func (g *Group) write(b []byte) error {
	if _, err := g.right.Write(b); err != nil {
		return g.cause((g.rank + 1) % g.world)
	}
	return nil
}

// writev writes two slices to the right at once.
func (g *Group) writev(a, b []byte) error {
	if len(a)+len(b) <= len(g.packet) {
		return g.write(g.packet[:copy(g.packet, a)+copy(g.packet[len(a):], b)])
	}
	v := net.Buffers{a, b}
	if _, err := v.WriteTo(g.right); err != nil {
		return g.cause((g.rank + 1) % g.world)
	}
	return nil
}

// read all of b from the left.
func (g *Group) read(b []byte) error {
	_, err := g.readSome(b, len(b))
	return err
}

// readSome reads what is there from the left, at least least bytes.
func (g *Group) readSome(b []byte, least int) (int, error) {
	n, err := io.ReadAtLeast(g.left, b, least)
	if err != nil {
		return n, g.cause((g.rank + g.world - 1) % g.world)
	}
	return n, nil
}

// Barrier returns when every rank has called it.
func (g *Group) Barrier(ctx context.Context) error {
	h := head{kind: callBarrier}
	leave, err := g.enter(ctx, &h)
	if err != nil || g.world == 1 {
		return done(leave, err)
	}
	defer leave()
	if err := g.agree(&h); err != nil {
		return err
	}
	// The head was the first of world-1 tokens: each says that one rank more to the left is here.
	var token [1]byte
	for range g.world - 2 {
		if err := g.write(token[:]); err != nil {
			return err
		}
		if err := g.read(token[:]); err != nil {
			return err
		}
	}
	return nil
}

func done(leave func(), err error) error {
	if err == nil {
		leave()
	}
	return err
}

// AllGather gives every rank the bytes of all, in order of rank; they may differ in length. The result is the caller's, but that of the own rank is b itself.
func (g *Group) AllGather(ctx context.Context, b []byte) ([][]byte, error) {
	if len(b) > maxBlock {
		return nil, fault.New(fault.Invalid, "%d bytes to gather: a rank gives at most %d", len(b), int64(maxBlock))
	}
	h := head{kind: callGather}
	leave, err := g.enter(ctx, &h)
	if err != nil {
		return nil, err
	}
	defer leave()
	all := make([][]byte, g.world)
	all[g.rank] = b
	if g.world == 1 {
		return all, nil
	}
	if err := g.agree(&h); err != nil {
		return nil, err
	}
	// In step s a rank sends the block that it got in step s-1, so each block goes once around.
	ready := make(chan []byte, g.world)
	ready <- b
	sent := make(chan error, 1)
	go func() {
		for range g.world - 1 {
			var b []byte
			select {
			case b = <-ready:
			case <-g.failed:
				sent <- g.err
				return
			}
			var size [8]byte
			binary.LittleEndian.PutUint64(size[:], uint64(len(b)))
			if err := g.writev(size[:], b); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for s := range g.world - 1 {
		from := (g.rank - s - 1 + g.world) % g.world
		if all[from], err = g.block(); err != nil {
			break
		}
		ready <- all[from]
	}
	if serr := <-sent; err == nil {
		err = serr
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

// block reads a length and as many bytes.
func (g *Group) block() ([]byte, error) {
	n, err := g.size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	if err := g.read(b); err != nil {
		return nil, err
	}
	return b, nil
}

// size reads a length. Beyond most, which is little until the ranks have come, none is believed.
func (g *Group) size() (int, error) {
	var b [8]byte
	if err := g.read(b[:]); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint64(b[:])
	if n > g.most {
		g.fail(fault.New(fault.Internal, "a block of %d bytes from %s", n, g.name((g.rank+g.world-1)%g.world)))
		return 0, g.err
	}
	return int(n), nil
}

// Broadcast gives every rank the bytes of rank root; what others pass is not looked at. The result is the caller's; on root it is b itself.
func (g *Group) Broadcast(ctx context.Context, root int, b []byte) ([]byte, error) {
	switch {
	case root < 0 || root >= g.world || root > math.MaxInt32:
		return nil, fault.New(fault.Invalid, "no rank %d to broadcast from: ranks are 0 to %d", root, g.world-1)
	case g.rank == root && len(b) > maxBlock:
		return nil, fault.New(fault.Invalid, "%d bytes to broadcast: at most %d", len(b), int64(maxBlock))
	}
	h := head{kind: callBroadcast, root: root}
	leave, err := g.enter(ctx, &h)
	if err != nil || g.world == 1 {
		return b, done(leave, err)
	}
	defer leave()
	if err := g.agree(&h); err != nil {
		return nil, err
	}
	last := (g.rank+1)%g.world == root
	n := len(b)
	if g.rank != root {
		if n, err = g.size(); err != nil {
			return nil, err
		}
		b = make([]byte, n)
	}
	if !last {
		var size [8]byte
		binary.LittleEndian.PutUint64(size[:], uint64(n))
		if err := g.write(size[:]); err != nil {
			return nil, err
		}
	}
	// Segment by segment, so that all ranks of the chain are busy at once. No rank waits for one that waits for it: nothing goes back to root.
	for at := 0; at < n; {
		part := b[at:min(at+segment, n)]
		at += len(part)
		if g.rank != root {
			if err := g.read(part); err != nil {
				return nil, err
			}
		}
		if !last {
			if err := g.write(part); err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}
