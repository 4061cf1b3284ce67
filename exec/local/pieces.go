package local

import (
	"io"

	"github.com/penstock-data/penstock/exec/internal/sched"
	"github.com/penstock-data/penstock/io/driver"
)

// piece is what one task of a scan reads: a split, or some of its rows, so that the few splits of a
// small or coarsely written source keep all CPUs at work. What is delivered does not depend on it.
type piece struct {
	split    int
	from, to int64 // rows; to -1: to the end
}

// whole is a split as one piece.
func whole(split int) piece { return piece{split: split, to: -1} }

// within cuts off what of b, which it takes over, lies behind the piece: io.EOF if nothing is left.
func (p piece) within(b *driver.Batch) error {
	n := b.Before(p.to)
	if n == b.Record.NumRows() {
		return nil
	}
	defer b.Record.Release()
	if n == 0 {
		return io.EOF
	}
	*b = b.Slice(0, n)
	return nil
}

// piecesOf cuts the splits that are kept (nil: all) for so many CPUs; nil if they are many enough as they are.
// A cut costs what the pages take in which it lies, so there are no more than it takes for at most a fifth of
// the CPUs' time to be lost at the end. Pieces begin at a multiple of batch rows, so that most batches
// are those of the whole split, and have at least 4 batches.
func piecesOf(table driver.Table, splits []driver.Split, keep []bool, cpus int, batch int64) []piece {
	seeker, ok := table.(driver.Seeker)
	if !ok {
		return nil
	}
	kept := 0
	for i := range splits {
		if keep == nil || keep[i] {
			kept++
		}
	}
	per := 1
	for per < cpus && lost(kept*per, cpus) {
		per++
	}
	if kept == 0 || per == 1 {
		return nil
	}
	var all []piece
	for i, s := range splits {
		n := int64(1)
		if (keep == nil || keep[i]) && s.Rows >= 0 && seeker.Seeks(i) {
			n = max(min(int64(per), s.Rows/(4*batch)), 1)
		}
		from := int64(0)
		for k := range n - 1 {
			to := (s.Rows*(k+1)/n + batch/2) / batch * batch
			all = append(all, piece{i, from, to})
			from = to
		}
		all = append(all, piece{i, from, -1})
	}
	if len(all) == len(splits) {
		return nil
	}
	return all
}

// lost reports whether n tasks of equal size leave more than a fifth of the CPUs' time unused.
func lost(n, cpus int) bool {
	rounds := (n + cpus - 1) / cpus
	return n*5 < rounds*cpus*4
}

// cut makes the tasks of a scan pieces of its splits, where that helps.
func (s *stage) cut(c *sched.Stage, cpus, batch int) {
	if s.pieces = piecesOf(s.scan.Table, s.splits, s.scan.Keep, cpus, int64(batch)); s.pieces == nil {
		return
	}
	c.Tasks = len(s.pieces)
	if k := s.scan.Keep; k != nil {
		c.Empty = make([]bool, c.Tasks)
		for i, p := range s.pieces {
			c.Empty[i] = !k[p.split]
		}
	}
}

// piece is what a task of the scan reads.
func (s *stage) piece(task int) piece {
	if s.pieces == nil {
		return whole(task)
	}
	return s.pieces[task]
}
