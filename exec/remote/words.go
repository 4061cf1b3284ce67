package remote

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
)

// A message is a kind, the length of what it says as 4 bytes, and that: numbers as varints, texts with their lengths in front. kindBlock is followed by
// as many bytes as it says, in the form of package narrow.
const headSize = 5

// What a leader says to a node, and a node to its leader.
const (
	kindHello  = iota + 1 // leader: who it is and what the run is, as JSON; first
	kindReady             // node: it has the same, as JSON; or why not
	kindBegin             // leader: the sink has begun: join it
	kindTask              // leader: do this
	kindCancel            // leader: end this task
	kindUrge              // leader: everything waits for this task, or does no more
	kindGrant             // leader: there is room for a block of this task, or again for some that come unasked
	kindRoom              // node: how many tasks it wants
	kindBegun             // node: this task is at work
	kindWant              // node: a block of this task waits, of so many bytes
	kindBlock             // node: a block
	kindDone              // node: this task is over, and well
	kindFail              // node: this task failed
	kindNews              // node: statistics
	kindEnd               // leader: the run is over, and how. Node: it is over here: nothing follows; or it cannot go on, and why
	kindPing              // both: this process lives
	kinds
)

// Limits of what a message may claim.
const (
	maxWords = 16 << 20 // bytes of a message, but for blocks
	maxBlock = 1 << 38  // bytes of a block
	maxText  = 1 << 20
	maxSkips = 1 << 24
	maxOpen  = 1 << 20 // tasks at a node
)

// errWords says that a message is no message.
var errWords = fault.New(fault.Corrupt, "what comes over the connection is damaged")

// words reads a message. The first mistake sticks.
type words struct {
	b   []byte
	bad bool
}

func (w *words) uint() uint64 {
	v, n := binary.Uvarint(w.b)
	if n <= 0 {
		w.bad, w.b = true, nil
		return 0
	}
	w.b = w.b[n:]
	return v
}

func (w *words) int() int64 {
	v := w.uint()
	return int64(v>>1) ^ -int64(v&1)
}

// num is a number from 0 to most.
func (w *words) num(most int64) int64 {
	v := w.uint()
	if v > uint64(most) {
		w.bad = true
		return 0
	}
	return int64(v)
}

func (w *words) flag() bool { return w.num(1) == 1 }

func (w *words) bytes(most int) []byte {
	n := w.num(int64(most))
	if n > int64(len(w.b)) {
		w.bad, w.b = true, nil
		return nil
	}
	b := w.b[:n:n]
	w.b = w.b[n:]
	return b
}

func (w *words) text() string { return string(w.bytes(maxText)) }

// end is an error if something was wrong, or something is left.
func (w *words) end() error {
	if w.bad || len(w.b) > 0 {
		return errWords
	}
	return nil
}

func putInt(b []byte, v int64) []byte { return binary.AppendUvarint(b, uint64(v<<1)^uint64(v>>63)) }

func putUint[T int | int64 | uint64](b []byte, v T) []byte { return binary.AppendUvarint(b, uint64(v)) }

func putFlag(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func putBytes[T string | []byte](b []byte, v T) []byte {
	return append(putUint(b, len(v)), v...)
}

func putText(b []byte, s string) []byte {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return putBytes(b, s)
}

func putTask(b []byte, t *local.Task) []byte {
	b = putUint(b, t.ID)
	b = putUint(b, t.Stage)
	b = putInt(b, int64(t.Part))
	b = putUint(b, t.Split)
	b = putUint(b, t.End)
	b = putUint(b, t.From)
	b = putInt(b, t.To)
	b = putUint(b, t.Attempt)
	b = putUint(b, t.Ratio)
	return putFlag(b, t.Urgent)
}

func takeTask(w *words) *local.Task {
	t := &local.Task{ID: w.uint(), Stage: int(w.num(math.MaxInt32)), Part: int(w.int()), Split: int(w.num(math.MaxInt32)), End: int(w.num(math.MaxInt32)),
		From: w.num(math.MaxInt64 / 2), To: w.int(), Attempt: int(w.num(math.MaxInt32)), Ratio: w.num(math.MaxInt64), Urgent: w.flag()}
	w.bad = w.bad || t.Part < -1 || t.Part > math.MaxInt32 || t.To < -1
	return t
}

// putError says an error by its code, place and text.
func putError(b []byte, err error) []byte {
	e, ok := errors.AsType[*fault.Error](err)
	p, text := fault.Place{}, err.Error()
	if ok {
		p = e.Place
		if e == err {
			text = e.Err.Error()
		}
	}
	b = putUint(b, int(fault.CodeOf(err)))
	b = putText(b, text)
	b = putText(b, p.File)
	b = putInt(b, int64(p.RowGroup))
	b = putInt(b, int64(p.Row))
	b = putText(b, p.Column)
	b = putText(b, p.Step)
	b = putText(b, p.Node)
	return putUint(b, max(p.Attempt, 0))
}

func takeError(w *words) *fault.Error {
	e := &fault.Error{Code: fault.Code(w.num(255)), Err: errors.New(w.text())}
	e.File, e.RowGroup, e.Row = w.text(), fault.Num(w.int()), fault.Num(w.int())
	e.Column, e.Step, e.Node, e.Attempt = w.text(), w.text(), w.text(), int(w.num(math.MaxInt32))
	return e
}

// blockHead is what is said of a block beside its bytes: those of a record, then those of the rest.
type blockHead struct {
	id        uint64
	split     int
	row, span int64
	rows      int64 // of the batch
	read      int64 // rows that the task has read
	inline    bool  // it was sent without being granted
	meta      []byte
	record    int64 // bytes of the record
	rest      int64 // bytes of what follows it
}

// size is how many bytes follow; bytes is what the leader takes memory for; and cost is what a block that is sent unasked counts.
func (h *blockHead) size() int64  { return h.record + h.rest }
func (h *blockHead) bytes() int64 { return h.size() + int64(len(h.meta)) }
func (h *blockHead) cost() int64  { return h.bytes() + blockCost }

func (h *blockHead) put(b []byte) []byte {
	b = putUint(b, h.id)
	b = putUint(b, h.split)
	b = putUint(b, h.row)
	b = putUint(b, h.span)
	b = putUint(b, h.rows)
	b = putUint(b, h.read)
	b = putFlag(b, h.inline)
	b = putUint(b, h.record)
	b = putUint(b, h.rest)
	return putBytes(b, h.meta)
}

func takeBlockHead(w *words) *blockHead {
	const most = math.MaxInt64 / 4
	h := &blockHead{id: w.uint(), split: int(w.num(math.MaxInt32)), row: w.num(most), span: w.num(most), rows: w.num(most), read: w.num(most),
		inline: w.flag(), record: w.num(maxBlock), rest: w.num(maxBlock), meta: w.bytes(ipcrecord.MaxMeta)}
	w.bad = w.bad || h.record%8 != 0 || h.bytes() > maxBlock || h.rows == 0 && (h.record > 0 || len(h.meta) > 0) || h.rows > 0 && len(h.meta) == 0
	return h
}

// putRest says where rows come from, and what was skipped.
func putRest(b []byte, k *exec.Block) ([]byte, error) {
	if k.Rows == nil && k.Ords == nil && len(k.Skipped) == 0 {
		return b, nil
	}
	b = putFlag(b, k.Rows != nil)
	if k.Rows != nil {
		last := k.Row
		for _, r := range k.Rows {
			b = putInt(b, r-last)
			last = r
		}
	}
	b = putFlag(b, k.Ords != nil)
	for _, o := range k.Ords {
		b = binary.LittleEndian.AppendUint64(b, o)
	}
	b = putUint(b, len(k.Skipped))
	for i := range k.Skipped {
		s := &k.Skipped[i]
		b = putError(b, s.Err)
		b = putInt(b, s.Row)
		b = putFlag(b, s.Record != nil)
		if s.Record == nil {
			continue
		}
		r, err := ipcrecord.New(s.Record)
		if err != nil {
			return nil, err
		}
		b = putBytes(b, ipcrecord.Schema(s.Record.Schema()))
		b = putBytes(b, r.Meta)
		var body buffer
		err = r.Write(&body)
		r.End()
		if err != nil {
			return nil, err
		}
		b = putBytes(b, []byte(body))
	}
	return b, nil
}

// decodeCopy makes a record of bytes that are somebody else's.
func decodeCopy(schema, meta, body []byte, alloc memory.Allocator) (arrow.RecordBatch, error) {
	buf := memory.NewResizableBuffer(alloc)
	defer buf.Release()
	buf.Resize(len(body))
	copy(buf.Bytes(), body)
	return ipcrecord.Decode(schema, meta, buf)
}

type buffer []byte

func (b *buffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

// takeRest is the reading of putRest into k, whose batch has n rows. Also after an error, k is the caller's to release.
func takeRest(raw []byte, k *exec.Block, n int64, alloc memory.Allocator) error {
	if len(raw) == 0 {
		return nil
	}
	w := &words{b: raw}
	if w.flag() {
		if n > int64(len(w.b)) {
			return errWords
		}
		k.Rows = make([]int64, n)
		last := k.Row
		for i := range k.Rows {
			last += w.int()
			k.Rows[i] = last
		}
	}
	if w.flag() {
		if n > int64(len(w.b)/8) {
			return errWords
		}
		k.Ords = make([]uint64, n)
		for i := range k.Ords {
			k.Ords[i] = binary.LittleEndian.Uint64(w.b[8*i:])
		}
		w.b = w.b[8*n:]
	}
	for range w.num(maxSkips) {
		s := exec.Skipped{Err: takeError(w), Row: w.int()}
		if w.flag() {
			schema, meta, body := w.bytes(ipcrecord.MaxMeta), w.bytes(ipcrecord.MaxMeta), w.bytes(math.MaxInt)
			if w.bad {
				return errWords
			}
			rec, err := decodeCopy(schema, meta, body, alloc)
			if err != nil {
				return err
			}
			s.Record = rec
		}
		if w.bad {
			if s.Record != nil {
				s.Record.Release()
			}
			return errWords
		}
		k.Skipped = append(k.Skipped, s)
	}
	return w.end()
}

// putGrown lists what counts grew by, as pairs of a distance and a number, most being 0.
func putGrown(b []byte, now, before []int64) []byte {
	n := 0
	for i := range now {
		if now[i] != before[i] {
			n++
		}
	}
	b = putUint(b, n)
	last := 0
	for i := range now {
		if d := now[i] - before[i]; d != 0 {
			b = putUint(b, i-last)
			b = putInt(b, d)
			last = i
		}
	}
	return b
}

const maxCounts = 1 << 20

func takeGrown(w *words) []int64 {
	n := w.num(maxCounts)
	var all []int64
	at := 0
	for range n {
		at += int(w.num(maxCounts))
		if w.bad || at >= maxCounts {
			w.bad = true
			return nil
		}
		if at >= len(all) {
			all = slices.Grow(all, at+1-len(all))[:at+1]
		}
		all[at] = w.int()
	}
	return all
}
