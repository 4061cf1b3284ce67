package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/cell"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/trainer/store"
)

const runArg = `RUN is a name in --storage, or the folder or URL of the run.`

func runsCommand() *cobra.Command {
	var storage string
	var asJSON bool
	c := &cobra.Command{
		Use:   "runs",
		Short: "List training runs: where they stand, the last one first",
		Long: `Runs lists the training runs of a storage. A run is lost when the process that controlled it is gone without a word; penstock resume goes on with
it, as with one that failed or was preempted. (The process is looked for on this machine; on another one it is lost when it has said nothing for a while.)

` + exitHelp,
		Example: `  penstock runs
  penstock runs --storage penstock-runs --json`,
		Args: args("", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := store.List(cmd.Context(), storage)
			if err != nil {
				return err
			}
			if asJSON {
				for _, s := range all {
					if err := printJSON(cmd.OutOrStdout(), runOf(s)); err != nil {
						return err
					}
				}
				return nil
			}
			if len(all) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "penstock: no runs in %s\n", storage)
				return nil
			}
			t := newTable(cmd.OutOrStdout(), "NAME", "STATE", "ATTEMPT", "CHECKPOINT", "AGE", "LAST ERROR")
			var lost []store.Summary
			now := time.Now()
			for _, s := range all {
				if s.Err != nil {
					t.row(s.Name, "unknown", "", "", "", oneLine(s.Err.Error()))
					continue
				}
				text := ""
				if e := s.Status.Error; e != nil && s.State != store.Finished {
					text = oneLine(e.Text)
				}
				t.row(s.Name, stateText(s.State, s.Status.Error), number(int64(s.Status.Attempt)), number(int64(s.Status.Checkpoint)), age(now.Sub(s.Created)), text)
				if s.State == store.StateLost {
					lost = append(lost, s)
				}
			}
			if err := t.Flush(); err != nil {
				return err
			}
			for _, s := range lost {
				fmt.Fprintf(cmd.ErrOrStderr(), "penstock: nobody runs %s any more; %s\n", s.Name, goOn(storage, s.Name, s.Status.Job))
			}
			return nil
		},
	}
	storageFlag(c, &storage)
	c.Flags().BoolVar(&asJSON, "json", false, "print an object for every run, one a line")
	return c
}

// runJSON is a run in --json.
type runJSON struct {
	Name        string         `json:"name"`
	State       string         `json:"state"`
	Created     time.Time      `json:"created,omitzero"`
	Updated     time.Time      `json:"updated,omitzero"`
	Workers     int            `json:"workers,omitempty"`
	Attempt     int            `json:"attempt"`
	Reports     int64          `json:"reports"`
	Checkpoint  int            `json:"checkpoint"`
	Metrics     store.Metrics  `json:"metrics,omitempty"`
	Failures    map[string]int `json:"failures,omitempty"`
	Preemptions int            `json:"preemptions,omitempty"`
	Reason      string         `json:"reason,omitempty"`
	Error       *store.Error   `json:"error,omitempty"`
	Host        string         `json:"host,omitempty"`
	PID         int            `json:"pid,omitempty"`
	Job         string         `json:"job,omitempty"` // of a cluster, CLUSTER/JOB
	URL         string         `json:"url,omitempty"`
	Command     []string       `json:"command,omitempty"`
}

func runOf(s store.Summary) runJSON {
	if s.Err != nil {
		return runJSON{Name: s.Name, State: "unknown", Error: &store.Error{Code: fault.CodeOf(s.Err).String(), Text: s.Err.Error()}}
	}
	x := s.Status
	workers := s.Workers
	if x.Workers > 0 { // of the last attempt
		workers = x.Workers
	}
	return runJSON{Name: s.Name, State: s.State, Created: s.Created, Updated: x.Updated, Workers: workers, Attempt: x.Attempt, Reports: x.Reports, Checkpoint: x.Checkpoint,
		Metrics: x.Metrics, Failures: x.Failures, Preemptions: x.Preemptions, Reason: x.Reason, Error: x.Error, Host: x.Host, PID: x.PID, Job: x.Job}
}

func statusCommand() *cobra.Command {
	var storage string
	var asJSON, watch bool
	var p whereabouts
	c := &cobra.Command{
		Use:   "status [RUN]",
		Short: "Print where the cluster stands, or a training run",
		Long: `Status prints the nodes of the cluster with what is booked of them, and the jobs that wait and for what; with -w again whenever it changes. Used memory is what was measured, booked is what jobs asked for.
With RUN it prints the state of a training run instead, its attempts and failures, its last checkpoint and the metrics of its last report. ` + runArg + "\n\n" + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock status
  penstock status first
  penstock status penstock-runs/first --json`,
		Args: args("RUN", 0, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(a) == 0 {
				return clusterStatus(cmd, &p, watch, asJSON)
			}
			if watch || p != (whereabouts{}) {
				return usage("status: --watch, --cluster and --token-file are for the cluster, not for a RUN")
			}
			r, in, err := openRun(cmd, a[0], storage)
			if err != nil {
				return err
			}
			defer r.Close()
			rec := r.Record()
			s := store.Summary{Name: rec.Name, Created: rec.Created, Workers: rec.Workers, State: store.Queued}
			switch s.Status, err = r.Status(cmd.Context()); {
			case err == nil:
				s.State = s.Status.Show(time.Now())
			case fault.CodeOf(err) != fault.NotFound:
				return err
			}
			x := runOf(s)
			x.URL, x.Command = r.URL(), rec.Command
			if rec.Spec != "" { // what penstock resume runs
				started, err := recorded(rec)
				if err != nil {
					return err
				}
				x.Command = started.argv
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), x)
			}
			return printStatus(cmd.OutOrStdout(), x, in)
		},
	}
	storageFlag(c, &storage)
	p.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print it as one JSON object")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "of the cluster: print it again whenever it changes")
	return c
}

func printStatus(out io.Writer, x runJSON, storage string) error {
	now := time.Now()
	t := newTable(out)
	t.row("run", x.Name)
	state := stateText(x.State, x.Error)
	reason := firstLine(x.Reason)
	if e := x.Error; reason != "" && reason != state && (e == nil || firstLine(e.Text) != reason) { // else it is told below
		state += " (" + reason + ")"
	}
	t.row("state", state)
	t.row("folder", x.URL)
	if len(x.Command) > 0 {
		t.row("command", oneLine(shellLine(x.Command)))
	}
	t.row("workers", number(int64(x.Workers)))
	t.row("created", fmt.Sprintf("%s, %s ago", x.Created.Local().Format(time.DateTime), age(now.Sub(x.Created))))
	if !x.Updated.IsZero() {
		t.row("last word", fmt.Sprintf("%s ago, of process %d on %s", age(now.Sub(x.Updated)), x.PID, x.Host))
	}
	if x.Job != "" {
		t.row("job", filepath.Base(x.Job))
	}
	t.row("attempts", number(int64(x.Attempt)))
	t.row("failures", failuresText(x.Failures))
	if x.Preemptions > 0 {
		t.row("preemptions", number(int64(x.Preemptions)))
	}
	t.row("reports", count(x.Reports))
	t.row("last checkpoint", lastNumber(x.Checkpoint))
	if len(x.Metrics) > 0 {
		t.row("last metrics", metricsText(x.Metrics))
	}
	if x.Error != nil && x.Error.Code != fault.Canceled.String() {
		what := "last error"
		if x.State == store.Running || x.State == store.Finished {
			what = "recovered from"
		}
		t.row(what, firstLine(x.Error.Text))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	switch x.State {
	case store.StateLost:
		fmt.Fprintf(out, "nobody runs it any more; %s\n", goOn(storage, x.Name, x.Job))
	case store.Failed, store.Preempted:
		fmt.Fprintln(out, goOn(storage, x.Name, x.Job))
	}
	return nil
}

// stateText is a state for people: who interrupts a run does not see it as failed.
func stateText(state string, err *store.Error) string {
	if state == store.Failed && err != nil && err.Code == fault.Canceled.String() {
		return "interrupted"
	}
	return state
}

func checkpointsCommand() *cobra.Command {
	var storage, best, order string
	var asJSON bool
	c := &cobra.Command{
		Use:   "checkpoints RUN",
		Short: "List the checkpoints of a training run, or find the best one",
		Long: `Checkpoints lists the checkpoints that a run has kept, the last one last: files, size, and the metrics that were reported with them. With --best it
prints the best one by a metric. Their files are in FOLDER, below the folder of the run. ` + runArg + "\n\n" + exitHelp,
		Example: `  penstock checkpoints first
  penstock checkpoints first --best loss
  penstock checkpoints penstock-runs/first --best loss --order max --json`,
		Args: args("RUN", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			given := cmd.Flags().Changed
			if given("order") && (!given("best") || order != "min" && order != "max") {
				return usage("checkpoints: --order is min or max, and goes with --best METRIC")
			}
			r, _, err := openRun(cmd, a[0], storage)
			if err != nil {
				return err
			}
			defer r.Close()
			all, err := r.Checkpoints(cmd.Context())
			if err != nil {
				return err
			}
			if given("best") {
				m, ok := store.Best(all, best, order)
				if !ok {
					return fault.New(fault.NotFound, "no checkpoint of %s has a metric %q; have %s", r.Name(), best, metricNames(all))
				}
				all = []store.Manifest{*m}
			}
			if asJSON {
				for _, m := range all {
					if err := printJSON(cmd.OutOrStdout(), checkpointOf(r, m)); err != nil {
						return err
					}
				}
				return nil
			}
			if len(all) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "penstock: %s has no checkpoints\n", r.Name())
				return nil
			}
			t := newTable(cmd.OutOrStdout(), "NUMBER", "REPORT", "AGE", "FILES", "SIZE", "FOLDER", "METRICS")
			now := time.Now()
			for _, m := range all {
				t.row(number(int64(m.Number)), number(m.Report), age(now.Sub(m.Time)), number(int64(len(m.Files))), exec.Bytes(m.Bytes), checkpointFolder(&m), metricsText(m.Metrics))
			}
			return t.Flush()
		},
	}
	storageFlag(c, &storage)
	c.Flags().StringVar(&best, "best", "", "print only the best one by this `metric`")
	c.Flags().StringVar(&order, "order", "min", "what is best: min or max")
	c.Flags().BoolVar(&asJSON, "json", false, "print an object for every checkpoint, one a line")
	return c
}

// checkpointJSON is a checkpoint in --json.
type checkpointJSON struct {
	Number  int           `json:"number"`
	Report  int64         `json:"report"`
	Attempt int           `json:"attempt"`
	Time    time.Time     `json:"time"`
	World   int           `json:"world"`
	Metrics store.Metrics `json:"metrics,omitempty"`
	Bytes   int64         `json:"bytes"`
	Files   []string      `json:"files"`
	Run     string        `json:"run"`    // its folder
	Folder  string        `json:"folder"` // below it
	Data    []string      `json:"data,omitempty"`
}

func checkpointOf(r *store.Run, m store.Manifest) checkpointJSON {
	x := checkpointJSON{Number: m.Number, Report: m.Report, Attempt: m.Attempt, Time: m.Time, World: m.World, Metrics: m.Metrics, Bytes: m.Bytes, Files: []string{},
		Run: r.URL(), Folder: checkpointFolder(&m), Data: slices.Sorted(maps.Keys(m.Data))}
	for _, f := range m.Files {
		x.Files = append(x.Files, f.Path)
	}
	return x
}

// checkpointFolder is where the files of a checkpoint are, below the run's folder.
func checkpointFolder(m *store.Manifest) string { return "checkpoints/" + m.Try + "/files" }

func storageFlag(c *cobra.Command, storage *string) {
	c.Flags().StringVar(storage, "storage", defaultStorage, "folder or bucket `URL` that runs are in")
}

// openRun opens a run, and says in which storage it is.
func openRun(cmd *cobra.Command, run, storage string) (*store.Run, string, error) {
	in, name, err := runAt(run, storage)
	if err != nil {
		return nil, "", err
	}
	r, err := store.Open(cmd.Context(), in, name)
	return r, in, err
}

// table aligns columns. It is written by Flush.
type table struct {
	*tabwriter.Writer // to lines
	lines             *strings.Builder
	out               io.Writer
}

func newTable(w io.Writer, heads ...string) table {
	var lines strings.Builder
	t := table{tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0), &lines, w}
	if len(heads) > 0 {
		t.row(heads...)
	}
	return t
}

// row adds a row. All have the same number of cells: a column ends where a row has none. What is in
// a cell moves none of the others.
func (t table) row(cells ...string) {
	lines := make([]string, len(cells))
	for i, text := range cells {
		lines[i] = term.Line(text)
	}
	fmt.Fprintln(t, strings.Join(lines, "\t"))
}

// Flush writes the rows, without blanks at their ends.
func (t table) Flush() error {
	if err := t.Writer.Flush(); err != nil {
		return err
	}
	var b strings.Builder
	for line := range strings.Lines(t.lines.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	_, err := io.WriteString(t.out, b.String())
	return err
}

func printJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fault.New(fault.Internal, "%w", err)
	}
	_, err = fmt.Fprintf(w, "%s\n", term.JSON(b))
	return err
}

// oneLine is a text that fits a cell: the begin of its first line.
func oneLine(text string) string {
	line, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = term.Line(line)
	if cell.Width(line) > 100 {
		return cell.Text(line, 100)
	}
	if rest != "" {
		line += " ..."
	}
	return line
}

// number is a number in a cell; nothing for 0.
func number(n int64) string {
	if n == 0 {
		return "-"
	}
	return count(n)
}

func lastNumber(n int) string {
	if n == 0 {
		return "none"
	}
	return count(int64(n))
}

// age is a time in its two largest units.
func age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// metricsText lists metrics by name.
func metricsText(m map[string]float64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %.6g", name, m[name]))
	}
	return oneLine(strings.Join(parts, ", "))
}

// failuresText counts the failures of a run by what they were.
func failuresText(f map[string]int) string {
	names := map[string]string{"worker": "of a worker", "hang": "that hung", "memory": "out of memory", "fatal": "that ended the run"}
	var parts []string
	for _, class := range slices.Sorted(maps.Keys(f)) {
		if f[class] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", f[class], cmp.Or(names[class], class)))
		}
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// metricNames lists the metrics of checkpoints.
func metricNames(all []store.Manifest) string {
	names := map[string]bool{}
	for _, m := range all {
		for name := range m.Metrics {
			names[name] = true
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}
