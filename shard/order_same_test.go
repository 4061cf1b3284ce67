package shard_test

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/shard"
)

// same compares a batch with the reference's.
func (g *graph) same(b *shard.Batch, r run, w *modelBatch) error {
	rec := b.Record()
	if !slices.Equal(b.Samples(), w.n) || b.Real() != len(w.n) || b.Rows() != w.full || rec != nil && int(rec.NumRows()) != w.full {
		return fmt.Errorf("samples %v, %d real of %d rows; want %v of %d", b.Samples(), b.Real(), b.Rows(), w.n, w.full)
	}
	if (rec == nil) != r.form.Tensors {
		return fmt.Errorf("the batch is in another form")
	}
	if err := g.samePlaces(b, r, w); err != nil {
		return err
	}
	if r.form.Tensors && g.pack == nil {
		return w.sameTensors(b, g.solid, r.form, g.tail)
	}
	for i, want := range w.rows {
		got := ""
		if rec != nil {
			got = textOf(rec, i)
		} else {
			got = tensorText(b, i)
		}
		if got != want.text {
			return fmt.Errorf("sample %d is\n  %s\nwant\n  %s", w.n[i], got, want.text)
		}
	}
	if g.tail != shard.TailPad {
		return nil
	}
	if rec == nil {
		mask, ok := b.Tensor("mask")
		for i := range w.full {
			if !ok || (mask.Data[i] == 1) != (i < len(w.n)) {
				return fmt.Errorf("mask %v of %d samples", mask.Data, len(w.n))
			}
		}
		return nil
	}
	is := rec.Schema().FieldIndices("mask")
	if len(is) != 1 {
		return fmt.Errorf("no mask")
	}
	mask := rec.Column(is[0]).(*array.Boolean)
	for i := range w.full {
		if mask.Value(i) != (i < len(w.n)) {
			return fmt.Errorf("mask %v of %d samples", mask, len(w.n))
		}
	}
	return nil
}

// samePlaces compares where samples come from with where their source rows are, in Batch.Lineage and in the columns that
// say the same.
func (g *graph) samePlaces(b *shard.Batch, r run, w *modelBatch) error {
	if !r.lineage {
		if b.Lineage() != nil {
			return fmt.Errorf("lineage that nobody asked for: %v", b.Lineage())
		}
		return nil
	}
	if len(b.Lineage()) != len(w.rows) {
		return fmt.Errorf("%d places for %d samples", len(b.Lineage()), len(w.rows))
	}
	for i, l := range b.Lineage() {
		want := shard.Lineage{Epoch: b.Epoch(), N: w.n[i]}
		for _, key := range w.rows[i].keys {
			want.Parts = append(want.Parts, g.places[key])
		}
		if want.Place = want.Parts[0]; g.pack == nil {
			want.Parts = nil
		}
		if l.Place != want.Place || l.Epoch != want.Epoch || l.N != want.N || !slices.Equal(l.Parts, want.Parts) {
			return fmt.Errorf("sample %d (%v) comes from\n  %+v\nwant\n  %+v", w.n[i], w.rows[i].keys, l, want)
		}
	}
	rec := b.Record()
	if rec == nil {
		return nil
	}
	for i := range w.full {
		got, want := "", ""
		for _, f := range shard.LineageFields {
			got += rec.Column(rec.Schema().FieldIndices(f.Name)[0]).ValueStr(i) + " "
		}
		if want = "(null) (null) (null) (null) (null) (null) "; i < len(w.rows) {
			l := b.Lineage()[i]
			want = fmt.Sprintf("%s %s %d %d %d %d ", l.Source, l.File, l.RowGroup, l.Row, l.Epoch, l.N)
		}
		if got != want {
			return fmt.Errorf("row %d has the columns %s, want %s", i, got, want)
		}
	}
	return nil
}
