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
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

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
	kit.Table
	ctx      context.Context
	dir      string // of this run: it is removed at the end
	data     string // Parquet files, see makeData
	self     string
	python   string // "": there is none that will do
	lib      string // folder with the package penstock
	penstock string
	quick    bool // little of everything, to see that it runs
	undo     []func()
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
	b := &bench{Table: table}
	only := flag.String("only", "", "parts to measure, comma separated; default: all")
	profile := flag.String("cpuprofile", "", "write a CPU profile of this process to this file")
	python := flag.String("python", cmp.Or(os.Getenv("PENSTOCK_PYTHON"), "python3"), "interpreter with numpy, torch and pyarrow; default: PENSTOCK_PYTHON, or python3")
	lib := flag.String("lib", "python", "folder of the package penstock")
	binary := flag.String("penstock", "bin/penstock", "the command")
	flag.BoolVar(&b.quick, "quick", false, "few steps and small batches, to see that it runs")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: train [-only PART,...] DIR; see the comment in bench/train/main.go")
	}
	chosen, err := kit.Choose(parts, *only)
	if err != nil {
		log.Fatal(err)
	}
	end, err := kit.Profile(*profile)
	if err != nil {
		log.Fatal(err)
	}
	defer end()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b.ctx = ctx
	err = b.measure(chosen, flag.Arg(0), *python, *lib, *binary)
	if err != nil {
		log.Fatal("train: ", err) // what it started has ended
	}
}

func (b *bench) measure(chosen []kit.Part[func(*bench) error], dir, python, lib, binary string) (err error) {
	defer b.close()
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	for p, to := range map[string]*string{lib: &b.lib, binary: &b.penstock, dir: &dir} {
		if *to, err = filepath.Abs(p); err != nil {
			return err
		}
	}
	if _, err := os.Stat(b.penstock); err != nil {
		return fmt.Errorf("%w: make build makes it", err)
	}
	if b.data, err = makeData(b.ctx, dir, b.quick); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(dir, "run-"); err != nil {
		return err
	}
	b.undo = append(b.undo, func() { os.RemoveAll(b.dir) })
	if err := b.writeScripts(); err != nil {
		return err
	}
	b.python = python
	if err := b.script("check.py").Run(); err != nil {
		log.Printf("%s has no numpy, torch, pyarrow, or not the package in %s: figures of Python are left out (%v)", python, lib, err)
		b.python = ""
	}
	return kit.Measure(&b.Table, b.versions(), chosen, b)
}

// absent is the line of what cannot be measured here.
func (b *bench) absent(what string) {
	b.Add(what, "", "not measured: no Python with torch and pyarrow")
}

func (b *bench) close() {
	for _, f := range slices.Backward(b.undo) {
		f()
	}
	b.undo = nil
}
