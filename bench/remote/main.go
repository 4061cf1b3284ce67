// Command remote measures reading from an S3 server on this machine (versitygw, and the proxy of
// internal/testserver where latency is added), in one process with what it is compared with. `make bench`
// runs all of it and writes bench/results/remote.md.
//
//	remote [-only PART,...] [-cpuprofile FILE] DIR   the table, on standard output; DIR is for what is read meanwhile
//
// The parts are scan, cache, first and hedge; each is described where it is written.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-data/penstock/bench/internal/kit"
)

// Where small is more than 1, a part makes its data that many times smaller, for tests.
var parts = []kit.Part[func(t testing.TB, r *report, small int64)]{
	{Name: "scan", Run: scan},
	{Name: "cache", Run: cached},
	{Name: "first", Run: first},
	{Name: "hedge", Run: hedge},
}

func main() {
	log.SetFlags(0)
	only := flag.String("only", "", "parts to measure, comma separated; default: all")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: remote [-only PART,...] [-cpuprofile FILE] DIR; see the comment in bench/remote/main.go")
	}
	chosen, err := kit.Choose(parts, *only)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	end, err := kit.Profile(*profile)
	if err != nil {
		log.Fatal(err)
	}
	defer end()
	r := &report{out: os.Stdout}
	r.head()
	for _, p := range chosen {
		h := kit.NewHost(ctx, flag.Arg(0), nil)
		p.Run(h, r, 1)
		h.Close()
	}
	r.foot()
}

// report prints the table.
type report struct{ out io.Writer }

func (r *report) head() {
	fmt.Fprintf(r.out, "# Reading from buckets, measured\n\n%s, %d cores, %s/%s, %s. Made by `ONLY=remote bench/run.sh`: the server (versitygw), the proxy that adds latency and the program share the machine.\n\n| what | figure | goal |\n|---|---|---|\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func (r *report) add(what, goal, figure string, args ...any) {
	fmt.Fprintf(r.out, "| %s | %s | %s |\n", what, fmt.Sprintf(figure, args...), goal)
}

func (r *report) foot() {
	fmt.Fprintf(r.out, "\nLoad average at the end: %s (wall times mean something only where the machine has little else to do; CPU times always do).\n", kit.LoadAverage())
}
