package local

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/internal/sched"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/driver"
)

// stage is what all tasks of a stage share.
type stage struct {
	id       int
	sources  []int // whose rows it sees
	scan     *exec.Scan
	splits   []driver.Split
	pieces   []piece // by task; nil: a task is a split
	scanOp   *opStats
	scanned  driver.ScanStats
	ops      []stageOp
	schema   *arrow.Schema // of what comes out
	inflated atomic.Int64  // bytes out per 1024 bytes in, as last seen; 0 unknown
	heap     atomic.Int64  // of those, allocated on the Go heap

	none func() arrow.RecordBatch // a batch of schema without rows, borrowed
}

type stageOp struct {
	exec.Fused
	stats  *opStats
	policy *policy
	track  bool // a later step needs Block.Rows
}

// policy is an OnError with what it has counted. Used by the consumer alone,
// but for the immutable first part.
type policy struct {
	exec.OnError
	skipped int64 // delivered
	taken   int64 // by all finished parts of earlier runs
	passed  int64 // of taken, by parts that the delivery has passed

	first []error // of skipped
	last  error
}

// guarded reports whether a failed Process must leave nothing behind.
func (p *policy) guarded() bool { return p.Policy == exec.Skip || p.Retries > 0 }

// layout flattens the tree, inputs first. With cut, splits may be read in pieces.
func (r *run) layout(g *exec.Graph, cut bool) error {
	if g == nil || g.Root == nil {
		return fault.New(fault.Invalid, "run: the graph has no stage")
	}
	r.inParts = g.InParts()
	r.runPolicy = &policy{OnError: r.opt.OnError}
	r.policies = map[string]*policy{}
	var stages []sched.Stage
	var walk func(st *exec.Stage, need, limited bool) (int, error)
	walk = func(st *exec.Stage, need, limited bool) (int, error) {
		if (st.Scan == nil) == (st.Inputs == nil) {
			return 0, fault.New(fault.Internal, "stage must have either a scan or inputs")
		}
		s := &stage{}
		c := sched.Stage{Limit: -1}
		ops := make([]stageOp, len(st.Ops))
		for i := len(st.Ops) - 1; i >= 0; i-- {
			f := st.Ops[i]
			ops[i] = stageOp{Fused: f, track: need, policy: r.runPolicy}
			if f.OnError != nil {
				ops[i].policy = &policy{OnError: *f.OnError}
			}
			if t, ok := f.Operator.(exec.Tracks); ok && t.NeedsRows() || ops[i].policy.Policy == exec.Skip {
				need = true
			}
			if p, ok := f.Operator.(exec.Parallel); ok {
				c.Max = max(c.Max, p.Tasks())
			}
		}
		s.ops = ops
		if st.Scan != nil {
			s.scan, s.splits = st.Scan, st.Scan.Table.Splits()
			if k := st.Scan.Keep; k != nil && len(k) != len(s.splits) {
				return 0, fault.New(fault.Internal, "scan keeps %d of %d splits", len(k), len(s.splits))
			}
			s.schema = projected(st.Scan.Table.Schema(), st.Scan.Columns)
			c.Tasks, c.Max = len(s.splits), max(c.Max, st.Scan.Tasks)
			if st.Scan.Keep != nil {
				c.Empty = make([]bool, len(s.splits))
				for i, k := range st.Scan.Keep {
					c.Empty[i] = !k
				}
			}
			if cut && !limited && st.Scan.Limit == 0 {
				s.cut(&c, max(r.allCPUs(), c.Max), r.opt.BatchRows)
			}
		} else {
			c.Limit, c.Chain = st.Limit, len(st.Ops) > 0
			c.Inputs = []int{}
			for _, in := range st.Inputs {
				i, err := walk(in, need, limited || st.Limit >= 0)
				if err != nil {
					return 0, err
				}
				c.Inputs = append(c.Inputs, i)
				s.schema = r.stages[i].schema
			}
			if len(c.Inputs) == 0 {
				return 0, fault.New(fault.Internal, "cut without inputs")
			}
		}
		if n := len(st.Ops); n > 0 {
			s.schema = st.Ops[n-1].Schema()
		}
		s.none = sync.OnceValue(func() arrow.RecordBatch { return gather.None(s.schema) })
		if st.Scan != nil {
			s.sources = []int{st.Scan.Source}
		}
		for _, in := range c.Inputs {
			s.sources = append(s.sources, r.stages[in].sources...)
		}
		for i := range ops {
			for _, source := range s.sources {
				if p := ops[i].policy; p != r.runPolicy {
					r.policies[exec.ByStep(source, ops[i].Step())] = p
				}
			}
		}
		s.id = len(r.stages)
		r.stages = append(r.stages, s)
		stages = append(stages, c)
		return s.id, nil
	}
	if _, err := walk(g.Root, r.opt.trackAll, false); err != nil {
		return err
	}
	r.schema = g.Schema
	if r.schema == nil {
		r.schema = r.stages[len(r.stages)-1].schema
	}
	r.cfg = sched.Config{
		Stages: stages, CPUs: r.opt.CPUs, Unordered: r.opt.Unordered,
		OwnBytes:   max(min(r.opt.Memory/16, enoughBytes), 1),
		AheadBytes: max(r.opt.Memory/2, 1),
		AheadTasks: aheadTasks(r.opt.CPUs, r.opt.Memory),
		Retry:      retryBudget(r.opt.Retry),
	}
	tasks := r.opt.CPUs
	for _, st := range stages {
		tasks = max(tasks, st.Max)
	}
	r.cfg.EnoughBytes = int64(tasks) * enoughBytes
	r.cfg.WholeBytes = 4 * r.cfg.EnoughBytes
	if len(r.nodes) > 0 {
		r.spread()
	}
	for _, s := range r.stages {
		if s.scan != nil {
			name := "scan"
			if f := s.splits; len(f) > 0 && f[0].File != "" {
				name = "scan " + f[0].File
				if f[len(f)-1].File != f[0].File {
					name += ", ..."
				}
			}
			s.scanOp = r.addOp(name, s.scan.Step)
			s.scanOp.reads = true
		}
	}
	for _, s := range r.stages {
		for i := range s.ops {
			s.ops[i].stats = r.addOp(s.ops[i].Name(), s.ops[i].Step())
		}
	}
	return nil
}

// takeRead counts what was read of the sources before the run.
func (r *run) takeRead() {
	for _, s := range r.stages {
		if s.scan == nil {
			continue
		}
		if m, ok := s.scan.Table.(driver.Metered); ok {
			s.scanned.BytesRead.Add(m.TakeRead())
		}
	}
}

// projected returns the fields of schema named by columns; nil means all.
func projected(schema *arrow.Schema, columns []string) *arrow.Schema {
	if columns == nil {
		return schema
	}
	fields := []arrow.Field{}
	for _, c := range columns {
		if at := schema.FieldIndices(c); len(at) > 0 {
			fields = append(fields, schema.Field(at[0]))
		}
	}
	return arrow.NewSchema(fields, nil)
}

// account names an attempt's account: `scan taxi.parquet#3`.
func (s *stage) account(o exec.Origin, w *work) string {
	switch {
	case w.isPart:
		return fmt.Sprintf("write part %d", w.part)
	case s.scan == nil && len(s.ops) > 0:
		return s.ops[0].Name()
	case o.Split != "":
		return "scan " + o.Split
	}
	return fmt.Sprintf("scan %d", w.N)
}
