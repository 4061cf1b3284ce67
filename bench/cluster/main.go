// Command cluster measures a cluster of processes of its own on 127.0.0.1: what jobs, lost processes, nodes and heads take, and memory. It prints a table, each figure beside its goal.
// `ONLY=cluster bench/run.sh` makes all of it and writes bench/results/cluster.md.
//
//	cluster [-only PART,...] [-quick] [-penstock FILE] DIR
//
// DIR is for what is made meanwhile, up to 1 GB on the disk whose writes are measured; its name must be short (a unix socket lies in it). The parts are place, trip, rate, dead, lost, head, memory and packs; each
// is described where it is written. place runs `go test -bench`, so it needs the sources. With -penstock, memory is measured of that binary too.
//
// A figure is "median (smallest to largest, of how many)".
package main

import (
	"flag"
	"log"
	"os"

	"github.com/penstock-data/penstock/bench/internal/kit"
)

var parts = []kit.Part[func(*bench) error]{
	{Name: "place", Run: placement},
	{Name: "trip", Run: trip},
	{Name: "rate", Run: rate},
	{Name: "dead", Run: dead},
	{Name: "lost", Run: lost},
	{Name: "head", Run: headKilled},
	{Name: "memory", Run: footprint},
	{Name: "packs", Run: packed},
}

var table = kit.Table{
	Out: os.Stdout, Program: "cluster", Title: "A cluster",
	About: ": heads and nodes are processes on 127.0.0.1, with TLS, a lease of 15 s, and etcd in the head, whose disk is this machine's. A figure is \"median (smallest to largest, of how many)\".",
	Foot:  "What is in a figure besides is said in `bench/cluster`.",
}

// bench is what parts share.
type bench struct {
	kit.Bench
	penstock string // "": none
}

func main() {
	log.SetFlags(0)
	if text := os.Getenv(roleEnv); text != "" {
		if err := play(text); err != nil {
			log.Fatalf("cluster, in the role of %s: %v", text, err)
		}
		return
	}
	b := &bench{Bench: kit.Bench{Table: table}}
	flag.StringVar(&b.penstock, "penstock", "", "the command, whose memory is measured as well")
	kit.Main(&b.Bench, parts, b, nil)
}
