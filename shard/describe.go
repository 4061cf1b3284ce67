package shard

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/cell"

	"github.com/penstock-data/penstock/internal/units"
)

// TensorInfo is what is known of a tensor before there is a batch.
type TensorInfo struct {
	Name  string
	DType DType
	// Shape as people write it: a number, or what the batch decides: "rows" (rows of the rank's batch), "rows+1",
	// "longest" (the longest list), "values" (of all lists).
	Shape []string
	// Columns that its values come from, in their order; none of the mask.
	Columns []string
	// How says in words what is done to them.
	How string
	// Bytes of a sample; -1: it varies from batch to batch.
	Bytes int64
}

// Tensors describes the tensors of batches, in their order; nil in Arrow form. With masked the mask is one of them.
func (c *Collator) Tensors(masked bool) []TensorInfo {
	if !c.tensors {
		return nil
	}
	var all []TensorInfo
	for _, out := range c.outs {
		all = append(all, out.describe()...)
	}
	if masked {
		all = append(all, TensorInfo{Name: MaskName, DType: Bool, Shape: []string{"rows"}, How: "1 for samples, 0 for pads", Bytes: 1})
	}
	return all
}

// describe is the tensors of one entry of the form.
func (o *output) describe() []TensorInfo {
	col := o.cols[0]
	item := int64(o.to.Size())
	var inner []string
	for _, d := range o.inner {
		inner = append(inner, strconv.Itoa(d))
		item *= int64(d)
	}
	x := TensorInfo{Name: o.name, DType: o.to, Shape: append([]string{"rows"}, inner...), Bytes: item}
	for _, c := range o.cols {
		x.Columns = append(x.Columns, c.name)
	}
	name := cell.Name(col.name, 0)
	switch {
	case o.text() == "a stack":
		x.How = "stack of " + strings.Join(cell.Words(x.Columns), ", ")
	case col.from != o.to:
		x.How = fmt.Sprintf("of %s (%s)", name, col.from)
	default:
		x.How = "of " + name
	}
	if f := col.field; col.scaled {
		if f.Scale != 0 && f.Scale != 1 {
			x.How += fmt.Sprintf(", times %v", f.Scale)
		}
		if f.Offset != 0 {
			x.How += fmt.Sprintf(", plus %v", f.Offset)
		}
	}
	second := TensorInfo{Name: col.second, Columns: x.Columns}
	switch col.lists {
	case "":
		return []TensorInfo{x}
	case ListsRagged:
		x.Shape, x.Bytes = append([]string{"values"}, inner...), -1
		x.How += "; ragged: the lists one behind the other"
		second.DType, second.Shape, second.Bytes, second.How = Int64, []string{"rows+1"}, 8, "where each list begins, and the end"
		return []TensorInfo{x, second}
	}
	second.DType, second.Shape, second.Bytes, second.How = Int32, []string{"rows"}, 4, "values of each list"
	x.Bytes = -1
	length, to := "longest", "the longest list of the rank's batch"
	switch {
	case col.length > 0:
		length = strconv.Itoa(col.length)
		to, x.Bytes = length, item*int64(col.length)
	case col.lists == ListsPadGlobal:
		to = "the longest list of the step"
	}
	if col.multiple > 1 {
		to += fmt.Sprintf(", rounded up to a multiple of %d", col.multiple)
	}
	x.Shape = append([]string{"rows", length}, inner...)
	x.How += fmt.Sprintf("; padded with %v to %s", col.fill, to)
	return []TensorInfo{x, second}
}

// SampleBytes is what a sample takes in a batch, but for texts and lists of varying length; all says that there are
// none of these.
func (c *Collator) SampleBytes(masked bool) (n int64, all bool) {
	all = true
	add := func(bytes int64) {
		if n += max(bytes, 0); bytes < 0 {
			all = false
		}
	}
	if c.tensors {
		for _, t := range c.Tensors(masked) {
			add(t.Bytes)
		}
		return n, all
	}
	for _, f := range c.schema.Fields() {
		add(arrowBytes(f.Type))
	}
	if masked {
		add(1)
	}
	return n, all
}

// arrowBytes is the size of a value in Arrow form, without what says whether it is null; -1: it varies.
func arrowBytes(t arrow.DataType) int64 {
	items := int64(1)
	for l, ok := t.(*arrow.FixedSizeListType); ok; l, ok = t.(*arrow.FixedSizeListType) {
		t, items = l.Elem(), items*int64(l.Len())
	}
	switch t := t.(type) {
	case *arrow.StructType:
		var n int64
		for _, f := range t.Fields() {
			b := arrowBytes(f.Type)
			if b < 0 {
				return -1
			}
			n += b
		}
		return items * n
	case arrow.FixedWidthDataType:
		return (items*int64(t.BitWidth()) + 7) / 8
	}
	return -1
}

// SampleBytes is that of the iterator's batches: see [Collator.SampleBytes]. What Options.Lineage adds does not count.
func (it *Iterator) SampleBytes() (n int64, all bool) {
	return it.collate.SampleBytes(it.j.Tail == TailPad)
}

// Tensors describes the tensors of every batch, in their order; nil in Arrow form.
func (it *Iterator) Tensors() []TensorInfo { return it.collate.Tensors(it.j.Tail == TailPad) }

// explainForm describes batches in a few lines.
func (it *Iterator) explainForm() string {
	var b strings.Builder
	j := it.j
	n, all := it.SampleBytes()
	and := ""
	if !all {
		and = " and what texts and lists take"
	}
	shares := units.Count(j.shares[0], "row")
	if last := j.shares[len(j.shares)-1]; last != j.shares[0] {
		shares = fmt.Sprintf("%d or %s", last, shares)
	}
	size := fmt.Sprintf("of %s; %s a sample, %s a step of all ranks%s", shares, exec.Bytes(n), exec.Bytes(n*int64(j.global)), and)
	ts := it.Tensors()
	if ts == nil {
		columns := j.Schema.NumFields()
		if j.Tail == TailPad {
			columns++
		}
		fmt.Fprintf(&b, "batches: Arrow records of %s, %s\n", units.Count(columns, "column"), size)
		if j.Lineage {
			fmt.Fprintf(&b, "  and %d columns of lineage\n", len(LineageFields))
		}
		return b.String()
	}
	fmt.Fprintf(&b, "batches: tensors %s\n", size)
	rows := make([][3]string, len(ts))
	var width [3]int
	for i, t := range ts {
		rows[i] = [3]string{cell.Name(t.Name, 40), t.DType.String(), "[" + strings.Join(t.Shape, ", ") + "]"}
		for k, s := range rows[i] {
			width[k] = max(width[k], cell.Width(s))
		}
	}
	for i, r := range rows {
		b.WriteString("  ")
		for k, s := range r {
			b.WriteString(cell.Pad(s, width[k], false) + "  ")
		}
		b.WriteString(ts[i].How + "\n")
	}
	return b.String()
}
