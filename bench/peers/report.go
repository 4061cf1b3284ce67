package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// machine says where figures come from.
type machine struct {
	Date, Commit, Model, Kernel, Go, Load, Versions string
	Cores, Rounds                                   int
	Memory                                          int64
}

func describe(python string) machine {
	words := func(args ...string) string {
		b, err := command(args...).Output()
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(b))
	}
	m := machine{Date: time.Now().UTC().Format(time.DateOnly), Cores: runtime.NumCPU(), Go: runtime.Version()}
	m.Commit = words("git", "describe", "--always", "--dirty")
	m.Model = words("sh", "-c", `awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo`)
	m.Kernel = words("uname", "-sr")
	m.Load, _, _ = strings.Cut(words("cat", "/proc/loadavg"), " ")
	fmt.Sscan(words("sh", "-c", `awk '/MemTotal/ {print $2}' /proc/meminfo`), &m.Memory)
	m.Memory >>= 20
	m.Versions = words(python, "-c", `
import sys
from importlib.metadata import version, PackageNotFoundError
def v(n):
    try: return n + " " + version(n)
    except PackageNotFoundError: return n + " not installed"
print("Python " + sys.version.split()[0] + ", " + ", ".join(v(n) for n in "pyarrow duckdb polars daft torch torchdata ray datasets mosaicml-streaming grain numpy".split()))`)
	return m
}

var unsafeName = regexp.MustCompile(`[^a-z0-9]+`)

func (m machine) slug() string {
	return m.Date + "-" + strings.Trim(unsafeName.ReplaceAllString(strings.ToLower(m.Model), "-"), "-") + fmt.Sprintf("-%d", m.Cores)
}

// report writes the tables and plots of all workloads that were measured. A quick run goes beside its
// data, so that it never replaces figures.
func (r *results) report(out string, ws []workload) error {
	if r.Quick {
		out = filepath.Join(os.TempDir(), "penstock-peers-quick")
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	base := r.Machine.slug()
	var body strings.Builder
	var goals []goal
	plot := func(name, svg string) error {
		file := base + "-" + name + ".svg"
		fmt.Fprintf(&body, "\n![%s](%s)\n", name, file)
		return os.WriteFile(filepath.Join(out, file), []byte(svg), 0o644)
	}
	for _, m := range r.ordered(ws) {
		if m.Name == "scan" {
			goals = append(goals, scanGoals(m)...)
			scanTables(&body, m)
			if err := plot("scan", scanPlot(m)); err != nil {
				return err
			}
			continue
		}
		goals = append(goals, m.w.goals(m)...)
		m.table(&body)
		if err := plot(m.Name, m.plot()); err != nil {
			return err
		}
	}
	var b strings.Builder
	r.heading(&b)
	b.WriteString("\n## Goals\n\n| what | figure | A/A | goal | met |\n|---|---|---|---|---|\n")
	for _, g := range goals {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", g.what, g.figure, g.aa, g.want, g.met)
	}
	file := filepath.Join(out, base+".md")
	if err := os.WriteFile(file, []byte(b.String()+body.String()), 0o644); err != nil {
		return err
	}
	fmt.Println(file)
	return nil
}

// ordered are the workloads that were measured, in the order of the suite.
func (r *results) ordered(ws []workload) (ms []*measured) {
	for _, m := range r.Workloads {
		if m.Name == "scan" {
			ms = append(ms, m)
		}
	}
	for i := range ws {
		for _, m := range r.Workloads {
			if m.Name == ws[i].name {
				m.w = &ws[i]
				ms = append(ms, m)
			}
		}
	}
	return ms
}

func (r *results) heading(b *strings.Builder) {
	m := r.Machine
	fmt.Fprintf(b, "# Penstock beside its peers\n\n%s, commit %s, %d cores, %s, %d GiB, %s, %s, load %s at the start. %s.\n\n", m.Date, m.Commit, m.Cores, m.Model, m.Memory, m.Kernel, m.Go, m.Load, m.Versions)
	command := "make bench-peers"
	if r.Quick {
		command += " QUICK=1"
	}
	fmt.Fprintf(b, "Made by `%s`; scan files have %g of the rows of the study that the goals come from, other workloads %s. %d rounds, engines in turn (the order is turned round every second one), files in the page cache.\n\n",
		command, r.Scale, map[bool]string{true: "their full size", false: fmt.Sprintf("%.2g of their full size", min(1, 4*r.Scale))}[r.Scale >= 0.25], m.Rounds)
	b.WriteString("Each case is a process of its own. *wall* and *CPU* (user and system, all processes of the tree) are from the end of its imports (and of `ray.init`) to the last row, which the consumer counts; medians of the rounds, min-max of wall beside. " +
		"*peak* is the largest sum of proportional memory (PSS) of the tree, sampled every 50 ms (slower where that takes over 5 % of a core), or the high-water mark of its main process if that is more.\n\n" +
		"Ratios are Penstock / the other, the median of the rounds: below 1 Penstock takes less. *A/A* is the largest factor between two runs of Penstock in one round; a ratio within it says nothing and is marked `<= A/A`. " +
		"What is printed of Penstock is rounded up where less is better, of others down. (once): too slow for more than one round. (cut): stopped before the end; its rates are valid, its totals are not. Totals of a workload must agree: a case is marked that gave another one than Penstock, or where most peers gave another one, Penstock is.\n\n" +
		"Differences from the study: the files are smaller; its file written by parquet-go is replaced by one of Polars.\n")
	var old []string
	for _, w := range r.Workloads {
		if w.Commit != m.Commit {
			old = append(old, fmt.Sprintf("%s at %s on %s", w.Name, w.Commit, w.At.UTC().Format(time.DateOnly)))
		}
	}
	if old != nil {
		fmt.Fprintf(b, "\nMeasured by other commits: %s.\n", strings.Join(old, ", "))
	}
}

// table is a workload's section.
func (m *measured) table(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n| case |", m.w.title, m.w.what)
	for _, c := range m.w.columns {
		fmt.Fprintf(b, " %s |", c.title)
	}
	for _, c := range m.w.ratios {
		fmt.Fprintf(b, " ours / it, %s |", strings.TrimSuffix(c.title, " s"))
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(m.w.columns)+len(m.w.ratios)) + "\n")
	for _, c := range m.Cases {
		if len(c.Runs) == 0 {
			fmt.Fprintf(b, "| %s | %s |%s\n", c.Name, orDash(c.Err), strings.Repeat(" |", len(m.w.columns)+len(m.w.ratios)-1))
			continue
		}
		own := c.ours()
		fmt.Fprintf(b, "| %s |", c.label())
		for i, col := range m.w.columns {
			vs := values(c.Runs, col)
			text := figure(median(vs), col, own)
			if i == 0 && len(vs) > 1 && !math.IsNaN(median(vs)) {
				text += fmt.Sprintf(" (%s-%s)", figure(slices.Min(vs), col, own), figure(slices.Max(vs), col, own))
			}
			fmt.Fprintf(b, " %s |", text)
		}
		for _, col := range m.w.ratios {
			if c.Name == "penstock" || c.Err != "" {
				b.WriteString(" |")
			} else if c.Name == "penstock again" {
				fmt.Fprintf(b, " A/A %s |", aa(m.spread(cost(col))))
			} else {
				fmt.Fprintf(b, " %s |", m.against("penstock", c.Name, col).text())
			}
		}
		b.WriteString("\n")
	}
}

// label is the name of a case with what must be known about its figures.
func (c *caseResult) label() string {
	s := c.Name
	if len(c.Runs) == 1 {
		s += " (once)"
	}
	if c.Runs[0]["cut"] > 0 {
		s += " (cut)"
	}
	if c.Err != "" {
		s += " **" + c.Err + "**"
	}
	return s
}

// figure prints a value: not in favour of ours.
func figure(v float64, c column, own bool) string {
	if own == c.rate {
		return down(v, c.digits)
	}
	return up(v, c.digits)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return strings.ReplaceAll(s, "|", "/")
}
