package main

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/cluster"
)

// What matters of a reason is in the line that people see; all of it is where one job is looked at.
func TestWhy(t *testing.T) {
	for why, want := range map[string]string{
		"": "",
		"it needs 9 CPUs on one node; the most that one has is 2 CPUs":                                                                     "it needs 9 CPUs on one node; the most that one has is 2 CPUs",
		"memory: process (pid 21230) was ended for its memory: the kernel ended one of its processes at its limit of 256 MiB\nlast words":  "memory: it passed its limit of 256 MiB; give it more with --memory",
		"memory: process (pid 21230) was ended for its memory: it used 2.1 GiB, its limit is 2 GiB":                                        "memory: it passed its limit of 2 GiB; give it more with --memory",
		"memory: process (pid 21230) was ended for its memory":                                                                             "memory: it was ended for its memory",
		"user: process (pid 7) ended with exit code 2\n2026/11/22 begins\npanic: boom\n\ngoroutine 1 [running]:\nmain.main()\n\t/x.go:4\n": "user: exit code 2: panic: boom",
		"user: process (pid 7) ended with exit code 1\nTraceback (most recent call last):\nValueError: no\trows\n":                         "user: exit code 1: ValueError: no rows",
		"user: process (pid 7) ended with exit code 1":                                                                                     "user: exit code 1",
		"worker: process (pid 7) was ended by signal 11 (SIGSEGV)\nhello":                                                                  "worker: signal 11 (SIGSEGV): hello",
		"node 1 of the job (n2), user: process (pid 7) ended with exit code 3\nno such file":                                               "node 1 of the job (n2), user: exit code 3: no such file",
		"it needs 1 CPU; there is room for 0 now (before: user: process (pid 7) ended with exit code 3\na\nb)":                             "it needs 1 CPU; there is room for 0 now (before: user: exit code 3: b)",
		"node: node n1 was lost, or its agent was":                                                                                         "node: node n1 was lost, or its agent was",
		"preemption: node n2 drained\nprocess (pid 7) was ended by signal 15 (SIGTERM)":                                                    "preemption: node n2 drained",
	} {
		if got := matters(why); got != want {
			t.Errorf("of %q:\n%q, want\n%q", why, got, want)
		}
	}

	j := &cluster.JobStatus{State: "failed", Why: "user: process (pid 7) ended with exit code 1\nfirst\n\x1blast"}
	if got, want := whyAll(j), "\nwhy:\n  user: process (pid 7) ended with exit code 1\n  first\n   last\n"; whyNow(j) != "user: exit code 1:  last" || got != want {
		t.Errorf("%q, %q", whyNow(j), got)
	}
	j.State = "running"
	if all := whyAll(j); whyNow(j) != "" || !strings.Contains(all, "why it started again:\n  user: process (pid 7)") {
		t.Errorf("of one that runs: %q, %q", whyNow(j), all)
	}
	j.State, j.Why = "queued", "there are no nodes"
	if whyNow(j) != j.Why || whyAll(j) != "" {
		t.Errorf("told twice: %q, %q", whyNow(j), whyAll(j))
	}
}
