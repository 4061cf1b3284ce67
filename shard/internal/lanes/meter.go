package lanes

import (
	"sync"
	"sync/atomic"

	"github.com/penstock-data/penstock/exec"
)

// Meter adds up what all runs of a job's sources did. Safe for concurrent use.
type Meter struct {
	Windows, Empty, Spilled atomic.Int64 // published; of those without samples; of those put on disk

	mu     sync.Mutex
	live   map[exec.Stream]struct{}
	done   exec.Stats
	filled Filled
}

// Filled is what windows were collected from, but for those without rows.
type Filled struct {
	Windows int64
	Rows    int64 // that the steps before a pack gave them
	Splits  int64 // that gave a window rows, window by window
}

// window counts one that was collected.
func (m *Meter) window(rows, splits int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.filled.Windows++
	m.filled.Rows += rows
	m.filled.Splits += splits
}

// Filled is the sum over all runs so far.
func (m *Meter) Filled() Filled {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.filled
}

func (m *Meter) opened(s exec.Stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.live == nil {
		m.live = map[exec.Stream]struct{}{}
	}
	m.live[s] = struct{}{}
}

func (m *Meter) closed(s exec.Stream) {
	st := s.Stats()
	st.Inflight = nil
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, s)
	m.done = add(m.done, st)
}

// Stats is the sum of all runs so far. Splits are slices of them that were planned; there is no bottleneck.
func (m *Meter) Stats() exec.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.done
	for s := range m.live {
		sum = add(sum, s.Stats())
	}
	return sum
}

// add sums counts by operator, and keeps the larger peak.
func add(a, b exec.Stats) exec.Stats {
	ops := append([]exec.OpStats(nil), a.Ops...)
next:
	for _, o := range b.Ops {
		for i := range ops {
			p := &ops[i]
			if p.Name == o.Name && p.Step == o.Step {
				p.RowsIn += o.RowsIn
				p.RowsOut += o.RowsOut
				p.BytesOut += o.BytesOut
				p.Batches += o.Batches
				p.Tasks += o.Tasks
				p.Busy += o.Busy
				p.WaitIn += o.WaitIn
				p.WaitOut += o.WaitOut
				p.WaitMem += o.WaitMem
				p.PeakBytes = max(p.PeakBytes, o.PeakBytes)
				continue next
			}
		}
		ops = append(ops, o)
	}
	return exec.Stats{
		Inflight: append(a.Inflight[:len(a.Inflight):len(a.Inflight)], b.Inflight...),
		Ops:      ops, RowsIn: a.RowsIn + b.RowsIn, RowsOut: a.RowsOut + b.RowsOut, BytesRead: a.BytesRead + b.BytesRead,
		Splits: a.Splits + b.Splits, SplitsDone: a.SplitsDone + b.SplitsDone, Retries: a.Retries + b.Retries, StorageRetries: a.StorageRetries + b.StorageRetries, Skipped: a.Skipped + b.Skipped,
		PeakBytes: max(a.PeakBytes, b.PeakBytes),
	}
}
