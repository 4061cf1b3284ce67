package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/cluster"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/spec"
)

func projectCommand() *cobra.Command {
	return quotaCommand(cluster.OfProject, "Make, list and remove projects of the cluster, and their quotas", `A project is the jobs whose names begin with its name and a slash. Tokens that are made for it (penstock token create --project) submit, see and stop no others, and jobs that they submit get
names of it. Its quotas are for all of its jobs together; without, only those of the owners of its tokens count. It needs a token of scope admin, or to be the head's user on its machine.`, "team-a")
}

func ownerCommand() *cobra.Command {
	return quotaCommand(cluster.OfOwner, "Set, list and remove the quotas of owners of tokens", `Owners have the jobs that are submitted with their tokens (penstock token create --owner; of a token without, it is the token's id). Where nothing else is set, 1,000 of an owner's jobs wait, any number
run, and its working directories take half of the head's room. Tokens of scope admin, and users of the head's machine, have no quotas. It needs a token of scope admin, or to be the head's user on its machine.`, "ada")
}

func quotaCommand(kind, short, long, name string) *cobra.Command {
	c := &cobra.Command{
		Use:     kind + " set | list | remove",
		Short:   short,
		Long:    long,
		Example: "  penstock " + kind + " list",
		Args:    noCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(quotaSetCommand(kind, name), quotaListCommand(kind), quotaRemoveCommand(kind, name))
	return c
}

func quotaSetCommand(kind, name string) *cobra.Command {
	var p whereabouts
	var waiting, running int64
	var packs, logs string
	c := &cobra.Command{
		Use:   "set NAME",
		Short: map[string]string{cluster.OfProject: "Make a project, or change its quotas", cluster.OfOwner: "Change the quotas of an owner"}[kind],
		Long: `Set says how much of the cluster ` + kind + ` NAME may have. What no flag names stays as it was; -1 is no limit. Jobs beyond --jobs-waiting are refused, those beyond --jobs-running wait; of a log
the end is kept.

` + whichCluster + "\n\n" + exitHelp,
		Example: "  penstock " + kind + " set " + name + " --jobs-waiting 200 --jobs-running 8 --pack-bytes 2GiB",
		Args:    args("NAME", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			q := cluster.Quota{Kind: kind, Name: a[0]}
			if cmd.Flags().Changed("jobs-waiting") {
				q.JobsWaiting = &waiting
			}
			if cmd.Flags().Changed("jobs-running") {
				q.JobsRunning = &running
			}
			for _, x := range []struct {
				flag, text string
				to         **int64
			}{{"pack-bytes", packs, &q.PackBytes}, {"log-bytes", logs, &q.LogBytes}} {
				if !cmd.Flags().Changed(x.flag) {
					continue
				}
				n := int64(-1)
				if x.text != "-1" {
					size, err := spec.ParseSize(x.text)
					if err != nil {
						return usage("%s set: --%s: %w", kind, x.flag, err)
					}
					n = int64(size)
				}
				*x.to = &n
			}
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			if err := client.SetQuota(cmd.Context(), q); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s is set\n", kind, a[0])
			return err
		},
	}
	p.flags(c)
	f := c.Flags()
	f.Int64Var(&waiting, "jobs-waiting", 0, "so many jobs wait")
	f.Int64Var(&running, "jobs-running", 0, "so many jobs run at once, or are looked for nodes for")
	f.StringVar(&packs, "pack-bytes", "", "so much room is for its working directories at the head, a `size` such as 2GiB")
	f.StringVar(&logs, "log-bytes", "", "so much is kept of what a process prints, a `size` such as 64MiB")
	return c
}

// quotaJSON is a quota in --json: null is the default, -1 no limit.
type quotaJSON struct {
	Name        string `json:"name"`
	JobsWaiting *int64 `json:"jobs_waiting"`
	JobsRunning *int64 `json:"jobs_running"`
	PackBytes   *int64 `json:"pack_bytes"`
	LogBytes    *int64 `json:"log_bytes"`
	Waiting     int64  `json:"waiting"`
	Running     int64  `json:"running"`
	Packed      int64  `json:"packed"`
}

func quotaListCommand(kind string) *cobra.Command {
	var p whereabouts
	var asJSON bool
	c := &cobra.Command{
		Use:     "list",
		Short:   map[string]string{cluster.OfProject: "List the projects", cluster.OfOwner: "List the owners whose quotas are set"}[kind],
		Long:    "List prints what is used of each quota. " + whichCluster + "\n\n" + exitHelp,
		Example: "  penstock " + kind + " list",
		Args:    args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			all, err := client.Quotas(cmd.Context())
			if err != nil {
				return err
			}
			number := func(n int64) string { return strconv.FormatInt(n, 10) }
			size := func(n int64) string { return exec.Bytes(n) }
			of := func(n *int64, text func(int64) string) string {
				switch {
				case n == nil:
					return "default"
				case *n < 0:
					return "no limit"
				}
				return text(*n)
			}
			t := newTable(cmd.OutOrStdout(), "NAME", "WAITING", "OF", "RUNNING", "OF", "PACKS", "OF", "LOGS")
			for _, q := range all {
				switch {
				case q.Kind != kind:
				case asJSON:
					if err := printJSON(cmd.OutOrStdout(), quotaJSON{q.Name, q.JobsWaiting, q.JobsRunning, q.PackBytes, q.LogBytes, q.Waiting, q.Running, q.Packed}); err != nil {
						return err
					}
				default:
					t.row(q.Name, number(q.Waiting), of(q.JobsWaiting, number), number(q.Running), of(q.JobsRunning, number), size(q.Packed), of(q.PackBytes, size), of(q.LogBytes, size))
				}
			}
			if asJSON {
				return nil
			}
			return t.Flush()
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print an object for each, one a line")
	return c
}

func quotaRemoveCommand(kind, name string) *cobra.Command {
	var p whereabouts
	c := &cobra.Command{
		Use:   "remove NAME",
		Short: map[string]string{cluster.OfProject: "Remove a project", cluster.OfOwner: "Have the defaults be an owner's quotas"}[kind],
		Long: map[string]string{cluster.OfProject: "Remove ends a project that has no tokens any more, and no jobs that are not over. ", cluster.OfOwner: "Remove has the defaults be the quotas of an owner. "}[kind] +
			whichCluster + "\n\n" + exitHelp,
		Example: "  penstock " + kind + " remove " + name,
		Args:    args("NAME", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			if err := client.RemoveQuota(cmd.Context(), kind, a[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s is removed\n", kind, a[0])
			return err
		},
	}
	p.flags(c)
	return c
}
