// Command train measures training: what the loops of workers wait for, the hand-off of batches, all-reduce, checkpoints, restarts. It prints a table, each figure beside what it is
// compared with, in turns in the same run. `ONLY=train bench/run.sh` makes all of it and writes bench/results/train.md.
//
//	train [-only PART,...] [-quick] [-python FILE] [-lib DIR] [-penstock FILE] [-cpuprofile FILE] DIR
//
// DIR is for what is made meanwhile: 0.3 GB, of which the data stay for the next time. The parts are overhead, paced, handoff, allreduce, checkpoint, restart and memory; each is described where it is
// written. Python's need an interpreter with numpy, torch and pyarrow, and a line of overhead needs ray: without them they are left out, which the table says.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/penstock-data/penstock/bench/internal/kit"
)

var parts = []kit.Part[func(*bench) error]{
	{Name: "overhead", Run: overhead},
	{Name: "paced", Run: paced},
	{Name: "handoff", Run: handoff},
	{Name: "allreduce", Run: allReduce},
	{Name: "checkpoint", Run: checkpoint},
	{Name: "restart", Run: restart},
	{Name: "memory", Run: footprint},
}

var table = kit.Table{
	Out: os.Stdout, Program: "train", Title: "Training",
	About: "; ratios are of one run, in turns. A/A is what the same gave twice in it: what differs by less says nothing.",
	Foot:  "What is in a figure besides, and what it was measured with, is said in `bench/train`.",
}

// bench is what parts share.
type bench struct {
	kit.Bench
	data     string // Parquet files, see makeData
	self     string
	python   string // "": there is none that will do
	lib      string // folder with the package penstock
	penstock string
}

// roles are what this program is besides: processes of a part.
var roles = map[string]func(args []string) error{
	"fit":    fitRole,    // the controller of a run, and its workers
	"serve":  serveRole,  // a data process that has its batches in memory
	"reduce": reduceRole, // a rank of an all-reduce
}

func main() {
	log.SetFlags(0)
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](os.Args[2:]); err != nil {
			log.Fatalf("train %s: %v", os.Args[1], err)
		}
		return
	}
	b := &bench{Bench: kit.Bench{Table: table}}
	profile := flag.String("cpuprofile", "", "write a CPU profile of this process to this file")
	flag.StringVar(&b.python, "python", cmp.Or(os.Getenv("PENSTOCK_PYTHON"), "python3"), "interpreter with numpy, torch and pyarrow; default: PENSTOCK_PYTHON, or python3")
	flag.StringVar(&b.lib, "lib", "python", "folder of the package penstock")
	flag.StringVar(&b.penstock, "penstock", "bin/penstock", "the command")
	kit.Main(&b.Bench, parts, b, func(dir string) (string, error) {
		end, err := kit.Profile(*profile)
		if err != nil {
			return "", err
		}
		b.Cleanup(end)
		return b.prepare(dir)
	})
}

// prepare makes and finds what the parts need. It returns the versions of Python and its packages.
func (b *bench) prepare(dir string) (versions string, err error) {
	if b.self, err = os.Executable(); err != nil {
		return "", err
	}
	for _, p := range []*string{&b.lib, &b.penstock} {
		if *p, err = filepath.Abs(*p); err != nil {
			return "", err
		}
	}
	if _, err := os.Stat(b.penstock); err != nil {
		return "", fmt.Errorf("%w: make build makes it", err)
	}
	if b.data, err = makeData(b.Ctx, dir, b.Quick); err != nil {
		return "", err
	}
	if err := b.writeScripts(); err != nil {
		return "", err
	}
	if err := b.script("check.py").Run(); err != nil {
		log.Printf("%s has no numpy, torch, pyarrow, or not the package in %s: figures of Python are left out (%v)", b.python, b.lib, err)
		b.python = ""
	}
	return b.versions(), nil
}

// absent is the line of what cannot be measured here.
func (b *bench) absent(what string) {
	b.Add(what, "", "not measured: no Python with torch and pyarrow")
}
