package plan_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/plan"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
)

// evaluator runs a graph in one goroutine: splits one after another, blocks
// through the operators as they come. Rows that fail are skipped and noted.
type evaluator struct {
	t         testing.TB
	alloc     memory.Allocator
	batchRows int
	skipped   []string
}

// result is what a plan gives: rows as text with their origin, and the rows that failed.
type result struct{ Rows, Skipped []string }

func evaluate(t testing.TB, n ops.Node, alloc memory.Allocator, batchRows int, o *plan.Options) (result, error) {
	t.Helper()
	g, err := plan.Translate(t.Context(), n, o)
	if err != nil {
		return result{}, err
	}
	if !g.Schema.Equal(n.Schema()) {
		t.Errorf("the graph has schema %v, the plan %v", g.Schema, n.Schema())
	}
	e := &evaluator{t: t, alloc: alloc, batchRows: batchRows}
	blocks, err := e.stage(g.Root)
	var r result
	for _, b := range blocks {
		if !b.Batch.Schema().Equal(g.Schema) {
			t.Errorf("a block has schema %v, the graph %v", b.Batch.Schema(), g.Schema)
		}
		if err := array.ValidateRecordFull(b.Batch); err != nil {
			t.Error(err)
		}
		for i := range int(b.Batch.NumRows()) {
			var ord uint64
			if b.Ords != nil {
				ord = b.Ords[i]
			}
			line := fmt.Sprintf("%d/%s/%d/%x:", b.Origin.Source, b.Origin.Split, b.RowAt(i), ord)
			for _, c := range b.Batch.Columns() {
				line += " " + c.ValueStr(i)
			}
			r.Rows = append(r.Rows, line)
		}
		b.Release()
	}
	slices.Sort(e.skipped)
	r.Skipped = e.skipped
	return r, err
}

func (e *evaluator) stage(s *exec.Stage) (out []*exec.Block, err error) {
	var in []*exec.Block
	release := func(bs []*exec.Block) {
		for _, b := range bs {
			b.Release()
		}
	}
	defer func() {
		release(in)
		if err != nil {
			release(out)
			out = nil
		}
	}()
	if s.Scan != nil {
		if in, err = e.scan(s.Scan); err != nil {
			return nil, err
		}
	}
	left := s.Limit
	for _, sub := range s.Inputs {
		bs, err := e.stage(sub)
		if err != nil {
			return nil, err
		}
		for _, b := range bs {
			if n := int(b.Batch.NumRows()); s.Limit >= 0 && int64(n) > left {
				cut := b.Slice(0, int(left))
				b.Release()
				b = cut
			}
			left -= b.Batch.NumRows()
			in = append(in, b)
		}
	}
	tasks := make([]exec.Task, len(s.Ops))
	for i, op := range s.Ops {
		env := &exec.Env{Alloc: e.alloc, Seed: 5, Epoch: 1, Attempt: 1, TrackRows: true, Log: slog.New(slog.DiscardHandler)}
		if tasks[i], err = op.NewTask(env); err != nil {
			return nil, err
		}
		defer tasks[i].Close()
	}
	for _, b := range in {
		if err := e.feed(tasks, b, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}

// feed runs b, which it borrows, through the tasks; what fails is halved until one row is left, and that skipped.
func (e *evaluator) feed(tasks []exec.Task, b *exec.Block, out *[]*exec.Block) error {
	if len(tasks) == 0 {
		n := int(b.Batch.NumRows())
		*out = append(*out, b.Slice(0, n))
		return nil
	}
	var made []*exec.Block
	defer func() {
		for _, m := range made {
			m.Release()
		}
	}()
	err := tasks[0].Process(e.t.Context(), b, func(m *exec.Block) error { made = append(made, m); return nil })
	if err == nil {
		for _, m := range made {
			if err := e.feed(tasks[1:], m, out); err != nil {
				return err
			}
		}
		return nil
	}
	n := int(b.Batch.NumRows())
	if !fault.CodeOf(err).Skippable() || n == 0 {
		return err
	}
	if n == 1 {
		e.skipped = append(e.skipped, fmt.Sprintf("%d/%s/%d", b.Origin.Source, b.Origin.Split, b.RowAt(0)))
		return nil
	}
	for _, h := range [][2]int{{0, n / 2}, {n / 2, n}} {
		half := b.Slice(h[0], h[1])
		err := e.feed(tasks, half, out)
		half.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *evaluator) scan(s *exec.Scan) ([]*exec.Block, error) {
	var out []*exec.Block
	for i, sp := range s.Table.Splits() {
		if s.Keep != nil && !s.Keep[i] {
			continue
		}
		bs, err := e.split(s, i, sp)
		out = append(out, bs...)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

func (e *evaluator) split(s *exec.Scan, i int, sp driver.Split) (out []*exec.Block, err error) {
	ctx := context.Context(e.t.Context())
	r, err := s.Table.Open(ctx, i, &driver.ScanOptions{Columns: s.Columns, Predicate: s.Predicate, Limit: s.Limit, Alloc: e.alloc, BatchRows: e.batchRows})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		b, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, &exec.Block{Batch: b.Record, Origin: exec.Origin{Source: s.Source, Split: sp.ID, File: sp.File, Index: sp.Index}, Row: b.Row, Span: b.Record.NumRows()})
	}
}
