package main

import (
	"strings"
	"testing"
)

// TestParts: every part runs, with little data, and prints lines of the table.
func TestParts(t *testing.T) {
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			var out strings.Builder
			p.run(t, &report{&out}, 100)
			for line := range strings.Lines(out.String()) {
				if strings.Count(line, " |") != 3 || strings.Contains(line, "%!") {
					t.Errorf("a line of the table is %q", line)
				}
			}
			if out.Len() == 0 {
				t.Error("nothing is printed")
			}
		})
	}
	if _, err := choose("scan,frist"); err == nil || !strings.Contains(err.Error(), `"frist"; have scan, cache, first, hedge`) {
		t.Errorf("a part that is not there gives %v", err)
	}
}
