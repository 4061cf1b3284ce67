package operators

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/procs"
	"github.com/penstock-data/penstock/ops"
)

// Exec passes batches through a pool of child processes.
// Order kept. Rows kept, or multiplied if flat. Memory: one answer per task, at most 1 GiB,
// charged to the task.
//
// A child gets one Arrow IPC stream on stdin and writes one to stdout, both for
// its whole life: for every batch in, exactly one batch out, flushed. On end of input
// it should exit. It sees PATH, HOME, the variables that are listed, and its number (EnvNumber). stderr is kept for messages.
// Metadata says what the answers must be, and what is wrong with a batch (refuse.go); a child may ignore both.
type Exec struct {
	op
	in   *arrow.Schema
	spec ops.ExecSpec
	pool *pool
}

// NewExec starts nothing yet: children start when they are needed, and serve all tasks until Close.
func NewExec(step Step, in *arrow.Schema, spec *ops.ExecSpec) *Exec {
	e := &Exec{op: newOp(step, spec.Out), in: in, spec: *spec}
	if e.spec.Workers == 0 {
		e.spec.Workers = procs.CPUs()
	}
	if e.spec.BatchRows == 0 {
		e.spec.BatchRows = 1024
	}
	timeout := 5 * time.Minute
	if e.spec.TimeoutMS > 0 {
		timeout = time.Duration(e.spec.TimeoutMS) * time.Millisecond
	}
	answer := spec.Out
	if spec.Flat {
		answer = arrow.NewSchema(append(spec.Out.Fields(), arrow.Field{Name: ops.ParentColumn, Type: arrow.PrimitiveTypes.Int64}), nil)
	}
	e.pool = newPool(e.spec.Workers, &command{args: spec.Command, program: cmp.Or(spec.Program, spec.Command[0]), env: slices.Concat(spec.Local, spec.Env), in: in, told: withAnswer(in, answer), answer: answer, timeout: timeout, limit: maxAnswer})
	return e
}

// Tasks: the children work, not this process.
func (e *Exec) Tasks() int { return e.spec.Workers }

// NeedsRows: slices must end between rows.
func (e *Exec) NeedsRows() bool { return true }

// Close ends all children and waits for them. Idempotent; no task may be at work.
func (e *Exec) Close() error { e.pool.close(); return nil }

func (e *Exec) NewTask(env *exec.Env) (exec.Task, error) { return &execTask{e: e, env: env}, nil }

type execTask struct {
	noClose
	e   *Exec
	env *exec.Env
}

func (t *execTask) Process(ctx context.Context, in *exec.Block, emit exec.Emit) error {
	n := int(in.Batch.NumRows())
	if n == 0 {
		return t.e.none(in, emit)
	}
	rec := relabel(in.Batch, t.e.in)
	defer rec.Release()
	p := pieces{in: in, alloc: t.env.Alloc, emit: emit, track: t.env.TrackRows}
	defer p.close()
	for lo := 0; lo < n; lo += t.e.spec.BatchRows {
		hi := min(lo+t.e.spec.BatchRows, n)
		part := rec.NewSlice(int64(lo), int64(hi))
		out, err := t.e.pool.call(ctx, part, t.env)
		part.Release()
		if err != nil {
			return t.e.fail(err, in, lo)
		}
		if err := t.add(&p, in, lo, hi, out); err != nil {
			return err
		}
	}
	return nil
}

// add checks the rows of an answer, which it takes over, and hands it on.
func (t *execTask) add(p *pieces, in *exec.Block, lo, hi int, answer arrow.RecordBatch) error {
	defer answer.Release()
	n := hi - lo
	if !t.e.spec.Flat {
		if answer.NumRows() != int64(n) {
			return t.e.fail(fault.New(fault.Invalid, "%s answered %d rows with %d; a command that changes rows must be declared flat", t.e.pool.cmd, n, answer.NumRows()), in, lo)
		}
		rows, ords := in.Rows, in.Ords
		if rows != nil {
			rows = rows[lo:hi]
		}
		if ords != nil {
			ords = ords[lo:hi]
		}
		return p.add(hi, relabel(answer, t.e.schema), rows, ords)
	}
	last := int(answer.NumCols()) - 1
	col := answer.Column(last).(*array.Int64)
	parents := col.Int64Values()
	err := checkParents(parents, answer.NumRows(), n)
	if err == nil && col.NullN() > 0 {
		err = errors.New("null")
	}
	if err != nil {
		return t.e.fail(fault.New(fault.Invalid, "%s answered with a wrong column %s: %w", t.e.pool.cmd, ops.ParentColumn, err), in, lo)
	}
	short := make([]int32, len(parents))
	for i, v := range parents {
		short[i] = int32(v)
	}
	rows, ords := multiplied(t.env, in, lo, short)
	return p.add(hi, array.NewRecordBatch(t.e.schema, answer.Columns()[:last], answer.NumRows()), rows, ords)
}
