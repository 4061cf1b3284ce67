// Package kit is what the programs below bench share: parts that are chosen by name, figures of this machine and of several rounds, and a test's place for what runs outside of tests.
package kit

import (
	"cmp"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Part measures one thing.
type Part[F any] struct {
	Name string
	Run  F
}

// Choose finds parts by their names, comma separated and in this order; "" is all of them.
func Choose[F any](parts []Part[F], names string) ([]Part[F], error) {
	if names == "" {
		return parts, nil
	}
	var out []Part[F]
	for n := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(parts, func(p Part[F]) bool { return p.Name == n })
		if i < 0 {
			have := []string{}
			for _, p := range parts {
				have = append(have, p.Name)
			}
			return nil, fmt.Errorf("no part %q; have %s", n, strings.Join(have, ", "))
		}
		out = append(out, parts[i])
	}
	return out, nil
}

// Profile writes a CPU profile of this process to a file until stop is called; "" is no file.
func Profile(file string) (stop func(), err error) {
	if file == "" {
		return func() {}, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	return pprof.StopCPUProfile, pprof.StartCPUProfile(f)
}

// Quantile is the value below which the share q of xs lies, the upper one of two; zero for none. xs stays as it is: rounds are paired by their places.
func Quantile[T cmp.Ordered](xs []T, q float64) (x T) {
	if len(xs) == 0 {
		return x
	}
	xs = slices.Sorted(slices.Values(xs))
	return xs[min(int(q*float64(len(xs))), len(xs)-1)]
}

// Median is Quantile at a half.
func Median[T cmp.Ordered](xs []T) T { return Quantile(xs, 0.5) }

// CPU is what this process has used.
func CPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// LoadAverage is that of the last minute.
func LoadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}
