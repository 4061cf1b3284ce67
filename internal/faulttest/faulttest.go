// Package faulttest checks errors in tests.
package faulttest

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// Wants marks the test failed unless err has the code and says all parts. It stops the test only where there is no error, so there of the test's goroutine.
func Wants(t testing.TB, err error, code fault.Code, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %v %q", code, parts)
	}
	if fault.CodeOf(err) != code {
		t.Errorf("code %v, want %v: %v", fault.CodeOf(err), code, err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error does not say %q: %v", p, err)
		}
	}
}
