package sink

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
)

// Another process of the job commits, and takes the job's files away, when this one has seen that nobody did and has decided nothing yet: this one finds that commit.
func TestCommittedBetween(t *testing.T) {
	o := Options{Path: filepath.Join(t.TempDir(), "out"), Job: "a", Mode: ModeAppend, TargetBytes: 1 << 20}
	run := runSpec{Data: data{Splits: 3, Rows: 50, Bad: -1}, Workers: 1, Batch: 50, Alloc: memtest.New(t)}
	if err := run.run(t.Context(), newFiles(t, o)); err != nil {
		t.Fatal(err)
	}
	o.Job = "b"
	tidy := numbered(1, "tidy")
	s, others := newFiles(t, o), 0
	s.hook = func(step, rel string) {
		switch {
		case step == "put" && strings.HasSuffix(rel, receiptName(0)): // what Commit does first is to tidy up after a
			if err := os.Remove(filepath.Join(recordsDir(o.Path), tidy)); err != nil {
				t.Error(err)
			}
		case step == "was put" && rel == tidy: // the last that it changes before it decides
			others++
			if err := run.run(t.Context(), newFiles(t, o)); err != nil {
				t.Errorf("the other process: %v", err)
			}
		}
	}
	if err := run.run(t.Context(), s); err != nil {
		t.Errorf("%d others committed: %v", others, err)
	}
	if others != 1 || s.result == nil {
		t.Errorf("%d others committed, result %v", others, s.result)
	}
	exact(t, o.Path, run.Data, run.Data)
	leftovers(t, o.Path)
}

// The same while this one begins, with the job's record just written or read: it does its parts for nothing, and finds the commit.
func TestCommittedWhileItBegins(t *testing.T) {
	for _, at := range []string{"put", "was put"} {
		o := Options{Path: filepath.Join(t.TempDir(), "out"), Job: "b", Mode: ModeAppend, TargetBytes: 1 << 20}
		run := runSpec{Data: data{Splits: 3, Rows: 50, Bad: -1}, Workers: 1, Batch: 50, Alloc: memtest.New(t)}
		s, others := newFiles(t, o), 0
		s.hook = func(step, rel string) {
			if step == at && strings.HasSuffix(rel, "/job.json") && others == 0 {
				others++
				if err := run.run(t.Context(), newFiles(t, o)); err != nil {
					t.Errorf("the other process: %v", err)
				}
			}
		}
		if err := run.run(t.Context(), s); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		if others != 1 {
			t.Errorf("%s: %d others", at, others)
		}
		exact(t, o.Path, run.Data)
		leftovers(t, o.Path)
	}
}
