package shard

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/shard/internal/rows"
)

// output is what one entry of the form makes: the tensor of a column, and its lengths or offsets where lists vary;
// or the tensor of several columns, side by side.
type output struct {
	name  string
	to    DType
	inner []int     // shape of an item
	cols  []*column // one, or those of a stack
	stack *rows.Layout
	part  int // number of its tensor in the collator's layout; -1: it does not pack
}

// names of its tensors.
func (o *output) names() []string {
	if s := o.cols[0].second; s != "" {
		return []string{o.name, s}
	}
	return []string{o.name}
}

// text is what the output is made of.
func (o *output) text() string {
	if o.stack != nil || o.name != o.cols[0].name {
		return "a stack"
	}
	return fmt.Sprintf("column %q", o.name)
}

// newOutput makes the tensor of one column.
func newOutput(schema *arrow.Schema, index int, o Column) (*output, error) {
	f := schema.Field(index)
	col, err := newColumn(f, index, o)
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{Column: f.Name})
	}
	return &output{name: f.Name, to: col.to, inner: col.inner, cols: []*column{col}}, nil
}

// newStack makes the tensor of several columns.
func newStack(schema *arrow.Schema, name string, o Column) (*output, error) {
	bad := func(format string, args ...any) (*output, error) {
		return nil, fault.New(fault.Invalid, "stack: "+format, args...).At(fault.Place{Column: name})
	}
	if o.Lists != "" || o.Length != 0 || o.Multiple != 0 || o.Fill != 0 {
		return bad("lists, length, multiple and fill are for columns of lists: leave them out")
	}
	out := &output{name: name, to: o.DType, inner: []int{len(o.Stack)}}
	var types []DType
	var index []int
	for _, c := range o.Stack {
		is := schema.FieldIndices(c)
		if len(is) != 1 {
			return bad("unknown column %q%s", c, near.Column(c, schema))
		}
		t, err := dtypeOf(schema.Field(is[0]).Type)
		if err != nil {
			return bad("column %q is %s, but a stack takes one number of each column: convert it, or give it a tensor of its own", c, typename.Name(schema.Field(is[0]).Type))
		}
		types, index = append(types, t), append(index, is[0])
	}
	if out.to == Auto {
		out.to = common(types)
	}
	fields := make([]rows.Field, len(index))
	for i, x := range index {
		col, err := newColumn(schema.Field(x), x, Column{DType: out.to, Scale: o.Scale, Offset: o.Offset})
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Column: name})
		}
		out.cols, fields[i] = append(out.cols, col), col.field
	}
	if len(fields) > 1 {
		out.stack = rows.New([][]rows.Field{fields}, false)
	}
	return out, nil
}

// common is the type of a stack of these: their own, if they are all of one; float32, if it holds each of
// their values exactly; or else float64.
func common(types []DType) DType {
	same, short := true, true
	for _, t := range types {
		same = same && t == types[0]
		short = short && (t.Size() <= 2 || t == Float32)
	}
	switch {
	case same:
		return types[0]
	case short:
		return Float32
	}
	return Float64
}
