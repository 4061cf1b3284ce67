// Command order holds the workloads by which order, resume and packing are measured. `make bench`
// runs all of them and writes bench/results/order.md.
//
//	order report [-only NAME,...] [-rounds N] DIR   all of them, as a table; DIR keeps the data
//	order [-cpuprofile FILE] WORKLOAD ARG...        one of them, in this process: one line of JSON
//
// Each workload is described where it is written; report runs it in processes of its
// own, and commands that are compared in turn.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
)

// workload measures one thing in this process.
type workload func(args []string) (figures, error)

// figures are what a workload prints.
type figures map[string]float64

var workloads = map[string]workload{
	"epoch":       epoch,
	"epoch-steps": stepsEpoch,
	"mix":         mixEpoch,
	"pack":        packEpoch,
	"slow":        stragglers,
	"capture":     capture,
	"steps":       steps,
	"resume":      resume,
	"bytes":       readBytes,
	"entropy":     entropy,
	"ranks":       correlate,
	"replay":      replay,
	"memory":      budget,
}

func main() {
	log.SetFlags(0)
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	flag.Parse()
	args := flag.Args()
	if len(args) == 0 {
		log.Fatal("usage: order report DIR, or order WORKLOAD ARG...; see the comment in bench/order/main.go")
	}
	if args[0] == "report" {
		if err := report(args[1:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	f, ok := workloads[args[0]]
	if !ok {
		names := []string{}
		for n := range workloads {
			names = append(names, n)
		}
		slices.Sort(names)
		log.Fatalf("no workload %q; have report, %s", args[0], strings.Join(names, ", "))
	}
	stop := func() {}
	if *profile != "" {
		file, err := os.Create(*profile)
		if err != nil {
			log.Fatal(err)
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			log.Fatal(err)
		}
		stop = pprof.StopCPUProfile
	}
	got, err := f(args[1:])
	stop()
	if err != nil {
		log.Fatal(err)
	}
	b, err := json.Marshal(got)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(b))
}
