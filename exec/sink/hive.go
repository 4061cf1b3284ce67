package sink

import (
	"cmp"
	"context"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
)

// hiveWriter spreads the rows of a part over partition folders. While all
// partitions of a batch find room among the open files, rows go straight there. Beyond
// that, rows are held back, sorted by partition, until they fill the buffer, so that many partitions
// do not make a file per partition and batch.
type hiveWriter struct {
	files *partFiles
	p     *partitioning
	open  int // files at once
	limit int64
	held  []grouped
	bytes int64 // in held
}

func newHiveWriter(files *partFiles, p *partitioning) *hiveWriter {
	h := &hiveWriter{files: files, p: p, open: maxOpenBlob, limit: files.limit}
	if _, ok := files.s.out.b.Local(""); ok {
		h.open = maxOpen
	}
	return h
}

// write borrows rec.
func (h *hiveWriter) write(ctx context.Context, rec arrow.RecordBatch) error {
	g, copied, err := h.p.group(h.files.alloc, rec)
	if err != nil {
		return err
	}
	if h.files.sharers = h.together(g.keys); len(h.held) == 0 && h.files.sharers <= h.open {
		defer g.rec.Release()
		from := int64(0)
		for i, k := range g.keys {
			if err := h.put(k, g.rec, from, g.ends[i]); err != nil {
				return err
			}
			from = g.ends[i]
		}
		return h.shrink()
	}
	if !copied { // held rows must not keep the whole of a batch that they are a slice of
		if err := g.copyRows(h.files.alloc); err != nil {
			g.rec.Release()
			return err
		}
	}
	h.held = append(h.held, g)
	h.bytes += exec.SizeOf(g.rec)
	if h.bytes+h.files.held < h.limit {
		return nil
	}
	return h.flush(ctx)
}

// together is how many files are open where these partitions are besides those that are.
func (h *hiveWriter) together(keys []string) int {
	n := len(h.files.opened)
	for _, k := range keys {
		if !slices.ContainsFunc(h.files.opened, func(f *outFile) bool { return f.dir == k }) {
			n++
		}
	}
	return n
}

// put writes rows [from, to) of rec to the current file of partition k.
func (h *hiveWriter) put(k string, rec arrow.RecordBatch, from, to int64) error {
	f := h.files.current(k)
	if f == nil {
		for len(h.files.opened) >= h.open {
			if err := h.files.closeFile(h.files.opened[0]); err != nil {
				return err
			}
		}
		var err error
		if f, err = h.files.open(k); err != nil {
			return err
		}
	}
	if from == 0 && to == rec.NumRows() {
		return h.files.write(f, rec)
	}
	s := rec.NewSlice(from, to)
	defer s.Release()
	return h.files.write(f, s)
}

// shrink ends files until encoders hold at most twice the limit, those that hold
// most first: files that get more rows have kept the limit (partFiles.write).
func (h *hiveWriter) shrink() error {
	for len(h.files.opened) > 1 && h.files.held > 2*h.limit {
		f := slices.MaxFunc(h.files.opened, func(a, b *outFile) int { return cmp.Compare(a.held, b.held) })
		if err := h.files.closeFile(f); err != nil {
			return err
		}
	}
	return nil
}

// flush writes what is held, partition by partition.
func (h *hiveWriter) flush(ctx context.Context) error {
	type run struct {
		g        int
		from, to int64
	}
	runs := make(map[string][]run)
	var keys []string
	for i, g := range h.held {
		from := int64(0)
		for j, k := range g.keys {
			if _, ok := runs[k]; !ok {
				keys = append(keys, k)
			}
			runs[k] = append(runs[k], run{i, from, g.ends[j]})
			from = g.ends[j]
		}
	}
	slices.Sort(keys)
	h.files.sharers = min(h.together(keys), h.open)
	// Those that are open first: later ones push them out.
	isOpen := make(map[string]bool)
	for _, f := range h.files.opened {
		isOpen[f.dir] = true
	}
	slices.SortStableFunc(keys, func(a, b string) int {
		switch {
		case isOpen[a] == isOpen[b]:
			return 0
		case isOpen[a]:
			return -1
		}
		return 1
	})
	for _, k := range keys {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, r := range runs[k] {
			if err := h.put(k, h.held[r.g].rec, r.from, r.to); err != nil {
				return err
			}
		}
		if err := h.shrink(); err != nil {
			return err
		}
	}
	h.release()
	return nil
}

func (h *hiveWriter) release() {
	for _, g := range h.held {
		g.rec.Release()
	}
	h.held, h.bytes = nil, 0
}
