package shard_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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

// graph is a random plan with a job, and the model of what it gives.
type graph struct {
	seed    uint64
	text    string
	ds      *dataset.Dataset
	sources []*modelSource
	mixed   bool
	stopAll bool
	sched   order.Schedule
	pack    *dataset.PackOptions
	mode    shard.Mode
	lanes   int
	window  int64
	limit   int64 // -1: none
	global  int
	tail    shard.Tail
	steps   int64 // per epoch; 0: until the data ends
	skip    bool  // rows that do not parse
	chaos   chaos

	passes map[passKey]*modelPass
	plain  map[uint64]map[string][]string // by epoch and key: the rows that come of a row
	tokens map[uint64]map[string][][]int32
	epochs map[uint64]*modelEpoch
}

// close forgets the graph.
func (g *graph) close() error {
	chaoses.Delete(fmt.Sprint(g.seed))
	return g.ds.Close()
}

type modelSource struct {
	name   string
	leaves []leaf
	ds     *dataset.Dataset // without pack
	weight int64
	repeat bool
	bytes  bool
}

type passKey struct {
	source      int
	epoch, pass uint64
}

// modelPass is a pass as the reference has it.
type modelPass struct {
	lanes [][]ordertest.Window
	seq   []ordertest.Timed
	rows  []string
}

type modelSample struct {
	source int
	pass   uint64
	nth    int // in the pass
	lane   int32
	row    string
}

type modelEpoch struct {
	samples []modelSample
	empty   bool // a whole pass of a source that is to be repeated has no sample
}

// newGraph makes the graph of a seed.
func newGraph(p *pool, seed uint64) *graph {
	rng := rand.New(rand.NewPCG(seed, 0))
	g := &graph{seed: seed, limit: -1, passes: map[passKey]*modelPass{}, plain: map[uint64]map[string][]string{},
		tokens: map[uint64]map[string][][]int32{}, epochs: map[uint64]*modelEpoch{}}
	chaoses.Store(fmt.Sprint(seed), &g.chaos)
	g.mode = []shard.Mode{shard.ModeWindow, shard.ModeWindow, shard.ModeWindow, shard.ModeBlocks, shard.ModeNone}[rng.IntN(5)]
	g.lanes = 1
	if g.mode == shard.ModeWindow {
		g.lanes = 1 + rng.IntN(1+rng.IntN(12))
	}
	g.window = int64(1 + rng.IntN(1+rng.IntN(60)))
	used := map[string]bool{}
	n := 1
	if rng.IntN(3) == 0 {
		g.mixed, n = true, 1+rng.IntN(5)
	}
	packed := rng.IntN(5) == 0
	for i := range n {
		s := &modelSource{name: "data", weight: 1}
		if g.mixed {
			s.name, s.weight, s.repeat = fmt.Sprintf("s%d", i), int64(1+rng.IntN(4)), rng.IntN(4) == 0
		}
		g.source(p, rng, s, used, packed)
		g.sources = append(g.sources, s)
	}
	// Bytes stand for rows in all sources of text; a window of these takes more units.
	for _, s := range g.sources {
		if s.bytes && !g.mixed {
			g.window *= int64(1 + rng.IntN(40))
		}
	}
	g.assemble(rng, packed)
	g.global = 1 + rng.IntN(1+rng.IntN(60))
	g.tail = []shard.Tail{shard.TailDrop, shard.TailPad, shard.TailRepeat}[rng.IntN(3)]
	all := true
	for _, s := range g.sources {
		all = all && s.repeat
	}
	if all || g.mixed && rng.IntN(2) == 0 {
		g.steps = 1 + rng.Int64N(1+int64(150/g.global))
	}
	return g
}

// source makes the reads and steps of a source.
func (g *graph) source(p *pool, rng *rand.Rand, s *modelSource, used map[string]bool, packed bool) {
	note := func(format string, args ...any) { g.text += fmt.Sprintf(format, args...) }
	note("[%s: ", s.name)
	known, has := true, map[string]bool{}
	for k := range 1 + rng.IntN(3)*rng.IntN(2) {
		l, text := p.leaf(rng, &g.chaos, used)
		for packed && !slices.Contains(l.columns, "t") {
			l, text = p.leaf(rng, &g.chaos, used)
		}
		g.skip = g.skip || strings.HasPrefix(text, "bad")
		if k > 0 {
			note(" + ")
			s.ds = s.ds.Union(l.ds)
		} else {
			s.ds = l.ds
		}
		note("%s", text)
		known = known && !l.lines
		for _, c := range l.columns {
			has[c] = true
		}
		s.leaves = append(s.leaves, l)
	}
	s.bytes = !known
	number := func() string {
		if has["id"] {
			return fmt.Sprintf("id %% %d != %d", 2+rng.IntN(5), rng.IntN(3))
		}
		return fmt.Sprintf("size(text) %% %d != 0", 2+rng.IntN(5))
	}
	if rng.IntN(3) == 0 { // behind the read, so that readers see it
		if e := s.condition(rng, has); e != "" {
			note(" | %s", e)
			s.ds = s.ds.Filter(e)
		}
	}
	for k := range rng.IntN(4) {
		switch rng.IntN(10) {
		case 0:
			e := number()
			note(" | %s", e)
			s.ds = s.ds.Filter(e)
		case 1:
			note(" | random filter")
			s.ds = s.ds.Filter("random() < 0.7")
		case 2:
			note(" | with random")
			s.ds = s.ds.WithColumns(fmt.Sprintf("r%d = random()", k))
		case 3:
			if has["l"] && !packed {
				note(" | explode")
				s.ds = s.ds.WithColumns("x = l").Explode("x")
			}
		case 4:
			note(" | copies")
			f, err := copies.Func(nil)
			if err != nil {
				panic(err)
			}
			s.ds = s.ds.Apply(f, &dataset.MapOptions{BatchRows: rng.IntN(20)})
		case 5:
			note(" | echo")
			f, err := echo.Func(nil)
			if err != nil {
				panic(err)
			}
			s.ds = s.ds.Apply(f, nil)
		case 6:
			note(" | sample")
			s.ds = s.ds.Sample(0.6, rng.Uint64())
		case 7:
			note(" | split")
			s.ds = s.ds.Split(dataset.SplitOptions{Fractions: []float64{0.7, 0.3}, Seed: rng.Uint64()})[rng.IntN(2)]
		case 8:
			if has["s"] {
				note(" | cast, skip")
				s.ds = s.ds.WithColumns(fmt.Sprintf("c%d = int(s)", k)).OnError(ops.OnError{Policy: "skip"})
			}
		case 9:
			note(" | may fail")
			f, err := faulty.Func([]byte(fmt.Sprint(g.seed)))
			if err != nil {
				panic(err)
			}
			s.ds = s.ds.Apply(f, nil)
		}
	}
	if rng.IntN(30) == 0 {
		note(" | nothing")
		s.ds = s.ds.Filter("random() < 0.0")
	}
	note("]")
}

// condition is one that a reader can judge rows by, which some of the rows meet; "" if there is none.
func (s *modelSource) condition(rng *rand.Rand, has map[string]bool) string {
	var ids, texts []string
	for _, l := range s.leaves {
		for _, x := range l.splits {
			for _, k := range x.keys {
				switch {
				case strings.HasPrefix(k, "line"):
					texts = append(texts, k)
				case k != "":
					ids = append(ids, k)
				}
			}
		}
	}
	var some []string
	if len(ids) > 0 {
		key := func() string { return ids[rng.IntN(len(ids))] }
		a, b := key(), key()
		if len(a) > len(b) || len(a) == len(b) && a > b {
			a, b = b, a
		}
		some = append(some, "id >= "+a+" && id < "+b, "id > "+a, "id <= "+b, "id in ["+a+", "+b+", "+key()+"]", "id != "+a)
	}
	if len(texts) > 0 {
		t := texts[rng.IntN(len(texts))]
		some = append(some, fmt.Sprintf("text > %q", t), fmt.Sprintf("text != %q", t))
	}
	if has["v"] {
		some = append(some, "v < 100.0", "v >= 20.0 && v < 230.0", "is_not_null(v)", "v > 240.0")
	}
	if has["s"] {
		some = append(some, `s > "x"`, `s in ["x", "yy", "zzz", "z"]`, `s != "y"`)
	}
	if some == nil {
		return ""
	}
	return some[rng.IntN(len(some))]
}

// assemble makes the dataset of the sources.
func (g *graph) assemble(rng *rand.Rand, packed bool) {
	note := func(format string, args ...any) { g.text += fmt.Sprintf(format, args...) }
	if packed {
		g.pack = &dataset.PackOptions{Length: 1 + rng.IntN(30), Method: []string{ops.PackConcat, ops.PackBestFit}[rng.IntN(2)],
			Overlong: []string{ops.OverlongSplit, ops.OverlongDrop}[rng.IntN(2)], PadID: -1, LossMask: rng.IntN(2) == 0}
		if rng.IntN(2) == 0 {
			eos := int64(-2)
			g.pack.EOS = &eos
		}
		note(" pack %+v", *g.pack)
	}
	weights := func() (w []int64) {
		for range g.sources {
			w = append(w, int64(1+rng.IntN(5)))
		}
		return w
	}
	final := func(s *modelSource) *dataset.Dataset {
		ds := s.ds
		if g.mixed && strings.Contains(g.text, "random") {
			ds = ds.Union() // random numbers depend on the unions above, and the plain run is one
		}
		if packed {
			return ds.Pack("t", g.pack)
		}
		return ds
	}
	if !g.mixed {
		g.ds = final(g.sources[0])
		g.sched = order.Schedule{{Weights: []int64{1}}}
		if g.mode == shard.ModeNone && !packed && rng.IntN(3) == 0 {
			g.limit = int64(rng.IntN(100))
			g.ds = g.ds.Limit(g.limit)
			note(" limit %d", g.limit)
		}
		return
	}
	o := dataset.MixOptions{}
	if g.stopAll = rng.IntN(2) == 0; g.stopAll {
		o.Stop = ops.StopAll
	}
	first := order.Stage{}
	var ins []dataset.MixSource
	for _, s := range g.sources {
		first.Weights = append(first.Weights, s.weight)
		ins = append(ins, dataset.MixSource{Name: s.name, Data: final(s), Weight: s.weight, Repeat: s.repeat})
	}
	g.sched = order.Schedule{first}
	for at := int64(0); rng.IntN(2) == 0; {
		at += 1 + rng.Int64N(60)
		w := weights()
		g.sched = append(g.sched, order.Stage{At: at, Weights: w})
		o.Schedule = append(o.Schedule, ops.WeightsAt{At: at, Weights: w})
	}
	g.ds = dataset.MixWith(o, ins...)
	note(" mix %v all=%v", g.sched, g.stopAll)
}

// units of the splits of a source, in order.
func (s *modelSource) units() (u []int64, at []struct {
	leaf  *leaf
	split *modelSplit
}) {
	for i := range s.leaves {
		l := &s.leaves[i]
		for k := range l.splits {
			x := &l.splits[k]
			n := int64(len(x.keys))
			if s.bytes {
				n = x.bytes
			}
			u = append(u, n)
			at = append(at, struct {
				leaf  *leaf
				split *modelSplit
			}{l, x})
		}
	}
	return u, at
}

// run is the plain execution of all steps of an epoch: what comes of each source row.
func (g *graph) run(epoch uint64) error {
	if g.plain[epoch] != nil {
		return nil
	}
	if epoch > 0 && !strings.Contains(g.text, "random") { // every epoch has the same rows
		g.plain[epoch], g.tokens[epoch] = g.plain[0], g.tokens[0]
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
	rows, tokens := map[string][]string{}, map[string][][]int32{}
	o := dataset.RunOptions{Seed: g.seed, Epoch: epoch}
	if g.skip {
		o.OnError = &ops.OnError{Policy: "skip"}
	}
	for rec, err := range ds.Records(context.Background(), &o) {
		if err != nil {
			return err
		}
		for i := range int(rec.NumRows()) {
			k := keyOf(rec, i)
			rows[k] = append(rows[k], textOf(rec, i))
			if g.pack != nil {
				l := rec.Column(rec.Schema().FieldIndices("t")[0]).(*array.List)
				a, b := l.ValueOffsets(i)
				tokens[k] = append(tokens[k], append([]int32{}, l.ListValues().(*array.Int32).Int32Values()[a:b]...))
			}
		}
	}
	g.plain[epoch], g.tokens[epoch] = rows, tokens
	return nil
}

// pass is the reference's pass of a source.
func (g *graph) pass(k passKey) *modelPass {
	if p := g.passes[k]; p != nil {
		return p
	}
	s := g.sources[k.source]
	key := order.Key{Seed: g.seed, Epoch: k.epoch, Pass: k.pass, Source: s.name}
	shape := order.Shape{Mode: map[shard.Mode]order.Mode{shard.ModeNone: order.None, shard.ModeBlocks: order.Blocks, shard.ModeWindow: order.Window}[g.mode],
		Lanes: g.lanes, Window: g.window}
	units, at := s.units()
	p := &modelPass{lanes: ordertest.Lay(key, shape, units)}
	samples := map[[2]int64][]string{}
	for v := range p.lanes {
		for w, win := range p.lanes[v] {
			var rows []string // keys
			for _, seg := range win.Segments {
				x := at[seg.Split]
				begin := len(rows)
				for r, key := range x.split.keys {
					// Where the row begins, in units.
					num, den := int64(r), int64(1)
					switch {
					case s.bytes && x.leaf.lines:
						num = x.split.at[r]
					case s.bytes:
						num, den = int64(r)*x.split.bytes, int64(len(x.split.keys))
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
			turn := make([]int, len(rows))
			for i := range turn {
				turn[i] = i
			}
			if g.mode == shard.ModeWindow {
				turn = ordertest.Perm(key, "rows", fmt.Sprint(v), fmt.Sprint(w), len(rows))
			}
			var out []string
			var docs [][]int32
			for _, i := range turn {
				out = append(out, g.plain[k.epoch][rows[i]]...)
				docs = append(docs, g.tokens[k.epoch][rows[i]]...)
			}
			if g.pack != nil {
				out = g.packed(docs)
			}
			samples[[2]int64{int64(v), int64(w)}] = out
		}
	}
	p.seq = ordertest.Sequence(p.lanes, func(v int, w int64) int64 { return int64(len(samples[[2]int64{int64(v), w}])) })
	for _, t := range p.seq {
		p.rows = append(p.rows, samples[[2]int64{int64(t.Lane), t.Window}][t.Index])
	}
	g.passes[k] = p
	return p
}

// packed renders the samples of a window of documents. Which document goes where is package pack's
// business; what becomes of it is written down here.
func (g *graph) packed(docs [][]int32) (out []string) {
	var lengths []int32
	for i, d := range docs {
		if len(d) > 0 && g.pack.EOS != nil {
			docs[i] = append(d[:len(d):len(d)], int32(*g.pack.EOS))
		}
		lengths = append(lengths, int32(len(docs[i])))
	}
	plan := pack.Concat
	if g.pack.Method == ops.PackBestFit {
		plan = pack.BestFit
	}
	p := plan(lengths, g.pack.Length, pack.Overlong(g.pack.Overlong))
	for b := range p.NumBins() {
		ids, segs, pos, mask := []string{}, []string{}, []string{}, []string{}
		for k, x := range p.Pieces[p.Bins[b]:p.Bins[b+1]] {
			for i := range x.N {
				ids = append(ids, fmt.Sprint(docs[x.Doc][x.From+i]))
				segs, pos, mask = append(segs, fmt.Sprint(k+1)), append(pos, fmt.Sprint(i)), append(mask, "1")
			}
		}
		for len(ids) < g.pack.Length {
			ids, segs, pos, mask = append(ids, fmt.Sprint(g.pack.PadID)), append(segs, "0"), append(pos, "0"), append(mask, "0")
		}
		list := func(x []string) string { return "[" + strings.Join(x, ",") + "]" }
		s := "input_ids=" + list(ids)
		if g.pack.LossMask {
			s += " loss_mask=" + list(mask)
		}
		out = append(out, s+" position_ids="+list(pos)+" segment_ids="+list(segs))
	}
	return out
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
	lane0 := func(i int) int32 { return int32(i * g.lanes) }
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
				e.samples = append(e.samples, modelSample{i, at[i].pass, k, lane0(i) + p.seq[k].Lane, p.rows[k]})
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
		x := shard.SourceState{Name: s.name, Mode: g.mode, Lanes: g.lanes, Window: g.window, Pass: at[i].pass}
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
	rows []string
	full int // with pads
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
		for i, s := range step {
			lanes[i] = s.lane
		}
		batches := make([]modelBatch, ranks)
		for r, idx := range ordertest.Deal(lanes, ranks) {
			batches[r].full = shares[r]
			for _, i := range idx {
				batches[r].n, batches[r].rows = append(batches[r].n, ns[i]), append(batches[r].rows, step[i].row)
			}
		}
		out = append(out, batches)
	}
	return out
}

// same compares a batch with the reference's.
func (w *modelBatch) same(b *shard.Batch, tail shard.Tail) error {
	rec := b.Record()
	if !slices.Equal(b.Samples(), w.n) || b.Real() != len(w.n) || b.Rows() != w.full || rec != nil && int(rec.NumRows()) != w.full {
		return fmt.Errorf("samples %v, %d real of %d rows; want %v of %d", b.Samples(), b.Real(), b.Rows(), w.n, w.full)
	}
	for i, want := range w.rows {
		got := ""
		if rec != nil {
			got = textOf(rec, i)
		} else {
			got = tensorText(b, i)
		}
		if got != want {
			return fmt.Errorf("sample %d is\n  %s\nwant\n  %s", w.n[i], got, want)
		}
	}
	if tail != shard.TailPad {
		return nil
	}
	if rec == nil {
		mask, ok := b.Tensor("mask")
		for i := range w.full {
			if !ok || (mask.Data[i] == 1) != (i < len(w.n)) {
				return fmt.Errorf("mask %v of %d samples", mask.Data, len(w.n))
			}
		}
		return nil
	}
	mask, ok := rec.Column(int(rec.NumCols()) - 1).(*array.Boolean)
	for i := range w.full {
		if !ok || mask.Value(i) != (i < len(w.n)) {
			return fmt.Errorf("mask %v of %d samples", rec.Column(int(rec.NumCols())-1), len(w.n))
		}
	}
	return nil
}

// tensorText renders a row of packed tensors as textOf does.
func tensorText(b *shard.Batch, row int) string {
	var parts []string
	for _, t := range b.Tensors() {
		var vals []string
		switch {
		case t.Name == "mask":
			continue
		case t.DType == shard.Int32:
			for _, v := range shard.Values[int32](t)[row*t.Shape[1]:][:t.Shape[1]] {
				vals = append(vals, fmt.Sprint(v))
			}
		default:
			for _, v := range t.Data[row*t.Shape[1]:][:t.Shape[1]] {
				vals = append(vals, fmt.Sprint(v))
			}
		}
		parts = append(parts, t.Name+"=["+strings.Join(vals, ",")+"]")
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
