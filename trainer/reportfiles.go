package trainer

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
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

// checkDir refuses a folder of this machine that holds no checkpoint: what is missing, has no file, or is one; one that holds what others need, as the working directory; and, where folders are moved away
// (Checkpointing.Async), one inside of those that checkpoints are in, of this run or another.
func (s *site) checkDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fault.New(fault.Invalid, "the folder of a checkpoint is an absolute path, not %q", dir)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return fault.New(fault.CodeOf(err), "the folder of a checkpoint: %w", err)
	}
	if !st.IsDir() {
		return fault.New(fault.Invalid, "a checkpoint is a folder, %s is a file: give the folder that it is in", dir)
	}
	whole := leads(dir)
	spots := s.spots()
	if run, ok := s.run.Local(); ok { // the storage may be a folder for many things
		storage := leads(filepath.Dir(run))
		for at := whole; at != storage && within(at, storage); at = filepath.Dir(at) {
			if store.IsRun(at) {
				spots = append(spots, spot{at, "the folder of a run", true})
			}
		}
	}
	for _, p := range spots {
		switch path := leads(p.path); {
		case within(path, whole):
			return fault.New(fault.Invalid, "the folder of a checkpoint, %s, holds %s, %s: write the files of a checkpoint into a folder of their own", dir, p.what, p.path)
		case s.staging != nil && p.files && within(whole, path):
			return fault.New(fault.Invalid, "the folder of a checkpoint, %s, is in %s, %s, and would be moved away from there (Checkpointing.Async): copy its files into a folder of their own", dir, p.what, p.path)
		}
	}
	if ok, err := hasFile(whole); err != nil {
		return fault.New(fault.CodeOf(err), "the folder of a checkpoint: %w", err)
	} else if !ok {
		return fault.New(fault.Invalid, "the folder of a checkpoint, %s, has no files: write them before the report, or report without a folder", dir)
	}
	return nil
}

// hasFile looks for the first file below dir: no further, as the upload sees them all.
func hasFile(dir string) (found bool, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			found, err = true, fs.SkipAll
		}
		return err
	})
	return found, err
}

// within reports whether a path is a folder, or below it. Both are clean.
func within(path, of string) bool {
	return path == of || strings.HasPrefix(path, strings.TrimSuffix(of, "/")+"/")
}

// spot is a folder that is no checkpoint.
type spot struct {
	path, what string
	files      bool // of checkpoints
}

// spots are the folders of this machine that the run needs, and the user.
func (s *site) spots() []spot {
	var all []spot
	if dir, err := os.Getwd(); err == nil {
		all = append(all, spot{dir, "the working directory", false})
	}
	if dir := s.cfg.Dir; dir != "" {
		all = append(all, spot{dir, "the working directory of the workers", false})
	}
	if dir, ok := s.run.Local(); ok {
		all = append(all, spot{dir, "the folder of the run", true})
	}
	if dir, err := downloads(); err == nil {
		all = append(all, spot{dir, "the folder of downloaded checkpoints", true})
	}
	if dir, err := os.UserHomeDir(); err == nil {
		all = append(all, spot{dir, "the home of this user", false})
	}
	return append(all, spot{os.TempDir(), "the folder for temporary files", false}, spot{s.logs, "the logs of the run", false}, spot{s.sockets.path, "the sockets of the run", false})
}

// leads is where a path leads.
func leads(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path // of what is not there
}
