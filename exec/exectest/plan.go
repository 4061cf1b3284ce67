package exectest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// Plan is a random graph that can be made again and again: equal seeds make equal ones.
type Plan struct {
	r      *rand.Rand
	source int
	faults bool
	codes  []fault.Code
	Tables []*Table
	Ops    []*Op
}

func (p *Plan) op(o *Op) *Op {
	p.Ops = append(p.Ops, o)
	return o
}

func (p *Plan) chain() []exec.Operator {
	var ops []exec.Operator
	for range p.r.IntN(4) {
		k := p.r.Int64N(5) + 2
		switch p.r.IntN(7) {
		case 0:
			ops = append(ops, p.op(Pass()))
		case 1:
			ops = append(ops, p.op(Halves()))
		case 2:
			ops = append(ops, p.op(Filter(func(id int64) bool { return id%k != 1 })))
		case 3:
			ops = append(ops, p.op(Repeat(k)))
		case 4:
			ops = append(ops, p.op(Inflate(int(k), p.r.IntN(2) == 0)))
		case 5:
			ops = append(ops, p.op(FailRows(fault.RowError, func(id int64) bool { return id%(k*17) == 3 })))
		case 6:
			var left atomic.Int64
			n := int64(7 + p.r.IntN(20))
			if p.faults {
				left.Store(2)
			}
			ops = append(ops, p.op(Flaky(p.codes[p.r.IntN(len(p.codes))], n, &left)))
		}
	}
	return ops
}

// Stage makes the next stage, of so many levels at most.
func (p *Plan) Stage(depth int) *exec.Stage {
	if depth == 0 || p.r.IntN(3) == 0 {
		tb := NewTable(0, 0)
		for range p.r.IntN(6) {
			tb.Rows = append(tb.Rows, p.r.IntN(300))
		}
		kind, split, batch := p.r.IntN(3), p.r.IntN(6), p.r.IntN(5)
		if p.faults && kind > 0 {
			tb.Faults = append(tb.Faults, Fault{Split: split, Batch: batch, Code: p.codes[kind-1], Times: 1})
		}
		tb.Seek = len(tb.Rows)%2 == 0
		p.Tables = append(p.Tables, tb)
		p.source++
		return ScanStage(p.source, tb, p.chain()...)
	}
	var in []*exec.Stage
	for range 1 + p.r.IntN(3) {
		in = append(in, p.Stage(depth-1))
	}
	limit := int64(-1)
	if p.r.IntN(3) == 0 {
		limit = int64(p.r.IntN(600))
	}
	return Cut(limit, in, p.chain()...)
}

// Root makes a whole graph's.
func (p *Plan) Root() *exec.Stage { return p.Stage(p.r.IntN(3)) }

// NewPlan begins a plan; with faults, some reads and steps fail in ways that another attempt survives.
func NewPlan(seed uint64, faults bool) *Plan {
	return &Plan{r: rand.New(rand.NewPCG(seed, 3)), faults: faults, codes: []fault.Code{fault.Unavailable, fault.WorkerLost, fault.Exhausted}}
}

// Describe shows a stage in a line.
func Describe(st *exec.Stage) string {
	s := "scan"
	if st.Inputs != nil {
		s = fmt.Sprintf("cut %d(", st.Limit)
		for _, in := range st.Inputs {
			s += Describe(in) + " "
		}
		s += ")"
	}
	for _, o := range st.Ops {
		s += " | " + o.Name()
	}
	return s
}

// HasLimit reports whether there is a limit in a stage.
func HasLimit(st *exec.Stage) bool {
	return st.Inputs != nil && st.Limit >= 0 || slices.ContainsFunc(st.Inputs, HasLimit)
}
