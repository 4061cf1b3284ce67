package parquetio

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
)

const (
	// leastDeferred is what the other columns of a row group take in a bucket if they are fetched after rows are judged:
	// that costs a request more, or two with the page index, and one costs as much as fetching about 1 MiB.
	leastDeferred = 4 << 20
	maxHeld       = 16 << 20 // bytes of columns decoded before the others are fetched
	worthIndex    = 1 << 20  // bytes that are not fetched, by estimate, if the offset index is
)

// deferred are the columns of a late reader, of a file in a bucket, that are fetched when it is known which rows are
// left: their pages that have none are not fetched, as far as gaps are larger than what is fetched in one request (blobio.Options.Gap),
// and nothing of them where no row is left. Rows are judged as they are otherwise, window by window, as many windows as
// may be held; the last one that was ends what is narrowed.
type deferred struct {
	c      *scan
	fields []int // of the schema: the late reader's rest
	pages  map[int][]pageLoc
	queue  []heldWindow
}

// heldWindow is a window whose columns of the terms are decoded.
type heldWindow struct {
	from, to int64
	held     []arrow.Array
	left     []leftRange
}

// newDeferred returns nil where the other columns are fetched with the first.
func newDeferred(c *scan, l *late, pages map[int][]pageLoc) *deferred {
	if c.in.fetch == nil {
		return nil
	}
	all := c.decoded()
	d := &deferred{c: c, pages: pages}
	var size int64
	for _, k := range l.rest {
		d.fields = append(d.fields, all[k])
		for _, leaf := range c.s.fields[all[k]].leaves {
			size += c.g.chunks[leaf].size
		}
	}
	if size < leastDeferred || c.s.decodedBytes(c.g, at(all, l.first)) > d.most() {
		return nil
	}
	return d
}

// most is what may be held.
func (d *deferred) most() int64 {
	if ahead := d.c.o.AheadBytes; ahead > 0 {
		return min(maxHeld, ahead/2)
	}
	return maxHeld
}

// at are the elements of v at these places.
func at(v, places []int) []int {
	out := make([]int, len(places))
	for i, k := range places {
		out[i] = v[k]
	}
	return out
}

// judgeAll judges windows, and fetches of the other columns what is needed for the rows that are left.
func (r *reader) judgeAll(ctx context.Context, d *deferred) error {
	l := r.late
	need := []rowRange{}
	for held := int64(0); len(r.ranges) > 0 && held < d.most(); {
		x := &r.ranges[0]
		row, n := x.from, r.rows(x)
		n, err := r.judge(ctx, row, n)
		if err != nil {
			if err = r.leaveOut(err, r.leave); err == nil {
				continue
			}
			return fault.Wrap(err, fault.Place{Row: fault.N(row)})
		}
		if len(l.left) > 0 {
			for _, a := range l.held {
				held += int64(a.Data().SizeInBytes())
			}
			for _, x := range l.left {
				need = joined(need, x.rowRange, 1)
			}
			d.queue = append(d.queue, heldWindow{l.from, l.to, l.held, l.left})
			l.held, l.left = nil, nil
		}
		if x.from += n; x.from == x.to {
			r.ranges = r.ranges[1:]
		}
	}
	for _, x := range r.ranges {
		need = joined(need, x, 1)
	}
	if len(need) == 0 {
		return nil
	}
	err := d.fetch(ctx, r.dec, l.rest, need)
	return fault.Wrap(err, fault.Place{Row: fault.N(need[0].from)})
}

// fetch makes the windows of the columns, whose places in dec are given.
func (d *deferred) fetch(ctx context.Context, dec *decoder, places []int, need []rowRange) error {
	rows, size := d.c.g.rows, int64(0)
	for _, x := range need {
		rows -= x.to - x.from
	}
	var missing []int
	indexed := true
	for _, f := range d.fields {
		for _, l := range d.c.s.fields[f].leaves {
			size += d.c.g.chunks[l].size
			if d.pages[l] == nil {
				missing = append(missing, l)
				indexed = indexed && d.c.g.chunks[l].oiLen > 0
			}
		}
	}
	if len(missing) > 0 && indexed && float64(size)*float64(rows) >= worthIndex*float64(d.c.g.rows) {
		more, _, err := d.c.g.indexes(ctx, d.c.in, d.c.s, missing, false)
		if err != nil {
			return err
		}
		if d.pages == nil {
			d.pages = more
		}
		for l, ps := range more {
			d.pages[l] = ps
		}
	}
	wins := map[int]*window{}
	for i, f := range d.fields {
		pages := d.c.indexed(f, d.pages)
		for k, l := range d.c.s.fields[f].leaves {
			c := dec.fields[places[i]].cols[k]
			wins[l] = c.win
			if pages {
				c.locs = d.pages[l]
			}
		}
	}
	return d.c.fill(ctx, wins, d.fields, need, d.pages)
}

// pop makes the next judged window the one that is read.
func (r *reader) pop(d *deferred) {
	l, w := r.late, d.queue[0]
	d.queue = d.queue[1:]
	l.from, l.to, l.held, l.left = w.from, w.to, w.held, w.left
	l.together = r.dec.sharers > 0 && r.dec.fetched(l.rest, w.from, w.to)
}

// fetched reports whether the windows of these fields have the pages of all rows [from, to).
func (d *decoder) fetched(fields []int, from, to int64) bool {
	for _, k := range fields {
		for _, c := range d.fields[k].cols {
			if c.locs == nil {
				continue
			}
			for _, p := range c.locs[pageOf(c.locs, from):] {
				if p.row >= to {
					break
				}
				if c.win.runEnd(p.off) == p.off {
					return false
				}
			}
		}
	}
	return true
}

func (d *deferred) release() {
	for _, w := range d.queue {
		releaseAll(w.held)
	}
	d.queue = nil
}

// merged joins runs with no more than gap bytes between them: they are fetched in one request anyway.
func merged(runs []blobio.Range, gap int64) []blobio.Range {
	out := runs[:0]
	for _, r := range runs {
		if n := len(out); n > 0 && r.Off-(out[n-1].Off+out[n-1].Len) <= gap {
			out[n-1].Len = r.Off + r.Len - out[n-1].Off
			continue
		}
		out = append(out, r)
	}
	return out
}
