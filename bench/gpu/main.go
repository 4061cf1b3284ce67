// Command gpu checks what Penstock does with the GPUs of this machine: it lists them, measures them, times both, and leases them all. Without a GPU it says so, and does nothing.
//
//	gpu [-o FILE]
//
// Figures go to standard output, and to FILE as Markdown. A machine on which something is wrong exits with 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/device"
)

const samples = 50

func main() {
	log.SetFlags(0)
	out := flag.String("o", "", "file for the figures")
	flag.Parse()
	if flag.NArg() != 0 {
		log.Fatal("usage: gpu [-o FILE]")
	}
	text, err := check(context.Background())
	fmt.Print(text)
	if err != nil {
		log.Fatal(err)
	}
	if *out != "" && text != "" {
		if err := os.WriteFile(*out, []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

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
	fmt.Fprintf(&b, "# GPUs\n\n`bench/gpu`, %s, %d CPUs, through %s.\n\n", runtime.Version(), runtime.NumCPU(), inv.Source())
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
