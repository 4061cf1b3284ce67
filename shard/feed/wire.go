package feed

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/penstock-data/penstock/shard"
)

// Version 3 of the feed. Both sides begin with a preamble: the magic, and the version in
// two bytes; the consumer adds its rank in four. Then come frames: a header of
// 16 bytes (kind, three zeros, bytes of meta in four, bytes of a body in eight: always 0), meta. All
// numbers are little-endian. With the welcome comes the file of the ring, memory that both
// sides map: batches lie in it, and their frames say where. docs/feed.md has all of it.
const (
	magic   = "penstock"
	version = 3
	header  = 16
)

const (
	// of the consumer
	frameRestore = 1 + iota // a state
	frameBegin              // all is restored: how many frames are wanted, and flags, in four bytes each
	frameMore               // one more is
	frameBye                // the rank is given up
	frameFree               // of a batch, nothing is looked at any more: its offset in eight bytes
	// of the data process
	frameWelcome // welcome
	frameDone    // a state was restored
	frameStarted // the state that all ranks begin with
	frameRecord
	frameTensors
	frameEnd   // of an epoch: position
	frameOver  // no epoch follows
	frameError // code, text; the last frame, but as the answer to frameRestore
)

// beginPinned in the flags of frameBegin: the ring's pages stay where they are.
const beginPinned = 1

// flagNoticed in the flags of a batch: the notice counts from it on.
const flagNoticed = 1

const (
	maxMeta   = 256 << 20 // bytes of meta: the numbers and the lineage of the samples
	maxState  = 16 << 20
	maxText   = 64 << 10 // of an error
	maxRows   = 1 << 40
	maxRing   = 1 << 46
	maxAhead  = 1 << 10 // frames
	believed  = 4 << 20 // bytes that are allocated on a claim alone
	ringLeast = 4 << 30 // bytes of addresses of a ring
	ringMost  = 1 << 40
	alignment = 64
)

// welcome is what a consumer is told first.
type welcome struct {
	Rank int `json:"rank"`
	shard.Extent
	State shard.State `json:"state"`
	Ring  int64       `json:"ring"`  // bytes of it
	Ahead int64       `json:"ahead"` // bytes of batches that there is room to read ahead
}

// appendHeader appends the header of a frame with n bytes of meta.
func appendHeader(b []byte, kind byte, n int) []byte {
	b = append(b, kind, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	return binary.LittleEndian.AppendUint64(b, 0)
}

// appendFrame appends a header and meta.
func appendFrame(b []byte, kind byte, meta []byte) []byte {
	return append(appendHeader(b, kind, len(meta)), meta...)
}

// appendPosition appends what changes in a state from step to step.
func appendPosition(b []byte, s *shard.State) []byte {
	for _, v := range []uint64{s.Epoch, uint64(s.Step), uint64(s.Sample), uint64(s.GlobalBatch), uint64(s.Length), uint64(len(s.Weights))} {
		b = binary.AppendUvarint(b, v)
	}
	for _, w := range s.Weights {
		b = binary.AppendUvarint(b, uint64(w.At))
		for _, x := range w.Weights {
			b = binary.AppendUvarint(b, uint64(x))
		}
	}
	for _, src := range s.Sources {
		b = binary.AppendUvarint(b, src.Pass)
		for _, p := range src.Pos {
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p[0])), uint64(p[1]))
		}
	}
	return b
}

// position reads what appendPosition wrote; all else is that of base.
func (c *cursor) position(base *shard.State) shard.State {
	s := *base
	s.Epoch, s.Step, s.Sample, s.GlobalBatch, s.Length = c.uint(), c.int(), c.int(), c.int(), c.int()
	s.Weights = make([]shard.WeightsAt, c.count(1+len(s.Sources)))
	for i := range s.Weights {
		s.Weights[i] = shard.WeightsAt{At: c.int(), Weights: make([]int64, len(s.Sources))}
		for k := range s.Weights[i].Weights {
			s.Weights[i].Weights[k] = c.int()
		}
	}
	s.Sources = slices.Clone(s.Sources)
	for i := range s.Sources {
		src := &s.Sources[i]
		src.Pass = c.uint()
		src.Pos = make([][2]int64, len(src.Pos))
		for v := range src.Pos {
			src.Pos[v] = [2]int64{c.int(), c.int()}
		}
	}
	return s
}

// head is what the meta of a batch begins with: six numbers of eight bytes (epoch, step, rows, real
// rows, offset and length in the ring), then in four bytes each flags, the lengths of the four sections that follow
// (position, samples, lineage, form), and a zero.
const (
	sections = 6*8 + 4 // where their lengths begin
	head     = sections + 5*4
)

// span is where a batch lies in the ring; of one without bytes both are 0.
type span struct{ offset, length uint64 }

// appendBatch appends the meta of a batch.
func appendBatch(b []byte, x *shard.Batch, in span, flags uint32, at *shard.State) []byte {
	start := len(b)
	for _, v := range []uint64{x.Epoch(), uint64(x.Step()), uint64(x.Rows()), uint64(x.Real()), in.offset, in.length} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = append(b, make([]byte, 5*4)...)
	from := len(b)
	section := func(i int) {
		binary.LittleEndian.PutUint32(b[start+sections+4*i:], uint32(len(b)-from))
		from = len(b)
	}
	b = appendPosition(b, at)
	section(0)
	b = appendSamples(b, x.Samples())
	section(1)
	if all := x.Lineage(); all != nil {
		b = appendLineage(b, all)
	}
	section(2)
	if x.Record() == nil {
		b = appendForm(b, x.Tensors())
	}
	section(3)
	return b
}

func appendSamples(b []byte, all []int64) []byte {
	b = binary.AppendUvarint(b, length(all))
	last := int64(0)
	for _, n := range all {
		b = binary.AppendVarint(b, n-last)
		last = n
	}
	return b
}

// appendForm writes the heads of tensors.
func appendForm(b []byte, all []shard.Tensor) []byte {
	b = binary.AppendUvarint(b, uint64(len(all)))
	for _, t := range all {
		b = appendString(b, t.Name)
		b = binary.AppendUvarint(append(b, byte(t.DType)), uint64(len(t.Shape)))
		for _, d := range t.Shape {
			b = binary.AppendUvarint(b, uint64(d))
		}
	}
	return b
}

// length tells nil from empty.
func length[T any](s []T) uint64 {
	if s == nil {
		return 0
	}
	return uint64(len(s)) + 1
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendLineage writes every name once: later ones by their number.
func appendLineage(b []byte, all []shard.Lineage) []byte {
	b = binary.AppendUvarint(b, length(all))
	names := map[string]int{}
	name := func(s string) {
		i, ok := names[s]
		if !ok {
			i = len(names)
			names[s] = i
		}
		if b = binary.AppendUvarint(b, uint64(i)); !ok {
			b = appendString(b, s)
		}
	}
	place := func(p shard.Place) {
		name(p.Source)
		name(p.File)
		b = binary.AppendVarint(binary.AppendVarint(b, p.RowGroup), p.Row)
	}
	for _, l := range all {
		place(l.Place)
		b = binary.AppendVarint(binary.AppendUvarint(b, l.Epoch), l.N)
		b = binary.AppendUvarint(b, length(l.Parts))
		for _, p := range l.Parts {
			place(p)
		}
	}
	return b
}

// batchHead is the fixed part of a batch's meta, and its sections.
type batchHead struct {
	epoch                            uint64
	step, rows, real                 int64
	in                               span
	flags                            uint32
	position, samples, lineage, form cursor
}

// readHead takes meta apart; false: it is damaged.
func readHead(meta []byte) (h batchHead, ok bool) {
	if len(meta) < head {
		return h, false
	}
	n := func(at int) uint64 { return binary.LittleEndian.Uint64(meta[at:]) }
	h.epoch, h.step, h.rows, h.real = n(0), int64(n(8)), int64(n(16)), int64(n(24))
	h.in = span{n(32), n(40)}
	h.flags = binary.LittleEndian.Uint32(meta[sections-4:])
	rest := meta[head:]
	for i, c := range []*cursor{&h.position, &h.samples, &h.lineage, &h.form} {
		k := int64(binary.LittleEndian.Uint32(meta[sections+4*i:]))
		if k > int64(len(rest)) {
			return h, false
		}
		c.b, rest = rest[:k:k], rest[k:]
	}
	zero := binary.LittleEndian.Uint32(meta[head-4:])
	return h, len(rest) == 0 && zero == 0 && h.flags&^flagNoticed == 0 && h.step >= 0 && h.real >= 0 && h.real <= h.rows && h.rows <= maxRows
}

// cursor reads meta. After anything that is not as it should be, bad is set and all
// values are zero.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) fail() { c.b, c.bad = nil, true }

// whole reports whether all was as it should be, and nothing is left.
func (c *cursor) whole() bool { return !c.bad && len(c.b) == 0 }

func (c *cursor) uint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}

// int is a number that is not negative.
func (c *cursor) int() int64 {
	v := c.uint()
	if v > math.MaxInt64 {
		c.fail()
		return 0
	}
	return int64(v)
}

func (c *cursor) signed() int64 {
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}

// count is a number of things of at least size bytes each, so that no more is claimed than is there.
func (c *cursor) count(size int) int {
	v := c.uint()
	if v > uint64(len(c.b)/size) {
		c.fail()
		return 0
	}
	return int(v)
}

// list is the length of a slice, and whether it is nil.
func (c *cursor) list(size int) (n int, ok bool) {
	v := c.uint()
	if v == 0 {
		return 0, false
	}
	if v-1 > uint64(len(c.b)/size) {
		c.fail()
		return 0, false
	}
	return int(v - 1), true
}

func (c *cursor) string() string {
	n := c.count(1)
	s := string(c.b[:n])
	c.b = c.b[n:]
	return s
}

func (c *cursor) byte() byte {
	if len(c.b) == 0 {
		c.fail()
		return 0
	}
	v := c.b[0]
	c.b = c.b[1:]
	return v
}

func (c *cursor) numbers() []int64 {
	n, ok := c.list(1)
	if !ok {
		return nil
	}
	all := make([]int64, n)
	last := int64(0)
	for i := range all {
		last += c.signed()
		all[i] = last
	}
	return all
}

func (c *cursor) lineage() []shard.Lineage {
	n, ok := c.list(7)
	if !ok {
		return nil
	}
	var names []string
	name := func() string {
		i := c.uint()
		if i == uint64(len(names)) && !c.bad {
			names = append(names, c.string())
		}
		if i >= uint64(len(names)) {
			c.fail()
			return ""
		}
		return names[i]
	}
	place := func() shard.Place {
		return shard.Place{Source: name(), File: name(), RowGroup: c.signed(), Row: c.signed()}
	}
	all := make([]shard.Lineage, n)
	for i := range all {
		if c.bad {
			return nil
		}
		all[i] = shard.Lineage{Place: place(), Epoch: c.uint(), N: c.signed()}
		if k, ok := c.list(4); ok {
			all[i].Parts = make([]shard.Place, k)
			for j := range all[i].Parts {
				all[i].Parts[j] = place()
			}
		}
	}
	return all
}

// tensors reads their heads; data lies in a body of size bytes.
func (c *cursor) tensors(body []byte) []shard.Tensor {
	n := c.count(3)
	if n == 0 {
		if len(body) > 0 {
			c.fail()
		}
		return nil
	}
	all := make([]shard.Tensor, n)
	at := 0
	for i := range all {
		t := &all[i]
		t.Name = c.string()
		t.DType = shard.DType(c.byte())
		if t.DType < shard.Bool || t.DType > shard.Float64 {
			c.fail()
			return nil
		}
		t.Shape = make([]int, c.count(1))
		size, zero := int64(t.DType.Size()), false
		for k := range t.Shape {
			d := c.int()
			zero = zero || d == 0
			if d > maxRows || d > 0 && size > maxRows/d {
				c.fail() // no buffer is as large, and no product overflows
				return nil
			}
			t.Shape[k] = int(d)
			size *= max(d, 1)
		}
		if zero {
			size = 0
		}
		if size > int64(len(body)-at) {
			c.fail()
			return nil
		}
		t.Data = body[at : at+int(size) : at+int(size)]
		if at += padded(int(size)); at > len(body) {
			c.fail()
			return nil
		}
	}
	if at != len(body) {
		c.fail()
	}
	return all
}

func padded(n int) int { return (n + alignment - 1) / alignment * alignment }
