package main

import (
	"log"
	"os"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/bench/internal/kit"
)

// TestMain is this program, where a part starts it as a node.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "node" {
		if err := node(os.Args[2]); err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(m.Run())
}

// TestParts: every part runs, with little of everything, prints lines of the table, and leaves no file.
func TestParts(t *testing.T) {
	for _, p := range parts {
		t.Run(p.Name, func(t *testing.T) {
			dir := t.TempDir()
			var out strings.Builder
			b := &bench{kit.Bench{Ctx: t.Context(), Dir: dir, Quick: true, Table: kit.Table{Out: &out, Part: p.Name}}}
			if err := p.Run(b); err != nil {
				t.Fatal(err)
			}
			kit.CheckTable(t, out.String(), 4)
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}
