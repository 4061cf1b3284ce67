package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/internal/mask"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/ops/expr"
)

// secrets are the values of references in the specs that this process has read: text that it prints
// has *** in their place.
var secrets mask.Set

func init() { expr.Hide(&secrets) }

// dataOut is where a command writes rows of data: as they are, whatever they hold.
func dataOut(cmd *cobra.Command) io.Writer {
	if s, ok := cmd.OutOrStdout().(*term.Screen); ok {
		return s.Unmasked()
	}
	return cmd.OutOrStdout()
}
