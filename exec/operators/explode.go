package operators

import (
	"context"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops/expr"
)

// Bounds of a block that an explode emits, unless one source row makes more.
const (
	explodeRows  = 16384
	explodeBytes = 4 << 20
)

// Explode makes one row of every element of a list column.
// Order kept. Rows multiplied or dropped. Memory: one piece of about 4 MiB, or what one
// source row becomes; elements are not copied where they lie one after another.
type Explode struct {
	op
	col       int
	keepEmpty bool
}

// NewExplode: col is the index of the list column, schema that of the result.
func NewExplode(step Step, col int, keepEmpty bool, schema *arrow.Schema) *Explode {
	return &Explode{newOp(step, schema), col, keepEmpty}
}

// NeedsRows: pieces must end between source rows.
func (e *Explode) NeedsRows() bool { return true }

func (e *Explode) NewTask(env *exec.Env) (exec.Task, error) {
	return &explodeTask{e: e, env: env}, nil
}

type explodeTask struct {
	noClose
	e   *Explode
	env *exec.Env
}

// lists is the part of all list arrays that explode needs.
type lists interface {
	arrow.Array
	ListValues() arrow.Array
	ValueOffsets(i int) (start, end int64)
}

func (t *explodeTask) Process(_ context.Context, in *exec.Block, emit exec.Emit) error {
	n := int(in.Batch.NumRows())
	if n == 0 {
		return t.e.none(in, emit)
	}
	list, ok := in.Batch.Column(t.e.col).(lists)
	if !ok {
		return t.e.fail(fault.New(fault.Internal, "explode of %s", in.Batch.Column(t.e.col).DataType()), in, 0)
	}
	most := t.pieceRows(in.Batch)
	p := pieces{in: in, alloc: t.env.Alloc, emit: emit, track: t.env.TrackRows}
	defer p.close()
	for lo := 0; lo < n; {
		// Take input rows until the piece is full; at least one.
		hi, size := lo, int64(0)
		for hi < n {
			k := t.e.length(list, hi)
			if hi > lo && size+k > most {
				break
			}
			size += k
			hi++
		}
		if size > math.MaxInt32 {
			return t.e.fail(fault.New(fault.RowError, "a list of %d elements; at most %d", size, math.MaxInt32).At(fault.Place{Row: fault.N(int64(lo))}), in, 0)
		}
		out, parents, err := t.piece(in.Batch, list, lo, hi, int(size))
		if err != nil {
			return t.e.fail(err, in, lo)
		}
		rows, ords := multiplied(t.env, in, lo, parents)
		if err := p.add(hi, out, rows, ords); err != nil {
			return err
		}
		lo = hi
	}
	return nil
}

// length is the number of rows that row i becomes.
func (e *Explode) length(l lists, i int) int64 {
	var k int64
	if l.IsValid(i) {
		start, end := l.ValueOffsets(i)
		k = end - start
	}
	if k == 0 && e.keepEmpty {
		return 1
	}
	return k
}

// pieceRows bounds the rows of a piece by what the repeated columns weigh.
func (t *explodeTask) pieceRows(rec arrow.RecordBatch) int64 {
	cols := make([]int, 0, rec.NumCols())
	for i := range int(rec.NumCols()) {
		if i != t.e.col {
			cols = append(cols, i)
		}
	}
	others := choose(rec, cols, without(rec.Schema(), t.e.col))
	defer others.Release()
	per := exec.SizeOf(others)/rec.NumRows() + 1
	return max(1, min(explodeRows, explodeBytes/per))
}

func without(s *arrow.Schema, col int) *arrow.Schema {
	fields := make([]arrow.Field, 0, s.NumFields())
	for i := range s.NumFields() {
		if i != col {
			fields = append(fields, s.Field(i))
		}
	}
	return arrow.NewSchema(fields, nil)
}

// piece makes size rows of rows lo to hi-1; parents count from lo.
func (t *explodeTask) piece(rec arrow.RecordBatch, list lists, lo, hi, size int) (arrow.RecordBatch, []int32, error) {
	parents := make([]int32, 0, size)
	first, next := int64(-1), int64(-1) // elements first to next-1, as long as they are neighbours
	run := true
	for i := lo; i < hi; i++ {
		k := t.e.length(list, i)
		if k == 0 {
			continue
		}
		for range k {
			parents = append(parents, int32(i-lo))
		}
		start, end := t.e.elements(list, i)
		if first < 0 {
			first, next = start, start
		}
		run = run && start == next && start >= 0
		next = end
	}
	var elems []int64
	switch {
	case len(parents) == 0:
		first, next = 0, 0
	case !run:
		elems = make([]int64, 0, size) // -1: null
		for i := lo; i < hi; i++ {
			if t.e.length(list, i) == 0 {
				continue
			}
			start, end := t.e.elements(list, i)
			for e := start; e < end; e++ {
				elems = append(elems, e)
			}
			if start < 0 {
				elems = append(elems, -1)
			}
		}
	}
	values, err := t.gather(list.ListValues(), first, next, elems)
	if err != nil {
		return nil, nil, err
	}
	defer values.Release()
	others, err := t.repeat(rec, lo, hi, parents)
	if err != nil {
		return nil, nil, err
	}
	defer others.Release()
	arrs := make([]arrow.Array, 0, rec.NumCols())
	arrs = append(arrs, others.Columns()[:t.e.col]...)
	arrs = append(arrs, values)
	arrs = append(arrs, others.Columns()[t.e.col:]...)
	return array.NewRecordBatch(t.e.schema, arrs, int64(len(parents))), parents, nil
}

// repeat gathers the other columns.
func (t *explodeTask) repeat(rec arrow.RecordBatch, lo, hi int, parents []int32) (arrow.RecordBatch, error) {
	cols := make([]int, 0, rec.NumCols())
	for i := range int(rec.NumCols()) {
		if i != t.e.col {
			cols = append(cols, i)
		}
	}
	part := rec.NewSlice(int64(lo), int64(hi))
	defer part.Release()
	others := choose(part, cols, without(rec.Schema(), t.e.col))
	defer others.Release()
	if len(cols) == 0 {
		others.Retain() // only its columns are of interest, and it has none
		return others, nil
	}
	return expr.Take(others, parents, t.env.Alloc)
}

// elements of row i, which is not dropped; -1, -1 where it becomes a row with null.
func (e *Explode) elements(l lists, i int) (start, end int64) {
	if l.IsValid(i) {
		if start, end = l.ValueOffsets(i); start < end {
			return start, end
		}
	}
	return -1, -1
}

// gather gives the values at elems, of which -1 gives null; values lo to hi-1 if elems is nil.
func (t *explodeTask) gather(values arrow.Array, lo, hi int64, elems []int64) (arrow.Array, error) {
	if elems == nil {
		return array.NewSlice(values, lo, hi), nil
	}
	// Cut out the part that is needed, so that 32-bit indices do.
	first, last := int64(math.MaxInt64), int64(-1)
	for _, e := range elems {
		if e >= 0 {
			first, last = min(first, e), max(last, e)
		}
	}
	if last < 0 {
		first = 0
	}
	part := array.NewSlice(values, first, last+1)
	defer part.Release()
	if part.Len() > math.MaxInt32 {
		return nil, fault.New(fault.Unsupported, "the lists of one block lie %d elements apart; at most %d", part.Len(), math.MaxInt32)
	}
	idx := make([]int32, len(elems))
	for k, e := range elems {
		if e < 0 {
			idx[k] = -1 // a null, to Take
		} else {
			idx[k] = int32(e - first)
		}
	}
	s := arrow.NewSchema([]arrow.Field{{Name: "v", Type: part.DataType(), Nullable: true}}, nil)
	rec := array.NewRecordBatch(s, []arrow.Array{part}, int64(part.Len()))
	defer rec.Release()
	out, err := expr.Take(rec, idx, t.env.Alloc)
	if err != nil {
		return nil, err
	}
	defer out.Release()
	c := out.Column(0)
	c.Retain()
	return c, nil
}
