package exchange

import (
	"context"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
	"github.com/penstock-data/penstock/shard"
)

// send writes a message, which stays the caller's.
func (p *peer) send(ctx context.Context, m *shard.Message) error {
	h := header{kind: framePlain, head: len(m.Head)}
	o := &p.out
	var rec *ipcrecord.Record
	switch {
	case len(m.Head) > shard.MaxHead:
		return shard.RefusedError{Err: fault.New(fault.Exhausted, "a message with a head of %d bytes; at most %d: take smaller batches", len(m.Head), shard.MaxHead)}
	case m.Record != nil && m.Packed != nil:
		return shard.RefusedError{Err: fault.New(fault.Internal, "a message with rows in both forms")}
	case m.Packed != nil:
		h.kind, h.rows = framePacked, int64(len(m.Packed))
	case m.Record != nil:
		r, err := o.rec.begin(m.Record)
		if err != nil {
			return shard.RefusedError{Err: err}
		}
		defer r.End()
		rec, h.kind, h.meta, h.rows = r, frameRecord, len(r.Meta), r.Size
	}
	if h.rows > maxRows {
		return shard.RefusedError{Err: fault.New(fault.Exhausted, "a message with %d bytes of rows; at most %d: take smaller batches", h.rows, int64(maxRows))}
	}
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return canceled(ctx)
	case <-p.done:
		return p.why()
	case <-p.x.closing:
		return errClosed
	}
	defer func() { <-o.turn }()
	if err := p.why(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return canceled(ctx)
	}
	settle := interrupt(ctx, func() { p.c.SetWriteDeadline(past) })
	err := o.message(&h, m, rec)
	if settle() {
		if err == nil {
			p.c.SetWriteDeadline(time.Time{})
		} else {
			p.fail(fault.New(fault.Canceled, "the connection to node %d was ended in the middle of a message: %w", p.node, context.Cause(ctx)))
			return canceled(ctx)
		}
	}
	if err != nil {
		return p.fail(p.lost(err))
	}
	return nil
}

// message writes the frames of a message. It needs the turn.
func (o *outgoing) message(h *header, m *shard.Message, rec *ipcrecord.Record) error {
	// What Write says is said again: a bufio.Writer that has failed fails for good.
	if h.kind == frameRecord && o.rec.told != o.rec.schema {
		s := header{kind: frameSchema, meta: len(o.rec.text)}
		o.w.Write(s.append(o.head[:0]))
		o.w.Write(o.rec.text)
		o.rec.told = o.rec.schema
	}
	o.w.Write(h.append(o.head[:0]))
	o.w.Write(m.Head)
	switch h.kind {
	case framePacked:
		o.w.Write(m.Packed)
	case frameRecord:
		o.w.Write(rec.Meta)
		if err := rec.Write(o.w); err != nil {
			return err
		}
	}
	return o.w.Flush()
}
