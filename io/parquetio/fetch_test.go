package parquetio

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/blobio"
)

// gated is a remote file whose reads but for the first wait at a gate.
type gated struct {
	size  int64
	reads atomic.Int64
	gate  chan struct{}
}

func (g *gated) Size() int64 { return g.size }

func (g *gated) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if g.reads.Add(1) > 1 {
		select {
		case <-g.gate:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return 0, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	for i := range p {
		p[i] = byte((off + int64(i)) / 1000)
	}
	return len(p), nil
}

func (g *gated) Fetch(context.Context, []blobio.Range, memory.Allocator) (*blobio.Fetched, error) {
	return nil, fault.New(fault.Internal, "not used")
}

func (g *gated) Gap() int64 { return 1 << 20 }

// TestReadAhead: what is read ahead outlives the call that began it, a call that waits for
// it obeys its own context, and close ends it.
func TestReadAhead(t *testing.T) {
	g := &gated{size: 3000, gate: make(chan struct{}, 1)}
	w := &window{f: &input{blob: g, fetch: g}, alloc: memtest.New(t), runs: []blobio.Range{{Len: 3000}}, step: 1000}
	defer w.close()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := w.bytes(ctx, 0, 1000); err != nil {
		t.Fatal(err)
	}
	cancel()
	g.gate <- struct{}{} // the second read goes on
	b, err := w.bytes(t.Context(), 1000, 1000)
	if err != nil || b[0] != 1 || b[999] != 1 {
		t.Fatalf("what was read ahead gives %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := w.bytes(ctx, 2000, 1000); fault.CodeOf(err) != fault.Canceled {
		t.Errorf("a call that waits gives %v after cancel", err)
	}
	w.close()
	if n := g.reads.Load(); n != 3 {
		t.Errorf("%d reads, want 3", n)
	}
}

// TestMerged: runs are one where a request would take what is between them.
func TestMerged(t *testing.T) {
	runs := []blobio.Range{{Off: 0, Len: 10}, {Off: 15, Len: 5}, {Off: 26, Len: 4}}
	for gap, want := range map[int64][]blobio.Range{
		0: runs, 5: {{Off: 0, Len: 20}, {Off: 26, Len: 4}}, 6: {{Off: 0, Len: 30}},
	} {
		if got := merged(slices.Clone(runs), gap); !slices.Equal(got, want) {
			t.Errorf("gap %d: %v, want %v", gap, got, want)
		}
	}
}
