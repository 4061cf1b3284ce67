package local

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// opStats counts one operator over all its tasks; per batch, never per row.
type opStats struct {
	name, step               string
	reads                    bool // it is a scan
	rowsIn, rowsOut          atomic.Int64
	bytesOut, batches, tasks atomic.Int64
	busy, waitIn             atomic.Int64 // ns
	waitOut, waitMem         atomic.Int64
	peak                     atomic.Int64
}

// all lists the counters, the most that was held apart.
func (o *opStats) all() [9]*atomic.Int64 {
	return [...]*atomic.Int64{&o.rowsIn, &o.rowsOut, &o.bytesOut, &o.batches, &o.tasks, &o.busy, &o.waitIn, &o.waitOut, &o.waitMem}
}

func (r *run) addOp(name, step string) *opStats {
	o := &opStats{name: name, step: step}
	r.ops = append(r.ops, o)
	return o
}

func (o *opStats) count(rows int64, rec arrow.RecordBatch) int64 {
	n := exec.SizeOf(rec)
	o.rowsOut.Add(rows)
	o.bytesOut.Add(n)
	o.batches.Add(1)
	return n
}

func (o *opStats) sawPeak(n int64) {
	for p := o.peak.Load(); n > p && !o.peak.CompareAndSwap(p, n); p = o.peak.Load() {
	}
}

// lastOp is who waits when there is no room for what comes out of the stage.
func (s *stage) lastOp() *opStats {
	if n := len(s.ops); n > 0 {
		return s.ops[n-1].stats
	}
	return s.scanOp
}

// Stats implements exec.Stream.
func (r *run) Stats() exec.Stats {
	s := exec.Stats{
		RowsIn: r.rowsIn.Load(), RowsOut: r.rowsOut.Load(), Skipped: r.skipped.Load(),
		PeakBytes: r.budget.Peak(), HeldBytes: r.budget.Used(),
		Elapsed: time.Duration(r.elapsed.Load()),
	}
	if s.Elapsed == 0 {
		s.Elapsed = time.Since(r.started)
	}
	for _, o := range r.ops {
		s.Ops = append(s.Ops, exec.OpStats{
			Name: o.name, Step: o.step, RowsIn: o.rowsIn.Load(), RowsOut: o.rowsOut.Load(),
			BytesOut: o.bytesOut.Load(), Batches: o.batches.Load(), Tasks: o.tasks.Load(),
			Busy: time.Duration(o.busy.Load()), WaitIn: time.Duration(o.waitIn.Load()),
			WaitOut: time.Duration(o.waitOut.Load()), WaitMem: time.Duration(o.waitMem.Load()),
			PeakBytes: o.peak.Load(),
		})
	}
	r.mu.Lock()
	for _, f := range r.far {
		s.HeldBytes += f[0]
		s.PeakBytes = max(s.PeakBytes, f[1])
	}
	s.Retries = int64(r.sched.Retries())
	for _, st := range r.stages {
		if st.scan == nil {
			continue
		}
		s.BytesRead += st.scanned.BytesRead.Load()
		s.StorageRetries += st.scanned.Retries.Load()
		s.Splits += len(st.splits)
		if r.sink == nil {
			done := r.sched.Finished(st.id)
			if st.pieces != nil { // all only once all are done
				done = done * len(st.splits) / len(st.pieces)
			}
			s.SplitsDone += done
		}
	}
	r.mu.Unlock()
	s.SplitsDone += int(r.splits.Load())
	s.Bottleneck = bottleneck(s.Ops)
	s.Inflight = r.inflight()
	return s
}

// bottleneck names the operator that is busy while the others wait: the last
// one, if most of what the tasks did was to wait for it; else the one that took
// the most time, if that is a clear majority.
func bottleneck(ops []exec.OpStats) string {
	if len(ops) < 2 {
		return ""
	}
	last := ops[len(ops)-1]
	if last.Tasks == 0 { // the consumer, who is no part of any task
		ops = ops[:len(ops)-1]
	}
	var busy, wait time.Duration
	best := ops[0]
	for _, o := range ops {
		busy += o.Busy
		wait += o.WaitOut + o.WaitMem
		if o.Busy > best.Busy {
			best = o
		}
	}
	switch {
	case last.Tasks == 0 && last.Busy > last.WaitIn && wait > busy:
		return last.Name
	case best.Busy*2 > busy:
		return best.Name
	}
	return ""
}

// inflight lists the attempts at work, in canonical order.
func (r *run) inflight() []exec.Inflight {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.started)
	var all []exec.Inflight
	for a := range r.active {
		all = append(all, exec.Inflight{TaskInfo: a.info(), State: a.describe(), Since: now - time.Duration(a.atTime.Load()), Held: a.acct.Held()})
	}
	slices.SortFunc(all, func(x, y exec.Inflight) int {
		return cmp.Or(cmp.Compare(y.Stage, x.Stage), cmp.Compare(x.Task, y.Task), cmp.Compare(x.Attempt, y.Attempt))
	})
	return all
}

// report says what the run waits for.
func (r *run) report() string {
	var b strings.Builder
	all := r.inflight()
	for i, f := range all {
		if i == 16 {
			fmt.Fprintf(&b, "... and %d more\n", len(all)-i)
			break
		}
		at := f.Origin.Split
		if at == "" {
			at = fmt.Sprintf("task %d", f.Task)
		}
		fmt.Fprintf(&b, "%s: %s for %v, holds %s", at, f.State, f.Since.Round(time.Millisecond), exec.Bytes(f.Held))
		if f.Attempt > 1 {
			fmt.Fprintf(&b, ", attempt %d", f.Attempt)
		}
		b.WriteByte('\n')
	}
	if len(all) == 0 {
		b.WriteString("no task is at work\n")
	}
	r.mu.Lock()
	for i, t := range r.sched.Open() {
		if i == 16 {
			break
		}
		if w := r.work[t.Task]; w != nil && w.current == nil && w.err != nil {
			fmt.Fprintf(&b, "stage %d task %d: %v after: %v\n", t.Stage, t.N, t.State, w.err)
		}
	}
	r.mu.Unlock()
	fmt.Fprintf(&b, "memory: %s", r.budget.Holders())
	return b.String()
}

// closeOps closes what operators hold for a run.
func (r *run) closeOps() {
	for _, s := range r.stages {
		for i := range s.ops {
			if c, ok := s.ops[i].Operator.(io.Closer); ok {
				if err := safely(c.Close); err != nil && r.closeError == nil {
					r.closeError = fault.Wrap(err, fault.Place{Step: s.ops[i].Step()})
				}
			}
		}
	}
}

func (r *run) closeErr() error { return r.closeError }
