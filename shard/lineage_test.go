package shard_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// Every sample names the row that it was made of, through filters, functions, functions that give more or fewer rows, and
// explode, in Batch.Lineage and in the columns that say the same; pads have none.
func TestLineageThroughSteps(t *testing.T) {
	rows := []int{40, 30, 0, 50}
	place := func(id int64) (split, row int64) {
		for row = id; row >= int64(rows[split]); split++ {
			row -= int64(rows[split])
		}
		return split, row
	}
	more, err := copies.Func(nil)
	if err != nil {
		t.Fatal(err)
	}
	same, err := echo.Func(nil)
	if err != nil {
		t.Fatal(err)
	}
	ds := dataset.Read(cells{0, rows}).Filter("id % 7 != 0").Apply(same, nil).Apply(more, &dataset.MapOptions{BatchRows: 3}).WithColumns("x = l").Explode("x").Filter("id % 5 != 1")
	o := jobOptions(7)
	o.Lineage, o.Tail, o.Epochs = true, shard.TailPad, 2
	samples := 0
	its := open(t, ds, 3, o)
	for epoch := range uint64(2) {
		for done := false; !done; {
			for _, it := range its {
				b, err := it.Next(t.Context())
				if done = err == io.EOF; done {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				rec := b.Record()
				col := func(name string, i int) string { return rec.Column(rec.Schema().FieldIndices(name)[0]).ValueStr(i) }
				if len(b.Lineage()) != b.Real() {
					t.Fatalf("%d places for %d samples", len(b.Lineage()), b.Real())
				}
				for i, l := range b.Lineage() {
					split, row := place(rec.Column(0).(*array.Int64).Value(i))
					file := fmt.Sprintf("cells0#%d", split)
					if l.Source != "data" || l.File != file || l.Row != row || l.Epoch != epoch || l.N != b.Samples()[i] {
						t.Fatalf("id %s comes from %+v, not %s, row %d", col("id", i), l, file, row)
					}
					got := col("_source", i) + " " + col("_file", i) + " " + col("_row_group", i) + " " + col("_row", i) + " " + col("_epoch", i) + " " + col("_n", i)
					if want := fmt.Sprintf("%s %s %d %d %d %d", l.Source, l.File, l.RowGroup, l.Row, l.Epoch, l.N); got != want {
						t.Fatalf("columns %s, want %s", got, want)
					}
					samples++
				}
				for i := b.Real(); i < b.Rows(); i++ {
					if n := rec.Column(rec.Schema().FieldIndices("_n")[0]); n.IsValid(i) {
						t.Error("a pad has a number")
					}
				}
				b.Release()
			}
		}
	}
	if samples < 100 {
		t.Errorf("%d samples", samples)
	}
}

// A row that has no tensor form is named in the error, on whichever rank it is and wherever it lies in a window: with lineage by its place, else with what would tell it.
func TestBlame(t *testing.T) {
	for name, c := range map[string]struct {
		x      string
		column shard.Column
		want   string
	}{
		"null":   {"id == 85 ? null : id", shard.Column{}, "null has no tensor form"},
		"misfit": {"id == 85 ? 1000 : id", shard.Column{DType: shard.Uint8}, "1000 does not fit uint8"},
		"list":   {"id == 85 ? null : t", shard.Column{Lists: shard.ListsPad}, "null has no tensor form"},
	} {
		for _, lineage := range []bool{true, false} {
			for _, mode := range []shard.Mode{shard.ModeWindow, shard.ModeNone} {
				t.Run(fmt.Sprintf("%s/%v/%v", name, lineage, mode), func(t *testing.T) {
					ds := dataset.Read(cells{0, []int{40, 30, 0, 50}}).WithColumns("x = "+c.x).Select("x", "id")
					o := jobOptions(10)
					o.Lineage, o.Epochs = lineage, 1
					o.Shuffle = &shard.Shuffle{Mode: mode}
					o.Form = shard.Form{Tensors: true, Columns: map[string]shard.Column{"x": c.column, "id": {}}}
					its := open(t, ds, 2, o)
					var err error
					for err == nil {
						for _, it := range its {
							if _, e := it.Next(t.Context()); e != nil {
								err = e
							}
						}
					}
					at := fault.PlaceOf(err)
					row, known := at.Row.Get()
					if fault.CodeOf(err) != fault.RowError || at.Column != "x" || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "batch of rank ") {
						t.Fatal(err)
					}
					if known != lineage || lineage && (row != 15 || at.File != "cells0#3") || strings.Contains(err.Error(), "; with lineage (with_lineage, Options.Lineage)") == lineage {
						t.Fatal(err)
					}
				})
			}
		}
	}
}
