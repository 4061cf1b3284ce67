// Command penstock runs pipeline specs and looks into data.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/program"
	"github.com/penstock-data/penstock/internal/term"

	// The buckets that the stock binary opens. A program that uses the library
	// imports those it wants.
	_ "gocloud.dev/blob/azureblob"
	_ "gocloud.dev/blob/gcsblob"
	_ "gocloud.dev/blob/s3blob"
)

// version is set when the binary is built.
var version = "dev"

func init() { program.Stock(version) }

// Exit codes: part of the interface. exitHelp is how --help tells of them.
const (
	exitHelp = `Exit codes: 0 done; 1 the run failed, also where data is missing, changes meanwhile or may not be read; 2 a mistake
in the command line, in the spec, or in another file that one of them names (a state, a ledger; not the data), or it
cannot be read; also where data has other types than the spec wants, or is of a kind that this build does not read;
130 interrupted (SIGINT); 143 told to end (SIGTERM).`

	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitSignal = 128 // and the number of the signal

	exitPreempted = 75 // of a training run, or a run on several nodes: EX_TEMPFAIL, start it again
)

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	error
}

func (e exitError) Unwrap() error { return e.error }

// sameSignal is how long after a signal another one is the same, sent again: timeout(1) signals a process and then its group, and what is between us and a terminal passes on what we have from that as well.
const sameSignal = 500 * time.Millisecond

func main() { os.Exit(run()) }

func run() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		cancel(signaled{s.(syscall.Signal)})
		window := time.After(sameSignal)
		for {
			select {
			case again := <-signals:
				if again == s {
					continue
				}
				signal.Stop(signals)
				if p, err := os.FindProcess(os.Getpid()); err == nil {
					_ = p.Signal(again)
				}
			case <-window:
				signal.Stop(signals) // a second one ends the process at once
			}
			return
		}
	}()
	defer term.Err.Flush()
	defer term.Out.Flush()
	err := root().ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var s signaled
	if errors.As(context.Cause(ctx), &s) {
		fmt.Fprintln(term.Err, "penstock:", s)
		return exitSignal + int(s.Signal)
	}
	var t told
	if !errors.As(err, &t) {
		fmt.Fprintln(term.Err, "penstock:", secrets.Text(err.Error()))
	}
	var u usageError
	if errors.As(err, &u) {
		return exitUsage
	}
	var x exitError
	if errors.As(err, &x) {
		return x.code
	}
	if c := fault.CodeOf(err); c == fault.Invalid || c == fault.Unsupported {
		return exitUsage
	}
	return exitFailed
}

// signaled is why everything ends when a signal came.
type signaled struct{ syscall.Signal }

func (s signaled) Error() string {
	if s.Signal == syscall.SIGTERM {
		return "told to end"
	}
	return "interrupted"
}

// Is makes it a cancellation.
func (s signaled) Is(target error) bool { return target == context.Canceled }

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "penstock",
		Short: "Feed trainers: lazy Arrow datasets, run as a streaming graph within a memory budget",
		Long: `Penstock reads Parquet, CSV, JSON, Arrow and text from disk or buckets, filters and maps it
column by column within a fixed memory budget, and writes it or feeds it to training loops.

Where a command takes paths they are files, folders and globs, local or of a bucket: s3://bucket/trips/**/*.parquet.

` + exitHelp,
		Example: `  penstock show -n 5 examples/data/flights/
  penstock run examples/flights.yaml
  penstock explain --analyze examples/flights.yaml`,
		Version:       version,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	onScreen(c)
	c.SetFlagErrorFunc(flagError)
	c.SetHelpCommand(helpCommand())
	c.AddCommand(versionCommand(), completionCommand())
	group := func(id, title string, all ...*cobra.Command) {
		c.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, sub := range all {
			sub.GroupID = id
			c.AddCommand(sub)
		}
	}
	group("pipelines", "Pipelines and data:", runCommand(), batchesCommand(), replayCommand(), explainCommand(), validateCommand(), schemaCommand(), showCommand(), countCommand())
	group("training", "Training:", trainCommand(), resumeCommand(), runsCommand(), statusCommand(), checkpointsCommand())
	group("cluster", "Cluster:", startCommand(), joinCommand(), submitCommand(), jobsCommand(), logsCommand(), stopCommand(), drainCommand(), tokenCommand(), ownerCommand(), projectCommand(), auditCommand(), caCommand())
	group("programs", "For other programs:", dataCommand())
	return c
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "penstock", version)
			return err
		},
	}
}
