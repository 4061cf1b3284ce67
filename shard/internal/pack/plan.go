// Package pack puts token lists together into rows of a fixed length: which document
// goes where ([Concat], [BestFit]), and the copying ([Packed]). It is a pure function
// of the documents and their order, so a window packs to the same rows whenever and
// wherever it is packed; nothing is carried from one call to the next.
package pack

import "math/bits"

// Piece is N tokens of document Doc, from token From on.
type Piece struct{ Doc, From, N int32 }

// Plan says which pieces make up every bin, that is, every row to be written. The
// pieces of bin i are Pieces[Bins[i]:Bins[i+1]], in the order in which they are written.
type Plan struct {
	Pieces  []Piece
	Bins    []int32 // one more than there are bins
	Dropped int     // documents left out as longer than a bin
}

// NumBins is the number of bins.
func (p *Plan) NumBins() int { return len(p.Bins) - 1 }

// Tokens is the number of tokens in all pieces; what bins hold beyond that is padding.
func (p *Plan) Tokens() int64 {
	var n int64
	for _, x := range p.Pieces {
		n += int64(x.N)
	}
	return n
}

// Overlong says what becomes of documents that are longer than a bin.
type Overlong string

const (
	Split Overlong = "split" // cut: every piece but the last fills a bin (default)
	Drop  Overlong = "drop"  // left out
)

// Concat lays the documents end to end in their order and cuts them every length
// tokens. Only the last bin may be partly filled. Empty documents get no piece. All
// lengths must be at least 0, and length at least 1.
func Concat(lengths []int32, length int, overlong Overlong) *Plan {
	return concat(nil, lengths, length, overlong)
}

func concat(s *scratch, lengths []int32, length int, overlong Overlong) *Plan {
	p := &Plan{}
	docs, tokens := 0, int64(0)
	for _, n := range lengths {
		if overlong == Drop && int(n) > length {
			p.Dropped++
		} else if n > 0 {
			docs++
			tokens += int64(n)
		}
	}
	bins := (tokens + int64(length) - 1) / int64(length)
	// At most one piece begins with a document or with a bin.
	p.Pieces = take[Piece](s, int(min(int64(docs)+bins, tokens)))[:0]
	p.Bins = append(take[int32](s, int(bins)+1)[:0], 0)
	room := int32(length) // in the bin that is open
	for d, n := range lengths {
		if overlong == Drop && int(n) > length {
			continue
		}
		for from := int32(0); from < n; {
			k := min(room, n-from)
			p.Pieces = append(p.Pieces, Piece{int32(d), from, k})
			from += k
			if room -= k; room == 0 {
				p.Bins = append(p.Bins, int32(len(p.Pieces)))
				room = int32(length)
			}
		}
	}
	if int(room) < length {
		p.Bins = append(p.Bins, int32(len(p.Pieces)))
	}
	return p
}

// BestFit is best fit decreasing: the longest first (ties: the earlier document), each
// into the fullest bin that has room for it (ties: the bin that got to be so full last),
// else into a new one. Documents stay whole unless they are longer than a bin: of these,
// every length tokens are a bin, and the rest is packed like a document. Empty documents
// get no piece. All lengths must be at least 0, and length at least 1.
//
// Pieces of a bin are in order of their documents. Bins are in the order of the pieces
// that opened them, by document: as a bin's opener is its longest piece, whose place
// among the documents says nothing about lengths, neither long nor short documents come
// first where the documents are in random order.
func BestFit(lengths []int32, length int, overlong Overlong) *Plan {
	return bestFit(nil, lengths, length, overlong)
}

func bestFit(s *scratch, lengths []int32, length int, overlong Overlong) *Plan {
	p := &Plan{}
	total := 0
	for _, n := range lengths {
		if int(n) > length && overlong == Drop {
			p.Dropped++
		} else {
			total += (int(n) + length - 1) / length
		}
	}
	pieces := take[Piece](s, total)[:0]
	for d, n := range lengths {
		if int(n) > length && overlong == Drop {
			continue
		}
		for from := int32(0); from < n; from += int32(length) {
			pieces = append(pieces, Piece{int32(d), from, min(n-from, int32(length))})
			if n-from <= int32(length) {
				break // from + length need not fit 32 bits
			}
		}
	}
	bin, opener := assign(s, pieces, length)

	// Number the bins in the order of their openers, then sort the pieces by bin.
	rank := take[int32](s, len(opener))
	next := int32(0)
	for i := range pieces {
		if b := bin[i]; opener[b] == int32(i) {
			rank[b] = next
			next++
		}
	}
	p.Bins = take[int32](s, len(opener)+1)
	clear(p.Bins)
	for _, b := range bin {
		p.Bins[rank[b]+1]++
	}
	for i := 1; i < len(p.Bins); i++ {
		p.Bins[i] += p.Bins[i-1]
	}
	p.Pieces = take[Piece](s, len(pieces))
	at := take[int32](s, len(opener))
	copy(at, p.Bins)
	for i, x := range pieces {
		r := rank[bin[i]]
		p.Pieces[at[r]] = x
		at[r]++
	}
	return p
}

// assign gives the bin of every piece, in order of their opening, and the piece that
// opened each. Linear in pieces and length.
func assign(s *scratch, pieces []Piece, length int) (bin, opener []int32) {
	// Longest first, by counting.
	start := take[int32](s, length+2)
	clear(start)
	for _, x := range pieces {
		start[length-int(x.N)+1]++
	}
	for i := 1; i < len(start); i++ {
		start[i] += start[i-1]
	}
	order := take[int32](s, len(pieces))
	for i, x := range pieces {
		k := length - int(x.N)
		order[start[k]] = int32(i)
		start[k]++
	}

	// Bins with the same room are a stack: top[room] is its last bin + 1, below[bin] the
	// one under it. rooms is the set of rooms whose stack is not empty.
	top := take[int32](s, length+1)
	clear(top)
	rooms := newSet(length + 1)
	bin = take[int32](s, len(pieces))
	opener, below := take[int32](s, len(pieces))[:0], take[int32](s, len(pieces))[:0]
	for _, i := range order {
		n := int(pieces[i].N)
		room, ok := rooms.atLeast(n)
		var b int32
		if ok {
			b = top[room] - 1
			if top[room] = below[b]; top[room] == 0 {
				rooms.remove(room)
			}
		} else {
			b, room = int32(len(opener)), length
			opener, below = append(opener, i), append(below, 0)
		}
		bin[i] = b
		if room -= n; room > 0 {
			if below[b] = top[room]; below[b] == 0 {
				rooms.add(room)
			}
			top[room] = b + 1
		}
	}
	return bin, opener
}

// set is a set of small numbers with a fast search upwards: a bit per number, and a
// bit per word of these.
type set struct{ words, upper []uint64 }

func newSet(n int) *set {
	w := n/64 + 1
	return &set{make([]uint64, w), make([]uint64, w/64+1)}
}

func (s *set) add(i int) {
	s.words[i>>6] |= 1 << (i & 63)
	s.upper[i>>12] |= 1 << (i >> 6 & 63)
}

func (s *set) remove(i int) {
	if s.words[i>>6] &^= 1 << (i & 63); s.words[i>>6] == 0 {
		s.upper[i>>12] &^= 1 << (i >> 6 & 63)
	}
}

// atLeast returns the least member that is i or more.
func (s *set) atLeast(i int) (int, bool) {
	w := i >> 6
	if x := s.words[w] >> (i & 63); x != 0 {
		return i + bits.TrailingZeros64(x), true
	}
	w++
	for u := w >> 6; u < len(s.upper); u++ {
		x := s.upper[u]
		if u == w>>6 {
			x = x >> (w & 63) << (w & 63)
		}
		if x != 0 {
			w = u<<6 + bits.TrailingZeros64(x)
			return w<<6 + bits.TrailingZeros64(s.words[w]), true
		}
	}
	return 0, false
}
