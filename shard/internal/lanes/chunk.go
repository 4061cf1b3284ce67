package lanes

import (
	"errors"

	"github.com/penstock-data/penstock/shard/internal/order"
)

const (
	chunkWindows = 4096  // windows whose reading is planned at once
	chunkTasks   = 16384 // and slices of splits, but for one window
	nextChunk    = 384   // windows before the end of a chunk at which the next one is begun
)

// chunk is a number of windows that follow each other in the order of production,
// read by one run of the engine per leaf: plans of terabytes are never held as a whole.
type chunk struct {
	wins  []winPlan
	at    int // the next to be collected
	feeds []*feed
}

// winPlan says where the rows of a window come from.
type winPlan struct {
	lane   int
	window int64
	given  bool // all its samples were given before the pass began: not read
	segs   []segRef
}

// segRef is a segment of a window: the piece that ends with edge k of a task; task -1: it yields nothing.
type segRef struct {
	leaf, task, edge int
	from, rows       int64 // not for leaves whose places are bytes
}

// chunk plans and starts the next one; nil at the end of the pass.
func (p *Pass) chunk() (*chunk, error) {
	c := &chunk{feeds: make([]*feed, len(p.lots))}
	tasks := 0
	for len(c.wins) < chunkWindows && tasks < chunkTasks {
		lane, window, ok := p.plan.Next()
		if !ok {
			p.planned = true
			break
		}
		if p.own != nil && !p.own[lane] {
			continue
		}
		c.wins = append(c.wins, p.planWindow(c, lane, window, &tasks))
	}
	if len(c.wins) == 0 {
		return nil, nil
	}
	for l, f := range c.feeds {
		if f == nil {
			continue
		}
		o := p.s.c.Exec
		o.Epoch, o.Spans = p.epoch, true
		var err error
		f.stream, err = p.s.c.Runner.Run(p.ctx, p.s.graph(l, p.lots[l].view(f.tasks)), &o)
		if err != nil {
			f.stream = nil
			return nil, errors.Join(err, c.close())
		}
		f.meter = p.s.c.Meter
		f.meter.opened(f.stream)
	}
	return c, nil
}

// planWindow plans one window: its segments go on in a task where they follow it in its split.
func (p *Pass) planWindow(c *chunk, lane int, window int64, tasks *int) winPlan {
	w := winPlan{lane: lane, window: window}
	from, to := p.order.Bounds(lane, window)
	if p.from != nil && p.s.c.Known() && p.from[lane] == (order.Pos{Window: window, Given: to - from}) {
		w.given = true
		return w
	}
	p.segs = p.order.Segments(lane, window, p.segs[:0])
	for _, seg := range p.segs {
		leaf, split := p.s.leafOf(seg.Split)
		bytes := p.s.bytes(leaf)
		l := &p.s.c.Leaves[leaf]
		last := seg.To == l.Units[split]
		if p.s.c.Bytes && !bytes {
			seg.From, seg.To = l.rowsAt(split, seg.From), l.rowsAt(split, seg.To)
		}
		r := segRef{leaf: leaf, task: -1, from: seg.From, rows: seg.To - seg.From}
		scan := p.s.c.Leaves[leaf].Stage.Scan
		if seg.From == seg.To || scan.Keep != nil && !scan.Keep[split] && !bytes {
			w.segs = append(w.segs, r)
			continue
		}
		f := c.feeds[leaf]
		if f == nil {
			f = &feed{}
			c.feeds[leaf] = f
		}
		if n := len(f.tasks); n > 0 && f.tasks[n-1].split == split && f.tasks[n-1].to == seg.From {
			f.tasks[n-1].to = seg.To
			f.tasks[n-1].edges = append(f.tasks[n-1].edges, seg.To)
		} else {
			t := &task{split: split, from: seg.From, to: seg.To, edges: []int64{seg.To}, gone: make(chan struct{})}
			if before := p.lots[leaf].tails[split]; before != nil && before.to == seg.From {
				t.prev = before
			}
			f.tasks = append(f.tasks, t)
			*tasks++
		}
		t := f.tasks[len(f.tasks)-1]
		if t.last = last; last {
			delete(p.lots[leaf].tails, split)
		} else {
			p.lots[leaf].tails[split] = t
		}
		r.task = len(f.tasks) - 1
		r.edge = len(f.tasks[r.task].edges) - 1
		if !bytes {
			f.tasks[r.task].rows = f.tasks[r.task].edges
		}
		w.segs = append(w.segs, r)
	}
	return w
}

// close ends the runs of a chunk; nil is allowed.
func (c *chunk) close() error {
	if c == nil {
		return nil
	}
	var err error
	for _, f := range c.feeds {
		if f == nil {
			continue
		}
		if f.rest != nil {
			f.rest.Release()
			f.rest = nil
		}
		if f.stream != nil {
			err = errors.Join(err, f.stream.Close())
			f.meter.closed(f.stream)
			f.stream = nil
		}
	}
	return err
}
