package pack

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
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
		return nil, fault.New(fault.Invalid, "tokens must be a list of integers, not %s", list)
	}
	lo, hi := limits(t)
	fits := func(what string, v int64) error {
		if v < lo || v > 0 && uint64(v) > hi {
			return fault.New(fault.Invalid, "the %s token %d does not fit %s, the type of the tokens", what, v, t)
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
// made from: they must outlive it. Safe for concurrent use; nothing to close.
type Packed struct {
	o      Options
	token  arrow.DataType
	schema *arrow.Schema
	plan   *Plan
	docs   []span // tokens of every document
	masks  []span // their masks; nil: 1
	src    lists
	mask   lists

	maskBits bool // masks are bool
	ones     []uint8
	count    []int32 // 0, 1, 2, ...
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
func New(o Options, tokens, masks []arrow.Array, runs []gather.Run) (*Packed, error) {
	if len(tokens) == 0 {
		return nil, fault.New(fault.Internal, "packing needs the column of at least one record")
	}
	t, err := o.tokens(tokens[0].DataType())
	if err != nil {
		return nil, err
	}
	p := &Packed{o: o, token: t, schema: o.schema(t)}
	if p.src, err = open(tokens); err != nil {
		return nil, err
	}
	if p.docs, err = p.src.spans(runs, "token"); err != nil {
		return nil, err
	}
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
		if p.masks, err = p.mask.spans(runs, "mask value"); err != nil {
			return nil, err
		}
		for d, s := range p.docs {
			if n := p.masks[d].n; n != s.n {
				return nil, fault.New(fault.RowError, "document %d has %d tokens and a mask of %d: they must be equally long", d, s.n, n)
			}
		}
	}
	n := make([]int32, len(p.docs)) // tokens, EOS included
	for d, s := range p.docs {
		n[d] = s.n
		if o.EOS != nil && s.n > 0 {
			n[d]++
		}
	}
	if o.Method == MethodConcat {
		p.plan = Concat(n, o.Length, o.Overlong)
	} else {
		p.plan = BestFit(n, o.Length, o.Overlong)
	}
	p.count = make([]int32, o.Length)
	for i := range p.count {
		p.count[i] = int32(i)
	}
	if o.LossMask {
		p.ones = make([]uint8, o.Length)
		for i := range p.ones {
			p.ones[i] = 1
		}
	}
	return p, nil
}

// Plan names the documents of every bin: Piece.Doc counts the rows of runs. Read only.
func (p *Packed) Plan() *Plan { return p.plan }

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
func (l *lists) spans(runs []gather.Run, what string) ([]span, error) {
	out := make([]span, 0, gather.Count(runs))
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
