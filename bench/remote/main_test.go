package main

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/bench/internal/kit"
)

// TestParts: every part runs, with little data, and prints lines of the table.
func TestParts(t *testing.T) {
	for _, p := range parts {
		t.Run(p.Name, func(t *testing.T) {
			var out strings.Builder
			p.Run(t, &report{&out}, 100)
			kit.CheckTable(t, out.String(), 3)
		})
	}
}
