package trainer

import (
	"context"
	"os"
	"strings"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/group"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
	"golang.org/x/sync/errgroup"
)

// reportFiles is the folders that ranks gave with a report, on the nodes where they are.
type reportFiles struct {
	c      *controller
	report int64
	here   []store.Part
	staged string // folder that here was moved to; "": it was not
	there  map[*node][]wire.HandPart
	took   bool // perhaps: they are to be settled
}

func (f *reportFiles) add(rank int, dir string) {
	if n := f.c.nodeOf(rank); n != nil {
		if f.there == nil {
			f.there = map[*node][]wire.HandPart{}
		}
		f.there[n] = append(f.there[n], wire.HandPart{Rank: rank, Dir: dir})
		return
	}
	f.here = append(f.here, store.Part{Rank: rank, Dir: dir})
}

// take makes the folders the controller's and the hands', where nobody waits for their upload (Checkpointing.Async).
func (f *reportFiles) take(at *attempt) error {
	c := f.c
	if c.staging == nil {
		return nil
	}
	f.took = true
	all, ctx := errgroup.WithContext(c.ctx)
	if len(f.here) > 0 {
		all.Go(func() (err error) {
			f.staged, err = c.site.take(f.here)
			return err
		})
	}
	for n, parts := range f.there {
		all.Go(func() error {
			_, err := n.ask(ctx, wire.ToHand{Take: &wire.HandTake{Report: f.report, Parts: parts}})
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	next := c.run.Next()
	c.event(at, group.Event{Kind: group.Taken, N: f.report, Checkpoint: next})
	return nil
}

// into has a commit upload them.
func (f *reportFiles) into(k *store.Commit) {
	k.Parts = f.here
	for n, parts := range f.there {
		e := store.Elsewhere{}
		for _, p := range parts {
			e.Ranks = append(e.Ranks, p.Rank)
		}
		e.Upload = func(ctx context.Context, try string) ([]store.File, error) {
			a, err := n.ask(ctx, wire.ToHand{Upload: &wire.HandUpload{Report: f.report, Try: try, Parts: parts, Parallel: k.Parallel}})
			files := make([]store.File, len(a.Files))
			for i, h := range a.Files {
				files[i] = store.File(h)
			}
			return files, err
		}
		k.Elsewhere = append(k.Elsewhere, e)
	}
}

// settle removes what was taken, or keeps it where err says that it is in no checkpoint: it returns err with the places.
func (f *reportFiles) settle(err error) error {
	if !f.took {
		return err
	}
	var mu sync.Mutex
	var kept []string
	var lost error
	keeps := func(where, place string, kerr error) {
		mu.Lock()
		defer mu.Unlock()
		if place != "" {
			kept = append(kept, place+where)
		}
		if kerr != nil && lost == nil {
			lost = kerr
		}
	}
	if err == nil {
		_ = os.RemoveAll(f.staged) // "": nothing; what stays goes with its parent
	} else {
		place, kerr := f.c.keep(f.staged, f.report)
		keeps("", place, kerr)
	}
	var all sync.WaitGroup
	for n := range f.there {
		all.Go(func() {
			a, aerr := n.ask(context.WithoutCancel(f.c.ctx), wire.ToHand{Settle: &wire.HandSettle{Report: f.report, Keep: err != nil}})
			if err == nil {
				aerr = nil // what stays there goes with the hand
			}
			keeps(f.c.ofNode(f.there[n][0].Rank), a.Dir, aerr)
		})
	}
	all.Wait()
	if err != nil && lost != nil {
		err = fault.New(fault.CodeOf(err), "%w; files of it, which were taken over, are lost, or kept by their node: %w", err, lost)
	}
	if len(kept) > 0 {
		err = fault.New(fault.CodeOf(err), "%w; its files are kept in %s", err, strings.Join(kept, ", and in "))
	}
	return err
}
