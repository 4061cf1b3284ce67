package main

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/cluster"
)

// What matters of a reason is in the line that people see; all of it is where one job is looked at.
func TestWhy(t *testing.T) {
	j := &cluster.JobStatus{State: "failed", Why: "user: exit code 1: \x1blast\nprocess (pid 7) ended with exit code 1\nfirst\n\x1blast"}
	if got, want := whyAll(j), "\nwhy:\n  user: exit code 1: \\x1blast\n  process (pid 7) ended with exit code 1\n  first\n  \\x1blast\n"; whyNow(j) != `user: exit code 1: \x1blast` || got != want {
		t.Errorf("%q, %q", whyNow(j), got)
	}
	j.State = "running"
	if all := whyAll(j); whyNow(j) != "" || !strings.Contains(all, "why it started again:\n  user: exit code 1: \\x1blast\n  process (pid 7)") {
		t.Errorf("of one that runs: %q, %q", whyNow(j), all)
	}
	j.State, j.Why = "queued", "there are no nodes"
	if whyNow(j) != j.Why || whyAll(j) != "" {
		t.Errorf("told twice: %q, %q", whyNow(j), whyAll(j))
	}
}
