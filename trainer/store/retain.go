package store

import (
	"cmp"
	"context"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// defaultKeep is so many that a damaged newest checkpoint is no disaster, and so few that large ones do not fill the storage.
const defaultKeep = 3

// Policy says which checkpoints are kept: all that one of the rules wants. The newest one is kept whatever it says.
type Policy struct {
	KeepLast int // the last N; 0: 3, negative: all
	// KeepBest keeps the N best by Metric; 0: no rule.
	KeepBest int
	Metric   string
	Order    string // "min" (the smaller the better; the default) or "max"
	// KeepEvery keeps the first checkpoint at or after each K-th report, for good; 0: no rule.
	KeepEvery int64
}

// Check is an Invalid error where the policy makes no sense.
func (p Policy) Check() error {
	if err := checkOrder(p.Order); err != nil {
		return err
	}
	switch {
	case p.KeepBest < 0:
		return fault.New(fault.Invalid, "keep the best %d checkpoints: 1 is the least; 0 is no such rule", p.KeepBest)
	case p.KeepBest > 0 && p.Metric == "":
		return fault.New(fault.Invalid, "keep the best %d checkpoints by what? Name a metric", p.KeepBest)
	case p.KeepEvery < 0:
		return fault.New(fault.Invalid, "keep a checkpoint every %d reports: 1 is the least; 0 is no such rule", p.KeepEvery)
	}
	return nil
}

func checkOrder(order string) error {
	if order != "" && order != "min" && order != "max" {
		return fault.New(fault.Invalid, "the order of checkpoints is %q: write min or max", order)
	}
	return nil
}

// keep says for each of a list of checkpoints, ascending, whether it is kept.
func (p Policy) keep(list []*Manifest) []bool {
	keep := make([]bool, len(list))
	if len(list) > 0 {
		keep[len(list)-1] = true
	}
	last := cmp.Or(p.KeepLast, defaultKeep)
	if last < 0 {
		last = len(list)
	}
	for i := max(0, len(list)-last); i < len(list); i++ {
		keep[i] = true
	}
	best := rank(list, p.Metric, p.Order)
	for _, i := range best[:min(len(best), p.KeepBest)] {
		keep[i] = true
	}
	if p.KeepEvery > 0 {
		done := int64(0)
		for i, m := range list {
			if n := m.Report / p.KeepEvery; n > done {
				keep[i], done = true, n
			}
		}
	}
	return keep
}

// rank orders those that have the metric from best to worst, NaN last; of equal ones the earlier is better. It returns places in list.
func rank(list []*Manifest, metric, order string) []int {
	var at []int
	for i, m := range list {
		if _, ok := m.Metrics[metric]; ok {
			at = append(at, i)
		}
	}
	slices.SortStableFunc(at, func(a, b int) int {
		x, y := list[a].Metrics[metric], list[b].Metrics[metric]
		switch {
		case math.IsNaN(x) || math.IsNaN(y):
			return cmp.Compare(boolInt(math.IsNaN(x)), boolInt(math.IsNaN(y)))
		case order == "max":
			return cmp.Compare(y, x)
		}
		return cmp.Compare(x, y)
	})
	return at
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Best is the best of a list by a metric; order is "min" or "max", "" is min. NaN is worse than any number; those without the metric do not count, and ok is false where none has it.
func Best(list []Manifest, metric, order string) (best *Manifest, ok bool) {
	ptrs := make([]*Manifest, len(list))
	for i := range list {
		ptrs[i] = &list[i]
	}
	if at := rank(ptrs, metric, order); len(at) > 0 {
		return ptrs[at[0]], true
	}
	return nil, false
}

// Prune removes the checkpoints that the policy does not keep: the manifest first, then the files, so that what is seen is whole. What a killed Prune leaves of the files Sweep removes. Only a controller that
// has begun may.
func (r *Run) Prune(ctx context.Context, p Policy) error {
	if err := p.Check(); err != nil {
		return err
	}
	if err := r.log.lock(ctx); err != nil {
		return err
	}
	defer r.log.unlock()
	if err := r.stillOwner(ctx); err != nil {
		return err
	}
	entries, err := r.readLog(ctx)
	if err != nil {
		return err
	}
	list := checkpoints(entries)
	for i, kept := range p.keep(list) {
		if !kept {
			if err := r.remove(ctx, list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Run) remove(ctx context.Context, m *Manifest) error {
	r.at("remove manifest", entryName(m.Number))
	if err := r.b.Delete(ctx, r.prefix+entryName(m.Number)); err != nil {
		return err
	}
	if err := r.syncFolder(checkpointsDir); err != nil { // the removal must not be undone by a loss of power
		return err
	}
	return r.removeTree(ctx, checkpointsDir+m.Try+"/")
}

// abandoned is the age from which a file that was being written belongs to nobody who lives: records are small.
const abandoned = time.Minute

// Sweep removes what died tries and prunes left: folders of files without a manifest, checkpoints that a Begin left behind, and records half written. Only a controller that
// has begun may; it waits for a Commit that is under way, and leaves alone what is of an attempt after its own.
func (r *Run) Sweep(ctx context.Context) error {
	if err := r.log.lock(ctx); err != nil {
		return err
	}
	defer r.log.unlock()
	if err := r.stillOwner(ctx); err != nil {
		return err
	}
	own, err := r.owned()
	if err != nil {
		return err
	}
	r.at("sweep", checkpointsDir)
	var tries []string // listed before manifests are: of those of earlier attempts, none gets one any more
	for info, err := range r.b.ListDir(ctx, r.prefix+checkpointsDir) {
		if err != nil {
			return err
		}
		name := path.Base(info.Key)
		if _, attempt, ok := parseTry(name); ok && info.Dir && attempt <= own.attempt {
			tries = append(tries, name)
		}
	}
	entries, err := r.readLog(ctx)
	if err != nil {
		return err
	}
	live := make(map[string]bool)
	for _, m := range checkpoints(entries) {
		live[m.Try] = true
	}
	for _, e := range entries {
		if e.ckpt != nil && !live[e.ckpt.Try] {
			if err := r.remove(ctx, e.ckpt); err != nil {
				return err
			}
		}
	}
	for _, name := range tries {
		if !live[name] {
			if err := r.removeTree(ctx, checkpointsDir+name+"/"); err != nil {
				return err
			}
		}
	}
	r.sweepLocal()
	return nil
}

// sweepLocal removes files that killed processes were writing.
func (r *Run) sweepLocal() {
	root, err := r.root()
	if root == nil || err != nil {
		return
	}
	defer root.Close()
	for _, sub := range []string{".", checkpointsDir, metricsDir, statusDir} {
		sub = path.Clean(sub)
		d, err := openDir(root, sub)
		if err != nil {
			continue // the next Sweep tries again
		}
		all, _ := d.ReadDir(-1)
		d.Close()
		for _, e := range all {
			if st, err := e.Info(); err == nil && !e.IsDir() && strings.HasPrefix(e.Name(), ".penstock-tmp-") && time.Since(st.ModTime()) > abandoned {
				_ = root.Remove(path.Join(sub, e.Name()))
			}
		}
	}
}
