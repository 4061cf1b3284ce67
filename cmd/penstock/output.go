package main

import (
	"io"
	"log"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/grpclog"

	"github.com/penstock-data/penstock/internal/term"
)

// onScreen has all that this program prints go through term.Out and term.Err: what its commands
// print, and what libraries log by themselves.
func onScreen(c *cobra.Command) {
	term.Out.Hide(&secrets)
	term.Err.Hide(&secrets)
	c.SetOut(term.Out)
	c.SetErr(term.Err)
	log.SetOutput(term.Err)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, term.Err)) // errors only
}

// colors is when what other programs print keeps its colours: auto, always or never.
type colors string

const colorUse = "colours of what a job or a worker prints: `when` is auto (on a terminal, unless NO_COLOR is set), always or never. All else that is no text is shown as an escape, such as \\x1b"

func (c *colors) String() string { return string(*c) }
func (c *colors) Type() string   { return "when" }

// Set implements pflag.Value.
func (c *colors) Set(s string) error {
	switch s {
	case "auto", "always", "never":
		*c = colors(s)
		return nil
	}
	return usage("want auto, always or never")
}

// colorFlag is for commands that show what others print, by others.
func colorFlag(c *cobra.Command) {
	when := colors("auto")
	c.Flags().Var(&when, "color", colorUse)
}

// others is stdout for what other programs print. Flush it.
func others(cmd *cobra.Command) *term.Writer {
	out := cmd.OutOrStdout()
	when := cmd.Flags().Lookup("color").Value.String()
	return term.Output(out, when == "always" || when == "auto" && term.Colors(out))
}
