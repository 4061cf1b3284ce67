package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/io/driver"
)

// perSplit is how many blocks a split has; the last may have fewer.
const perSplit = 16

// plan runs a plan that reads t.Count blocks of t.Size bytes, all at node 1, and gives how long node 0 took from the meeting of both to the end of the stream.
func (n *sender) plan(t task) (took time.Duration, err error) {
	let := make(chan struct{})
	scan := func(source int, table driver.Table) *exec.Stage {
		return &exec.Stage{Scan: &exec.Scan{Source: source, Table: table}, Limit: -1}
	}
	g := &exec.Graph{
		// The first split takes the only place of node 0 until all is there.
		Root:   &exec.Stage{Inputs: []*exec.Stage{scan(0, &blocks{splits: []int{0}, let: let}), scan(1, newBlocks(t))}, Limit: -1},
		Schema: blockSchema,
		Words:  func(context.Context) ([][2]string, error) { return [][2]string{{"blocks", fmt.Sprint(t)}}, nil },
	}
	s, err := n.runner.Run(n.ctx, g, &exec.Options{CPUs: 1, Unordered: true})
	if errors.Is(err, exec.ErrServed) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer s.Close()
	at := time.Now()
	for left := t.Count; ; left-- {
		if left == 0 {
			close(let)
		}
		b, err := s.Next(n.ctx)
		if err == io.EOF && left == 0 {
			return time.Since(at), nil
		}
		if err != nil {
			return 0, fmt.Errorf("with %d blocks left: %w", left, err)
		}
		b.Release()
	}
}

var blockSchema = arrow.NewSchema([]arrow.Field{{Name: "data", Type: arrow.BinaryTypes.Binary}}, nil)

// blocks is a table of splits of the same record again and again.
type blocks struct {
	splits []int // how often
	rec    arrow.RecordBatch
	let    chan struct{} // the end of a split waits for it; nil: it does not
}

func newBlocks(t task) *blocks {
	b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	data := make([]byte, t.Size)
	rand.Read(data)
	b.Append(data)
	all := &blocks{rec: array.NewRecordBatch(blockSchema, []arrow.Array{b.NewArray()}, 1)}
	for at := 0; at < t.Count; at += perSplit {
		all.splits = append(all.splits, min(perSplit, t.Count-at))
	}
	return all
}

func (b *blocks) Schema() *arrow.Schema { return blockSchema }
func (b *blocks) Splits() (all []driver.Split) {
	for i, n := range b.splits {
		all = append(all, driver.Split{ID: fmt.Sprint("blocks#", i), Index: int64(i), Rows: int64(n)})
	}
	return all
}
func (b *blocks) Fingerprint(context.Context) (string, error) { return "blocks", nil }
func (b *blocks) Close() error                                { return nil }
func (b *blocks) Open(_ context.Context, split int, _ *driver.ScanOptions) (driver.Reader, error) {
	return &blockReader{b: b, rows: b.splits[split]}, nil
}

type blockReader struct {
	b         *blocks
	row, rows int
}

func (r *blockReader) Next(ctx context.Context) (driver.Batch, error) {
	if r.row == r.rows {
		if r.b.let != nil {
			select {
			case <-r.b.let:
			case <-ctx.Done():
				return driver.Batch{}, context.Cause(ctx)
			}
		}
		return driver.Batch{}, io.EOF
	}
	r.row++
	r.b.rec.Retain()
	return driver.Batch{Record: r.b.rec, Row: int64(r.row - 1)}, nil
}

func (r *blockReader) Close() error { return nil }
