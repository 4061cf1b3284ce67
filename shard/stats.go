package shard

import (
	"time"

	"github.com/penstock-data/penstock/exec"
)

// Stats is what a job has done so far, of all its iterators but for Waited.
type Stats struct {
	// Engine is the sum of the engine's runs, by operator.
	Engine exec.Stats
	// Windows were produced; Empty of them had no sample, Spilled did not fit the budget
	// beside the others and waited on disk.
	Windows, Empty, Spilled int64
	// WindowRows are the rows that a window had after the steps before a pack, and WindowSplits the splits that they came
	// from: means over the windows that were read, a few before they count as produced, and had any. Times the lanes, this
	// is where a sample came from: what Explain expects, as it was. 0: none was read.
	WindowRows, WindowSplits float64
	Steps, Samples           int64         // made, over all epochs; up to the prefetch more than were given
	Waited                   time.Duration // of this iterator's consumer, in Next: what a trainer starves
	Elapsed                  time.Duration // since the first Next

	// Of a job of several nodes: what went to others and came from them, and how long steps waited for them.
	Nodes NodeStats
}

// NodeStats is what a node has exchanged with others so far.
type NodeStats struct {
	Sent, Received           int64 // samples
	SentBytes, ReceivedBytes int64 // of their rows
	Waited                   time.Duration
	Waits                    string // what the step that is made waits for; "": for no other node
}

// Stats may be called at any time, from any goroutine.
func (it *Iterator) Stats() Stats {
	j := it.j
	s := Stats{Engine: j.meter.Stats(), Windows: j.meter.Windows.Load(), Empty: j.meter.Empty.Load(), Spilled: j.meter.Spilled.Load(),
		Steps: j.steps.Load(), Samples: j.samples.Load(), Waited: time.Duration(it.waited.Load())}
	if f := j.meter.Filled(); f.Windows > 0 {
		s.WindowRows, s.WindowSplits = float64(f.Rows)/float64(f.Windows), float64(f.Splits)/float64(f.Windows)
	}
	if t := j.first.Load(); t != 0 {
		s.Elapsed = time.Since(j.opened) - time.Duration(t)
	}
	if j.mesh != nil {
		s.Nodes = j.mesh.stats()
	}
	s.Engine.HeldBytes, s.Engine.PeakBytes, s.Engine.Elapsed = j.budget.Used(), j.budget.Peak(), s.Elapsed
	return s
}
