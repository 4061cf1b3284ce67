package main

import (
	"log"
	"os"
	"strings"
	"testing"
)

// TestMain is this program, where a part starts it as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](os.Args[2:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(m.Run())
}

// TestParts: every part runs, with little of everything and without Python, and prints lines of the table.
func TestParts(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute")
	}
	data, err := makeData(t.Context(), t.TempDir(), true)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			var out strings.Builder
			b := &bench{ctx: t.Context(), dir: t.TempDir(), data: data, self: self, quick: true, out: &out, part: p.name}
			defer b.close()
			if err := p.run(b); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out.String()) {
				if strings.Count(line, " |") != 4 || strings.Contains(line, "%!") || strings.Contains(line, "NaN") {
					t.Errorf("a line of the table is %q", line)
				}
			}
			if out.Len() == 0 {
				t.Error("nothing is printed")
			}
		})
	}
	if _, err := choose("paced,restrat"); err == nil || !strings.Contains(err.Error(), `"restrat"; have overhead, paced`) {
		t.Errorf("a part that is not there gives %v", err)
	}
}
