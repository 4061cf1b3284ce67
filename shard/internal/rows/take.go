package rows

import (
	"unsafe"

	"github.com/penstock-data/penstock/internal/gather"
)

// Take writes the rows of runs, in their order, to one tensor each: outs[i] holds Bytes(i) for every row, and nothing
// more. Blocks hold packed rows; runs lie within them.
func (l *Layout) Take(outs [][]byte, blocks [][]byte, runs []gather.Run) {
	if l.Whole() {
		gather.Fixed(outs[0], l.Size, blocks, runs)
		return
	}
	s := pool.Get().(*scratch)
	defer s.done()
	s.tile = sized(s.tile, l.strip*l.Size)
	s.outs = append(s.outs[:0], outs...)
	for len(runs) > 0 {
		if r := runs[0]; int(r.N) > l.strip/2 { // a run of its own: no copy
			for n := 0; n < int(r.N); n += l.strip {
				k := min(l.strip, int(r.N)-n)
				at := (int(r.Row) + n) * l.Size
				l.split(s, blocks[r.Rec][at:at+k*l.Size], k)
			}
			runs = runs[1:]
			continue
		}
		n, k := 0, 0
		for k < len(runs) && n+int(runs[k].N) <= l.strip && (k == 0 || int(runs[k].N) <= l.strip/2) {
			n += int(runs[k].N)
			k++
		}
		tile := s.tile[:n*l.Size]
		gather.Ahead(tile, l.Size, blocks, runs, k)
		if n > 0 {
			l.split(s, tile, n)
		}
		runs = runs[k:]
	}
}

// split writes n rows, which follow each other, to the tensors, and moves s.outs behind them.
func (l *Layout) split(s *scratch, rows []byte, n int) {
	next := 0
	for _, g := range l.outs {
		l.columns(s, rows, n, next, g[0])
		l.deinterleave(s, rows, n, g)
		next = g[1]
	}
	l.columns(s, rows, n, next, len(l.byAt))
	for i := range s.outs {
		s.outs[i] = s.outs[i][n*l.tensors[i].out:]
	}
}

// columns writes tensors one after the other: those from number from to limit-1 of byAt.
func (l *Layout) columns(s *scratch, rows []byte, n, from, limit int) {
	for _, i := range l.byAt[from:limit] {
		t := &l.tensors[i]
		to := s.outs[i][:n*t.out]
		out := to
		if t.conv != nil {
			s.temp = sized(s.temp, n*t.bytes)
			out = s.temp[:n*t.bytes]
		}
		l.column(out, rows, n, t)
		if t.conv != nil {
			t.conv(to, out)
		}
	}
}

// column writes the part of a row that is t's, for n rows.
func (l *Layout) column(out, rows []byte, n int, t *tensor) {
	switch t.bytes {
	case 1:
		pick[uint8](out, rows, t.at, l.Size, n)
	case 2:
		pick[uint16](out, rows, t.at, l.Size, n)
	case 4:
		pick[uint32](out, rows, t.at, l.Size, n)
	case 8:
		pick[uint64](out, rows, t.at, l.Size, n)
	default:
		for i := range n {
			copy(out[i*t.bytes:(i+1)*t.bytes], rows[i*l.Size+t.at:])
		}
	}
}

// pick reads one value of every row, at bytes into it.
func pick[T any](dst, rows []byte, at, size, n int) {
	_ = rows[n*size-1] // all rows are there
	base := unsafe.Pointer(&rows[at])
	vals := view[T](dst)[:n]
	for i := range vals {
		vals[i] = *(*T)(unsafe.Add(base, i*size))
	}
}

// deinterleave writes the tensors of a group, of 4 bytes each, that lie side by side.
func (l *Layout) deinterleave(s *scratch, rows []byte, n int, g [2]int) {
	s.dsts = s.dsts[:0]
	for _, i := range l.byAt[g[0]:g[1]] {
		s.dsts = append(s.dsts, s.outs[i])
	}
	deinterleave4(s.dsts, rows, l.tensors[l.byAt[g[0]]].at, l.Size, n, s.sink[:])
}
