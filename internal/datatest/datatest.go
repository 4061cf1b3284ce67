// Package datatest finds the test data that lives beside the repository.
package datatest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Dir returns the path of a folder or file of the shared test data. Where the data is
// absent the test is skipped, or fails when CI=true. PENSTOCK_TESTDATA overrides
// the place.
func Dir(t testing.TB, elem ...string) string {
	t.Helper()
	root := os.Getenv("PENSTOCK_TESTDATA")
	if root == "" {
		_, self, _, _ := runtime.Caller(0)
		root = filepath.Join(filepath.Dir(self), "..", "..", "..", "shared", "testdata")
	}
	p := filepath.Join(append([]string{root}, elem...)...)
	if _, err := os.Stat(p); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("test data is missing: %v", err)
		}
		t.Skipf("test data is not there (set PENSTOCK_TESTDATA): %v", err)
	}
	return p
}
