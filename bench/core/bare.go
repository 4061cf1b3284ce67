package main

import (
	"context"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
	"github.com/penstock-data/penstock/shard"
)

// bare calls what the engine calls, and nothing else: the reader, the filter, the
// two expressions, the assembler. As the engine does, and whoever writes such a loop well, it gathers after the
// filter only the columns that the expressions read.
func bare(paths []string) error {
	ctx := context.Background()
	start := time.Now()
	budget := exec.NewBudget(256 << 20)
	defer budget.Close()
	alloc := budget.Account(ctx, "bare")
	defer alloc.Close()
	t, err := parquetio.New(parquetio.Options{Options: fileset.Options{Paths: paths}}).Resolve(ctx, nil)
	if err != nil {
		return err
	}
	defer t.Close()
	columns := []string{"distance", "fare", "passengers", "tip"}
	gathered := []int{0, 1, 3} // passengers are for the filter alone
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = t.Schema().Field(t.Schema().FieldIndices(c)[0])
	}
	in := arrow.NewSchema(fields, nil)
	narrow := arrow.NewSchema([]arrow.Field{fields[0], fields[1], fields[3]}, nil)
	filter, err := expr.Parse(filterText)
	if err != nil {
		return err
	}
	keep, err := filter.Bind(in, 0)
	if err != nil {
		return err
	}
	var progs []*expr.Program
	var outs []arrow.Field
	for i, text := range []string{colA, colB} {
		n, err := ops.ParseNamed(text)
		if err != nil {
			return err
		}
		p, err := n.Expr.Bind(narrow, i+1)
		if err != nil {
			return err
		}
		progs = append(progs, p)
		outs = append(outs, arrow.Field{Name: n.Name, Type: p.Type(), Nullable: true})
	}
	out := arrow.NewSchema(outs, nil)
	asm, err := shard.NewAssembler(out, shard.AssembleOptions{Rows: 1024, Form: shard.Form{Tensors: true,
		Columns: map[string]shard.Column{"tip_rate": {DType: shard.Float32}, "log_dist": {DType: shard.Float32}}}}, alloc)
	if err != nil {
		return err
	}
	defer asm.Close()
	rows, sum := 0, 0.0
	drain := func(last bool) error {
		for {
			b, err := asm.Next(last)
			if b == nil || err != nil {
				return err
			}
			sum += consume(b)
			rows += b.Rows()
			b.Release()
		}
	}
	one := func(rec arrow.RecordBatch, at *expr.Rows) error {
		mask, err := keep.Eval(rec, at, alloc)
		if err != nil {
			return err
		}
		cols := make([]arrow.Array, len(gathered))
		for i, c := range gathered {
			cols[i] = rec.Column(c)
		}
		few := array.NewRecordBatch(narrow, cols, rec.NumRows())
		kept, err := expr.Filter(few, expr.Select(mask.(*array.Boolean)), alloc)
		few.Release()
		mask.Release()
		if err != nil {
			return err
		}
		defer kept.Release()
		cols = make([]arrow.Array, len(progs))
		for i, p := range progs {
			if cols[i], err = p.Eval(kept, at, alloc); err != nil {
				return err
			}
			defer cols[i].Release()
		}
		asm.Add(&exec.Block{Batch: array.NewRecordBatch(out, cols, kept.NumRows())})
		return drain(false)
	}
	for i, s := range t.Splits() {
		r, err := t.Open(ctx, i, &driver.ScanOptions{Columns: columns, Predicate: filter.Predicate(in), Alloc: memory.Allocator(alloc)})
		if err != nil {
			return err
		}
		for {
			b, err := r.Next(ctx)
			if err == io.EOF {
				break
			}
			if err == nil {
				err = one(b.Record, &expr.Rows{Split: s.ID, Row: b.Row})
				b.Record.Release()
			}
			if err != nil {
				r.Close()
				return err
			}
		}
		if err := r.Close(); err != nil {
			return err
		}
	}
	if err := drain(true); err != nil {
		return err
	}
	report(map[string]any{"rows": rows, "sum": sum, "seconds": time.Since(start).Seconds()})
	return nil
}
