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
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/bench/internal/kit"
)

// part measures one thing and adds lines to the table.
type part struct {
	name string
	run  func(b *bench) error
}

var parts = []part{{"place", placement}, {"trip", trip}, {"rate", rate}, {"dead", dead}, {"lost", lost}, {"head", headKilled}, {"memory", footprint}, {"packs", packed}}

// bench is what parts share.
type bench struct {
	ctx      context.Context
	dir      string // of this run: it is removed at the end
	penstock string // "": none
	quick    bool   // little of everything, to see that it runs
	out      io.Writer
	part     string
}

func main() {
	log.SetFlags(0)
	if text := os.Getenv(roleEnv); text != "" {
		if err := play(text); err != nil {
			log.Fatalf("cluster, in the role of %s: %v", text, err)
		}
		return
	}
	b := &bench{out: os.Stdout}
	only := flag.String("only", "", "parts to measure, comma separated; default: all")
	flag.BoolVar(&b.quick, "quick", false, "few rounds and short leases, to see that it runs")
	flag.StringVar(&b.penstock, "penstock", "", "the command, whose memory is measured as well")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: cluster [-only PART,...] DIR; see the comment in bench/cluster/main.go")
	}
	chosen, err := kit.Choose(parts, func(p part) string { return p.name }, *only)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b.ctx = ctx
	if err := b.measure(chosen, flag.Arg(0)); err != nil {
		log.Fatal("cluster: ", err) // what it started has ended
	}
}

func (b *bench) measure(chosen []part, dir string) (err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(dir, "r"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	fmt.Fprintf(b.out, "# A cluster, measured\n\n%s, %d cores, %s, %s/%s, %s. Made by `ONLY=cluster bench/run.sh`: heads and nodes are processes on 127.0.0.1, with TLS, a lease of 15 s, and etcd in the head, whose disk is this machine's. A figure is \"median (smallest to largest, of how many)\".\n\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), cpuModel(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	fmt.Fprintf(b.out, "| what | figure | goal | command |\n|---|---|---|---|\n")
	load := kit.LoadAverage()
	begin := time.Now()
	for _, p := range chosen {
		b.part = p.name
		from := time.Now()
		if err := p.run(b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		log.Printf("%s: %.0f s", p.name, time.Since(from).Seconds())
	}
	fmt.Fprintf(b.out, "\nLoad average: %s at the beginning, %s at the end; %.0f s in all. What is in a figure besides is said in `bench/cluster`.\n", load, kit.LoadAverage(), time.Since(begin).Seconds())
	return nil
}

// add is a line of the table.
func (b *bench) add(what, goal, figure string, args ...any) {
	command := fmt.Sprintf("`bin/bench-cluster -only %s DIR`", b.part)
	fmt.Fprintf(b.out, "| %s | %s | %s | %s |\n", what, fmt.Sprintf(figure, args...), cmp.Or(goal, "-"), command)
}

// few is n, or with -quick less.
func (b *bench) few(n, quick int) int {
	if b.quick {
		return quick
	}
	return n
}

// spread is a figure: each number as format says.
func spread(format, unit string, xs []float64) string {
	return fmt.Sprintf(format+"%s ("+format+" to "+format+", of %d)", kit.Median(xs), unit, slices.Min(xs), slices.Max(xs), len(xs))
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // unknown where it is not there
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, "\t :\n")
		}
	}
	return "processor unknown"
}
