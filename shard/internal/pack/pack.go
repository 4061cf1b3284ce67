package pack

import (
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/typename"
)

// Method is a way to choose what goes together.
type Method string

const (
	MethodConcat  Method = "concat"   // end to end, cut at every length; see Concat
	MethodBestFit Method = "best_fit" // documents whole; see BestFit (default)
)

// MaxLength bounds Options.Length.
const MaxLength = 1 << 24

// Options of packing.
type Options struct {
	Length   int      // tokens of a row; 1..MaxLength
	Method   Method   // "": MethodBestFit
	Overlong Overlong // "": Split
	Pad      int64    // the token behind the last document of a row
	// EOS, if not nil, is put behind every document that has tokens, and counts in its length.
	EOS *int64
	// LossMask adds the column loss_mask: 1 for tokens, 0 for padding. If masks are given
	// to New, theirs for the tokens of documents, and 1 for EOS.
	LossMask bool
}

// tokens checks o and returns the element type of a column of token lists.
func (o Options) tokens(list arrow.DataType) (arrow.DataType, error) {
	if o.Length < 1 || o.Length > MaxLength {
		return nil, fault.New(fault.Invalid, "length must be 1 to %d tokens, not %d", MaxLength, o.Length)
	}
	switch o.Method {
	case "", MethodConcat, MethodBestFit:
	default:
		return nil, fault.New(fault.Invalid, "unknown method %q: use %q or %q", o.Method, MethodConcat, MethodBestFit)
	}
	switch o.Overlong {
	case "", Split, Drop:
	default:
		return nil, fault.New(fault.Invalid, "unknown choice %q for documents longer than a row: use %q or %q", o.Overlong, Split, Drop)
	}
	t := elem(list)
	if t == nil || !arrow.IsInteger(t.ID()) {
		return nil, fault.New(fault.Invalid, "tokens must be a list of integers, not %s", typename.Name(list))
	}
	lo, hi := limits(t)
	fits := func(what string, v int64) error {
		if v < lo || v > 0 && uint64(v) > hi {
			return fault.New(fault.Invalid, "the %s token %d does not fit %s, the type of the tokens", what, v, typename.Name(t))
		}
		return nil
	}
	if err := fits("pad", o.Pad); err != nil {
		return nil, err
	}
	if o.EOS != nil {
		if err := fits("eos", *o.EOS); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func limits(t arrow.DataType) (int64, uint64) {
	n := t.(arrow.FixedWidthDataType).BitWidth()
	if arrow.IsUnsignedInteger(t.ID()) {
		return 0, math.MaxUint64 >> (64 - n)
	}
	return math.MinInt64 >> (64 - n), math.MaxInt64 >> (64 - n)
}

// elem is the element type of lists of varying length; nil for other types.
func elem(t arrow.DataType) arrow.DataType {
	switch t := t.(type) {
	case *arrow.ListType:
		return t.Elem()
	case *arrow.LargeListType:
		return t.Elem()
	}
	return nil
}

// Schema is what packing a column of this type gives, one row per bin, nothing null,
// the items of lists named "item":
//
//	input_ids    fixed_size_list<T, Length>       T: the element type of tokens
//	segment_ids  fixed_size_list<int32, Length>   1.. by piece in the row, 0 for padding
//	position_ids fixed_size_list<int32, Length>   0.. from the beginning of the piece, 0 for padding
//	loss_mask    fixed_size_list<uint8, Length>   with Options.LossMask
//
// Options or a type that do not fit are an Invalid error.
func Schema(tokens arrow.DataType, o Options) (*arrow.Schema, error) {
	t, err := o.tokens(tokens)
	if err != nil {
		return nil, err
	}
	return o.schema(t), nil
}

func (o Options) schema(t arrow.DataType) *arrow.Schema {
	field := func(name string, t arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: arrow.FixedSizeListOfNonNullable(int32(o.Length), t)}
	}
	fields := []arrow.Field{field("input_ids", t), field("segment_ids", arrow.PrimitiveTypes.Int32), field("position_ids", arrow.PrimitiveTypes.Int32)}
	if o.LossMask {
		fields = append(fields, field("loss_mask", arrow.PrimitiveTypes.Uint8))
	}
	return arrow.NewSchema(fields, nil)
}

// CheckMask reports, as an Invalid error, why a column of this type cannot give the
// loss mask.
func CheckMask(masks arrow.DataType, o Options) error {
	if !o.LossMask {
		return fault.New(fault.Invalid, "a column of masks is given, but no loss mask is asked for: set loss_mask, or leave the column out")
	}
	if m := elem(masks); m == nil || m.ID() != arrow.UINT8 && m.ID() != arrow.INT8 && m.ID() != arrow.BOOL {
		return fault.New(fault.Invalid, "loss masks must be a list of uint8, int8 or bool, not %s: cast the column", masks)
	}
	return nil
}

// Packed is documents and the plan for their bins. It borrows the columns that it was
// made from, until Settle copies the tokens out of them: they must outlive it. What it holds itself is of
// the allocator: Release it. Safe for concurrent use, but for these two.
type Packed struct {
	o      Options
	token  arrow.DataType
	width  int // bytes of a token
	schema *arrow.Schema

	held scratch // the rest
	bins []int32 // the pieces of bin i are bins[i] to bins[i+1]-1
	n    []int32 // tokens of every piece; less than 0: -n, of which the last is EOS, not the document's

	// Where the tokens of every piece are: from index from of record rec on. Their masks, if there are any, are those of the
	// same record. Nil once settled.
	rec      []int32
	from     []int64
	maskFrom []int64
	src      lists
	mask     lists
	maskBits bool // masks are bool

	// The tokens of all pieces, one behind the other, EOS included; nil: not settled.
	first []int64 // index of the first one of every bin
	ids   []byte
	masks []uint8 // nil: 1
}

// span is a list: n values of record rec from index from on.
type span struct {
	rec, n int32
	from   int64
}

// New plans the packing of the documents that runs name, in that order: rows of a
// column of token lists, given per record (at least one). masks, if not nil, is a second
// column, lists of uint8, int8 or bool as long as the tokens. A null list is an empty
// document, which gets no piece, not even with EOS. A null token, or a mask of another
// length, is a RowError that names the index of the document.
//
// docs, if not nil, gets the plan, on the Go heap: Piece.Doc counts the rows of runs.
func New(alloc memory.Allocator, o Options, tokens, masks []arrow.Array, runs []gather.Run, docs *Plan) (_ *Packed, err error) {
	if len(tokens) == 0 {
		return nil, fault.New(fault.Internal, "packing needs the column of at least one record")
	}
	t, err := o.tokens(tokens[0].DataType())
	if err != nil {
		return nil, err
	}
	p := &Packed{o: o, token: t, width: t.(arrow.FixedWidthDataType).BitWidth() / 8, schema: o.schema(t), held: scratch{alloc: alloc}}
	s := &scratch{alloc: alloc}
	defer s.free()
	done := false
	defer func() {
		if !done { // also where memory is out
			p.Release()
		}
	}()
	if p.src, err = open(tokens); err != nil {
		return nil, err
	}
	lists, err := p.src.spans(s, runs, "token")
	if err != nil {
		return nil, err
	}
	var marks []span
	if masks != nil {
		if len(masks) != len(tokens) {
			return nil, fault.New(fault.Internal, "%d columns of masks for %d of tokens", len(masks), len(tokens))
		}
		if err := CheckMask(masks[0].DataType(), o); err != nil {
			return nil, err
		}
		p.maskBits = elem(masks[0].DataType()).ID() == arrow.BOOL
		if p.mask, err = open(masks); err != nil {
			return nil, err
		}
		if marks, err = p.mask.spans(s, runs, "mask value"); err != nil {
			return nil, err
		}
		for d, l := range lists {
			if n := marks[d].n; n != l.n {
				return nil, fault.New(fault.RowError, "document %d has %d tokens and a mask of %d: they must be equally long", d, l.n, n)
			}
		}
	}
	n := take[int32](s, len(lists)) // tokens, EOS included
	for d, l := range lists {
		n[d] = l.n
		if o.EOS != nil && l.n > 0 {
			n[d]++
		}
	}
	var plan *Plan
	if o.Method == MethodConcat {
		plan = concat(s, n, o.Length, o.Overlong)
	} else {
		plan = bestFit(s, n, o.Length, o.Overlong)
	}
	if docs != nil {
		*docs = Plan{slices.Clone(plan.Pieces), slices.Clone(plan.Bins), plan.Dropped}
	}
	p.keep(plan, lists, marks)
	done = true
	return p, nil
}

// keep notes what is to be known of the pieces of plan.
func (p *Packed) keep(plan *Plan, lists, marks []span) {
	h := &p.held
	p.bins = take[int32](h, len(plan.Bins))
	copy(p.bins, plan.Bins)
	k := len(plan.Pieces)
	p.n, p.rec, p.from = take[int32](h, k), take[int32](h, k), take[int64](h, k)
	if marks != nil {
		p.maskFrom = take[int64](h, k)
	}
	for i, x := range plan.Pieces {
		l := &lists[x.Doc]
		p.n[i], p.rec[i], p.from[i] = x.N, l.rec, l.from+int64(x.From)
		if x.From+x.N > l.n {
			p.n[i] = -x.N
		}
		if marks != nil {
			p.maskFrom[i] = marks[x.Doc].from + int64(x.From)
		}
	}
}

// sparse is the least number of bytes that the tokens of a piece have on average, for pieces to be remembered by where they
// are: that takes 16 to 24 bytes.
const sparse = 128

// Settle copies the tokens of pieces, where they are so short that it takes much to remember where they are. If it does, which is
// what it returns, the columns that p was made from are of no more use to it.
func (p *Packed) Settle() bool {
	total := int64(0)
	for _, n := range p.n {
		total += int64(max(n, -n))
	}
	if total*int64(p.width) >= sparse*int64(len(p.n)) || total > math.MaxInt/8 {
		return false
	}
	h := &scratch{alloc: p.held.alloc}
	done := false
	defer func() {
		if !done {
			h.free()
		}
	}()
	bins, n, first := take[int32](h, len(p.bins)), take[int32](h, len(p.n)), take[int64](h, p.NumBins()+1)
	ids := take[byte](h, int(total)*p.width)
	var masks []byte
	if p.maskFrom != nil {
		masks = take[byte](h, int(total))
	}
	copy(bins, p.bins)
	at := int64(0)
	for b := range p.NumBins() {
		first[b] = at
		for _, x := range p.n[p.bins[b]:p.bins[b+1]] {
			at += int64(max(x, -x))
		}
	}
	first[p.NumBins()] = total
	switch p.width {
	case 1:
		collect[uint8](p, ids)
	case 2:
		collect[uint16](p, ids)
	case 4:
		collect[uint32](p, ids)
	default:
		collect[uint64](p, ids)
	}
	at = 0
	for i, x := range p.n {
		n[i] = max(x, -x)
		if masks != nil {
			p.fillMask(masks[at:at+int64(n[i])], i)
			at += int64(n[i])
		}
	}
	p.held.free()
	p.held = *h
	p.bins, p.n, p.first, p.ids, p.masks = bins, n, first, ids, masks
	p.rec, p.from, p.maskFrom, p.src, p.mask = nil, nil, nil, lists{}, lists{}
	done = true
	return true
}

// NumBins is the number of bins.
func (p *Packed) NumBins() int { return len(p.bins) - 1 }

// Size is the bytes that p holds beside the columns that it borrows.
func (p *Packed) Size() int64 { return p.held.size }

// RowBytes is the size of a bin in a record.
func (p *Packed) RowBytes() int64 {
	n := p.width + 8
	if p.o.LossMask {
		n++
	}
	return int64(p.o.Length) * int64(n)
}

// Release gives up what p holds. Idempotent.
func (p *Packed) Release() { p.held.free() }

// Schema is that of [Schema].
func (p *Packed) Schema() *arrow.Schema { return p.schema }

// Record writes the bins [from, to) as one record, allocated from alloc, which the
// caller owns.
func (p *Packed) Record(alloc memory.Allocator, from, to int) arrow.RecordBatch {
	n := (to - from) * p.o.Length
	cols := make([]arrow.Array, p.schema.NumFields())
	for i := range cols {
		t := p.schema.Field(i).Type.(*arrow.FixedSizeListType)
		b := memory.NewResizableBuffer(alloc)
		b.Resize(n * t.Elem().(arrow.FixedWidthDataType).BitWidth() / 8)
		p.Column(b.Bytes(), i, from, to)
		items := array.NewData(t.Elem(), n, []*memory.Buffer{nil, b}, nil, 0, 0)
		list := array.NewData(t, to-from, []*memory.Buffer{nil}, []arrow.ArrayData{items}, 0, 0)
		cols[i] = array.MakeFromData(list)
		list.Release()
		items.Release()
		b.Release()
	}
	rec := array.NewRecordBatch(p.schema, cols, int64(to-from))
	for _, c := range cols {
		c.Release()
	}
	return rec
}

// lists reads a column of lists of several records.
type lists struct {
	short [][]int32 // offsets from row 0 on, of lists
	long  [][]int64 // the same of large lists
	valid []bitmap  // of lists
	items []bitmap  // validity of values
	raw   [][]byte  // values
	base  []int     // index of value 0 in raw
}

// bitmap is one from bit at on; nil bits are all ones.
type bitmap struct {
	bits []byte
	at   int
}

func validity(d arrow.ArrayData) bitmap {
	if b := d.Buffers(); len(b) > 0 && b[0] != nil && b[0].Len() > 0 && d.NullN() != 0 {
		return bitmap{b[0].Bytes(), d.Offset()}
	}
	return bitmap{}
}

func open(cols []arrow.Array) (lists, error) {
	n := len(cols)
	l := lists{valid: make([]bitmap, n), items: make([]bitmap, n), raw: make([][]byte, n), base: make([]int, n)}
	large := cols[0].DataType().ID() == arrow.LARGE_LIST
	if large {
		l.long = make([][]int64, n)
	} else {
		l.short = make([][]int32, n)
	}
	for i, c := range cols {
		if !arrow.TypeEqual(c.DataType(), cols[0].DataType()) {
			return l, fault.New(fault.Internal, "packing %s together with %s", c.DataType(), cols[0].DataType())
		}
		d := c.Data()
		l.valid[i] = validity(d)
		if b := d.Buffers()[1]; b != nil && b.Len() > 0 {
			if large {
				l.long[i] = view[int64](b.Bytes())[d.Offset():]
			} else {
				l.short[i] = view[int32](b.Bytes())[d.Offset():]
			}
		}
		v := d.Children()[0]
		l.items[i], l.base[i] = validity(v), v.Offset()
		if b := v.Buffers()[1]; b != nil {
			l.raw[i] = b.Bytes()
		}
	}
	return l, nil
}

// spans returns the list of every row of runs; null lists are empty. what names a
// value in the error for one that is null.
func (l *lists) spans(s *scratch, runs []gather.Run, what string) ([]span, error) {
	out := take[span](s, gather.Count(runs))[:0]
	for _, r := range runs {
		valid, items, base := l.valid[r.Rec], l.items[r.Rec], int64(l.base[r.Rec])
		for row := int(r.Row); row < int(r.Row)+int(r.N); row++ {
			if valid.bits != nil && !bitutil.BitIsSet(valid.bits, valid.at+row) {
				out = append(out, span{rec: r.Rec})
				continue
			}
			var from, to int64
			if l.long != nil {
				from, to = l.long[r.Rec][row], l.long[r.Rec][row+1]
			} else {
				from, to = int64(l.short[r.Rec][row]), int64(l.short[r.Rec][row+1])
			}
			if to-from >= math.MaxInt32 {
				return nil, fault.New(fault.RowError, "document %d has %d tokens, more than can be packed: split it", len(out), to-from)
			}
			if items.bits != nil {
				for i := from; i < to; i++ {
					if !bitutil.BitIsSet(items.bits, items.at+int(i)) {
						return nil, fault.New(fault.RowError, "%s %d of document %d is null: filter such documents out, or fill the nulls", what, i-from, len(out))
					}
				}
			}
			out = append(out, span{r.Rec, int32(to - from), base + from})
		}
	}
	return out, nil
}
