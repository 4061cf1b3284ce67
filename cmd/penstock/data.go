package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
	"github.com/penstock-data/penstock/trainer"
)

func dataCommand() *cobra.Command {
	var d dataOptions
	var control, child bool
	c := &cobra.Command{
		Use:   "data SPEC --socket PATH",
		Short: "Serve the shards of a spec to other processes, over a unix socket",
		Long: `Data serves the batches of a spec with a shards section on a unix socket, one consumer per rank: Python's penstock.connect(),
or feed.Dial in Go. (penstock.open() starts it by itself, and penstock train has one for all workers.) The folder of the socket is made
where it is not there, and must be closed to other users.

When it listens it prints {"ready": true} on stdout; where it cannot, {"error": {"code": ..., "text": ...}}. It ends when its standard input
is a pipe that is closed; when all ranks have been given up; and when a consumer is lost, which the others are told of.

` + exitHelp,
		Example: `  penstock data examples/shards.yaml --socket feed/s
  penstock data examples/shards.yaml --socket feed/s --ranks 8 --rank 0 --rank 1
  penstock data examples/shards.yaml --socket feed/s --state state.json --set run.memory=1GiB`,
		Args: args("SPEC", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			if control {
				return controlled(cmd, a[0], &d.may)
			}
			err := d.serve(cmd, a[0])
			if err != nil && !d.ready {
				sayError(cmd.OutOrStdout(), err)
			}
			if err != nil && child {
				return told{err}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringArrayVar(&d.sets, "set", nil, "override a key of the spec: `key=value`, such as shards.global_batch=512")
	f.IntVar(&d.ranks, "ranks", 0, "how many ranks there are; default: the spec's")
	f.IntSliceVar(&d.rank, "rank", nil, "serve only this rank, others are not read; can be repeated; default: all")
	f.StringVar(&d.state, "state", "", "go on from a state in this `file`, which batches --state-out or a checkpoint wrote")
	f.StringVar(&d.socket, "socket", "", "`path` of the socket, at most 103 bytes")
	f.BoolVar(&control, "control", false, "for penstock train: SPEC is a record, and lines of JSON on standard input say what to serve")
	f.BoolVar(&child, "child", false, "for penstock.open: errors go to stdout until ready and to the consumer after that, never to stderr")
	d.may.flags(c)
	_ = f.MarkHidden("control") // it is there
	_ = f.MarkHidden("child")
	return c
}

// told is an error that whoever started this process knows, by another way than stderr.
type told struct{ error }

func (e told) Unwrap() error { return e.error }

type dataOptions struct {
	sets          []string
	may           permission
	ranks         int
	rank          []int
	state, socket string
	ready         bool // said so
}

// serve serves until there is no one left to serve.
func (d *dataOptions) serve(cmd *cobra.Command, path string) error {
	if d.socket == "" {
		return usage("data: where to listen? Give --socket; for example: %s", example(cmd))
	}
	s, err := load(cmd, path, d.sets, &d.may, false)
	if err != nil {
		return err
	}
	ranks, o, err := s.ShardOptions()
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("ranks") {
		if ranks = d.ranks; ranks < 1 {
			return usageError{fault.New(fault.Invalid, "--ranks must be at least 1")}
		}
	}
	for _, r := range d.rank {
		if r < 0 || r >= ranks {
			return usageError{fault.New(fault.Invalid, "--rank %d of %s: the first is 0", r, some(int64(ranks), "rank"))}
		}
	}
	o.Ranks = d.rank
	if d.state != "" {
		st, err := readFile(d.state, shard.ReadState)
		if err != nil {
			return err
		}
		o.State = &st
	}
	log, end := warnings(cmd.ErrOrStderr())
	defer end()
	o.Log = log
	ds, err := s.Dataset()
	if err != nil {
		return err
	}
	l, err := feed.Listen(d.socket)
	if err != nil {
		return err
	}
	defer os.Remove(d.socket + ".lock")
	defer l.Close()
	its, err := ds.Shards(cmd.Context(), ranks, o)
	if err != nil {
		return s.AtShards(err)
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), `{"ready": true}`); err != nil {
		for _, it := range its {
			err = errors.Join(err, it.Close())
		}
		return err
	}
	d.ready = true
	ctx, cancel := untilClosed(cmd.Context(), os.Stdin)
	defer cancel()
	if err = feed.Serve(ctx, l, its, &feed.Options{Mask: secrets.Text}); context.Cause(ctx) == errClosed {
		return nil
	}
	return err
}

// warnings are what a process that serves or prints batches says beside them: how many rows it skipped, what it tries again. Call end.
func warnings(w io.Writer) (log *slog.Logger, end func()) {
	l := newLineLog(w, true)
	return slog.New(l), l.close
}

var errClosed = fault.New(fault.Canceled, "standard input was closed")

// untilClosed is a context that ends with a pipe: whoever started this process holds the other end. Nothing else is read: a terminal is the user's, and
// services have no input.
func untilClosed(ctx context.Context, in *os.File) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if st, err := in.Stat(); err == nil && st.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
		go func() { // ends with the process
			_, _ = io.Copy(io.Discard, in)
			cancel(errClosed)
		}()
	}
	return ctx, func() { cancel(nil) }
}

// sayError prints the line that programs read.
func sayError(out io.Writer, err error) {
	_ = printJSON(out, map[string]any{"error": map[string]string{"code": fault.CodeOf(err).String(), "text": secrets.Text(err.Error())}}) // where stdout is gone, nobody reads it
}

// controlled is the data process of a run: the record of its spec is in a file.
func controlled(cmd *cobra.Command, record string, may *permission) error {
	// A run is interrupted, and told of a preemption, by its controller alone.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	out := os.Stdout
	os.Stdout = os.Stderr // a step that prints must not be heard by the controller
	log, end := warnings(term.Err)
	defer end()
	return trainer.ServeData(context.WithoutCancel(cmd.Context()), os.Stdin, out, func() (map[string]trainer.Data, error) {
		text, err := os.ReadFile(record)
		if err != nil {
			return nil, fault.WithCode(fault.CodeOf(err), err)
		}
		o, err := spec.ParseOriginal(string(text))
		if err != nil {
			return nil, err
		}
		t, err := may.trust(false)
		if err != nil {
			return nil, err
		}
		sets, err := dataSets(o, t, func(err error) { log.Warn(err.Error()) })
		for name, d := range sets {
			d.Options.Log = log
			sets[name] = d
		}
		return sets, err
	})
}

// dataSets builds the data sets of a run. Nothing is read but what the specs refer to.
func dataSets(o *spec.Original, t spec.Trust, warn func(error)) (map[string]trainer.Data, error) {
	s, err := o.Spec(t)
	if err != nil {
		return nil, err
	}
	sets := map[string]trainer.Data{}
	hang := time.Duration(0)
	if t := s.Train; t != nil && t.HangTimeout != nil {
		if hang = time.Duration(*t.HangTimeout); hang == 0 {
			hang = -1
		}
	}
	add := func(name string, s *spec.Spec, eval bool) error {
		s.OnWarning(warn)
		_, so, err := s.ShardOptions()
		if err != nil {
			return err
		}
		ds, err := s.Dataset()
		if err != nil {
			return err
		}
		if so.StallTimeout == 0 { // also as a rank may wait for another that evaluates
			so.StallTimeout = trainer.StallTimeout(hang)
		}
		sets[name] = trainer.Data{Dataset: ds, Options: *so, Eval: eval, Locate: s.AtShards}
		return nil
	}
	if err := add(spec.TrainName, s, false); err != nil || s.Train == nil {
		return sets, err
	}
	for name, d := range s.Train.Data {
		of, err := o.DataSpec(name, t)
		if err == nil {
			err = add(name, of, d.Eval)
		}
		if err != nil {
			return nil, err
		}
	}
	return sets, nil
}
