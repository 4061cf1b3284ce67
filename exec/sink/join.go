package sink

import (
	"cmp"
	"context"
	"io"
	"path"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"golang.org/x/sync/errgroup"
)

const (
	maxJoin    = 1024 // files that one is made of
	smallShare = 32   // without partitions a file is small if it is less than this share of the target
)

// staged is a file to be made visible: it lies in the folder of an attempt.
type staged struct {
	partFile
	attempt string
}

// layout lists the files of finished parts as they will be: each made of those listed, in their order. Neighbours in a
// folder are one where they are small and do not pass target together: with partitions those of less than half the
// target, as every part has files of its own in each folder; without, those of parts of which little was left; none
// where files of the encoding cannot be joined. A function of its arguments alone.
func layout(receipts []*receipt, target int64, partitioned, joins bool) [][]staged {
	small := cmp.Or(target, DefaultTargetBytes)
	most := small
	if partitioned {
		small /= 2
	} else {
		small /= smallShare
	}
	type open struct {
		at    int // in all
		bytes int64
	}
	var all [][]staged
	last := make(map[string]open) // by folder: what its next file may join
	for _, r := range receipts {
		for _, f := range r.Files {
			dir := path.Dir(f.Path)
			o, ok := last[dir]
			if ok && f.Bytes < small && o.bytes+f.Bytes <= most && len(all[o.at]) < maxJoin {
				all[o.at] = append(all[o.at], staged{f, r.Attempt})
				last[dir] = open{o.at, o.bytes + f.Bytes}
				continue
			}
			all = append(all, []staged{{f, r.Attempt}})
			if delete(last, dir); joins && f.Bytes < small {
				last[dir] = open{len(all) - 1, f.Bytes}
			}
		}
	}
	return all
}

// joined are the files that the job makes visible: those of its parts, small neighbours made one, which are
// staged in attempts of this process. What is made keeps the name of the first. A process that dies in it leaves staged files
// that no receipt names; the next makes them anew.
func (s *Files) joined(ctx context.Context, env *exec.CommitEnv) ([]staged, error) {
	enc, joins := s.o.Encoding.(driver.JoiningEncoding)
	all := layout(s.receipts, s.o.TargetBytes, s.split != nil, joins && enc.Joins(s.file))
	files := make([]staged, len(all))
	alloc, most, n := env.Alloc, s.o.BufferBytes, max(env.CPUs, 1)
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	if a, ok := alloc.(interface{ Limit() int64 }); ok {
		most = min(most, max(a.Limit()/partShare, minBuffer))
		n = int(min(int64(n), max(a.Limit()/(4*most), 1))) // each holds rows beside what is encoded
	}
	gctx, cancel := context.WithCancelCause(ctx) // the first error ends both groups
	defer cancel(nil)
	var g, closing errgroup.Group // closing: what waits for disks and services, while others are encoded
	g.SetLimit(n)
	closing.SetLimit(inFlight)
	for i, from := range all {
		if len(from) == 1 {
			files[i] = from[0]
			continue
		}
		g.Go(func() error {
			w, err := s.join(gctx, enc, from, alloc, most, &files[i])
			if err != nil {
				cancel(err)
				return err
			}
			closing.Go(func() error {
				err := fault.Wrap(w.Close(), fault.Place{File: s.out.path(files[i].Path)})
				if err != nil {
					cancel(err)
				}
				return err
			})
			return nil
		})
	}
	err := g.Wait()
	if cerr := closing.Wait(); err == nil {
		err = cerr
	}
	if first := context.Cause(gctx); err != nil && first != nil && ctx.Err() == nil {
		err = first // others ended by it
	}
	return files, err
}

// join writes one file, to, with the rows of others: it is staged when the writer is closed.
func (s *Files) join(ctx context.Context, enc driver.JoiningEncoding, from []staged, alloc memory.Allocator, most int64, to *staged) (*blobio.Writer, error) {
	part, err := attemptPart(from[0].attempt)
	if err != nil {
		return nil, err
	}
	attempt := s.proc + "/" + pad5(part) + "-" + randomHex()
	*to = staged{partFile{Path: from[0].Path}, attempt}
	o := &driver.JoinOptions{Schema: s.file, Alloc: alloc, Most: most}
	for _, f := range from {
		o.Files = append(o.Files, s.stored(f))
		to.Rows += f.Rows
	}
	at := fault.Place{File: s.out.path(to.Path)}
	s.out.at("join", to.Path)
	w, err := s.out.b.Create(ctx, s.out.rec.prefix+stagedPath(s.job.dir(), attempt, to.Path), nil)
	if err != nil {
		return nil, fault.Wrap(err, at)
	}
	n := counter{w: w}
	if err := enc.Join(ctx, &n, o); err != nil {
		w.Abort()
		return nil, fault.Wrap(err, at)
	}
	s.out.at("joined", to.Path)
	to.Bytes = n.n
	return w, nil
}

// stored is a staged file of the job as an encoding reads it.
func (s *Files) stored(f staged) driver.JoinFile {
	rec := s.out.rec
	key := rec.prefix + stagedPath(s.job.dir(), f.attempt, f.Path)
	file := driver.JoinFile{Rows: f.Rows, Open: func(ctx context.Context) io.ReadCloser {
		info, err := rec.b.Stat(ctx, key)
		if err != nil {
			return failed{err}
		}
		return rec.b.Object(info, nil).Stream(ctx, 0, info.Size)
	}}
	if p, ok := rec.b.Local(key); ok {
		file.Path = p
	} else { // with the options of the bucket's URL
		base, query, has := strings.Cut(rec.url, "?")
		if file.Path = base + "/" + key; has {
			file.Path += "?" + query
		} else if strings.Contains(key, "?") {
			file.Path += "?" // an empty query, so that the key's end is not taken for one
		}
	}
	return file
}

// failed is a stream that could not be opened.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }
func (failed) Close() error               { return nil }
