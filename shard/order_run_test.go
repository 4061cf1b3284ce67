package shard_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// run is a way to read a graph.
type run struct {
	ranks, global int
	each          bool // the batch of a rank is named, not that of all
	live          []int
	o             dataset.RunOptions
	prefetch      int
	faults        bool
	form          shard.Form
	lineage       bool
	endless       bool
	epochs        int
	defaults      bool // lanes and windows are left out: they are those of the state
}

func (g *graph) newRun(rng *rand.Rand, global int) run {
	r := run{ranks: 1 + rng.IntN(min(global, 1+rng.IntN(64))), global: global, prefetch: rng.IntN(6) - 1, faults: rng.IntN(12) == 0}
	switch {
	case global > 32 && rng.IntN(3) == 0:
		r.ranks = 33 + rng.IntN(min(global-32, 40))
	case rng.IntN(4) == 0:
		for r.each = true; global%r.ranks != 0; {
			r.ranks--
		}
	}
	r.o = dataset.RunOptions{CPUs: 1 + rng.IntN(4), Seed: g.seed, StallTimeout: 20 * time.Second, OnError: g.onError(), Epoch: g.first}
	if rng.IntN(2) == 0 {
		r.o.Memory = 64 << rng.IntN(20) << 10
	}
	if rng.IntN(2) == 0 {
		r.o.BatchRows = 1 + rng.IntN(30)
	}
	if rng.IntN(4) == 0 {
		r.o.NoRules = g.rules()
	}
	switch {
	case g.pack != nil:
		r.form.Tensors = rng.IntN(3) > 0
	case rng.IntN(2) == 0:
		r.form = g.newForm(rng)
	}
	r.lineage = rng.IntN(3) == 0
	if rng.IntN(3) == 0 { // only some of the ranks are read here
		for k := range r.ranks {
			if rng.IntN(2) == 0 {
				r.live = append(r.live, k)
			}
		}
		rng.Shuffle(len(r.live), func(i, j int) { r.live[i], r.live[j] = r.live[j], r.live[i] })
	}
	return r
}

// rules are those that can be switched off: where rows are skipped that do not parse, those that decide on columns cannot.
func (g *graph) rules() []string {
	return slices.DeleteFunc(ops.RuleNames(), func(r string) bool { return g.skip && (r == "fold" || r == "projection") })
}

// follow draws which epochs follow.
func (r *run) follow(rng *rand.Rand) {
	if r.endless = rng.IntN(3) == 0; rng.IntN(3) == 0 {
		r.epochs = 1 + rng.IntN(3)
	}
}

// begin draws the first epoch of a run that goes on in this one: its epochs count from there all the same.
func (r *run) begin(rng *rand.Rand, epoch uint64) {
	switch rng.IntN(8) {
	case 0, 1, 2:
		r.o.Epoch = epoch
	case 3:
		r.o.Epoch = epoch - min(epoch, 1)
	case 4: // the state is of another place altogether
		r.o.Epoch = rng.Uint64N(epoch + 3)
	}
}

// over reports whether no epoch comes after those before this one.
func (r *run) over(epoch uint64) bool { return r.epochs > 0 && epoch >= r.o.Epoch+uint64(r.epochs) }

func (r run) String() string {
	return fmt.Sprintf("%d ranks (%v), G=%d (each %v), %d CPUs, memory %d, batches of %d, prefetch %d, rules off %v, faults %v, form %+v, lineage %v, endless %v, %d epochs from %d, defaults %v",
		r.ranks, r.live, r.global, r.each, r.o.CPUs, r.o.Memory, r.o.BatchRows, r.prefetch, len(r.o.NoRules) > 0, r.faults, r.form, r.lineage, r.endless, r.epochs, r.o.Epoch, r.defaults)
}

func (g *graph) options(r run) *dataset.ShardOptions {
	o := &dataset.ShardOptions{RunOptions: r.o, Options: shard.Options{Ranks: r.live, GlobalBatch: r.global, Tail: g.tail, Prefetch: r.prefetch,
		StepsPerEpoch: g.steps, Shuffle: &shard.Shuffle{Mode: g.mode}, Form: r.form, Lineage: r.lineage, Endless: r.endless, Epochs: r.epochs}}
	if r.each {
		o.GlobalBatch, o.BatchPerRank = 0, r.global/r.ranks
	}
	if r.defaults {
		return o
	}
	if g.mode == shard.ModeWindow {
		o.Shuffle.Lanes = g.lanes
	}
	rows, bytes := false, false
	for _, s := range g.sources {
		rows, bytes = rows || !s.bytes, bytes || s.bytes
	}
	if rows || len(g.sources) > 1 {
		o.Shuffle.WindowRows = g.window
	}
	if bytes || len(g.sources) > 1 {
		o.Shuffle.WindowBytes = g.window
	}
	return o
}

// counts adds what the run is to the tally.
func (g *graph) count(r run, sum *tally) {
	sum.note("ranks above 32", r.ranks > 32)
	sum.note("batch per rank", r.each)
	sum.note("lineage", r.lineage)
	sum.note("lineage of packed samples", r.lineage && g.pack != nil)
	sum.note("rules off", len(r.o.NoRules) > 0)
	sum.note("tensors of packed samples", r.form.Tensors && g.pack != nil)
	if !r.form.Tensors || g.pack != nil {
		return
	}
	sum.note("tensors", true)
	sum.note("all columns as tensors", r.form.Columns == nil)
	for _, c := range r.form.Columns {
		sum.note("stack", len(c.Stack) > 1)
		sum.note("dtype", c.DType != shard.Auto)
		if c.Lists != "" {
			sum.note("lists "+string(c.Lists), true)
		}
	}
}

// Rules that decide on columns cannot be switched off where rows are skipped that do not parse: more columns are more rows that do not.
func TestNoRulesWhereRowsAreSkipped(t *testing.T) {
	p := newPool(t)
	var c chaos
	for _, kind := range []string{"bad", "badgz"} {
		l, text := p.leaf(rand.New(rand.NewPCG(1, 1)), &c, map[string]bool{}, kind)
		for _, rule := range ops.RuleNames() {
			for _, policy := range []*ops.OnError{nil, {Policy: "skip"}} {
				o := jobOptions(7)
				o.NoRules, o.OnError = []string{rule}, policy
				o.Shuffle = nil
				its, err := l.ds.Shards(t.Context(), 1, o)
				closeAll(t, its)
				if policy != nil && (rule == "fold" || rule == "projection") {
					wantError(t, err, fault.Unsupported, "rule "+rule)
				} else if err != nil {
					t.Errorf("%s without rule %s: %v", text, rule, err)
				}
			}
		}
		if err := l.ds.Close(); err != nil {
			t.Error(err)
		}
	}
}
