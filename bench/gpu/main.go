// Command gpu checks what Penstock does with the GPUs of this machine: it lists them, measures them, times both, leases them all; then it trains on one by `penstock train`, with batches that are copied from
// the ring asynchronously, and measures these copies beside plain ones. Without a GPU it says so, and does nothing. `make gpu-check` runs it.
//
//	gpu [-o FILE] [-penstock FILE] [-python FILE] [-lib DIR]
//
// Figures go to standard output, and to FILE as Markdown, also where one misses its goal. A machine on which something is wrong, or too slow, exits with 1.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/device"
)

const samples = 50

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("gpu: ", err)
	}
}

func run(args []string) error {
	f := flag.NewFlagSet("gpu", flag.ContinueOnError)
	out := f.String("o", "", "file for the figures")
	var tr training
	f.StringVar(&tr.penstock, "penstock", "bin/penstock", "the command")
	f.StringVar(&tr.python, "python", cmp.Or(os.Getenv("PENSTOCK_PYTHON"), "python3"), "interpreter with torch that has CUDA; default: PENSTOCK_PYTHON, or python3")
	f.StringVar(&tr.lib, "lib", "python", "folder of the package penstock")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 0 {
		return errors.New("it takes no arguments: see the comment in bench/gpu/main.go")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	text, err := check(ctx)
	if err == nil && text != "" {
		var more string
		more, err = tr.run(ctx)
		text += more
	}
	fmt.Print(text)
	if *out != "" && text != "" {
		err = errors.Join(err, os.WriteFile(*out, []byte(text), 0o644))
	}
	return err
}

// check lists, measures and leases; "": there is no GPU.
func check(ctx context.Context) (string, error) {
	start := time.Now()
	inv, err := device.Discover(ctx, nil)
	found := time.Since(start)
	switch {
	case err != nil:
		return "", err
	case len(inv.Devices) == 0 && (inv.Problem == nil || fault.CodeOf(inv.Problem) == fault.NotFound):
		log.Printf("no GPU on this machine, nothing to check: %v", inv.Problem)
		return "", nil
	case inv.Problem != nil:
		return "", inv.Problem
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# GPUs\n\n%s, `make gpu-check`, %s, %d CPUs, through %s.\n\n", time.Now().UTC().Format(time.DateOnly), runtime.Version(), runtime.NumCPU(), inv.Source())
	b.WriteString("| index | name | memory | UUID | utilisation | used | temperature | power |\n|--:|---|--:|---|--:|--:|--:|--:|\n")
	first, err := inv.Sample(ctx)
	if err != nil {
		return "", err
	}
	for i, d := range inv.Devices {
		s := first[i]
		if s.Err != nil {
			return "", s.Err
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s | %s | %s |\n", d.Index, d.Name, number("%.1f GiB", float64(d.Memory)/(1<<30)), d.UUID, number("%.0f %%", 100*s.Utilisation),
			number("%.1f GiB", s.Memory/(1<<30)), number("%.0f C", s.Temperature), number("%.1f W", s.Power))
		if s.Memory > float64(d.Memory) && d.Memory > 0 {
			return "", fmt.Errorf("GPU %d uses %.0f bytes of %d", d.Index, s.Memory, d.Memory)
		}
	}
	took := make([]time.Duration, samples)
	for i := range took {
		start := time.Now()
		if _, err := inv.Sample(ctx); err != nil {
			return "", err
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	fmt.Fprintf(&b, "\n- listing: %s\n- a sample of all: median of %d %s, worst %s\n", found.Round(time.Microsecond), samples, took[samples/2].Round(time.Microsecond), took[samples-1].Round(time.Microsecond))
	start = time.Now()
	l, err := inv.Lease(ctx, "bench-gpu", 1, len(inv.Devices), func(reason string) { log.Print(reason) })
	if err != nil {
		return "", err
	}
	defer l.Release()
	fmt.Fprintf(&b, "- lease of all: %s; worker 0 gets %s\n", time.Since(start).Round(time.Microsecond), strings.Join(l.Env(0), " "))
	return b.String(), nil
}

// number is a dash where it is not known.
func number(format string, v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf(format, v)
}
