package main

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

func TestRounding(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{up(0.701, 2), "0.71"}, {down(0.709, 2), "0.70"}, {up(0.7, 2), "0.70"}, {down(0.7, 2), "0.70"}, {up(1.1, 2), "1.10"},
		{down(1234567, 0), "1,234,567"}, {up(999, 0), "999"}, {up(math.NaN(), 2), "-"}, {down(math.Inf(1), 1), "-"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}

func TestRatiosWithinTheControlSayNothing(t *testing.T) {
	if s := (ratio{value: 0.95, spread: 1.1}).text(); !strings.HasPrefix(s, "<= A/A") {
		t.Error(s)
	}
	if s := (ratio{value: 0.5, spread: 1.1}).text(); s != "0.50" {
		t.Error(s)
	}
	for _, c := range []struct {
		v, bound, spread float64
		want             string
	}{
		{0.5, 0.7, 1.1, "yes"}, {0.69, 0.7, 1.1, "yes, within A/A"}, {0.72, 0.7, 1.1, "**no**, within A/A"}, {0.9, 0.7, 1.1, "**no**"}, {math.NaN(), 1, 1, "not measured"},
	} {
		if got := verdict(c.v, c.bound, c.spread); got != c.want {
			t.Errorf("%v: %s, want %s", c, got, c.want)
		}
	}
}

// The spread is the largest factor of any round, either way.
func TestSpread(t *testing.T) {
	a, b := []figures{{"cpu": 1}, {"cpu": 2}}, []figures{{"cpu": 1.25}, {"cpu": 1}}
	if s := spreadOf(a, b, cpuColumn); s != 2 {
		t.Error(s)
	}
	if s := spreadOf(b, a, cpuColumn); s != 2 {
		t.Error(s)
	}
}

// A process, its child, and an orphan that outlives its parent: all of their CPU counts, none is left.
func TestSupervise(t *testing.T) {
	const busy = `i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done`
	script := `echo noise; echo @start; read x; sh -c '` + busy + `'; (sh -c '` + busy + `' &) ; ` + busy + `; sleep 1000 & echo '@end {"rows": 3}'; read x`
	f, err := supervise(run{args: []string{"sh", "-c", script}, limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	one, err := supervise(run{args: []string{"sh", "-c", `echo @start; read x; ` + busy + `; echo '@end {"rows": 3}'; read x`}, limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if f["rows"] != 3 || f["procs"] < 2 || f["peak"] < 1<<18 || f["cpu"] < 1.6*one["cpu"] {
		t.Errorf("%v, one loop %v", f, one)
	}
	for pid, p := range allProcs() {
		if p.parent == os.Getpid() {
			t.Errorf("process %d is left", pid)
		}
	}
}

func TestSuperviseFailures(t *testing.T) {
	if _, err := supervise(run{args: []string{"sh", "-c", "echo no such package >&2; exit 3"}, limit: time.Minute}); !errors.Is(err, errMissing) {
		t.Error(err)
	}
	if _, err := supervise(run{args: []string{"sh", "-c", "echo broken >&2; exit 1"}, limit: time.Minute}); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Error(err)
	}
	if _, err := supervise(run{args: []string{"sh", "-c", "echo @start; read x; sleep 1000"}, limit: 50 * time.Millisecond}); !errors.Is(err, errTimeout) {
		t.Error(err)
	}
}
