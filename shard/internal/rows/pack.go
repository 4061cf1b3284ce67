package rows

import (
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/penstock-data/penstock/internal/gather"
)

// leaf is where the values of a column lie in a record.
type leaf struct {
	vals  []byte // of row 0 on; of bools the bitmap
	bit   int    // bools: position of row 0's first
	nulls []validity
}

// validity is a bitmap that has nulls, with per bits for each row, those of row 0 from bit at on.
type validity struct {
	bits    []byte
	at, per int
}

// leafOf finds the column of f in rec; false if it has rows but no memory.
func leafOf(f *field, rec arrow.RecordBatch) (x leaf, ok bool) {
	data := rec.Column(f.Column).Data()
	at, per := data.Offset(), 1
	for {
		bufs := data.Buffers()
		// NullN of an array would count and write; that of its data is -1 where unknown.
		if data.NullN() != 0 && bufs[0] != nil && bufs[0].Len() > 0 {
			x.nulls = append(x.nulls, validity{bufs[0].Bytes(), at, per})
		}
		if t, is := data.DataType().(*arrow.FixedSizeListType); is {
			w := int(t.Len())
			data = data.Children()[0]
			at, per = data.Offset()+at*w, per*w
			continue
		}
		switch {
		case bufs[1] == nil || bufs[1].Len() == 0:
			return x, rec.NumRows() == 0
		case f.From == Bool:
			x.vals, x.bit = bufs[1].Bytes(), at
		default:
			x.vals = bufs[1].Bytes()[at*f.From.Size():]
		}
		return x, true
	}
}

// whole reports whether none of the n rows from row on is null; of rows that places leaves out that does not matter.
func (x *leaf) whole(row, n int, places []int32) bool {
	for _, v := range x.nulls {
		if bitutil.CountSetBits(v.bits, v.at+row*v.per, n*v.per) == n*v.per {
			continue
		}
		if places == nil {
			return false
		}
		for r, p := range places {
			if p >= 0 && bitutil.CountSetBits(v.bits, v.at+(row+r)*v.per, v.per) != v.per {
				return false
			}
		}
	}
	return true
}

// Pack writes row r of rec to dst[places[r]*Size:], for every row. A negative place leaves the row out; nil places mean
// that row r has place r. It is false if a row has a null or a value that does not fit its type: then dst holds
// anything. Rows of places that no row has stay as they were.
func (l *Layout) Pack(dst []byte, rec arrow.RecordBatch, places []int32) bool {
	n := int(rec.NumRows())
	if n == 0 {
		return true
	}
	s := pool.Get().(*scratch)
	defer s.done()
	if places != nil {
		s.rows = sized(s.rows, l.strip*l.Size)
	}
	s.used = append(s.used[:0], 0)
	if !l.load(s, 1, rec) {
		return false
	}
	for f := range l.fields {
		if !s.leafs[f].whole(0, n, places) {
			return false
		}
	}
	for row := 0; row < n; row += l.strip {
		k := min(l.strip, n-row)
		var to []int32
		if places != nil {
			to = places[row : row+k]
		}
		if !l.direct(s, 0, row, k, to) {
			return false
		}
		if to == nil {
			l.interleave(dst[row*l.Size:(row+k)*l.Size], k, s.srcs)
			continue
		}
		_ = dst[:int(slices.Max(to)+1)*l.Size] // the places are there
		l.interleave(s.rows, k, s.srcs)
		scatter(dst, to, s.rows, l.Size)
	}
	return true
}

// PackRuns writes the rows of runs to dst, one behind the other. It is false where Pack is.
func (l *Layout) PackRuns(dst []byte, recs []arrow.RecordBatch, runs []gather.Run) bool {
	s := pool.Get().(*scratch)
	defer s.done()
	s.slot = sized(s.slot, len(recs))
	for i := range s.slot {
		s.slot[i] = -1
	}
	s.used = s.used[:0]
	for _, r := range runs {
		if s.slot[r.Rec] < 0 {
			s.slot[r.Rec] = int32(len(s.used))
			s.used = append(s.used, r.Rec)
		}
	}
	if !l.load(s, len(s.used), recs...) {
		return false
	}
	if s.nulls {
		for f := range l.fields {
			for _, r := range runs {
				if !s.leafs[f*len(s.used)+int(s.slot[r.Rec])].whole(int(r.Row), int(r.N), nil) {
					return false
				}
			}
		}
	}
	var cut gather.Run // what is left of a run that is longer than a strip
	for len(runs) > 0 || cut.N > 0 {
		if cut.N == 0 {
			cut, runs = runs[0], runs[1:]
		}
		var k int
		switch {
		case int(cut.N) >= l.strip || len(runs) == 0 || int(cut.N+runs[0].N) > l.strip:
			k = min(int(cut.N), l.strip)
			if k > 0 && !l.direct(s, int(s.slot[cut.Rec]), int(cut.Row), k, nil) {
				return false
			}
			cut.Row, cut.N = cut.Row+int32(k), cut.N-int32(k)
		default:
			k, s.runs = 0, s.runs[:0]
			for {
				k += int(cut.N)
				cut.Rec = s.slot[cut.Rec]
				s.runs = append(s.runs, cut)
				cut.N = 0
				if len(runs) == 0 || k+int(runs[0].N) > l.strip {
					break
				}
				cut, runs = runs[0], runs[1:]
			}
			if !l.collect(s, k) {
				return false
			}
		}
		if k == 0 {
			continue
		}
		l.interleave(dst[:k*l.Size], k, s.srcs)
		dst = dst[k*l.Size:]
	}
	return true
}

// load finds all columns in the records that are used, n of them.
func (l *Layout) load(s *scratch, n int, recs ...arrow.RecordBatch) bool {
	s.leafs, s.vals = sized(s.leafs, n*len(l.fields)), sized(s.vals, n*len(l.fields))
	s.srcs = sized(s.srcs, len(l.fields))
	s.tile = sized(s.tile, l.strip*l.Size)
	s.temp = sized(s.temp, l.strip*l.widest)
	s.nulls = false
	for f := range l.fields {
		for k, r := range s.used {
			i := f*n + k
			var ok bool
			if s.leafs[i], ok = leafOf(&l.fields[f], recs[r]); !ok {
				return false
			}
			s.vals[i] = s.leafs[i].vals
			s.nulls = s.nulls || s.leafs[i].nulls != nil
		}
	}
	return true
}

// done forgets the records and gives the scratch back.
func (s *scratch) done() {
	clear(s.leafs)
	clear(s.vals)
	clear(s.srcs)
	clear(s.outs)
	clear(s.dsts)
	pool.Put(s)
}

// direct points srcs at n rows of a record that follow each other, as the packed row has them.
func (l *Layout) direct(s *scratch, rec, row, n int, places []int32) bool {
	recs := len(s.used)
	if l.plain {
		for i := range s.srcs {
			w := l.fields[i].size
			s.srcs[i] = s.vals[i*recs+rec][row*w : (row+n)*w]
		}
		return true
	}
	tile := s.tile
	for i := range l.fields {
		f := &l.fields[i]
		x := &s.leafs[i*recs+rec]
		var src []byte
		w := f.size
		if f.From == Bool {
			if src = s.temp[:n*w]; f.conv == nil {
				src = tile[:n*w]
			}
			unpack(src, x.vals, x.bit+row*f.Width)
		} else {
			src = x.vals[row*w : (row+n)*w]
		}
		if f.conv != nil {
			if f.conv(tile[:n*f.bytes], src) >= 0 && !convertWanted(f, tile, src, places) {
				return false
			}
			src = tile[:n*f.bytes]
		}
		s.srcs[i] = src
		tile = tile[n*f.bytes:]
	}
	return true
}

// convertWanted converts the rows that places does not leave out; false if one of them does not fit.
func convertWanted(f *field, dst, src []byte, places []int32) bool {
	if places == nil {
		return false
	}
	w := f.size
	for i, p := range places {
		if p >= 0 && f.conv(dst[i*f.bytes:(i+1)*f.bytes], src[i*w:(i+1)*w]) >= 0 {
			return false
		}
	}
	return true
}

// collect gathers the n rows of s.runs into srcs, as the packed row has them.
func (l *Layout) collect(s *scratch, n int) bool {
	tile, recs := s.tile, len(s.used)
	for i := range l.fields {
		f := &l.fields[i]
		to := tile[:n*f.bytes]
		tile = tile[n*f.bytes:]
		s.srcs[i] = to
		w := f.size
		src := to
		if f.conv != nil {
			src = s.temp[:n*w]
		}
		if f.From == Bool {
			at := 0
			for _, r := range s.runs {
				x := &s.leafs[i*recs+int(r.Rec)]
				unpack(src[at*w:(at+int(r.N))*w], x.vals, x.bit+int(r.Row)*w)
				at += int(r.N)
			}
		} else {
			gather.Fixed(src, w, s.vals[i*recs:(i+1)*recs], s.runs)
		}
		if f.conv != nil && n > 0 && f.conv(to, src) >= 0 {
			return false
		}
	}
	return true
}

// unpack writes bits from bit at on as bytes of 0 and 1.
func unpack(dst, bits []byte, at int) {
	for i := range dst {
		dst[i] = bits[(at+i)>>3] >> ((at + i) & 7) & 1
	}
}

// interleave writes srcs, one field each, to n rows, one behind the other.
func (l *Layout) interleave(rows []byte, n int, srcs [][]byte) {
	next := 0 // field that is not yet written
	for _, g := range l.ints {
		l.each(rows, n, srcs, next, g[0])
		interleave4(rows, l.fields[g[0]].at, l.Size, n, srcs[g[0]:g[1]])
		next = g[1]
	}
	l.each(rows, n, srcs, next, len(l.fields))
}

// each writes fields from to limit-1 one after the other.
func (l *Layout) each(rows []byte, n int, srcs [][]byte, from, limit int) {
	for i := from; i < limit; i++ {
		f := &l.fields[i]
		switch f.bytes {
		case 1:
			put[uint8](rows, f.at, l.Size, n, srcs[i])
		case 2:
			put[uint16](rows, f.at, l.Size, n, srcs[i])
		case 4:
			put[uint32](rows, f.at, l.Size, n, srcs[i])
		case 8:
			put[uint64](rows, f.at, l.Size, n, srcs[i])
		default:
			for k := range n {
				copy(rows[k*l.Size+f.at:][:f.bytes], srcs[i][k*f.bytes:])
			}
		}
	}
}

// put writes one value to each of n rows, at bytes into it.
func put[T any](rows []byte, at, size, n int, src []byte) {
	_ = rows[n*size-1] // all rows are there
	base := unsafe.Pointer(&rows[at])
	for i, v := range view[T](src)[:n] {
		*(*T)(unsafe.Add(base, i*size)) = v
	}
}
