package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/cluster"
)

// auditJSON is an entry in --json.
type auditJSON struct {
	At      time.Time `json:"at"`
	Who     string    `json:"who"`
	ID      string    `json:"id,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Project string    `json:"project,omitempty"`
	From    string    `json:"from,omitempty"`
	Action  string    `json:"action"`
	Kind    string    `json:"kind,omitempty"`
	Object  string    `json:"object,omitempty"`
	Detail  string    `json:"detail,omitempty"`
	Result  string    `json:"result"`
	Count   int64     `json:"count,omitempty"`
}

func auditCommand() *cobra.Command {
	var p whereabouts
	var q cluster.AuditQuery
	var since time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show who did what in the cluster",
		Long: `Audit prints who submitted and stopped jobs, drained, ended and joined nodes, made and revoked tokens, and changed projects and quotas: when, with which token or as which user of the head's machine,
from which address, on what, and with which result; the oldest first. What is refused is there too, with how often it was in a row. The last 100,000 things that were done are kept, and the last
10,000 that were refused: where there is no room, those of whoever has most of them go. It needs a token of scope admin.

` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock audit --since 24h
  penstock audit --job j1 --json`,
		Args: args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case since < 0:
				return usage("audit: --since cannot be less than 0")
			case since > 0:
				q.Since = time.Now().Add(-since)
			}
			client, err := p.dial(cmd.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			t := newTable(cmd.OutOrStdout(), "TIME", "WHO", "FROM", "ACTION", "ON", "RESULT", "DETAIL")
			if err := client.Audit(cmd.Context(), q, func(e *cluster.AuditEntry) error {
				if asJSON {
					return printJSON(cmd.OutOrStdout(), auditJSON(*e))
				}
				result := e.Result
				if e.Count > 1 {
					result = fmt.Sprintf("%s, %d times", e.Result, e.Count)
				}
				action := e.Action[strings.LastIndexByte(e.Action, '/')+1:] // of calls that only look: the method
				t.row(e.At.Format(time.DateTime), auditWho(e), cmp.Or(e.From, "-"), action, cmp.Or(strings.TrimSpace(e.Kind+" "+e.Object), "-"), result, e.Detail)
				return nil
			}); err != nil || asJSON {
				return err
			}
			return t.Flush()
		},
	}
	p.flags(c)
	f := c.Flags()
	f.DurationVar(&since, "since", 0, "only what happened in the last `time`, such as 1h; default: all")
	f.StringVar(&q.Job, "job", "", "only what was done to this `job`: its id, or that of its submission")
	f.StringVar(&q.Token, "token", "", "only what was done with this `token`, or to it: its id")
	f.BoolVar(&asJSON, "json", false, "print an object for every entry, one a line")
	return c
}

// auditWho is who did it: "token 4vq2kd7xwo (ada)".
func auditWho(e *cluster.AuditEntry) string {
	who := e.Who
	switch {
	case e.Who == "newcomer" && e.ID != "":
		who += " with token " + e.ID
	case e.ID != "":
		who += " " + e.ID
	}
	if e.Owner != "" && e.Owner != e.ID {
		who += " (" + e.Owner + ")"
	}
	return who
}
