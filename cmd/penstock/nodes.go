package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/cluster"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/term"
)

const graceUse = "what runs gets so long to end: more than train.preemption.grace of a training run that is to save"

func drainCommand() *cobra.Command {
	var p whereabouts
	var grace time.Duration
	var undo bool
	c := &cobra.Command{
		Use:   "drain NODE",
		Short: "Give a node of the cluster no new work, and move what runs there",
		Long: `Drain gives a node no new work, and ends what runs there: SIGTERM, and SIGKILL after --grace. It starts again on other nodes, which is no failure of a job. The node stays drained, also when it or
the head starts again, until --undo. NODE is its id or name. It needs a token of scope admin.

` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock drain n1 --grace 2m
  penstock drain n1 --undo`,
		Args: args("NODE", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			if grace < 0 {
				return usage("drain: --grace cannot be less than 0")
			}
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			s, err := client.Status(cmd.Context())
			if err != nil {
				return err
			}
			_, node, err := named(a[0], "no node", nil, s.Nodes)
			if err != nil {
				return err
			}
			who := node
			if a[0] != node {
				who += " (" + a[0] + ")"
			}
			if undo {
				if err := client.Undrain(cmd.Context(), node); err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "node %s gets work again\n", who)
				return err
			}
			if err := client.Drain(cmd.Context(), node, grace); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "node %s gets no new work; what runs there ends within %v (penstock status -w shows it)\n", who, grace)
			return err
		},
	}
	p.flags(c)
	c.Flags().DurationVar(&grace, "grace", stopGrace, graceUse)
	c.Flags().BoolVar(&undo, "undo", false, "let it have work again")
	return c
}

func stopCommand() *cobra.Command {
	var p whereabouts
	var grace time.Duration
	var all bool
	c := &cobra.Command{
		Use:   "stop JOB | NODE | --all",
		Short: "End a job, a node, or the whole cluster",
		Long: `Stop ends a job: SIGTERM, and SIGKILL after --grace. Or it ends a node with what it runs, which starts again elsewhere; the node is of the cluster no more, and joins again with a new token. Or, with --all, every
node that is attached and then the head: jobs stay on record, and go on when the head and nodes are there again. It waits until that is done. Where a node is lost, or does not say that it has ended, the exit code is 1, and
what ran there may go on.

A job is called by its id (j7), the id of its submission or, while it is not over, its name; a node by its id (n2) or name. Jobs need a token of
scope submit of their owner, or one of scope admin, which nodes need.

` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock stop j1
  penstock stop --all --grace 1m`,
		Args: func(cmd *cobra.Command, a []string) error {
			if all {
				return args("", 0, 0)(cmd, a)
			}
			return args("JOB or NODE", 1, 1)(cmd, a)
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			if grace < 0 {
				return usage("stop: --grace cannot be less than 0")
			}
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), grace+stopMore)
			defer cancel()
			if all {
				var last *cluster.Status
				var refused error
				err := client.Watch(ctx, true, func(s *cluster.Status) error { // first: the head ends when its watchers have heard of the end
					if last == nil {
						refused = client.StopAll(ctx, grace)
					}
					last = s
					return refused
				})
				if refused != nil {
					return refused
				}
				if ctx.Err() != nil {
					return fault.New(fault.Stalled, "the cluster has not ended within %v: see the log of its head", grace+stopMore)
				}
				if c := fault.CodeOf(err); err != nil && c != fault.Unavailable {
					return err
				}
				if last == nil {
					return err
				}
				if err := notEnded(last); err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "the nodes and the head have ended")
				return err
			}
			s, err := client.Status(ctx)
			if err != nil {
				return err
			}
			js, err := client.Jobs(ctx)
			if err != nil {
				return err
			}
			job, node, err := named(a[0], "no job and no node", js, s.Nodes)
			if err != nil {
				return err
			}
			what := "job " + job
			if job != "" {
				err = client.StopJob(ctx, job, grace)
			} else {
				what = "node " + node
				err = client.StopNode(ctx, node, grace)
			}
			if err != nil {
				return err
			}
			end := ""
			err = client.Watch(ctx, true, func(s *cluster.Status) error {
				if job != "" {
					js, err := client.Jobs(ctx, job)
					if err == nil && js[0].Over() {
						end, err = js[0].State, errOver
					}
					return err
				}
				for _, n := range s.Nodes {
					if n.ID == node && n.State != "left" {
						return nil
					}
				}
				end = "gone"
				return errOver
			})
			switch {
			case ctx.Err() != nil && cmd.Context().Err() == nil:
				return fault.New(fault.Stalled, "%s was told to end, and has not within %v", what, grace+stopMore)
			case err != nil && !errors.Is(err, errOver):
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is %s\n", what, end)
			return err
		},
	}
	p.flags(c)
	c.Flags().DurationVar(&grace, "grace", stopGrace, graceUse)
	c.Flags().BoolVar(&all, "all", false, "all nodes, and the head")
	return c
}

// notEnded is an error where nodes of a cluster that was stopped have not said that they ended: nobody is left who could end what runs there.
func notEnded(s *cluster.Status) error {
	var nodes []string
	for _, n := range s.Nodes {
		if n.State != "left" {
			nodes = append(nodes, fmt.Sprintf("%s (%s, %s, heard %s ago)", n.ID, n.Name, n.State, age(s.At.Sub(n.Seen))))
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return fault.New(fault.Unavailable, "the head has ended, and not all of its nodes have said that they did: %s. What a node ran may go on there: end its penstock join (SIGTERM) on its machine, which ends that too", strings.Join(nodes, ", "))
}

// stopMore is how much longer than its grace an end may take: nodes that are not heard are waited for.
const stopMore = 30 * time.Second

var errOver = errors.New("over")

// named finds the job or the node that is called so: by its id, else by its name, which must be that of one thing only, and not that of a node that is lost. none is what there is not, where nothing is called so.
func named(name, none string, jobs []cluster.JobStatus, nodes []cluster.NodeStatus) (job, node string, err error) {
	var found, lost []string
	for _, j := range jobs {
		if j.ID == name || j.Submission == name {
			return j.ID, "", nil
		}
		if j.Name == name && !j.Over() {
			job, node = j.ID, ""
			found = append(found, "job "+j.ID)
		}
	}
	for _, n := range nodes {
		if n.ID == name {
			return "", n.ID, nil
		}
		switch {
		case n.Name != name || n.State == "left":
		case n.State == "lost":
			lost = append(lost, n.ID)
		default:
			job, node = "", n.ID
			found = append(found, "node "+n.ID)
		}
	}
	switch {
	case len(found) == 1:
		return job, node, nil
	case len(found) == 0 && len(lost) > 0:
		id := lost[len(lost)-1]
		return "", "", fault.New(fault.NotFound, "node %s, which is called %s, is lost, and nothing runs there for the cluster: penstock join on its machine brings it back, penstock stop %s takes it out of the cluster", strings.Join(lost, " or "), name, id)
	case len(found) == 0:
		return "", "", fault.New(fault.NotFound, "%s is called %s (see penstock jobs, penstock status)", none, name)
	}
	return "", "", usage("%s is the name of %s: give an id", name, strings.Join(found, " and "))
}

func tokenCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "token create | list | revoke",
		Short: "Make, list and revoke the tokens of the cluster",
		Long: `Tokens let machines join (penstock-join...., once) and people in (penstock...., until they end or are revoked). They are secrets, shown when they are made and never again. It needs a token of scope admin, or to be the
head's user on its machine.`,
		Example: `  penstock token list`,
		Args:    noCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenRevokeCommand())
	return c
}

func tokenCreateCommand() *cobra.Command {
	var p whereabouts
	var join bool
	var a cluster.Access
	c := &cobra.Command{
		Use:   "create",
		Short: "Make a token, and print it",
		Long: `Create prints a token for one machine to join with, or with --scope one for people and scripts: read sees the cluster, its jobs and their logs; submit also runs jobs, which is to run
code as the user of the nodes, and stops its own; admin also stops those of others, drains and ends nodes, and makes tokens.

A job belongs to the owner of its token: give the tokens of one person, or of one service, the same --owner, and a new one goes on with the jobs of an older one. With --project the token
is for the jobs of one project only (penstock project): it submits, sees and stops no others.

` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock token create > join.token
  penstock token create --scope submit --name ci --ttl 720h
  penstock token create --scope submit --owner ada --project team-a`,
		Args: args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case join && a.Scope != "":
				return usage("token create: --join or --scope, not both")
			case a.Scope == "" && (a.Owner != "" || a.Project != ""):
				return usage("token create: --owner and --project go with --scope")
			case a.TTL < 0:
				return usage("token create: --ttl cannot be less than 0")
			}
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			var token string
			if a.Scope == "" {
				token, err = client.CreateJoinToken(cmd.Context(), a.Name, a.TTL)
			} else {
				token, err = client.CreateAccess(cmd.Context(), a)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	p.flags(c)
	f := c.Flags()
	f.BoolVar(&join, "join", false, "for a machine to join with, once; the default")
	f.StringVar(&a.Scope, "scope", "", "for people and scripts: read, submit or admin")
	f.DurationVar(&a.TTL, "ttl", 0, "it ends after so long; default: 1h to join, 2160h (90 days) for access")
	f.StringVar(&a.Name, "name", "", "of the token, for lists")
	f.StringVar(&a.Owner, "owner", "", "whose jobs are those that it submits; default: the token's alone")
	f.StringVar(&a.Project, "project", "", "the only `project` that it is for; default: all")
	return c
}

// tokenJSON is a token in --json.
type tokenJSON struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Scope   string    `json:"scope,omitempty"`
	Name    string    `json:"name,omitempty"`
	State   string    `json:"state"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"`
	UsedBy  string    `json:"used_by,omitempty"`
	// Authority is the pin that it carries; penstock ca status shows how that stands.
	Authority string `json:"authority"`
	Owner     string `json:"owner,omitempty"`
	Project   string `json:"project,omitempty"`
}

func tokenOf(t cluster.Token, now time.Time) tokenJSON {
	x := tokenJSON{t.ID, t.Kind, t.Scope, t.Name, "valid", t.Created, t.Expires, t.UsedBy, t.Authority, t.Owner, t.Project}
	switch {
	case t.Revoked:
		x.State = "revoked"
	case t.UsedBy != "":
		x.State = "used by " + t.UsedBy
	case !t.Expires.IsZero() && now.After(t.Expires):
		x.State = "ended"
	case t.Believed == "ends":
		x.State = "valid until penstock ca finish"
	case t.Believed == "replaced":
		x.State = "of a replaced authority"
	}
	return x
}

func tokenListCommand() *cobra.Command {
	var p whereabouts
	var asJSON bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the tokens, without their secrets",
		Long:  "List prints the tokens that there are, the oldest first, without their secrets, which nobody has. " + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock token list
  penstock token list --json`,
		Args: args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			all, err := client.Tokens(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			t := newTable(cmd.OutOrStdout(), "TOKEN", "FOR", "STATE", "AGE", "ENDS IN", "OWNER", "PROJECT", "NAME")
			for _, x := range all {
				j := tokenOf(x, now)
				if asJSON {
					if err := printJSON(cmd.OutOrStdout(), j); err != nil {
						return err
					}
					continue
				}
				ends := "-"
				if strings.HasPrefix(j.State, "valid") && !x.Expires.IsZero() {
					ends = age(x.Expires.Sub(now))
				}
				t.row(x.ID, cmp.Or(x.Scope, x.Kind), j.State, age(now.Sub(x.Created)), ends, cmp.Or(x.Owner, "-"), cmp.Or(x.Project, "-"), x.Name)
			}
			if asJSON {
				return nil
			}
			return t.Flush()
		},
	}
	p.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print an object for every token, one a line")
	return c
}

func tokenRevokeCommand() *cobra.Command {
	var p whereabouts
	c := &cobra.Command{
		Use:     "revoke TOKEN",
		Short:   "End a token now",
		Long:    "Revoke ends the token of this id (see penstock token list). A node that joined with it stays; penstock stop NODE ends that. " + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock token revoke 4vq2kd7xwo`,
		Args:    args("TOKEN", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			if err := client.RevokeToken(cmd.Context(), a[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "token %s is revoked\n", a[0])
			return err
		},
	}
	p.flags(c)
	return c
}

// clusterStatus prints the nodes, and what waits for them.
func clusterStatus(cmd *cobra.Command, p *whereabouts, watch, asJSON bool) error {
	client, err := p.dial(cmd.Context())
	if err != nil {
		return err
	}
	defer client.Close()
	out := cmd.OutOrStdout()
	screen, _ := out.(*term.Screen)
	first := true
	return client.Watch(cmd.Context(), watch, func(s *cluster.Status) error {
		if asJSON {
			return printJSON(out, statusOf(s))
		}
		var b strings.Builder
		if page := watch && term.IsTerminal(out); page {
			statusText(&b, s)
			return screen.Page(b.String())
		}
		if !first {
			b.WriteByte('\n')
		}
		first = false
		statusText(&b, s)
		_, err := fmt.Fprint(out, b.String())
		return err
	})
}

func statusText(b *strings.Builder, s *cluster.Status) {
	fmt.Fprintf(b, "cluster %s, penstock %s, %s\n", s.ID, s.Version, some(int64(len(s.Nodes)), "node"))
	t := newTable(b, "NODE", "NAME", "STATE", "CPUS", "GPUS", "MEMORY (USED, BOOKED, ALL)", "OTHER", "PROCESSES", "HEARD", "ADDRESS", "LABELS")
	for _, n := range s.Nodes {
		var other []string
		for _, k := range slices.Sorted(maps.Keys(n.Total.Named)) {
			other = append(other, fmt.Sprintf("%s %d/%d", k, n.Booked.Named[k], n.Total.Named[k]))
		}
		t.row(n.ID, n.Name, n.State, fmt.Sprintf("%g/%g", n.Booked.CPUs, n.Total.CPUs), fmt.Sprintf("%d/%d", n.Booked.GPUs, n.Total.GPUs),
			fmt.Sprintf("%s, %s, %s", exec.Bytes(n.Used.Memory), exec.Bytes(n.Booked.Memory), exec.Bytes(n.Total.Memory)), cmp.Or(strings.Join(other, " "), "-"), number(int64(n.Processes)),
			age(s.At.Sub(n.Seen))+" ago", cmp.Or(n.Address, "here"), pairText(n.Labels))
	}
	_ = t.Flush() // memory takes it
	if len(s.Waiting) == 0 {
		return
	}
	b.WriteByte('\n')
	t = newTable(b, "WAITS", "SINCE", "FOR")
	for _, w := range s.Waiting {
		t.row(w.Job, age(s.At.Sub(w.Since)), w.Why)
	}
	_ = t.Flush()
}

func pairText(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, ",")
}

// statusJSON is a cluster in --json.
type (
	statusJSON struct {
		ID      string        `json:"id"`
		Version string        `json:"version"`
		At      time.Time     `json:"at"`
		Nodes   []nodeJSON    `json:"nodes"`
		Waiting []waitingJSON `json:"waiting"`
	}
	nodeJSON struct {
		ID        string            `json:"id"`
		Name      string            `json:"name"`
		State     string            `json:"state"`
		Total     resourcesJSON     `json:"total"`
		Booked    resourcesJSON     `json:"booked"`
		Used      resourcesJSON     `json:"used"`
		Labels    map[string]string `json:"labels,omitempty"`
		Address   string            `json:"address,omitempty"`
		Version   string            `json:"version"`
		Processes int               `json:"processes"`
		Seen      time.Time         `json:"seen"`
	}
	waitingJSON struct {
		Job   string    `json:"job"`
		Why   string    `json:"why"`
		Since time.Time `json:"since"`
	}
	resourcesJSON struct {
		CPUs   float64          `json:"cpus"`
		GPUs   int              `json:"gpus"`
		Memory int64            `json:"memory"`
		Named  map[string]int64 `json:"named,omitempty"`
	}
)

func statusOf(s *cluster.Status) statusJSON {
	x := statusJSON{s.ID, s.Version, s.At, []nodeJSON{}, []waitingJSON{}}
	for _, n := range s.Nodes {
		x.Nodes = append(x.Nodes, nodeJSON{n.ID, n.Name, n.State, resourcesJSON(n.Total), resourcesJSON(n.Booked), resourcesJSON(n.Used), n.Labels, n.Address, n.Version, n.Processes, n.Seen})
	}
	for _, w := range s.Waiting {
		x.Waiting = append(x.Waiting, waitingJSON{w.Job, w.Why, w.Since})
	}
	return x
}
