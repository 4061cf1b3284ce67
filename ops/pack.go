package ops

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/cell"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops/expr"
)

// Columns that a [Pack] makes.
const (
	InputIDs    = "input_ids"    // the tokens
	SegmentIDs  = "segment_ids"  // 1, 2, ... by document in the sample; 0 for padding
	PositionIDs = "position_ids" // place of a token in its document, from 0
	LossMask    = "loss_mask"    // 1 where a token counts
)

// Values of PackSpec.Method and PackSpec.Overlong.
const (
	PackConcat    = "concat"   // documents end to end, cut every Length tokens
	PackBestFit   = "best_fit" // each document, whole, where it leaves least room
	OverlongSplit = "split"    // into pieces of Length tokens
	OverlongDrop  = "drop"     // left out
)

// maxPackLength is the most tokens of a sample.
const maxPackLength = 1 << 24

// PackSpec says what a [Pack] packs and how.
type PackSpec struct {
	Column     string // list, large_list or fixed_size_list of an integer type
	Length     int    // tokens of a sample, 1 to 1<<24
	Method     string // "concat", the default, or "best_fit"
	Overlong   string // documents longer than Length: "split", the default, or "drop"
	PadID      int64  // fills what is left of a sample
	EOS        *int64 // behind every document that has tokens, and part of its length; nil: nothing is
	LossMask   bool   // adds loss_mask: 1 for tokens, 0 for padding
	MaskColumn string // lists as long as the tokens', of uint8, int8 or bool: loss_mask is taken from it
}

// NewPack packs lists of tokens. The columns are input_ids (fixed_size_list of the tokens'
// type), segment_ids and position_ids (of int32), and loss_mask (of uint8) if it is
// asked for; all others are consumed, nothing is null. Defaults of p are filled in.
func NewPack(in Node, p PackSpec, m Meta) (*Pack, error) {
	switch below := in.(type) {
	case *Pack:
		return nil, m.wrong("the rows are packed already, by %s: a source has one pack", below.Step())
	case *Mix:
		return nil, m.wrong("pack comes before mix: pack each of its sources")
	}
	if err := m.follows(in); err != nil {
		return nil, err
	}
	if err := noLimit(in, m, ""); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, fault.Wrap(err, m.place())
	}
	elem, err := listOf(in.Schema(), p.Column)
	if err != nil {
		return nil, fault.Wrap(err, m.place())
	}
	if elem == nil || !arrow.IsInteger(elem.ID()) {
		f, _ := column(in.Schema(), p.Column)
		return nil, m.wrong("column %q is %s; pack needs lists of an integer type: the tokens", p.Column, expr.TypeName(f.Type))
	}
	if !fits(p.PadID, elem.ID()) {
		return nil, m.wrong("pad_id %d is no value of the tokens' type %s", p.PadID, expr.TypeName(elem))
	}
	if p.EOS != nil && !fits(*p.EOS, elem.ID()) {
		return nil, m.wrong("eos %d is no value of the tokens' type %s", *p.EOS, expr.TypeName(elem))
	}
	if p.MaskColumn != "" {
		mask, err := listOf(in.Schema(), p.MaskColumn)
		if err != nil {
			return nil, fault.Wrap(err, m.place())
		}
		if mask == nil || mask.ID() != arrow.UINT8 && mask.ID() != arrow.INT8 && mask.ID() != arrow.BOOL {
			f, _ := column(in.Schema(), p.MaskColumn)
			return nil, m.wrong("mask column %q is %s; it must be a list of uint8, int8 or bool: make it one, as by cast(%s, \"list<uint8>\")", p.MaskColumn, expr.TypeName(f.Type), p.MaskColumn)
		}
	}
	return &Pack{Meta: m, In: in, PackSpec: p, schema: packSchema(elem, p)}, nil
}

// check fills in defaults and reports what is wrong without a schema.
func (p *PackSpec) check() error {
	if p.Method == "" {
		p.Method = PackConcat
	}
	if p.Overlong == "" {
		p.Overlong = OverlongSplit
	}
	switch {
	case p.Column == "":
		return fault.New(fault.Invalid, "pack needs the column of the tokens")
	case p.Length < 1 || p.Length > maxPackLength:
		return fault.New(fault.Invalid, "length must be 1 to %d tokens, have %d", maxPackLength, p.Length)
	case p.Method != PackConcat && p.Method != PackBestFit:
		return fault.New(fault.Invalid, "method %q; have %s, %s", p.Method, PackConcat, PackBestFit)
	case p.Overlong != OverlongSplit && p.Overlong != OverlongDrop:
		return fault.New(fault.Invalid, "overlong %q; have %s, %s", p.Overlong, OverlongSplit, OverlongDrop)
	case p.MaskColumn == p.Column:
		return fault.New(fault.Invalid, "column %q cannot be both tokens and mask", p.Column)
	}
	p.LossMask = p.LossMask || p.MaskColumn != ""
	if p.EOS != nil {
		eos := *p.EOS // the caller's may change
		p.EOS = &eos
	}
	return nil
}

// Check reports what can be seen to be wrong without a schema.
func (p PackSpec) Check() error { return p.check() }

// Needs are the columns that the pack reads, in the order of its input.
func (n *Pack) Needs() []string {
	var cols []string
	for _, f := range n.In.Schema().Fields() {
		if f.Name == n.Column || f.Name == n.MaskColumn {
			cols = append(cols, f.Name)
		}
	}
	return cols
}

// packSchema has the columns that packing tokens of type elem makes.
func packSchema(elem arrow.DataType, p PackSpec) *arrow.Schema {
	list := func(name string, t arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: arrow.FixedSizeListOfNonNullable(int32(p.Length), t)}
	}
	fields := []arrow.Field{list(InputIDs, elem), list(SegmentIDs, arrow.PrimitiveTypes.Int32), list(PositionIDs, arrow.PrimitiveTypes.Int32)}
	if p.LossMask {
		fields = append(fields, list(LossMask, arrow.PrimitiveTypes.Uint8))
	}
	return arrow.NewSchema(fields, nil)
}

// listOf is the element type of a list column; nil if the column is no list.
func listOf(s *arrow.Schema, name string) (arrow.DataType, error) {
	f, err := column(s, name)
	if err != nil {
		return nil, err
	}
	switch t := f.Type.(type) {
	case *arrow.ListType:
		return t.Elem(), nil
	case *arrow.LargeListType:
		return t.Elem(), nil
	case *arrow.FixedSizeListType:
		return t.Elem(), nil
	}
	return nil, nil
}

// fits reports whether v is a value of the integer type t.
func fits(v int64, t arrow.Type) bool {
	bits, unsigned := intBits(t)
	switch {
	case unsigned && bits == 64:
		return v >= 0
	case unsigned:
		return v >= 0 && v < 1<<bits
	case bits == 64:
		return true
	}
	return v >= math.MinInt64>>(64-bits) && v <= math.MaxInt64>>(64-bits)
}

// noLimit refuses limits below a step that works on shards only: they need the order that a
// shuffle does not keep. source is "" or `source "a": `.
func noLimit(in Node, m Meta, source string) error {
	var err error
	Walk(in, func(n Node) {
		if l, ok := n.(*Limit); ok && err == nil {
			err = m.wrong("%slimit %d (%s) needs rows in order, which shards shuffle: use sample to take a part of them", source, l.N, l.Step())
		}
	})
	return err
}

func (n *Pack) String() string {
	s := fmt.Sprintf("pack %s to %d by %s, overlong %s, pad %d", cell.Word(n.Column), n.Length, n.Method, n.Overlong, n.PadID)
	if n.EOS != nil {
		s += fmt.Sprintf(", eos %d", *n.EOS)
	}
	switch {
	case n.MaskColumn != "":
		s += ", loss mask from " + cell.Word(n.MaskColumn)
	case n.LossMask:
		s += ", loss mask"
	}
	return s
}
