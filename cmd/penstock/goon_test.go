package main

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/trainer/store"
)

// A run that was a job goes on as a job: its files were in a folder that is gone.
func TestGoOn(t *testing.T) {
	if got, want := goOn("s3://b/runs", "x", ""), "go on with: penstock resume x --storage s3://b/runs"; got != want {
		t.Errorf("%q", got)
	}
	for state, begins := range map[string]string{store.StateLost: "nobody runs it any more; it was job j7", store.Failed: "it was job j7", store.Preempted: "it was job j7", store.Finished: ""} {
		var b strings.Builder
		if err := printStatus(&b, runJSON{Name: "x", State: state, Job: "sha/j7"}, "s3://b/runs"); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		last := lines[len(lines)-1]
		if begins != "" && (!strings.HasPrefix(last, begins+" of a cluster (penstock jobs j7 ") || !strings.HasSuffix(last, "--name x --resume")) || strings.Contains(b.String(), "penstock resume") {
			t.Errorf("%s: %s", state, &b)
		}
	}
}
