// Package lanes produces the windows of a source: it has the engine read each
// lane's splits window after window, in the order in which they are needed, and
// gives out their samples in the order of package order.
//
// A [Source] is what a job reads from; a [Pass] is one way through it. The engine
// (an exec.Runner) does the work, ahead of what is asked for and under its budget;
// this package says what to read and puts the rows in order.
package lanes

import (
	"context"
	"errors"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/shard/internal/order"
	"github.com/penstock-data/penstock/shard/internal/rows"
)

// Config of a source.
type Config struct {
	Name   string // part of the keys
	Leaves []Leaf // scans of the source's plan, in canonical order
	Shape  order.Shape
	Seed   uint64
	// Bytes says that units are bytes, not rows.
	Bytes bool
	// KeepsRows says that no step changes the number of rows, so that a window has as many
	// samples as rows.
	KeepsRows bool
	// Lineage keeps where samples come from: Rec.Origin.
	Lineage bool
	// AheadBytes bounds what the reader of a lane holds encoded; 0: as the driver likes.
	AheadBytes int64
	// Layout packs the rows of windows that are permuted, where they are small and that is all that batches are made of;
	// nil: none are packed.
	Layout *rows.Layout
	// Transform makes something else of a window's rows (packing), which it takes over; nil: nothing. Their runs are valid
	// until it returns.
	Transform func(alloc memory.Allocator, w *Rows) (*Rows, error)
	// Sources is how many share the budget: the windows of all of them may take half of it, and wait on
	// disk beyond that.
	Sources int
	Meter   *Meter
	Runner  exec.Runner
	Exec    exec.Options // Budget is set
	// Published is called for every window, with the number of its samples; may be nil.
	Published func(epoch, pass uint64, lane int, window, samples int64)
	// Skipped is called when a pass has been read, with how many of its rows a policy left out here, if any; may be nil.
	Skipped func(epoch, pass uint64, skipped, rows int64)
	// Elsewhere: lanes that others read; nil: none.
	Elsewhere *Elsewhere
}

// Elsewhere divides the lanes of a source among processes. A pass reads its own ones, and gives their samples. Of the
// others it knows how many samples each window has, which is all that the order needs.
type Elsewhere struct {
	// Own reports whether a lane is read here.
	Own func(lane int) bool
	// Collected is called for every window that is read here as soon as its samples are counted, in the order of
	// production, by a goroutine of the pass, where counts do not follow from metadata. It must not wait. skipped has
	// counts of rows that limits of policies are compared with; nil: there are no limits.
	Collected func(epoch, pass uint64, lane int, window, samples int64, skipped []int64)
	// Await waits for what Collected was told of a window that is read elsewhere.
	Await func(ctx context.Context, epoch, pass uint64, lane int, window int64) (samples int64, skipped []int64, err error)
}

// Known reports whether the samples of windows follow from metadata.
func (c *Config) Known() bool { return c.KeepsRows && !c.Bytes }

// Leaf is a scan with the steps behind it, and the units of its splits.
type Leaf struct {
	Stage *exec.Stage
	Units []int64
	// Rows of the splits, where they are known though units are bytes: row r of a split then stands
	// at byte r*units/rows.
	Rows []int64
	// Counted says that Units are rows that were counted some time before: what is read must agree.
	Counted bool
}

// bytes reports whether places in splits of the leaf are bytes, and rows are found by reading.
func (s *Source) bytes(leaf int) bool { return s.c.Bytes && s.c.Leaves[leaf].Rows == nil }

// rowsAt is the first row of a split that stands at a unit or behind it.
func (l *Leaf) rowsAt(split int, unit int64) int64 {
	if l.Rows == nil || l.Units[split] == 0 {
		return unit
	}
	hi, lo := bits.Mul64(uint64(unit), uint64(l.Rows[split]))
	lo, carry := bits.Add64(lo, uint64(l.Units[split]-1), 0)
	q, _ := bits.Div64(hi+carry, lo, uint64(l.Units[split]))
	return int64(q)
}

// Source makes passes. Safe for use by one goroutine.
type Source struct {
	c     Config
	first []int // first split of each leaf, in the list of all
	units []int64
	ops   []exec.Closer // kept open from pass to pass
	alloc *exec.Account
	held  int64 // bytes of windows in memory

	limits     exec.OnError // of rows skipped in an epoch
	stepLimits map[string]exec.OnError
}

// New makes a source. Close it.
func New(c Config) *Source {
	s := &Source{c: c, limits: c.Exec.OnError, stepLimits: map[string]exec.OnError{}}
	s.c.Exec.OnError.MaxRows, s.c.Exec.OnError.MaxRate = 0, 0
	s.c.Leaves = append([]Leaf(nil), c.Leaves...)
	for i := range s.c.Leaves {
		l := &s.c.Leaves[i]
		s.first = append(s.first, len(s.units))
		s.units = append(s.units, l.Units...)
		st := *l.Stage
		st.Ops = append([]exec.Fused(nil), st.Ops...)
		for k, f := range st.Ops {
			if cl, ok := f.Operator.(exec.Closer); ok {
				s.ops = append(s.ops, cl)
			}
			st.Ops[k].Operator = warm(f.Operator)
			if f.OnError != nil {
				s.stepLimits[f.Step()] = *f.OnError
				o := *f.OnError
				o.MaxRows, o.MaxRate = 0, 0
				st.Ops[k].OnError = &o
			}
		}
		l.Stage = &st
	}
	s.alloc = c.Exec.Budget.Account(context.Background(), "windows of "+c.Name)
	s.alloc.SetPriority(exec.Overdraw) // nothing moves on until it has what it needs
	return s
}

// room is what the windows that wait in memory may take, and once more what readers that wait may.
func (s *Source) room() int64 {
	return s.c.Exec.Budget.Limit() / (2 * int64(max(s.c.Sources, 1)))
}

// chunk is how much of a window that is on disk is in memory: those of all lanes take no more than a quarter of the room for
// windows, if there is at least a sample for each.
func (s *Source) chunk() int64 {
	return min(chunkBytes, s.room()/(4*int64(max(s.c.Shape.Lanes, 1))))
}

// Close frees what passes share; all are closed.
func (s *Source) Close() error {
	var err error
	for _, c := range s.ops {
		err = errors.Join(err, c.Close())
	}
	s.ops = nil
	s.alloc.Close()
	return err
}

// Order is the arithmetic of a pass.
func (s *Source) Order(epoch, pass uint64) (*order.Pass, error) {
	return order.NewPass(s.key(epoch, pass), s.c.Shape, s.units)
}

func (s *Source) key(epoch, pass uint64) order.Key {
	return order.Key{Seed: s.c.Seed, Epoch: epoch, Pass: pass, Source: s.c.Name}
}

// leafOf finds the leaf of a split in the list of all, and its number there.
func (s *Source) leafOf(split int) (leaf, i int) {
	lo, hi := 0, len(s.first)
	for hi-lo > 1 {
		if m := (lo + hi) / 2; s.first[m] <= split {
			lo = m
		} else {
			hi = m
		}
	}
	for lo+1 < len(s.first) && s.first[lo+1] <= split { // leaves without splits
		lo++
	}
	return lo, split - s.first[lo]
}

// graph is leaf l as a plan of its own over what table says.
func (s *Source) graph(l int, t driver.Table) *exec.Graph {
	st := *s.c.Leaves[l].Stage
	scan := *st.Scan
	scan.Table, scan.Keep = t, nil
	if s.bytes(l) || s.c.Leaves[l].Counted {
		scan.Predicate = nil // what a reader leaves out has no number: windows would be permuted otherwise
	}
	st.Scan = &scan
	return &exec.Graph{Root: &st, Schema: s.schema(l)}
}

func (s *Source) schema(l int) *arrow.Schema {
	st := s.c.Leaves[l].Stage
	if n := len(st.Ops); n > 0 {
		return st.Ops[n-1].Schema()
	}
	if st.Scan.Columns == nil {
		return st.Scan.Table.Schema()
	}
	full := st.Scan.Table.Schema()
	fields := make([]arrow.Field, len(st.Scan.Columns))
	for i, c := range st.Scan.Columns {
		fields[i] = full.Field(full.FieldIndices(c)[0])
	}
	return arrow.NewSchema(fields, nil)
}

// warm hides an operator's Close from the runs that use it: what it holds (a pool
// of processes) lives as long as the source.
func warm(op exec.Operator) exec.Operator {
	if _, ok := op.(exec.Closer); !ok {
		return op
	}
	w := kept{op}
	if p, ok := op.(exec.Parallel); ok {
		return keptParallel{w, p}
	}
	return w
}

type kept struct{ exec.Operator }

func (k kept) NeedsRows() bool {
	t, ok := k.Operator.(exec.Tracks)
	return ok && t.NeedsRows()
}

type keptParallel struct {
	kept
	exec.Parallel
}

// internal wraps what cannot happen.
func internal(format string, args ...any) error { return fault.New(fault.Internal, format, args...) }
