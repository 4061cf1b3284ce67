package shard_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/internal/order"
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
	mask    string // what the column of masks is of: bool, uint8; "": there is none
	mode    shard.Mode
	lanes   int   // 0: the default
	window  int64 // 0: the default
	limit   int64 // -1: none
	first   uint64
	global  int
	tail    shard.Tail
	steps   int64    // per epoch; 0: until the data ends
	skip    bool     // rows that do not parse
	hidden  []string // columns that the job drops in the end, and the plain run does not
	chaos   chaos
	notes   map[string]bool // features, for the tally

	places map[string]shard.Place // of source rows, by key
	passes map[passKey]*modelPass
	plain  map[uint64]map[string][]*modelRow // by epoch and key: the rows that come of a row
	solid  []modelColumn                     // columns that tensors can be made of
	scalar bool                              // all columns are such, and none has lists
	epochs map[uint64]*modelEpoch
}

// close forgets the graph.
func (g *graph) close() error {
	chaoses.Delete(fmt.Sprint(g.seed))
	return g.ds.Close()
}

// has notes that the graph has a feature.
func (g *graph) has(feature string) { g.notes[feature] = true }

func (g *graph) note(format string, args ...any) { g.text += fmt.Sprintf(format, args...) }

func (g *graph) String() string {
	return fmt.Sprintf("PENSTOCK_SEED=%d: mode %s, %d lanes, window %d, G=%d, tail %s, %d steps, from epoch %d\n%s", g.seed, g.mode, g.lanes, g.window, g.global, g.tail, g.steps, g.first, g.text)
}

type modelSource struct {
	name   string
	leaves []leaf
	ds     *dataset.Dataset // without pack
	weight int64
	repeat bool
	bytes  bool   // bytes stand for rows
	lanes  int    // of the job
	window int64  // the same
	id     string // the column of ids; "" if there is none
	text   string // the column of lines
}

// newGraph makes the graph of a seed.
func newGraph(p *pool, seed uint64) *graph {
	rng := rand.New(rand.NewPCG(seed, 0))
	g := &graph{seed: seed, limit: -1, notes: map[string]bool{}, places: map[string]shard.Place{}, passes: map[passKey]*modelPass{},
		plain: map[uint64]map[string][]*modelRow{}, epochs: map[uint64]*modelEpoch{}}
	chaoses.Store(fmt.Sprint(seed), &g.chaos)
	g.mode = []shard.Mode{shard.ModeWindow, shard.ModeWindow, shard.ModeWindow, shard.ModeBlocks, shard.ModeNone}[rng.IntN(5)]
	g.lanes = 1
	if g.mode == shard.ModeWindow {
		g.lanes = 1 + rng.IntN(1+rng.IntN(12))
	}
	g.window = int64(1 + rng.IntN(1+rng.IntN(60)))
	if rng.IntN(4) == 0 {
		g.first = rng.Uint64N(1 << rng.IntN(40))
	}
	used := map[string]bool{}
	n := 1
	if rng.IntN(3) == 0 {
		g.mixed, n = true, 1+rng.IntN(5)
	}
	packed := rng.IntN(6) == 0
	numbers := rng.IntN(3) > 0 && !packed
	for i := range n {
		s := &modelSource{name: "data", weight: 1}
		if g.mixed {
			s.name, s.weight, s.repeat = fmt.Sprintf("s%d", i), int64(1+rng.IntN(4)), rng.IntN(4) == 0
		}
		g.source(p, rng, s, used, packed, numbers)
		g.sources = append(g.sources, s)
	}
	// Bytes stand for rows in all sources of text; a window of these takes more units.
	for _, s := range g.sources {
		if s.bytes && !g.mixed {
			g.window *= int64(1 + rng.IntN(40))
		}
	}
	if rng.IntN(6) == 0 {
		g.window = 0
		g.has("default window")
	}
	if g.mode == shard.ModeWindow && rng.IntN(5) == 0 {
		g.lanes = 0
		g.has("default lanes")
	}
	g.assemble(rng, packed)
	g.global = 1 + rng.IntN(1+rng.IntN(60))
	switch most := int64(60); {
	case rng.IntN(6) == 0:
		g.global = 33 + rng.IntN(60) // for many ranks
	case rng.IntN(5) == 0 && g.window > 0:
		g.global = int(1 + (g.window-1)%most) // steps that end with a window
	}
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

// reads makes the reads of a source: one, or several together.
func (g *graph) reads(p *pool, rng *rand.Rand, s *modelSource, used map[string]bool, packed bool) (has map[string]bool) {
	known, enter, dense, lines := true, true, false, false
	kinds := make([]string, 1+rng.IntN(3)*rng.IntN(2))
	if rng.IntN(9) == 0 && !packed { // rows that take less than a byte, where bytes stand for rows
		kinds = []string{"dense", textKinds[rng.IntN(len(textKinds))], "", ""}[:2+rng.IntN(2)*rng.IntN(3)]
		rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	}
	has = map[string]bool{}
	for k, kind := range kinds {
		l, text := p.leaf(rng, &g.chaos, used, kind)
		for packed && !slices.Contains(l.columns, "t") {
			l, text = p.leaf(rng, &g.chaos, used, "")
		}
		if k > 0 {
			g.note(" + ")
			s.ds = s.ds.Union(l.ds)
		} else {
			s.ds = l.ds
		}
		g.note("%s", text)
		g.skip = g.skip || strings.HasPrefix(l.kind, "bad")
		counted := slices.Contains(countedKinds, l.kind)
		known, enter = known && !l.lines && !counted, enter && !counted
		dense, lines = dense || l.kind == "dense", lines || l.lines
		if l.kind == "ipc" {
			g.has("arrow files")
		}
		for _, c := range l.columns {
			has[c] = true
		}
		for _, x := range l.splits {
			at := x.place
			at.Source = s.name
			for r, key := range x.keys {
				at.Row = int64(r)
				g.places[key] = at
			}
		}
		s.leaves = append(s.leaves, l)
	}
	if s.bytes = !known && enter; s.bytes {
		if dense {
			g.has("dense rows beside text")
		}
		if slices.ContainsFunc(s.leaves, func(l leaf) bool { return !l.lines }) {
			g.has("rows beside text")
		}
	}
	if !known && !enter && lines {
		g.has("counted text")
	}
	if has["id"] {
		s.id = "id"
	}
	if has["text"] {
		s.text = "text"
	}
	return has
}

// source makes the reads and steps of a source.
func (g *graph) source(p *pool, rng *rand.Rand, s *modelSource, used map[string]bool, packed, numbers bool) {
	g.note("[%s: ", s.name)
	has := g.reads(p, rng, s, used, packed)
	filter := func(e string) {
		g.note(" | %s", e)
		s.ds = s.ds.Filter(e)
	}
	apply := func(name string, f *ops.Func, err error, o *dataset.MapOptions) {
		if err != nil {
			panic(err)
		}
		g.note(" | %s", name)
		s.ds = s.ds.Apply(f, o)
	}
	if rng.IntN(3) == 0 { // behind the read, so that readers see it
		if e := s.condition(rng, has); e != "" {
			filter(e)
		}
	}
	for k := range rng.IntN(4) {
		switch rng.IntN(13) {
		case 0:
			e := fmt.Sprintf("size(%s) %% %d != 0", s.text, 2+rng.IntN(5))
			if s.id != "" {
				e = fmt.Sprintf("%s %% %d != %d", s.id, 2+rng.IntN(5), rng.IntN(3))
			}
			filter(e)
		case 1:
			filter("random() < 0.7")
		case 2:
			g.note(" | with random")
			s.ds = s.ds.WithColumns(fmt.Sprintf("r%d = random()", k))
		case 3:
			if has["l"] && !packed {
				g.note(" | explode")
				s.ds = s.ds.WithColumns("x = l").Explode("x")
			}
		case 4:
			f, err := copies.Func(nil)
			apply("copies", f, err, &dataset.MapOptions{BatchRows: rng.IntN(20)})
		case 5:
			f, err := echo.Func(nil)
			apply("echo", f, err, nil)
		case 6:
			g.note(" | sample")
			s.ds = s.ds.Sample(0.6, rng.Uint64())
		case 7:
			g.note(" | split")
			s.ds = s.ds.Split(dataset.SplitOptions{Fractions: []float64{0.7, 0.3}, Seed: rng.Uint64()})[rng.IntN(2)]
		case 8:
			if has["s"] {
				g.note(" | cast, skip")
				s.ds = s.ds.WithColumns(fmt.Sprintf("c%d = int(s)", k)).OnError(ops.OnError{Policy: "skip"})
			}
		case 9:
			f, err := faulty.Func([]byte(fmt.Sprint(g.seed)))
			apply("may fail", f, err, nil)
		default:
			g.columns(rng, s, has, packed)
		}
	}
	if rng.IntN(30) == 0 {
		filter("random() < 0.0")
	}
	if numbers {
		g.numbers(s, has)
	}
	g.note("]")
}

// columns selects, drops or renames some, never the only one that names a row.
func (g *graph) columns(rng *rand.Rand, s *modelSource, has map[string]bool, packed bool) {
	var names, free []string
	for _, c := range slices.Sorted(maps.Keys(has)) {
		names = append(names, c)
		if c != s.id && c != s.text && !(packed && c == "t") {
			free = append(free, c)
		}
	}
	switch how := rng.IntN(3); {
	case how == 0: // a selection is all columns that are left
		var keep []string
		for _, c := range names {
			if !slices.Contains(free, c) || rng.IntN(2) == 0 {
				keep = append(keep, c)
			} else {
				delete(has, c)
			}
		}
		rng.Shuffle(len(keep), func(i, j int) { keep[i], keep[j] = keep[j], keep[i] })
		g.note(" | select %v", keep)
		g.has("select")
		s.ds = s.ds.Select(keep...)
	case how == 1 && len(free) > 0:
		c := free[rng.IntN(len(free))]
		delete(has, c)
		g.note(" | drop %s", c)
		g.has("drop")
		s.ds = s.ds.Drop(c)
	default:
		to := map[string]string{}
		if s.id == "id" {
			to["id"], s.id = "key", "key"
		}
		if s.text == "text" {
			to["text"], s.text = "words", "words"
		}
		for _, c := range []string{"s", "v"} {
			if has[c] && rng.IntN(2) == 0 {
				to[c] = c + c
			}
		}
		for old, name := range to {
			delete(has, old)
			has[name] = true
		}
		if len(to) > 0 {
			g.note(" | rename %v", to)
			g.has("rename")
			s.ds = s.ds.Rename(to)
		}
	}
}

// numbers adds columns that have a number in every row of every source, so that there is something to make tensors of.
func (g *graph) numbers(s *modelSource, has map[string]bool) {
	n, f := "3", "0.5"
	if s.id != "" {
		n = fmt.Sprintf("coalesce(%s, 7) %% 1000", s.id)
	}
	if has["v"] {
		f = "coalesce(v, 0.5)"
	}
	g.note(" | numbers")
	s.ds = s.ds.WithColumns("n = "+n, fmt.Sprintf("h = cast(%s, \"int16\")", n), "f = "+f, fmt.Sprintf("e = cast(%s, \"float32\")", f))
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
	if packed {
		g.pack = &dataset.PackOptions{Length: 1 + rng.IntN(30), Method: []string{ops.PackConcat, ops.PackBestFit}[rng.IntN(2)],
			Overlong: []string{ops.OverlongSplit, ops.OverlongDrop}[rng.IntN(2)], PadID: -1, LossMask: rng.IntN(2) == 0}
		if rng.IntN(2) == 0 {
			eos := int64(-2)
			g.pack.EOS = &eos
		}
		if g.mask = []string{"", "bool", "uint8"}[rng.IntN(3)]; g.mask != "" {
			g.pack.MaskColumn = "m"
			g.has("mask column")
		}
		g.note(" pack %+v, masks %s", *g.pack, g.mask)
	} else if !g.skip && rng.IntN(4) == 0 { // where rows may be skipped, it matters which columns are read
		g.hide(rng)
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
			if g.mask != "" {
				f, err := masks.Func([]byte(g.mask))
				if err != nil {
					panic(err)
				}
				ds = ds.Apply(f, nil)
			}
			return ds.Pack("t", g.pack)
		}
		var drop []string
		schema, err := ds.Schema(context.Background())
		if err != nil {
			panic(fmt.Sprintf("%v\n%v", g, err))
		}
		for _, c := range g.hidden {
			if schema.HasField(c) {
				drop = append(drop, c)
			}
		}
		if drop != nil {
			ds = ds.Drop(drop...)
		}
		return ds
	}
	if !g.mixed {
		g.ds = final(g.sources[0])
		g.sched = order.Schedule{{Weights: []int64{1}}}
		if g.mode == shard.ModeNone && !packed && rng.IntN(3) == 0 {
			g.limit = int64(rng.IntN(100))
			g.ds = g.ds.Limit(g.limit)
			g.note(" limit %d", g.limit)
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
	g.note(" mix %v all=%v", g.sched, g.stopAll)
}

// hide picks columns that the job drops: rows come as they are, read without what names them, say.
func (g *graph) hide(rng *rand.Rand) {
	all := map[string]bool{}
	var schemas []map[string]bool
	for _, s := range g.sources {
		schema, err := s.ds.Schema(context.Background())
		if err != nil {
			panic(fmt.Sprintf("%v\n%v", g, err))
		}
		has := map[string]bool{}
		for _, f := range schema.Fields() {
			all[f.Name], has[f.Name] = true, true
		}
		schemas = append(schemas, has)
	}
	for _, c := range slices.Sorted(maps.Keys(all)) {
		if rng.IntN(2) == 0 {
			continue
		}
		for _, has := range schemas {
			delete(has, c)
		}
		g.hidden = append(g.hidden, c)
	}
	for _, has := range schemas {
		if len(has) == 0 { // nothing is left of a source
			g.hidden = nil
		}
	}
	if g.hidden != nil {
		g.note(" hidden %v", g.hidden)
		g.has("hidden columns")
	}
}
