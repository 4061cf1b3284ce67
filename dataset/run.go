package dataset

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/exec/plan"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// RunOptions belong to every call that runs a plan; nil means defaults.
type RunOptions struct {
	// Memory is the byte budget of the run, at least [shard.MinMemory]; 0: half of what is available, at most 4 GiB. A row, a
	// page or a step of shards larger than it goes through alone.
	Memory int64
	// CPUs is how many tasks compute at once; 0: GOMAXPROCS.
	CPUs int
	// Runner executes the plan; nil: this process.
	Runner exec.Runner
	// Seed and Epoch key random().
	Seed, Epoch uint64
	// Unordered gives rows as they are ready instead of in canonical order; which of them pass a limit is open then. An output without a limit is the same.
	Unordered bool
	// OnError is the policy of the source and of steps without their own; nil: fail.
	OnError *ops.OnError
	// DeadLetter is a folder or bucket URL for the rows that a skip policy leaves out.
	DeadLetter string
	// Mask is applied to what the dead letter says of a row, but not to the row: it keeps out what
	// must not be kept, such as secrets in paths. It may be nil.
	Mask func(string) string
	// StallTimeout ends a run in which nothing moves; 0: 5 minutes, negative: never.
	StallTimeout time.Duration
	// CallTimeout bounds one call of a step's function or child; 0: none.
	CallTimeout time.Duration
	// BatchRows is the most rows read at once; 0: 16384. The rows and their order do not depend on it.
	BatchRows int
	Events    *exec.Events
	// Observe is called once, when the run starts, with a function that gives its
	// statistics at any time, also after its end: for progress displays, and to see
	// which tasks are at what (exec.Stats.Inflight).
	Observe func(stats func() exec.Stats)
	// Log receives what happens along the way: retries, stalls, at level debug every skipped row; of shards how many rows an epoch skipped. nil discards it.
	// Not used with a Runner, but for the last.
	Log *slog.Logger
	// NoRules switches rewrite rules off by name (ops.RuleNames); for finding faults. The steps of shards are fused always. Where rows are
	// skipped that do not parse, leaving out fold or projection is Unsupported: by them only columns are parsed that something is made of.
	NoRules []string
}

func (o *RunOptions) or() RunOptions {
	if o == nil {
		return RunOptions{}
	}
	return *o
}

func (o RunOptions) runner() exec.Runner {
	if o.Runner == nil {
		return local.New(&local.Options{Log: o.Log})
	}
	return o.Runner
}

func (o RunOptions) exec() (*exec.Options, error) {
	if err := o.OnError.Check(); err != nil {
		return nil, fault.Wrap(err, fault.Place{Step: "run options"})
	}
	e := &exec.Options{Memory: o.Memory, CPUs: o.CPUs, Unordered: o.Unordered, Seed: o.Seed, Epoch: o.Epoch,
		StallTimeout: o.StallTimeout, CallTimeout: o.CallTimeout, Events: o.Events, Observe: o.Observe, BatchRows: o.BatchRows}
	if p := plan.OnError(o.OnError); p != nil {
		e.OnError = *p
	}
	if o.CPUs < 0 {
		return nil, fault.New(fault.Invalid, "run options: cpus must not be negative; 0 uses all")
	}
	return e, fault.Wrap(shard.CheckMemory(o.Memory), fault.Place{Step: "run options"})
}

// optimized resolves the plan, rewrites and translates it.
func (d *Dataset) optimized(ctx context.Context, o RunOptions) (ops.Node, *exec.Graph, error) {
	n, err := d.plan(ctx)
	if err != nil {
		return nil, nil, err
	}
	off, err := o.noRules(n)
	if err != nil {
		return nil, nil, err
	}
	written := n
	n, _, err = ops.Optimize(n, off)
	if err != nil {
		return nil, nil, err
	}
	g, err := plan.Translate(ctx, n, &plan.Options{NoFuse: off[ops.Fuse]})
	if err == nil {
		g.Words = func(ctx context.Context) ([][2]string, error) { return words(ctx, written) }
	}
	return n, g, err
}

// noRules are the rules that a run of root leaves out. Under a policy that skips rows, which columns of text are read
// decides which rows are: a rule that decides on columns cannot be left out.
func (o *RunOptions) noRules(root ops.Node) (off map[string]bool, err error) {
	off = map[string]bool{}
	for _, r := range o.NoRules {
		if off[r] = true; (r == "fold" || r == "projection") && parseSkips(root, o.OnError) {
			return nil, fault.New(fault.Unsupported, "rule %s cannot be switched off where rows that do not parse are skipped: with more columns more rows would be; leave on_error out, or the rule in (NoRules)", r)
		}
	}
	return off, nil
}

// parseSkips reports whether a run may leave rows out for values that do not parse: then it matters which columns are read.
func parseSkips(root ops.Node, run *ops.OnError) bool {
	return run != nil && run.Policy == "skip" && slices.ContainsFunc(ops.Reads(root), func(r *ops.Read) bool {
		return slices.ContainsFunc(r.Table.Splits(), func(s driver.Split) bool { return s.Rows < 0 })
	})
}

// words are those of the graph of a plan as written.
func words(ctx context.Context, n ops.Node) ([][2]string, error) {
	steps, err := ops.FingerprintSteps(n)
	if err != nil {
		return nil, err
	}
	all := [][2]string{{"plan", steps}}
	err = eachRead(n, func(r *ops.Read) error {
		data, err := r.Table.Fingerprint(ctx)
		if err != nil {
			return fault.New(fault.CodeOf(err), "this source has no fingerprint, so it cannot be compared with that of another process: %w", err).
				At(fault.Place{Step: r.Step()})
		}
		all = append(all, [2]string{"data of " + r.Step(), data})
		return nil
	})
	return all, err
}

// Stream runs the plan and gives its blocks: the raw form of iteration, for
// programs that build on the engine. The caller closes it.
func (d *Dataset) Stream(ctx context.Context, o *RunOptions) (exec.Stream, error) {
	run := o.or()
	_, g, err := d.optimized(ctx, run)
	if err != nil {
		return nil, err
	}
	e, err := run.exec()
	if err != nil {
		return nil, err
	}
	dl, err := d.letters(ctx, run, e)
	if err != nil {
		return nil, err
	}
	s, err := run.runner().Run(ctx, g, e)
	if dl == nil {
		return s, err
	}
	if err != nil {
		return nil, errors.Join(err, dl.Close(ctx, false))
	}
	return &deadLetterStream{Stream: s, letters: dl}, nil
}

// letters makes the dead letter of a run whose rows are not written, and has e fill it; nil: none is wanted.
func (d *Dataset) letters(ctx context.Context, run RunOptions, e *exec.Options) (*sink.DeadLetter, error) {
	if run.DeadLetter == "" {
		return nil, nil
	}
	job, err := d.job(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	if err := d.CheckOutput(ctx, run.DeadLetter); err != nil {
		return nil, err
	}
	dl, err := sink.NewDeadLetter(ctx, run.DeadLetter, job, run.Mask)
	if err != nil {
		return nil, err
	}
	e.DeadLetter = dl.Add
	return dl, nil
}

// deadLetterStream makes the dead letter visible when the stream has ended.
type deadLetterStream struct {
	exec.Stream
	letters *sink.DeadLetter
	done    bool
}

func (s *deadLetterStream) Next(ctx context.Context) (*exec.Block, error) {
	b, err := s.Stream.Next(ctx)
	if err == io.EOF && !s.done {
		s.done = true
		if cerr := s.letters.Close(ctx, true); cerr != nil {
			return nil, cerr
		}
	}
	return b, err
}

// Alloc is the stream's.
func (s *deadLetterStream) Alloc() memory.Allocator { return allocOf(s.Stream) }

func (s *deadLetterStream) Close() error {
	err := s.Stream.Close()
	if !s.done {
		s.done = true
		err = errors.Join(err, s.letters.Close(context.Background(), false))
	}
	return err
}

// Records iterates over the rows as Arrow record batches of any size, in
// canonical order. A record is valid until the next turn; Retain to keep it.
func (d *Dataset) Records(ctx context.Context, o *RunOptions) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		s, err := d.Stream(ctx, o)
		if err != nil {
			yield(nil, err)
			return
		}
		defer s.Close()
		for {
			b, err := s.Next(ctx)
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			more := b.Batch.NumRows() == 0 || yield(b.Batch, nil)
			b.Release()
			if !more {
				return
			}
		}
	}
}
