package shard_test

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/internal/order"
	"github.com/penstock-data/penstock/shard/internal/order/ordertest"
	"github.com/penstock-data/penstock/shard/internal/pack"
)

// The reference: what a graph gives, from what a plain run of its steps gives and docs/order.md.

// modelRow is a row, or a packed sample.
type modelRow struct {
	keys   []string // of the source row that it comes from; of a packed sample, of its documents
	text   string
	nums   [][]float64 // of the columns that are solid, in their order; nil: null
	tokens []int32     // of column t, where it is packed
}

type passKey struct {
	source      int
	epoch, pass uint64
}

// modelPass is a pass as the reference has it.
type modelPass struct {
	lanes [][]ordertest.Window
	seq   []ordertest.Timed
	rows  []*modelRow
	last  []bool // of its window
}

type modelSample struct {
	source int
	pass   uint64
	nth    int // in the pass
	lane   int32
	last   bool // of its window
	row    *modelRow
}

type modelEpoch struct {
	samples []modelSample
	empty   bool // a whole pass of a source that is to be repeated has no sample
}

// modelEpochs is how many epochs the reference looks at.
const modelEpochs = 3

// prepare runs the steps plainly, and asks a job for the lanes and windows that it chose.
func (g *graph) prepare() error {
	for k := range uint64(modelEpochs) {
		if err := g.run(g.first + k); err != nil {
			return fmt.Errorf("plain run: %w", err)
		}
	}
	g.pickSolid()
	its, err := g.ds.Shards(context.Background(), 1, g.options(run{ranks: 1, global: g.global, o: dataset.RunOptions{Seed: g.seed, OnError: g.onError()}}))
	if err != nil {
		return err
	}
	for i, x := range its[0].State().Sources {
		g.sources[i].lanes, g.sources[i].window = x.Lanes, x.Window
		if g.lanes == 0 && x.Lanes > 1 {
			g.has("several default lanes")
		}
		if g.lanes > 0 && x.Lanes != g.lanes || g.window > 0 && x.Window != g.window {
			return fmt.Errorf("source %s has %d lanes and windows of %d, want %d and %d", x.Name, x.Lanes, x.Window, g.lanes, g.window)
		}
	}
	return its[0].Close()
}

// onError is the policy of all runs.
func (g *graph) onError() *ops.OnError {
	if !g.skip {
		return nil
	}
	return &ops.OnError{Policy: "skip"}
}

// splitAt is a split of a source.
type splitAt struct {
	leaf  *leaf
	split *modelSplit
	units int64
}

// splits of a source, in order.
func (s *modelSource) splits() (out []splitAt) {
	for i := range s.leaves {
		l := &s.leaves[i]
		for k := range l.splits {
			x := splitAt{l, &l.splits[k], int64(len(l.splits[k].keys))}
			if s.bytes && l.lines {
				x.units = x.split.bytes
			} else if s.bytes {
				x.units = max(x.units, x.split.bytes) // no row is less than a byte
			}
			out = append(out, x)
		}
	}
	return out
}

// run is the plain execution of all steps of an epoch: what comes of each source row.
func (g *graph) run(epoch uint64) error {
	if g.plain[epoch] != nil {
		return nil
	}
	if epoch > g.first && !strings.Contains(g.text, "random") { // every epoch has the same rows
		g.plain[epoch] = g.plain[g.first]
		return nil
	}
	ds := g.sources[0].ds
	if g.mixed {
		var more []*dataset.Dataset
		for _, s := range g.sources[1:] {
			more = append(more, s.ds)
		}
		ds = ds.Union(more...)
	}
	if g.solid == nil && g.pack == nil {
		schema, err := ds.Schema(context.Background())
		if err != nil {
			return err
		}
		g.numeric(schema)
	}
	rows := map[string][]*modelRow{}
	o := dataset.RunOptions{Seed: g.seed, Epoch: epoch, OnError: g.onError()}
	for rec, err := range ds.Records(context.Background(), &o) {
		if err != nil {
			return err
		}
		for i := range int(rec.NumRows()) {
			key := keyOf(rec, i)
			x := &modelRow{keys: []string{key}, text: textOf(rec, i, g.hidden...)}
			for k := range g.solid {
				x.nums = append(x.nums, g.solid[k].values(rec, i))
			}
			if g.pack != nil {
				l := rec.Column(rec.Schema().FieldIndices("t")[0]).(*array.List)
				a, b := l.ValueOffsets(i)
				x.tokens = slices.Clone(l.ListValues().(*array.Int32).Int32Values()[a:b])
			}
			rows[key] = append(rows[key], x)
		}
	}
	g.plain[epoch] = rows
	return nil
}

// keys of the source rows of a window, in order; "" for those that do not parse, and have a number all the same.
func (s *modelSource) keys(w ordertest.Window, at []splitAt) (rows []string) {
	for _, seg := range w.Segments {
		x := at[seg.Split]
		begin := len(rows)
		for r, key := range x.split.keys {
			// Where the row begins, in units.
			num, den := int64(r), int64(1)
			switch {
			case s.bytes && x.leaf.lines:
				num = x.split.at[r]
			case s.bytes:
				num, den = int64(r)*x.units, int64(len(x.split.keys))
			}
			if num >= seg.From*den && num < seg.To*den {
				rows = append(rows, key)
			}
		}
		if s.bytes && x.leaf.lines { // rows that do not parse stand between two that do
			for len(rows) > begin && rows[len(rows)-1] == "" {
				rows = rows[:len(rows)-1]
			}
			for len(rows) > begin && rows[begin] == "" {
				rows = slices.Delete(rows, begin, begin+1)
			}
		}
	}
	return rows
}

// pass is the reference's pass of a source.
func (g *graph) pass(k passKey) *modelPass {
	if p := g.passes[k]; p != nil {
		return p
	}
	s := g.sources[k.source]
	key := order.Key{Seed: g.seed, Epoch: k.epoch, Pass: k.pass, Source: s.name}
	shape := order.Shape{Mode: map[shard.Mode]order.Mode{shard.ModeNone: order.None, shard.ModeBlocks: order.Blocks, shard.ModeWindow: order.Window}[g.mode],
		Lanes: s.lanes, Window: s.window}
	at := s.splits()
	var units []int64
	for _, x := range at {
		units = append(units, x.units)
	}
	p := &modelPass{lanes: ordertest.Lay(key, shape, units)}
	samples := map[[2]int64][]*modelRow{}
	for v := range p.lanes {
		for w, win := range p.lanes[v] {
			rows := s.keys(win, at)
			turn := make([]int, len(rows))
			for i := range turn {
				turn[i] = i
			}
			if g.mode == shard.ModeWindow {
				turn = ordertest.Perm(key, "rows", fmt.Sprint(v), fmt.Sprint(w), len(rows))
			}
			var out []*modelRow
			for _, i := range turn {
				out = append(out, g.plain[k.epoch][rows[i]]...)
			}
			if g.pack != nil {
				out = g.packed(out)
			}
			samples[[2]int64{int64(v), int64(w)}] = out
		}
	}
	p.seq = ordertest.Sequence(p.lanes, func(v int, w int64) int64 { return int64(len(samples[[2]int64{int64(v), w}])) })
	for _, t := range p.seq {
		of := samples[[2]int64{int64(t.Lane), t.Window}]
		p.rows = append(p.rows, of[t.Index])
		p.last = append(p.last, int(t.Index) == len(of)-1)
	}
	g.passes[k] = p
	return p
}

// packed renders the samples of a window of documents. Which document goes where is package pack's
// business; what becomes of it is written down here.
func (g *graph) packed(rows []*modelRow) (out []*modelRow) {
	var docs [][]int32
	var lengths []int32
	for _, r := range rows {
		d := r.tokens
		if len(d) > 0 && g.pack.EOS != nil {
			d = append(d[:len(d):len(d)], int32(*g.pack.EOS))
		}
		docs, lengths = append(docs, d), append(lengths, int32(len(d)))
	}
	plan := pack.Concat
	if g.pack.Method == ops.PackBestFit {
		plan = pack.BestFit
	}
	p := plan(lengths, g.pack.Length, pack.Overlong(g.pack.Overlong))
	for b := range p.NumBins() {
		sample := &modelRow{}
		ids, segs, pos, mask := []string{}, []string{}, []string{}, []string{}
		for k, x := range p.Pieces[p.Bins[b]:p.Bins[b+1]] {
			sample.keys = append(sample.keys, rows[x.Doc].keys...)
			for i := range x.N {
				ids = append(ids, fmt.Sprint(docs[x.Doc][x.From+i]))
				segs, pos, mask = append(segs, fmt.Sprint(k+1)), append(pos, fmt.Sprint(i)), append(mask, g.maskAt(rows[x.Doc], x.From+i))
			}
		}
		for len(ids) < g.pack.Length {
			ids, segs, pos, mask = append(ids, fmt.Sprint(g.pack.PadID)), append(segs, "0"), append(pos, "0"), append(mask, "0")
		}
		list := func(x []string) string { return "[" + strings.Join(x, ",") + "]" }
		sample.text = "input_ids=" + list(ids)
		if g.pack.LossMask || g.mask != "" {
			sample.text += " loss_mask=" + list(mask)
		}
		sample.text += " position_ids=" + list(pos) + " segment_ids=" + list(segs)
		out = append(out, sample)
	}
	return out
}

// maskAt is the mask of a token of a document, or of what is behind the last one.
func (g *graph) maskAt(r *modelRow, i int32) string {
	if g.mask == "" || int(i) >= len(r.tokens) {
		return "1"
	}
	return fmt.Sprint(maskOf(g.mask, r.tokens[i]))
}

// epoch is the reference's epoch.
func (g *graph) epoch(num uint64) *modelEpoch {
	if e := g.epochs[num]; e != nil {
		return e
	}
	const most = 600
	length := int64(-1)
	if g.steps > 0 {
		length = g.steps * int64(g.global)
	}
	if g.limit >= 0 && (length < 0 || g.limit < length) {
		length = g.limit
	}
	e := &modelEpoch{}
	at := make([]struct {
		pass  uint64
		given int
	}, len(g.sources))
	lane0 := func(i int) (lane int32) {
		for _, s := range g.sources[:i] {
			lane += int32(s.lanes)
		}
		return lane
	}
	turns := []int(nil)
epoch:
	for n := int64(0); length < 0 || n < length; n++ {
		if n >= int64(len(turns)) {
			turns = ordertest.Mix(g.sched, 2*n+64)
		}
		i := turns[n]
		for {
			p := g.pass(passKey{i, num, at[i].pass})
			if k := at[i].given; k < len(p.rows) {
				e.samples = append(e.samples, modelSample{i, at[i].pass, k, lane0(i) + p.seq[k].Lane, p.last[k], p.rows[k]})
				at[i].given++
				break
			}
			switch {
			case g.sources[i].repeat:
			case g.stopAll && g.mixed:
				ended := true
				for k, s := range g.sources {
					ended = ended && (k == i || s.repeat || at[k].pass > 0)
				}
				if ended {
					break epoch
				}
			default:
				break epoch
			}
			if len(p.rows) == 0 {
				e.empty = true
				break epoch
			}
			at[i].pass++
			at[i].given = 0
		}
		if n == most && g.steps == 0 { // small sources beside large ones repeat for long
			g.steps = 1 + most/int64(g.global)/4
			clear(g.epochs)
			return g.epoch(num)
		}
	}
	g.epochs[num] = e
	return e
}

// positions are the parts of a state that the reference gives after n samples of an epoch.
func (g *graph) positions(num uint64, n int) []shard.SourceState {
	at := make([]passKey, len(g.sources))
	given := make([]int, len(g.sources))
	for i := range at {
		at[i] = passKey{i, num, 0}
	}
	for _, s := range g.epoch(num).samples[:n] {
		at[s.source].pass, given[s.source] = s.pass, s.nth+1
	}
	var out []shard.SourceState
	for i, s := range g.sources {
		x := shard.SourceState{Name: s.name, Mode: g.mode, Lanes: s.lanes, Window: s.window, Pass: at[i].pass}
		p := g.pass(at[i])
		for _, y := range ordertest.Pos(p.lanes, p.seq, given[i]) {
			x.Pos = append(x.Pos, [2]int64{y.Window, y.Given})
		}
		out = append(out, x)
	}
	return out
}

// modelBatch is a batch of the reference.
type modelBatch struct {
	n    []int64
	rows []*modelRow
	full int // with pads
	step []*modelRow
}

// stepsAt are the steps of an epoch from sample n on, by step and rank.
func (g *graph) stepsAt(num uint64, n, global, ranks int) (out [][]modelBatch) {
	all := g.epoch(num).samples
	shares := order.Shares(global, ranks)
	for ; n < len(all); n += global {
		step, ns := []modelSample{}, []int64{}
		for i := n; i < min(n+global, len(all)); i++ {
			step, ns = append(step, all[i]), append(ns, int64(i))
		}
		if len(step) < global {
			if g.tail == shard.TailDrop {
				break
			}
			for j := 0; len(step) < global && g.tail == shard.TailRepeat; j++ {
				step, ns = append(step, all[j%len(all)]), append(ns, int64(j%len(all)))
			}
		}
		lanes := make([]int32, len(step))
		rows := make([]*modelRow, len(step))
		for i, s := range step {
			lanes[i], rows[i] = s.lane, s.row
		}
		batches := make([]modelBatch, ranks)
		for r, idx := range ordertest.Deal(lanes, ranks) {
			batches[r].full, batches[r].step = shares[r], rows
			for _, i := range idx {
				batches[r].n, batches[r].rows = append(batches[r].n, ns[i]), append(batches[r].rows, rows[i])
			}
		}
		out = append(out, batches)
	}
	return out
}
