package sink

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What a killed process was writing goes once nobody can be writing it any more.
func TestRemoveAbandoned(t *testing.T) {
	dir := t.TempDir()
	old, young, other := filepath.Join(dir, ".penstock-tmp-1"), filepath.Join(dir, ".penstock-tmp-2"), filepath.Join(dir, "job.json")
	for _, f := range []string{old, young, other} {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{old, other} {
		if err := os.Chtimes(f, time.Time{}, time.Now().Add(-2*abandoned)); err != nil {
			t.Fatal(err)
		}
	}
	in, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	removeAbandoned(in, ".")
	for f, want := range map[string]bool{old: false, young: true, other: true} {
		if _, err := os.Stat(f); (err == nil) != want {
			t.Errorf("%s: %v", filepath.Base(f), err)
		}
	}
}
