package sink

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// Count is a sink that decodes everything and keeps nothing but numbers, for
// measuring. There is no commit: a run that fails starts over.
type Count struct {
	mu     sync.Mutex
	result CountResult
	joined bool
	parts  map[int]CountResult // of a joined one: not reported yet
}

// CountResult of a Count.
type CountResult struct {
	Rows    int64
	Bytes   int64 // of Arrow memory that the rows take
	Skipped int64
}

var _ exec.Joint = (*Count)(nil)

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
func (c *Count) NewPart(_ context.Context, part int, _ *exec.Env) (exec.PartWriter, error) {
	return &countPart{c: c, part: part}, nil
}

// Commit implements exec.Sink.
func (c *Count) Commit(context.Context, *exec.CommitEnv) error { return nil }

// Abort implements exec.Sink.
func (c *Count) Abort(context.Context) error { return nil }

// Join implements exec.Joint.
func (c *Count) Join(context.Context, *arrow.Schema, []exec.SinkSplit) error {
	c.joined, c.parts = true, map[int]CountResult{}
	return nil
}

// Report implements exec.Joint: what the part counted.
func (c *Count) Report(part int) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.parts[part]
	delete(c.parts, part)
	return json.Marshal(n)
}

// Adopt implements exec.Joint.
func (c *Count) Adopt(_ context.Context, _ int, report []byte) error {
	var n CountResult
	if err := json.Unmarshal(report, &n); err != nil {
		return fault.New(fault.Corrupt, "what another process counted is damaged: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.result.add(n)
	return nil
}

// Leave implements exec.Joint.
func (c *Count) Leave() error { return nil }

func (r *CountResult) add(n CountResult) {
	r.Rows += n.Rows
	r.Bytes += n.Bytes
	r.Skipped += n.Skipped
}

type countPart struct {
	c    *Count
	part int
	n    CountResult
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

func (p *countPart) Finish(context.Context, exec.Tally) error {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.c.result.add(p.n)
	if p.c.joined {
		p.c.parts[p.part] = p.n
	}
	return nil
}

func (p *countPart) Abort(context.Context) error { return nil }
