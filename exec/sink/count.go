package sink

import (
	"context"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
)

// Count is a sink that decodes everything and keeps nothing but numbers, for
// measuring. There is no commit: a run that fails starts over.
type Count struct {
	mu     sync.Mutex
	result CountResult
}

// CountResult of a Count.
type CountResult struct {
	Rows    int64
	Bytes   int64 // of Arrow memory that the rows take
	Skipped int64
}

var _ exec.Sink = (*Count)(nil)

// NewCount makes a Count for one run.
func NewCount() *Count { return new(Count) }

// Result is what finished parts counted.
func (c *Count) Result() CountResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.result
}

// Begin implements exec.Sink: every split is a part, or runs of them where there are very many.
func (c *Count) Begin(_ context.Context, _ *arrow.Schema, splits []exec.SinkSplit) (*exec.SinkPlan, error) {
	step := (len(splits) + maxParts - 1) / maxParts
	p := new(exec.SinkPlan)
	for i := 0; i < len(splits); i += step {
		p.Parts = append(p.Parts, exec.PartRange{First: i, End: min(i+step, len(splits))})
	}
	return p, nil
}

// NewPart implements exec.Sink.
func (c *Count) NewPart(context.Context, int, *exec.Env) (exec.PartWriter, error) {
	return &countPart{c: c}, nil
}

// Commit implements exec.Sink.
func (c *Count) Commit(context.Context) error { return nil }

// Abort implements exec.Sink.
func (c *Count) Abort(context.Context) error { return nil }

type countPart struct {
	c *Count
	n CountResult
}

func (p *countPart) Write(_ context.Context, b *exec.Block) error {
	p.n.Skipped += int64(len(b.Skipped))
	if b.Batch == nil {
		return nil
	}
	p.n.Rows += b.Batch.NumRows()
	p.n.Bytes += exec.SizeOf(b.Batch)
	return nil
}

func (p *countPart) Finish(context.Context) error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.c.result.Rows += p.n.Rows
	p.c.result.Bytes += p.n.Bytes
	p.c.result.Skipped += p.n.Skipped
	return nil
}

func (p *countPart) Abort(context.Context) error { return nil }
