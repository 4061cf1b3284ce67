package shard

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/shard/internal/lanes"
	"github.com/penstock-data/penstock/shard/internal/pack"
)

// PackOptions say how documents become samples of a fixed length.
type PackOptions = pack.Options

// Packing packs the lists of a column, window by window: the last sample of a window is
// filled up.
type Packing struct {
	Column     string // the tokens of a document
	MaskColumn string // what the loss mask is taken from; "": 1 for tokens
	PackOptions
}

// schema of packed samples.
func (p *Packing) schema(in *arrow.Schema) (*arrow.Schema, error) {
	t, err := p.column(in, p.Column)
	if err != nil {
		return nil, err
	}
	if p.MaskColumn != "" {
		m, err := p.column(in, p.MaskColumn)
		if err != nil {
			return nil, err
		}
		if err := pack.CheckMask(in.Field(m).Type, p.PackOptions); err != nil {
			return nil, err
		}
	}
	return pack.Schema(in.Field(t).Type, p.PackOptions)
}

func (p *Packing) column(in *arrow.Schema, name string) (int, error) {
	if is := in.FieldIndices(name); len(is) == 1 {
		return is[0], nil
	}
	return 0, fault.New(fault.Invalid, "pack: unknown column %q%s", name, near.Column(name, in))
}

// transform packs windows of rows of schema in: to bins that are put together in batches, or, whole, to records. Without lineage
// nothing says where samples come from.
func (p *Packing) transform(in *arrow.Schema, whole, lineage bool) func(memory.Allocator, *lanes.Rows) (*lanes.Rows, error) {
	return func(alloc memory.Allocator, w *lanes.Rows) (*lanes.Rows, error) {
		defer w.Release()
		if len(w.Runs) == 0 {
			return &lanes.Rows{}, nil
		}
		column := func(name string) ([]arrow.Array, error) {
			if name == "" {
				return nil, nil
			}
			i, err := p.column(in, name)
			if err != nil {
				return nil, err
			}
			cols := make([]arrow.Array, len(w.Recs))
			for k, r := range w.Recs {
				cols[k] = r.Batch.Column(i)
			}
			return cols, nil
		}
		tokens, err := column(p.Column)
		if err != nil {
			return nil, err
		}
		masks, err := column(p.MaskColumn)
		if err != nil {
			return nil, err
		}
		var plan *pack.Plan
		if lineage {
			plan = &pack.Plan{}
		}
		bins, err := pack.New(alloc, p.PackOptions, tokens, masks, w.Runs, plan)
		if err != nil {
			return nil, err
		}
		defer func() {
			if bins != nil { // also where memory is out
				bins.Release()
			}
		}()
		n := bins.NumBins()
		if n == 0 {
			return &lanes.Rows{}, nil
		}
		var origin func(bin int) lanes.Origin
		var places int64
		if lineage {
			origin, places = origins(plan, w)
		}
		var rec *lanes.Rec
		if whole {
			rec = lanes.NewRec(bins.Record(alloc, 0, n), origin)
		} else {
			rec = lanes.NewBins(bins, w, origin)
			bins = nil
		}
		if lineage {
			rec.Places = places
		}
		return &lanes.Rows{Recs: []*lanes.Rec{rec}, Runs: []gather.Run{{N: int32(n)}}}, nil
	}
}

// origins names where the documents of each bin come from, and says how many bytes it keeps for that. It holds no record: only
// places.
func origins(plan *pack.Plan, w *lanes.Rows) (func(bin int) lanes.Origin, int64) {
	of := make([]func(int) lanes.Origin, len(w.Recs))
	for i, r := range w.Recs {
		of[i] = r.Origin
	}
	type place struct{ rec, row int32 }
	docs := make([]place, 0, w.Count())
	for _, r := range w.Runs {
		for k := range r.N {
			docs = append(docs, place{r.Rec, r.Row + k})
		}
	}
	bins, places := plan.Bins, make([]place, len(plan.Pieces))
	size := int64(len(places))*8 + int64(len(bins))*4
	for _, r := range w.Recs {
		size += r.Places
	}
	for i, x := range plan.Pieces {
		places[i] = docs[x.Doc]
	}
	return func(bin int) lanes.Origin {
		var parts []lanes.Origin
		for _, x := range places[bins[bin]:bins[bin+1]] {
			parts = append(parts, of[x.rec](int(x.row)))
		}
		o := parts[0]
		o.Parts = parts
		return o
	}, size
}

// PackMethod and PackOverlong are options of packing.
type (
	PackMethod   = pack.Method
	PackOverlong = pack.Overlong
)
