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
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"
)

// part measures one thing. More than 1, small makes its data that many times smaller, for tests.
type part struct {
	name string
	run  func(t testing.TB, r *report, small int64)
}

var parts = []part{{"scan", scan}, {"cache", cached}, {"first", first}, {"hedge", hedge}}

func main() {
	log.SetFlags(0)
	only := flag.String("only", "", "parts to measure, comma separated; default: all")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: remote [-only PART,...] [-cpuprofile FILE] DIR; see the comment in bench/remote/main.go")
	}
	chosen, err := choose(*only)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			log.Fatal(err)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			log.Fatal(err)
		}
		defer pprof.StopCPUProfile()
	}
	r := &report{out: os.Stdout}
	r.head()
	for _, p := range chosen {
		h := &host{ctx: ctx, dir: flag.Arg(0)}
		p.run(h, r, 1)
		h.close()
	}
	r.foot()
}

// choose finds parts by their names.
func choose(names string) ([]part, error) {
	if names == "" {
		return parts, nil
	}
	var out []part
	for n := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == n })
		if i < 0 {
			have := []string{}
			for _, p := range parts {
				have = append(have, p.name)
			}
			return nil, fmt.Errorf("no part %q; have %s", n, strings.Join(have, ", "))
		}
		out = append(out, parts[i])
	}
	return out, nil
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
	load := "unknown"
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(b), " ")
	}
	fmt.Fprintf(r.out, "\nLoad average at the end: %s (wall times mean something only where the machine has little else to do; CPU times always do).\n", load)
}

// host is what internal/testserver takes for a test: an error ends the program, and close undoes what was started.
type host struct {
	testing.TB // for the methods that are not asked for
	ctx        context.Context
	dir        string
	undo       []func()
}

func (h *host) Context() context.Context { return h.ctx }
func (h *host) Helper()                  {}
func (h *host) Cleanup(f func())         { h.undo = append(h.undo, f) }

func (h *host) Setenv(key, value string) {
	old, was := os.LookupEnv(key)
	if err := os.Setenv(key, value); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		if was {
			os.Setenv(key, old)
		} else {
			os.Unsetenv(key)
		}
	})
}

func (h *host) TempDir() string {
	err := os.MkdirAll(h.dir, 0o777)
	if err != nil {
		h.Fatal(err)
	}
	dir, err := os.MkdirTemp(h.dir, "remote-")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (h *host) Fatal(args ...any) {
	h.close()
	log.Fatal(args...)
}

func (h *host) Fatalf(format string, args ...any) { h.Fatal(fmt.Sprintf(format, args...)) }

// Skipf is called where the server cannot be had.
func (h *host) Skipf(format string, args ...any) { h.Fatalf(format, args...) }

func (h *host) close() {
	for _, f := range slices.Backward(h.undo) {
		f()
	}
	h.undo = nil
}
