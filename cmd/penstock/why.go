package main

import (
	"strings"

	"github.com/penstock-data/penstock/cluster"
	"github.com/penstock-data/penstock/internal/term"
)

// whyLine is what of a job's reason people need: its first line.
func whyLine(why string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(why), "\n")
	return term.Line(line)
}

// whyNow is what a list says of a job: why it waits, or what its end was. That an attempt before the present one failed is no news while it runs.
func whyNow(j *cluster.JobStatus) string {
	if j.State == "starting" || j.State == "running" {
		return ""
	}
	return oneLine(whyLine(j.Why))
}

// whyAll is all that is known of a job's reason, in lines of its own; nothing where the list has said it.
func whyAll(j *cluster.JobStatus) string {
	why := strings.TrimSpace(j.Why)
	if why == "" || why == whyNow(j) {
		return ""
	}
	head := "why"
	if j.State == "starting" || j.State == "running" {
		head = "why it started again"
	}
	var b strings.Builder
	b.WriteString("\n" + head + ":\n")
	for line := range strings.Lines(why) {
		b.WriteString("  " + term.Line(strings.TrimRight(line, "\r\n")) + "\n")
	}
	return b.String()
}
