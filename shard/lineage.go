package shard

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/shard/internal/lanes"
)

// Lineage is where a sample comes from.
type Lineage struct {
	Place
	Epoch uint64
	N     int64 // index in the epoch
	// Parts are the documents of a packed sample, in order; Place is that of the first.
	Parts []Place
}

// Place is a row of a source.
type Place struct {
	Source   string
	File     string // the split where there is no file
	RowGroup int64  // or the ordinal of the split in its file
	Row      int64  // in the row group
}

func placeOf(o lanes.Origin) Place {
	p := Place{Source: o.Source, File: o.File, RowGroup: o.RowGroup, Row: o.Row}
	if p.File == "" {
		p.File = o.Split
	}
	return p
}

// lineage of what a rank gets of a step.
func (p *part) lineage(num uint64) []Lineage {
	out := make([]Lineage, 0, len(p.ns))
	for _, r := range p.runs {
		for k := range r.N {
			o := p.recs[r.Rec].Origin(int(r.Row + k))
			l := Lineage{Place: placeOf(o), Epoch: num, N: p.ns[len(out)]}
			for _, x := range o.Parts {
				l.Parts = append(l.Parts, placeOf(x))
			}
			out = append(out, l)
		}
	}
	return out
}

// blame gives an error of a batch the place of the row that is to blame, where rows know theirs: the first with which no batch of one row can be made. Where they do not, it says what tells it.
// Of packed samples it does neither: a sample is of many documents.
func (it *Iterator) blame(p *part, lengths map[string]int, err error) (out error) {
	e, ok := err.(*fault.Error)
	if !ok || e.Code != fault.RowError || slices.ContainsFunc(it.j.Sources, func(s Source) bool { return s.Pack != nil }) {
		return err
	}
	if !it.j.Lineage {
		hinted := *e
		hinted.Err = fmt.Errorf("%w; with lineage (with_lineage, Options.Lineage) the file and the row are named here", e.Err)
		return &hinted
	}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(*fault.Error); !ok { // else an allocator's
				panic(r)
			}
			out = err
		}
	}()
	fails := func(runs []gather.Run) error {
		b, err := it.collate.BatchOf(p.rows, runs, BatchShape{Rows: gather.Count(runs), Lengths: lengths, Memory: it.j.memory})
		if err == nil {
			b.Release()
		}
		return err
	}
	runs := p.runs
	for gather.Count(runs) > 1 {
		first, second := halve(runs)
		if runs = first; fails(first) == nil {
			runs = second
		}
	}
	if why := fails(runs); fault.CodeOf(why) == fault.RowError {
		at := placeOf(p.recs[runs[0].Rec].Origin(int(runs[0].Row)))
		return fault.Wrap(why, fault.Place{File: at.File, RowGroup: fault.N(at.RowGroup), Row: fault.N(at.Row)})
	}
	return err
}

// halve divides runs of several rows.
func halve(runs []gather.Run) (first, second []gather.Run) {
	if len(runs) > 1 {
		return runs[:len(runs)/2], runs[len(runs)/2:]
	}
	a, b := runs[0], runs[0]
	a.N /= 2
	b.Row, b.N = b.Row+a.N, b.N-a.N
	return []gather.Run{a}, []gather.Run{b}
}

// LineageFields are the columns that Options.Lineage adds to batches in Arrow form.
// Those of padded rows are null. Documents of packed samples are in Batch.Lineage only.
var LineageFields = []arrow.Field{
	{Name: "_source", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "_file", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "_row_group", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "_row", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "_epoch", Type: arrow.PrimitiveTypes.Uint64, Nullable: true},
	{Name: "_n", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
}

// withLineage appends LineageFields to rec, whose reference it takes over.
func withLineage(alloc memory.Allocator, rec arrow.RecordBatch, of []Lineage) arrow.RecordBatch {
	defer rec.Release()
	b := array.NewRecordBuilder(alloc, arrow.NewSchema(LineageFields, nil))
	defer b.Release()
	for _, l := range of {
		b.Field(0).(*array.StringBuilder).Append(l.Source)
		b.Field(1).(*array.StringBuilder).Append(l.File)
		b.Field(2).(*array.Int64Builder).Append(l.RowGroup)
		b.Field(3).(*array.Int64Builder).Append(l.Row)
		b.Field(4).(*array.Uint64Builder).Append(l.Epoch)
		b.Field(5).(*array.Int64Builder).Append(l.N)
	}
	for _, f := range b.Fields() {
		f.AppendNulls(int(rec.NumRows()) - len(of))
	}
	more := b.NewRecordBatch()
	defer more.Release()
	md := rec.Schema().Metadata()
	schema := arrow.NewSchema(append(rec.Schema().Fields(), LineageFields...), &md)
	return array.NewRecordBatch(schema, append(append([]arrow.Array{}, rec.Columns()...), more.Columns()...), rec.NumRows())
}
