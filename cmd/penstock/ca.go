package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/cluster"
)

func caCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "ca status | rotate | finish",
		Short: "Replace the authority that the cluster believes",
		Long: `The authority of a cluster is a key in the head's folder: it signs the certificates of the head, of nodes
and of the processes of jobs, and every token names it. Rotate makes another one, which signs from then on; both are
believed, nodes get new certificates at once, and nothing that runs is disturbed. Finish ends that: the one before is
believed no more, and tokens that name it are good no more. docs/cluster.md says more ("Rotating the authority"). It
needs a token of scope admin, or to be the head's user on its machine.`,
		Example: `  penstock ca status`,
		Args:    noCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(caStatusCommand(), caRotateCommand(), caFinishCommand())
	return c
}

// authorityJSON is an authority in --json.
type authorityJSON struct {
	Pin    string    `json:"pin"`
	State  string    `json:"state"`
	Begins time.Time `json:"begins,omitzero"`
	Ends   time.Time `json:"ends,omitzero"`
	Nodes  []string  `json:"nodes"`
	Tokens []string  `json:"tokens"`
}

func caStatusCommand() *cobra.Command {
	var p whereabouts
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the authorities, and who has certificates and tokens of which",
		Long: `Status prints an authority a line, the one that signs first: the hash of its certificate (as tokens have
it), until when that is good, and which nodes and tokens are of it. ` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock ca status
  penstock ca status --json`,
		Args: args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			as, err := client.Authorities(cmd.Context())
			if err != nil {
				return err
			}
			if !asJSON {
				return authorityTable(cmd.OutOrStdout(), as)
			}
			for _, a := range as {
				x := authorityJSON{a.Pin, a.State, a.Begins, a.Ends, append([]string{}, a.Nodes...), append([]string{}, a.Tokens...)}
				if err := printJSON(cmd.OutOrStdout(), x); err != nil {
					return err
				}
			}
			return nil
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print an object for every authority, one a line")
	return c
}

func authorityTable(w io.Writer, as []cluster.Authority) error {
	t := newTable(w, "AUTHORITY", "STATE", "SINCE", "UNTIL", "NODES", "TOKENS")
	for _, a := range as {
		t.row(a.Pin, a.State, day(a.Begins), day(a.Ends), someOf(a.Nodes), someOf(a.Tokens))
	}
	return t.Flush()
}

func day(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.DateOnly)
}

// someOf is a list in a line.
func someOf(ids []string) string {
	const most = 5
	s := strings.Join(ids[:min(len(ids), most)], ",")
	if more := len(ids) - most; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return cmp.Or(s, "-")
}

func caRotateCommand() *cobra.Command {
	var p whereabouts
	var now bool
	var wait time.Duration
	c := &cobra.Command{
		Use:   "rotate",
		Short: "Make another authority, which signs from now on; both are believed",
		Long: `Rotate makes another authority. It signs from now on, the key of the one before is destroyed, and both are
believed until penstock ca finish. Nodes that are attached have new certificates within seconds, with the processes that
they run; those that are away get theirs when they are back.

With --now it finishes too, as soon as all nodes have new certificates, or after --wait: for a key that others may have.
Nodes that have none by then are named, and join again. ` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock ca rotate --now   # somebody else may have the key
  penstock ca rotate`,
		Args: args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 || !now && cmd.Flags().Changed("wait") {
				return usage("ca rotate: --wait goes with --now, and cannot be less than 0")
			}
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			as, err := client.RotateAuthority(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if !now {
				_, err := fmt.Fprintf(out, "authority %s signs from now on\nwhen no node and no token that you need is left with the one before (penstock ca status): penstock ca finish\n", as[0].Pin)
				return err
			}
			if _, err = moved(cmd.Context(), client, wait); err != nil {
				return err
			}
			if as, err = client.FinishAuthority(cmd.Context(), true); err != nil {
				return err
			}
			return finished(out, as)
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&now, "now", false, "finish too: for a key that others may have")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "with --now, how long nodes have to get new certificates")
	return c
}

// moved waits until no node has a certificate of the authority before, or so long.
func moved(ctx context.Context, client *cluster.Client, most time.Duration) ([]cluster.Authority, error) {
	for end := time.Now().Add(most); ; {
		as, err := client.Authorities(ctx)
		if err != nil || len(as) < 2 || as[1].State != "ends" || len(as[1].Nodes) == 0 || !time.Now().Before(end) {
			return as, err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func caFinishCommand() *cobra.Command {
	var p whereabouts
	var force bool
	c := &cobra.Command{
		Use:   "finish",
		Short: "Believe only the new authority",
		Long: `Finish ends what penstock ca rotate began: only the new authority is believed. Certificates of the one before
are refused, and so are tokens that name it (penstock token list). Where nodes still have such certificates it is
refused, with their names, unless --force: they join again, with new tokens. ` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock ca finish`,
		Args:    args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			as, err := client.FinishAuthority(cmd.Context(), force)
			if err != nil {
				return err
			}
			return finished(cmd.OutOrStdout(), as)
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&force, "force", false, "also where nodes have certificates of the one before: they join again")
	return c
}

// finished says what the end of the authority before means, by how it stood.
func finished(w io.Writer, as []cluster.Authority) error {
	var b strings.Builder
	fmt.Fprintf(&b, "authority %s is the only one\n", as[0].Pin)
	if len(as) > 1 && as[1].State == "ends" {
		if nodes := as[1].Nodes; len(nodes) > 0 {
			fmt.Fprintf(&b, "these nodes join again, with new tokens (penstock token create): %s\n", strings.Join(nodes, ", "))
		}
		if n := len(as[1].Tokens); n > 0 {
			fmt.Fprintf(&b, "%s of the one before %s good no more (penstock token list): make others\n", some(int64(n), "token"), map[bool]string{true: "is", false: "are"}[n == 1])
		}
	}
	_, err := fmt.Fprint(w, b.String())
	return err
}
