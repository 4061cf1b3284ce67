package main

import (
	"testing"

	"github.com/penstock-data/penstock/trainer"
)

// Two clusters have jobs of the same names: a run that a job of one has begun is not taken for an attempt of the other's.
func TestJobName(t *testing.T) {
	for _, c := range []struct{ cluster, job, want string }{{"one", "j1", "one/j1"}, {"two", "j1", "two/j1"}, {"", "", ""}} {
		t.Setenv("PENSTOCK_JOB_CLUSTER", c.cluster)
		t.Setenv("PENSTOCK_JOB", c.job)
		t.Setenv("PENSTOCK_JOB_ATTEMPT", "1")
		var cfg trainer.Config
		if err := goesOn(t.Context(), &cfg); err != nil || cfg.Job != c.want {
			t.Errorf("%q, %v, want %q", cfg.Job, err, c.want)
		}
	}
}
