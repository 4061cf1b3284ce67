package main

import (
	"cmp"
	"regexp"
	"strings"

	"github.com/penstock-data/penstock/cluster"
)

var (
	// endedProcess is the end of a process as a reason of a job tells it: "memory: process (pid 12) was ended for its memory: ...". The class is what is kept of it.
	endedProcess = regexp.MustCompile(`(worker|memory|user): process(?: \(pid \d+\))? (.*)$`)
	// passedLimit is a detail of an end for memory.
	passedLimit = regexp.MustCompile(`limit (?:is|of) (.*)$`)
)

// before is where, in a reason to wait, that of the last attempt begins.
const before = " (before: "

// matters is what of a reason people need, in one line: that a limit was passed and what to do, or the last word of a process that failed. It keeps what it does not know.
func matters(why string) string {
	why = strings.TrimSpace(why)
	if waits, last, ok := strings.Cut(why, before); ok {
		return waits + before + matters(strings.TrimSuffix(last, ")")) + ")"
	}
	line, tail, _ := strings.Cut(why, "\n")
	at := endedProcess.FindStringSubmatchIndex(line)
	if at == nil {
		return printable(line)
	}
	where, class, how := line[:at[0]], line[at[2]:at[3]], line[at[4]:at[5]]
	how = strings.TrimPrefix(strings.TrimPrefix(how, "ended with "), "was ended by ")
	if class == "memory" {
		_, detail, _ := strings.Cut(how, ": ")
		if x := passedLimit.FindStringSubmatch(detail); x != nil {
			detail = "it passed its limit of " + x[1] + "; give it more with --memory"
		}
		how = cmp.Or(detail, "it "+how)
	} else if word := lastSaid(tail); word != "" {
		how += ": " + word
	}
	return printable(where + class + ": " + how)
}

// lastSaid is the line of a process's last ones that says why it ended: that of a panic, whose stack follows, else the last one.
func lastSaid(tail string) (said string) {
	for line := range strings.Lines(tail) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line
		}
		if line != "" {
			said = line
		}
	}
	return said
}

// whyNow is what a list says of a job: why it waits, or what its end was. That an attempt before the present one failed is no news while it runs.
func whyNow(j *cluster.JobStatus) string {
	if j.State == "starting" || j.State == "running" {
		return ""
	}
	return oneLine(matters(j.Why))
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
		b.WriteString("  " + printable(strings.TrimRight(line, "\r\n")) + "\n")
	}
	return b.String()
}
