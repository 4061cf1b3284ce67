package main

import (
	"log"
	"os"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/internal/memtest"
)

// TestMain is this program, where a part starts it as a head or a node.
func TestMain(m *testing.M) {
	if text := os.Getenv(roleEnv); text != "" {
		if err := play(text); err != nil {
			log.Fatal(err)
		}
		return
	}
	os.Exit(m.Run())
}

// TestParts: every part runs, with little of everything, prints lines of the table, and leaves no process and no file.
func TestParts(t *testing.T) {
	if testing.Short() {
		memtest.Skip(t, "not with -short: it starts many processes")
	}
	for _, p := range parts {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "pc") // t.TempDir is too long for sockets
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			var out strings.Builder
			b := &bench{Bench: kit.Bench{Ctx: t.Context(), Dir: dir, Quick: true, Table: kit.Table{Out: &out, Part: p.Name}}}
			if err := p.Run(b); err != nil {
				t.Fatal(err)
			}
			kit.CheckTable(t, out.String(), 4)
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			procs, err := os.ReadDir("/proc")
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range procs {
				env, _ := os.ReadFile("/proc/" + x.Name() + "/environ") // most are not processes, or not ours
				if strings.Contains(string(env), dir) {
					t.Errorf("process %s is left", x.Name())
				}
			}
		})
	}
}
