// Package datatest finds what tests need beside the source: the test data that lives beside the repository, programs, an interpreter.
package datatest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
)

// Dir returns the path of a folder or file of the shared test data. Where the data is
// absent the test is skipped, or fails when CI=true. PENSTOCK_TESTDATA overrides
// the place.
func Dir(t testing.TB, elem ...string) string {
	t.Helper()
	data := os.Getenv("PENSTOCK_TESTDATA")
	if data == "" {
		data = filepath.Join(root(), "..", "shared", "testdata")
	}
	p := filepath.Join(append([]string{data}, elem...)...)
	if _, err := os.Stat(p); err != nil {
		memtest.Skip(t, "test data is not there (set PENSTOCK_TESTDATA): %v", err)
	}
	return p
}
