// Command batches measures how batches are assembled (BenchmarkRows of shard) beside a copy of as many bytes, with
// assembly and without (-tags purego). It prints a table, each figure beside its goal. `ONLY=batches bench/run.sh`
// makes all of it and writes bench/results/batches.md.
//
//	batches [-only PART,...] [-quick] DIR
//
// The parts are shuffled (rows from all windows), window (rows packed), ordered (rows as they lie in memory) and read
// (rows that have just been decoded: copies, casts, lists). It needs the go command, and runs in this repository.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/penstock-data/penstock/bench/internal/kit"
)

// of is a part that has the benchmark's cases of an order.
func of(name, order string) kit.Part[func(*bench) error] {
	return kit.Part[func(*bench) error]{Name: name, Run: func(b *bench) error { return b.order(order) }}
}

var parts = []kit.Part[func(*bench) error]{of("shuffled", "shuffled"), of("window", "window"), of("ordered", "in order"), of("read", "just read")}

// goals by order and case.
var goals = map[string]string{
	"shuffled: 40 float32, stacked, packed rows": ">= 0.35x, purego >= 0.07x",
	"in order: 40 float32, stacked":              ">= 0.4x",
	"just read: 40 float32, stacked":             ">= 0.4x",
}

var table = kit.Table{
	Out: os.Stdout, Program: "batches", Title: "Batches, assembled",
	About: ": `BenchmarkRows` of `shard`, batches of 1,024 rows. The speed is that of a copy (memcpy) of 160 KiB at a time, times what is said: both by the CPU time of one thread, in turns, of which the median is given. The copy goes through a million rows of 160 bytes, as the batches do, and for what was just read over one batch within the cache: its own speed is in brackets. purego is without assembly.",
	Foot:  "`shuffled`: of a million rows in 64 windows, beyond the caches. `in order`: the same rows as they lie there. `just read`: 4,096 rows over and over. `packed rows`: windows that were packed row by row when they were read, which `window` measures.",
}

// bench is what parts share.
type bench struct{ kit.Bench }

func main() {
	log.SetFlags(0)
	b := &bench{kit.Bench{Table: table}}
	kit.Main(&b.Bench, parts, b, nil)
}

// order adds a line of each case of an order.
func (b *bench) order(order string) error {
	with, err := b.run("", order)
	if err != nil {
		return err
	}
	without, err := b.run("purego", order)
	if err != nil {
		return err
	}
	if len(with) == 0 || len(with) != len(without) {
		return fmt.Errorf("%d cases, and %d with purego", len(with), len(without))
	}
	for i, f := range with {
		g := without[i]
		if f.name != g.name {
			return fmt.Errorf("case %q, and %q with purego", f.name, g.name)
		}
		what := order + ": " + f.name
		if order != "shuffled" && strings.HasSuffix(f.name, ", Arrow") {
			b.Add(what, "", "a slice: nothing is copied")
			continue
		}
		b.Add(what, goals[what], "%sx, %s GB/s (copy %s); purego %sx, %s GB/s", f.ratio, f.speed, f.copied, g.ratio, g.speed)
	}
	return nil
}

// figure is a line of the benchmark's table.
type figure struct{ name, speed, copied, ratio string }

// run is the benchmark in a process, built with tags.
func (b *bench) run(tags, order string) ([]figure, error) {
	bin, out := filepath.Join(b.Dir, "shard"+tags+".test"), filepath.Join(b.Dir, "rows.md")
	defer os.Remove(bin)
	defer os.Remove(out)
	benchtime := "1s"
	if b.Quick {
		benchtime = "2x"
	}
	for _, args := range [][]string{
		{"go", "test", "-c", "-tags=" + tags, "-o", bin, "github.com/penstock-data/penstock/shard"},
		{bin, "-test.run=^$", "-test.bench=^BenchmarkRows$/^" + strings.ReplaceAll(order, " ", "_") + "$", "-test.benchtime=" + benchtime, "-table=" + out},
	} {
		cmd := exec.CommandContext(b.Ctx, args[0], args[1:]...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", args[0], cmp.Or(context.Cause(b.Ctx), err), text)
		}
	}
	text, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	return parse(string(text), order)
}

// parse reads the table that the benchmark writes: case, order, speed, speed of a copy, ratio.
func parse(text, order string) (fs []figure, err error) {
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if i < 2 { // its head
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 5 || cells[1] != order {
			return nil, fmt.Errorf("a line of the benchmark is %q", line)
		}
		fs = append(fs, figure{cells[0], cells[2], cells[3], cells[4]})
	}
	return fs, nil
}
