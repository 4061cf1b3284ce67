package parquetio

import (
	"encoding/binary"
	"slices"
	"sync"
	"unsafe"

	"github.com/penstock-data/penstock/internal/fault"
)

// groupInfo is what is kept of a row group beside its column chunks.
type groupInfo struct {
	rows  int64
	bytes int64 // of all column chunks, compressed
	base  int64 // what offsets in the packed chunks are relative to
}

// rowGroup is a row group as it is worked with: unpacked.
type rowGroup struct {
	rows   int64
	chunks []chunk // one per leaf column
}

// packed holds the column chunks of a file, row group by row group, each as about 40 bytes: flags, codec,
// numbers as variable-length differences from what they are near to, minimum and maximum. No pointers are in it.
type packed struct {
	leaves int
	at     []uint32 // where every chunk begins
	b      []byte
}

const (
	hasColumnIndex = 1 << iota
	hasOffsetIndex
	hasBloomFilter
)

func (p *packed) add(g *groupInfo, c *chunk) {
	p.at = append(p.at, uint32(len(p.b)))
	var has byte
	if c.ciLen > 0 {
		has |= hasColumnIndex
	}
	if c.oiLen > 0 {
		has |= hasOffsetIndex
	}
	if c.bloom > 0 {
		has |= hasBloomFilter
	}
	b := append(p.b, byte(c.flags), byte(c.codec), has, byte(len(c.min)), byte(len(c.max)))
	b = append(append(b, c.min...), c.max...)
	for _, v := range [...]int64{c.start - g.base, c.size, c.raw - c.size, c.values - g.rows, c.nulls, c.text} {
		b = binary.AppendVarint(b, v)
	}
	if c.ciLen > 0 {
		b = binary.AppendVarint(binary.AppendVarint(b, c.ci-g.base), int64(c.ciLen))
	}
	if c.oiLen > 0 {
		b = binary.AppendVarint(binary.AppendVarint(b, c.oi-g.base), int64(c.oiLen))
	}
	if c.bloom > 0 {
		b = binary.AppendVarint(binary.AppendVarint(b, c.bloom-g.base), int64(c.bloomLen))
	}
	p.b = b
}

// unpack is the opposite of add. Minimum and maximum are views of p.
func (p *packed) unpack(g *groupInfo, i int, c *chunk) {
	b := p.b[p.at[i]:]
	view := func(n byte) string {
		if n == 0 {
			return ""
		}
		s := unsafe.String(&b[0], int(n))
		b = b[n:]
		return s
	}
	num := func() int64 {
		if x := b[0]; x < 0x80 {
			b = b[1:]
			return int64(x>>1) ^ -int64(x&1)
		}
		v, n := binary.Varint(b)
		b = b[n:]
		return v
	}
	has, nmin, nmax := b[2], b[3], b[4]
	*c = chunk{flags: chunkFlags(b[0]), codec: int8(b[1])}
	b = b[5:]
	c.min, c.max = view(nmin), view(nmax)
	c.start = num() + g.base
	c.size = num()
	c.raw = num() + c.size
	c.values = num() + g.rows
	c.nulls, c.text = num(), num()
	if has&hasColumnIndex != 0 {
		c.ci, c.ciLen = num()+g.base, int32(num())
	}
	if has&hasOffsetIndex != 0 {
		c.oi, c.oiLen = num()+g.base, int32(num())
	}
	if has&hasBloomFilter != 0 {
		c.bloom, c.bloomLen = num()+g.base, int32(num())
	}
}

// group unpacks row group i.
func (f *footer) group(i int) *rowGroup {
	g := new(rowGroup)
	f.unpack(i, g, nil)
	return g
}

// unpack makes g row group i, with these leaves (nil: all); the other chunks are undefined. g may have been
// another row group before.
func (f *footer) unpack(i int, g *rowGroup, leaves []int) {
	info, n := &f.groups[i], f.chunks.leaves
	g.rows = info.rows
	if cap(g.chunks) < n {
		g.chunks = make([]chunk, n)
	}
	g.chunks = g.chunks[:n]
	if leaves == nil {
		for l := range g.chunks {
			f.chunks.unpack(info, i*n+l, &g.chunks[l])
		}
		return
	}
	for _, l := range leaves {
		f.chunks.unpack(info, i*n+l, &g.chunks[l])
	}
}

// footerScratch is what a footer is parsed with, to be used for the next one.
type footerScratch struct {
	tail   []byte
	chunks []chunk // of all row groups; their minima and maxima are views of the raw footer
	groups []parsedGroup
	packed packed
}

// parsedGroup is a row group whose chunks are [from, to).
type parsedGroup struct {
	rows     int64
	from, to int
}

var footerScratches = sync.Pool{New: func() any { return new(footerScratch) }}

// free forgets what was parsed, and keeps its memory unless that is much.
func (s *footerScratch) free() {
	const most = 1 << 16 // chunks: 10 MiB
	if cap(s.chunks) > most {
		s.chunks = nil
	}
	clear(s.chunks[:cap(s.chunks)]) // the views
	s.chunks, s.groups = s.chunks[:0], s.groups[:0]
	s.packed = packed{at: s.packed.at[:0], b: s.packed.b[:0]}
	if cap(s.packed.b) > 100*most {
		s.packed = packed{}
	}
	footerScratches.Put(s)
}

// pack checks the row groups against the schema and the file, drops
// statistics that cannot be used, and packs what is left.
func (f *footer) pack(s *footerScratch, w writer) error {
	f.groups = make([]groupInfo, len(s.groups))
	leaves := len(f.schema.leaves)
	var rows int64
	for i, pg := range s.groups {
		g := &f.groups[i]
		at := fault.Place{RowGroup: fault.N(int64(i))}
		if rows += pg.rows; pg.rows < 0 || rows < 0 || rows > 1<<56 {
			return fault.New(fault.Corrupt, "the footer claims %d rows", pg.rows).At(at)
		}
		if pg.to-pg.from != leaves {
			return fault.New(fault.Corrupt, "the row group has %d columns, the schema %d", pg.to-pg.from, leaves).At(at)
		}
		g.rows = pg.rows
		f.all.Rows += pg.rows
		chunks := s.chunks[pg.from:pg.to]
		for l := range chunks {
			c := &chunks[l]
			f.check(c, &f.schema.leaves[l], pg.rows, &w)
			g.bytes += c.size
			f.all.Bytes += c.size
			if l == 0 {
				g.base = c.start
			}
			s.packed.add(g, c)
		}
	}
	f.chunks = packed{leaves: leaves, at: slices.Clone(s.packed.at), b: slices.Clone(s.packed.b)}
	return nil
}

// check drops what cannot be used of a chunk; one that cannot be is an error of who reads it.
func (f *footer) check(c *chunk, leaf *leaf, rows int64, w *writer) {
	if c.flags&encrypted != 0 {
		*c = chunk{flags: encrypted, nulls: -1, text: -1, codec: -1}
		return
	}
	if c.start < 0 || c.size < 0 || c.raw < 0 || c.values < 0 || c.start > f.end || c.size > f.end-c.start {
		*c = chunk{flags: beyond, nulls: -1, text: -1, codec: -1}
		return
	}
	if w.before("parquet-mr", 1, 2, 9) { // PARQUET-816: the header of the dictionary page is not counted
		c.size = min(c.size+100, f.end-c.start)
	}
	if !inside(c.ci, int64(c.ciLen), f.end) || !inside(c.oi, int64(c.oiLen), f.end) {
		c.ciLen, c.oiLen = 0, 0
	}
	if c.bloom <= 0 || c.bloom >= f.end || c.bloomLen < 0 {
		c.bloom, c.bloomLen = 0, 0
	}
	f.schema.gate.chunk(c, leaf, rows, w)
}
