package main

import (
	"log"
	"os"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/internal/memtest"
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
		memtest.Skip(t, "not with -short: it measures for half a minute")
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
		t.Run(p.Name, func(t *testing.T) {
			var out strings.Builder
			b := &bench{Bench: kit.Bench{Ctx: t.Context(), Dir: t.TempDir(), Quick: true, Table: kit.Table{Out: &out, Part: p.Name}}, data: data, self: self}
			defer b.Close()
			if err := p.Run(b); err != nil {
				t.Fatal(err)
			}
			kit.CheckTable(t, out.String(), 4)
		})
	}
}
