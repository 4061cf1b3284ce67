package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/shard"
)

// dealt is what batches and replay have in common: the flags that say whose samples
// are printed, and how.
type dealt struct {
	sets        []string
	ranks, rank int
	epoch       uint64
	from        string
	format      string
	may         permission
}

func (d *dealt) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&d.sets, "set", nil, "override a key of the spec: `key=value`, such as shards.global_batch=512")
	f.IntVar(&d.ranks, "ranks", 0, "how many ranks there are; default: the spec's")
	f.IntVar(&d.rank, "rank", 0, "only the batches of this rank; default: all, in order of rank")
	f.StringVar(&d.format, "format", "digest", "what a line is: digest, global, jsonl or lineage; see above")
	d.may.flags(c)
}

const formatsHelp = `Formats:
  digest   step, rank, rows and SHA-256 of the batch as it is delivered, pads and mask included; rows
           counts the real ones
  global   step, rows and SHA-256 of the batch of all ranks together, without pads, in order of n: the
           same on any number of ranks. It is made as for one rank, which matters to lists padded
           to the longest of a batch
  jsonl    an object for every sample: step, rank, n (its number in the epoch), row; values as in a JSON sink
  lineage  the same with source, file, row_group and row (its number there) in place of the row, and the
           documents of packed samples`

// out is where the lines go. Rows of data are as they are.
func (d *dealt) out(cmd *cobra.Command) io.Writer {
	if d.format == "jsonl" {
		return dataOut(cmd)
	}
	return cmd.OutOrStdout()
}

// job is a spec whose batches can be opened.
type job struct {
	spec   *spec.Spec
	ds     *dataset.Dataset
	ranks  int
	first  uint64 // epoch
	epochs int    // of the spec; 0: as many as are asked for
	o      *dataset.ShardOptions
	print  printer
}

// open reads the spec; its epoch is that of the state to go on from, of --epoch, or of the spec.
func (d *dealt) open(cmd *cobra.Command, path string) (*job, error) {
	given := cmd.Flags().Changed
	s, err := load(cmd, path, d.sets, &d.may, false)
	if err != nil {
		return nil, err
	}
	j := &job{spec: s}
	if j.ranks, j.o, err = s.ShardOptions(); err != nil {
		return nil, err
	}
	j.first, j.epochs = j.o.Epoch, j.o.Epochs
	if j.ds, err = s.Dataset(); err != nil {
		return nil, err
	}
	if given("ranks") {
		if j.ranks = d.ranks; d.ranks < 1 {
			return nil, usageError{fault.New(fault.Invalid, "--ranks must be at least 1")}
		}
	}
	if given("rank") {
		if d.rank < 0 || d.rank >= j.ranks {
			return nil, usageError{fault.New(fault.Invalid, "--rank %d of %s: the first is 0", d.rank, some(int64(j.ranks), "rank"))}
		}
		j.o.Ranks = []int{d.rank}
	}
	switch d.format {
	case "digest":
		j.print = printDigest
	case "global":
		if given("rank") {
			return nil, usageError{fault.New(fault.Invalid, "--format global is of all ranks together: leave --rank out")}
		}
		j.print = printGlobal(j.o)
		if b := j.o.BatchPerRank; b > 0 {
			if j.o.GlobalBatch, j.o.BatchPerRank = b*j.ranks, 0; j.o.GlobalBatch/j.ranks != b {
				return nil, fault.New(fault.Invalid, "shards: batch_per_rank %d is too large", b)
			}
		}
		j.ranks = 1
	case "jsonl":
		j.print = printRows(j.o)
	case "lineage":
		j.o.Lineage = true
		j.print = printLineage
	default:
		return nil, usageError{fault.New(fault.Invalid, "--format %q: have digest, global, jsonl, lineage", d.format)}
	}
	if d.from != "" {
		st, err := readFile(d.from, shard.ReadState)
		if err != nil {
			return nil, err
		}
		j.o.State, j.o.Epoch = &st, st.Epoch
	}
	return j, nil
}

// one limits the job to one epoch.
func (j *job) one(epoch uint64) error {
	if n := uint64(j.epochs); n > 0 && (epoch < j.first || epoch-j.first >= n) {
		return fault.New(fault.Invalid, "there is no epoch %d: the spec has %d, from epoch %d on (shards.epochs)", epoch, n, j.first)
	}
	j.o.Epoch, j.o.Epochs, j.o.Endless = epoch, 1, false
	return nil
}

// iterators opens the ranks; done closes them.
func (j *job) iterators(ctx context.Context) (its []*shard.Iterator, done func() error, err error) {
	log, end := warnings(term.Err)
	j.o.Log = log
	if its, err = j.ds.Shards(ctx, j.ranks, j.o); err != nil {
		end()
		return nil, nil, j.spec.AtShards(err)
	}
	return its, func() error {
		defer end()
		var err error
		for _, it := range its {
			err = errors.Join(err, it.Close())
		}
		return err
	}, nil
}

// step prints a step of all ranks, or nothing of it: io.EOF at the end of the epoch.
func (j *job) step(ctx context.Context, its []*shard.Iterator, w *bytes.Buffer) (samples int, err error) {
	w.Reset()
	ended := 0
	for _, it := range its {
		b, err := it.Next(ctx)
		if err == io.EOF {
			ended++
			continue
		}
		if err != nil {
			return 0, err
		}
		samples += b.Real()
		err = j.print(w, b)
		b.Release()
		if err != nil {
			return 0, err
		}
	}
	switch ended {
	case 0:
		return samples, nil
	case len(its):
		return 0, io.EOF
	}
	return 0, fault.New(fault.Internal, "%d of %d ranks are at the end of the epoch", ended, len(its))
}

func batchesCommand() *cobra.Command {
	var d dealt
	var steps int64
	var stateOut, ledgerOut string
	c := &cobra.Command{
		Use:   "batches SPEC",
		Short: "Print the batches that ranks would get, or their digests; stop and go on",
		Long: `Batches deals one epoch of a spec with a shards section, and prints what the ranks would get, ordered by
step, then rank. The samples and their order depend on the spec, the data, the seed and the epoch, on nothing else.

--state-out writes where the job stands after the last step printed, also after an interrupt; --from
goes on from there, with any number of ranks and any batch size. After the end of an epoch the state is the
beginning of the next one; from a state in which no step of its epoch is left, --from goes on with the next one, too.
--ledger-out writes how many samples each window had that was read, for replay.

` + formatsHelp + `

` + exitHelp + ` A damaged state
or ledger is 1; one of another version, plan, seed or data is 2.`,
		Example: `  penstock batches examples/shards.yaml --steps 2
  penstock batches examples/shards.yaml --steps 20 --state-out state.json
  penstock batches examples/shards.yaml --from state.json --ranks 3 --format global
  penstock batches examples/shards.yaml --epoch 1 --rank 0 --steps 1 --format jsonl
  penstock batches examples/shards.yaml --epoch 2 --steps 41 --ledger-out ledger.bin > digests`,
		Args: args("SPEC", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) (err error) {
			if cmd.Flags().Changed("steps") && steps < 0 {
				return usageError{fault.New(fault.Invalid, "--steps must not be negative")}
			}
			j, err := d.open(cmd, a[0])
			if err != nil {
				return err
			}
			epoch := j.o.Epoch
			if cmd.Flags().Changed("epoch") {
				if epoch = d.epoch; j.o.State != nil && epoch != j.o.State.Epoch {
					return usageError{fault.New(fault.Invalid, "--epoch %d, but the state of --from is in epoch %d: leave --epoch out", epoch, j.o.State.Epoch)}
				}
			}
			if err := j.one(epoch); err != nil {
				return err
			}
			for _, file := range []string{stateOut, ledgerOut} {
				if err := writable(file); err != nil {
					return err
				}
			}
			state, ledger, n, err := j.deal(cmd.Context(), d.out(cmd), steps)
			if atEnd := err == nil && n == 0 && j.o.State != nil && state.Epoch > epoch; atEnd && cmd.Flags().Changed("epoch") {
				fmt.Fprintf(cmd.ErrOrStderr(), "penstock: the state of %s is at the end of epoch %d: leave --epoch out to go on with epoch %d\n", d.from, epoch, state.Epoch)
			} else if atEnd {
				if err := j.one(state.Epoch); err != nil {
					return err
				}
				j.o.State = state
				state, ledger, _, err = j.deal(cmd.Context(), d.out(cmd), steps)
			}
			if stateOut != "" && state != nil {
				err = errors.Join(err, writeFile(stateOut, func(w io.Writer) error { return json.NewEncoder(w).Encode(state) }))
			}
			if ledgerOut != "" && state != nil {
				err = errors.Join(err, writeFile(ledgerOut, func(w io.Writer) error {
					_, err := ledger.WriteTo(w)
					return err
				}))
			}
			return err
		},
	}
	d.flags(c)
	c.Flags().Uint64Var(&d.epoch, "epoch", 0, "which epoch; default: that of --from, or run.epoch")
	c.Flags().Int64Var(&steps, "steps", -1, "how many steps; default: to the end of the epoch")
	c.Flags().Lookup("steps").DefValue = "0" // -1 is not for users: help shows no default
	c.Flags().StringVar(&d.from, "from", "", "go on from the state in this `file`")
	c.Flags().StringVar(&stateOut, "state-out", "", "write the job's state after the last step printed to this `file`")
	c.Flags().StringVar(&ledgerOut, "ledger-out", "", "write the ledger to this `file`")
	return c
}

// deal opens the ranks, prints steps as run does, and closes them.
func (j *job) deal(ctx context.Context, out io.Writer, steps int64) (state *shard.State, ledger *shard.Ledger, n int64, err error) {
	its, done, err := j.iterators(ctx)
	if err != nil {
		return nil, nil, 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	state, n, err = j.run(ctx, its, out, steps)
	return state, its[0].Ledger(), n, err
}

// run prints steps, all if negative, and returns the state after the last one printed, nil
// if what was printed may not have reached the output, and how many there were.
func (j *job) run(ctx context.Context, its []*shard.Iterator, out io.Writer, steps int64) (_ *shard.State, n int64, err error) {
	w := bufio.NewWriterSize(interruptible{ctx, out}, 64<<10)
	var text bytes.Buffer
	state := its[0].State()
	p := newStepLine()
	defer p.wipe()
	for ; steps < 0 || n < steps; n++ {
		samples, err := j.step(ctx, its, &text)
		if err == io.EOF {
			state = its[0].State()
			break
		}
		if err != nil {
			return &state, n, errors.Join(err, w.Flush())
		}
		if _, err := w.Write(text.Bytes()); err != nil {
			return nil, n, err
		}
		state = its[0].State()
		p.show(state.Epoch, n+1, samples)
	}
	if err := w.Flush(); err != nil {
		return nil, n, err
	}
	return &state, n, nil
}

// interruptible is a writer that gives up when ctx ends, also where nobody reads what it writes.
type interruptible struct {
	ctx context.Context
	w   io.Writer
}

func (i interruptible) Write(p []byte) (int, error) {
	done := make(chan error, 1)
	b := bytes.Clone(p) // a write that is left behind still reads it
	go func() {
		_, err := i.w.Write(b)
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return 0, err
		}
		return len(p), nil
	case <-i.ctx.Done():
	}
	select { // let it finish if it can
	case err := <-done:
		if err != nil {
			return 0, err
		}
		return len(p), nil
	case <-time.After(500 * time.Millisecond):
		return 0, context.Cause(i.ctx)
	}
}

func replayCommand() *cobra.Command {
	var d dealt
	var step, sample int64
	var ledger string
	c := &cobra.Command{
		Use:   "replay SPEC (--step S | --sample N) [--epoch E]",
		Short: "Print one step of an epoch again, without making those before it",
		Long: `Replay prints the lines that batches prints for one step. Where no step of the spec changes the number of rows
it finds the step from metadata; else with the ledger that batches --ledger-out wrote for that epoch; else with what an
earlier replay counted; else it counts the epoch up to the step, says so, and keeps what it counted in the user's cache folder.

--step counts from the beginning of the epoch with the spec's global batch; where that was changed in the midst of
the epoch, give the state taken after the change (--from), or the sample that the step begins with (--sample).

` + formatsHelp + `

` + exitHelp + ` A damaged state
or ledger is 1; one of another version, plan, seed or data is 2.`,
		Example: `  penstock replay examples/shards.yaml --epoch 0 --step 17
  penstock replay examples/shards.yaml --epoch 0 --step 17 --rank 3 --format lineage
  penstock replay examples/shards.yaml --epoch 2 --step 40 --ledger ledger.bin --format jsonl`,
		Args: args("SPEC", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) (err error) {
			given := cmd.Flags().Changed
			switch {
			case given("step") == given("sample"):
				return usageError{fault.New(fault.Invalid, "which step? Give --step or --sample, one of them: --step 17")}
			case step < 0 || given("sample") && sample < 0:
				return usageError{fault.New(fault.Invalid, "steps and samples count from 0")}
			}
			j, err := d.open(cmd, a[0])
			if err != nil {
				return err
			}
			at := shard.At{Epoch: j.o.Epoch, Step: step, Sample: sample, Counting: func(text string) {
				fmt.Fprintln(cmd.ErrOrStderr(), "penstock:", text)
			}}
			if given("epoch") {
				at.Epoch = d.epoch
			}
			if err := j.one(at.Epoch); err != nil {
				return err
			}
			if ledger != "" {
				if at.Ledger, err = readFile(ledger, shard.ReadLedger); err != nil {
					return err
				}
			}
			st, err := j.ds.StateAt(cmd.Context(), j.ranks, j.o, at)
			if err != nil {
				return err
			}
			j.o.State, j.o.Prefetch = &st, -1
			its, done, err := j.iterators(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, done()) }()
			var text bytes.Buffer
			if _, err := j.step(cmd.Context(), its, &text); err == io.EOF {
				return fault.New(fault.Invalid, "epoch %d has no step %d: after sample %d there are too few samples for one", st.Epoch, st.Step, st.Sample)
			} else if err != nil {
				return err
			}
			_, err = d.out(cmd).Write(text.Bytes())
			return err
		},
	}
	d.flags(c)
	c.Flags().Uint64Var(&d.epoch, "epoch", 0, "of the step; default: that of --from, or run.epoch")
	c.Flags().Int64Var(&step, "step", 0, "which step of the epoch, from 0")
	c.Flags().Int64Var(&sample, "sample", -1, "the sample that the step begins with, in place of --step")
	c.Flags().StringVar(&d.from, "from", "", "a state in this `file`, of the same epoch and before the step, to count steps from")
	c.Flags().StringVar(&ledger, "ledger", "", "how many samples the windows had, from this `file`")
	return c
}

func readFile[T any](name string, read func(io.Reader) (T, error)) (v T, err error) {
	f, err := os.Open(name)
	if err != nil {
		return v, usageError{fault.WithCode(fault.CodeOf(err), err)}
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return v, usageError{fault.New(fault.Invalid, "%s is a folder: name a file in it", name)}
	}
	v, err = read(bufio.NewReader(f))
	return v, fault.Wrap(err, fault.Place{File: name})
}

// writable reports early that a file cannot be written later; "" is none.
func writable(name string) error {
	if name == "" {
		return nil
	}
	if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
		return fault.New(fault.Invalid, "%s is no regular file: it would be replaced as a whole", name)
	}
	tmp, err := besides(name)
	if err != nil {
		return err
	}
	return errors.Join(tmp.Close(), os.Remove(tmp.Name()))
}

// besides makes a file in the folder of name, to be renamed to it.
func besides(name string) (*os.File, error) {
	tmp, err := os.CreateTemp(filepath.Dir(name), ".penstock-*")
	if p := (*fs.PathError)(nil); errors.As(err, &p) { // its path says nothing to users
		return nil, fault.WithCode(fault.CodeOf(err), fmt.Errorf("%s cannot be written: no file can be made in its folder: %w", name, p.Err))
	}
	return tmp, err
}

// writeFile makes a file, or replaces it, in one step: who reads it finds all or nothing new.
func writeFile(name string, write func(io.Writer) error) error {
	tmp, err := besides(name)
	if err != nil {
		return err
	}
	err = errors.Join(write(tmp), tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fault.Wrap(err, fault.Place{File: name})
	}
	return nil
}

// stepLine is the progress of batches: a line on a terminal, unless the data goes there too.
type stepLine struct {
	on          bool
	begin, last time.Time
	samples     int
}

func newStepLine() *stepLine {
	on := term.IsTerminal(term.Err) && !term.IsTerminal(term.Out)
	return &stepLine{on: on, begin: time.Now()}
}

func (p *stepLine) show(epoch uint64, steps int64, samples int) {
	if p.samples += samples; !p.on || time.Since(p.last) < 200*time.Millisecond {
		return
	}
	p.last = time.Now()
	rate := float64(p.samples) / time.Since(p.begin).Seconds()
	term.Err.Redraw(fmt.Sprintf("epoch %d: %s steps, %s samples, %s samples/s", epoch, count(steps), count(int64(p.samples)), count(int64(rate))))
}

func (p *stepLine) wipe() {
	if p.on {
		term.Err.Redraw("")
	}
}
