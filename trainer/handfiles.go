package trainer

import (
	"context"
	"os"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
)

func partsOf(all []wire.HandPart) (parts []store.Part) {
	for _, p := range all {
		parts = append(parts, store.Part{Rank: p.Rank, Dir: p.Dir})
	}
	return parts
}

// takeOver makes the folders of a report the hand's.
func (h *hand) takeOver(m *wire.HandTake) error {
	if h.staging == nil {
		return fault.New(fault.Internal, "files are to be taken over, and checkpoints wait for their upload")
	}
	parts := partsOf(m.Parts)
	dir, err := h.take(parts)
	if dir != "" {
		h.mu.Lock()
		h.staged[m.Report] = append(h.staged[m.Report], stagedFolder{dir, parts})
		h.mu.Unlock()
	}
	return err
}

// upload writes folders of ranks into a try.
func (h *hand) upload(ctx context.Context, m *wire.HandUpload) (out []wire.HandFile, err error) {
	parts := partsOf(m.Parts)
	h.mu.Lock()
	for _, f := range h.staged[m.Report] {
		for i := range parts {
			for _, p := range f.parts {
				if p.Rank == parts[i].Rank {
					parts[i].Dir = p.Dir
				}
			}
		}
	}
	h.mu.Unlock()
	files, err := h.run.Upload(ctx, m.Try, parts, m.Parallel)
	for _, f := range files {
		out = append(out, wire.HandFile(f))
	}
	return out, err
}

// settle removes what was taken, or keeps it and says where.
func (h *hand) settle(m *wire.HandSettle) (kept string, err error) {
	h.mu.Lock()
	folders := h.staged[m.Report]
	delete(h.staged, m.Report)
	h.mu.Unlock()
	for _, f := range folders { // one, but for a report that was made again
		if !m.Keep {
			_ = os.RemoveAll(f.dir) // what stays goes with its parent
			continue
		}
		to, kerr := h.keep(f.dir, m.Report)
		if to != "" {
			kept = to
		}
		if err == nil {
			err = kerr
		}
	}
	return kept, err
}

// fetchNumber downloads a checkpoint, of this run or that which it began with.
func (h *hand) fetchNumber(ctx context.Context, m *wire.HandFetch) (string, error) {
	run := h.run
	if m.From != "" {
		h.mu.Lock()
		from := h.from
		h.mu.Unlock()
		if from == nil {
			var err error
			if from, err = openOrigin(ctx, m.From, h.cfg.Storage); err != nil {
				return "", err
			}
			h.mu.Lock()
			h.from = from // what it has fetched stays as long as it is open
			h.mu.Unlock()
		}
		run = from.run
	}
	k, err := run.Checkpoint(ctx, m.Number)
	if err != nil {
		return "", err
	}
	return h.fetch(ctx, run, k)
}
