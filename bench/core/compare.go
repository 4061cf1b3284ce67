package main

import (
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
)

// compare runs commands in turn, A B A B ..., n rounds after one that does not
// count, and prints the median wall and CPU seconds and the peak memory of each. A command is words, or several joined by
// " & ", which run at the same time and count as one.
//
//	core compare N 'CMD' 'CMD'...
func compare(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || len(args) < 2 {
		return fmt.Errorf("usage: core compare N 'CMD' ['CMD' ...]")
	}
	type sample struct{ wall, cpu, rss float64 }
	samples := make([][]sample, len(args)-1)
	for round := range n + 1 {
		for i, c := range args[1:] {
			var cmds []*osexec.Cmd
			start := time.Now()
			for _, part := range strings.Split(c, " & ") {
				w := strings.Fields(part)
				cmd := osexec.Command(w[0], w[1:]...)
				cmd.Stderr = os.Stderr
				if err := cmd.Start(); err != nil {
					return err
				}
				cmds = append(cmds, cmd)
			}
			var s sample
			for _, cmd := range cmds {
				if err := cmd.Wait(); err != nil {
					return fmt.Errorf("%s: %w", c, err)
				}
				u := cmd.ProcessState.SysUsage().(*syscall.Rusage)
				s.cpu += cmd.ProcessState.UserTime().Seconds() + cmd.ProcessState.SystemTime().Seconds()
				s.rss = max(s.rss, float64(u.Maxrss)/1024)
			}
			s.wall = time.Since(start).Seconds()
			if round > 0 {
				samples[i] = append(samples[i], s)
			}
		}
	}
	median := func(ss []sample, get func(sample) float64) float64 {
		var vs []float64
		for _, s := range ss {
			vs = append(vs, get(s))
		}
		slices.Sort(vs)
		return vs[len(vs)/2]
	}
	for i, c := range args[1:] {
		ss := samples[i]
		fmt.Printf("%.3f %.3f %.1f %s\n", median(ss, func(s sample) float64 { return s.wall }), median(ss, func(s sample) float64 { return s.cpu }),
			median(ss, func(s sample) float64 { return s.rss }), c)
	}
	return nil
}

// wide makes one sorted file of 50 columns with a page index, for the filter that
// must read no more than 1 % of it.
func wide(args []string) error {
	const rows = 1_000_000
	cols := make([]string, 0, 49)
	for i := range 49 {
		cols = append(cols, fmt.Sprintf("c%02d = random() * %d.0", i, i+1))
	}
	return writeWide(args[0], rows, cols)
}

// narrow takes the 1 % of the rows of wide in the middle of its sorted key, in 3 of its 50 columns, and tells
// the bytes that the process has asked the system for meanwhile: footers and indexes are among them.
func narrow(args []string) error {
	before, err := asked()
	if err != nil {
		return err
	}
	var stats func() exec.Stats
	rows := int64(0)
	for rec, err := range dataset.ReadParquet(args[0]).Filter("id >= 500000 && id < 510000").Select("id", "c07", "c31").
		Records(context.Background(), &dataset.RunOptions{Observe: func(f func() exec.Stats) { stats = f }}) {
		if err != nil {
			return err
		}
		rows += rec.NumRows()
	}
	after, err := asked()
	if err != nil {
		return err
	}
	report(map[string]any{"rows": rows, "asked_bytes": after - before, "counted_bytes": stats().BytesRead})
	return nil
}

// asked is the bytes that this process has read from files by system calls, from the page cache or not.
func asked() (n int64, err error) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(string(text), "rchar: %d", &n)
	return n, err
}
