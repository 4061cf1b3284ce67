package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
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

// What most peers say is right; without that, what Penstock's first run says.
func TestAgree(t *testing.T) {
	for name, x := range map[string]struct {
		ours, again float64
		peers       []float64
		marked      []string
	}{
		"all":                      {5, 5, []float64{5, 5, 5}, nil},
		"a peer":                   {5, 5, []float64{5, 4, 5}, []string{"peer1"}},
		"half of the peers":        {5, 5, []float64{5, 4, 5, 4}, []string{"peer1", "peer3"}},
		"peers apart":              {5, 5, []float64{3, 4}, []string{"peer0", "peer1"}},
		"both of ours":             {5, 5, []float64{4, 4}, []string{"penstock", "penstock again"}},
		"both of ours, and a peer": {5, 5, []float64{4, 3, 4}, []string{"penstock", "penstock again", "peer1"}},
		"most peers":               {5, 5, []float64{4, 4, 5}, []string{"penstock", "penstock again", "peer2"}},
		"one of ours":              {5, 4, []float64{5, 5}, []string{"penstock again"}},
		"the first of ours":        {5, 4, []float64{4, 4}, []string{"penstock"}},
		"ours, without peers":      {5, 4, nil, []string{"penstock again"}},
		"the only peer":            {5, 5, []float64{4}, []string{"penstock", "penstock again"}},
	} {
		w := &workload{name: "table", title: "T"}
		m := &measured{Name: "table", w: w}
		add := func(name string, sum float64, differ bool) {
			w.cases = append(w.cases, kase{name: name, differ: differ})
			m.Cases = append(m.Cases, &caseResult{Name: name, Runs: []figures{{"rows": 3, "sum": sum, "wall": 1}, {"rows": 3, "sum": sum * (1 + 1e-5), "wall": 1}}})
		}
		add("penstock", x.ours, false)
		for i, v := range x.peers {
			add(fmt.Sprint("peer", i), v, false)
		}
		add("part", 1, true)
		add("cut", 1, false)
		for _, f := range m.get("cut").Runs {
			f["cut"] = 1
		}
		add("penstock again", x.again, false)
		m.agree()
		var marked []string
		for _, c := range m.Cases {
			if c.Err != "" {
				marked = append(marked, c.Name)
			}
		}
		slices.Sort(marked)
		slices.Sort(x.marked)
		if !slices.Equal(marked, x.marked) {
			t.Errorf("%s: %q are marked, not %q", name, marked, x.marked)
		}
		wrong := slices.ContainsFunc(x.marked, func(n string) bool { return strings.HasPrefix(n, "penstock") })
		if bad := (&results{Workloads: []*measured{m}}).failed(); (bad != nil) != wrong {
			t.Errorf("%s: the run fails by %q", name, bad)
		}
		if g := m.atMost("wall", wallColumn, 2, "s"); (g.met == "yes") != (m.Cases[0].Err == "") {
			t.Errorf("%s: a goal is met: %s", name, g.met)
		}
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

// A server's peak is in its figures; other processes that work for it are an error.
func TestServer(t *testing.T) {
	s, err := startServer(0, nil, "sh", "-c", `echo @start; while read x; do eval "$x"; echo '@end {"rows": 3}'; done`)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if f, err := s.do("true"); err != nil || f["rows"] != 3 || f["peak"] < 1<<18 {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := s.do("sleep 1 &"); err == nil || !strings.Contains(err.Error(), "work for it") {
		t.Errorf("a process beside it gives %v, %v", f, err)
	}
	if f, err := s.do("wait; sh -c 'i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done'"); err == nil || !strings.Contains(err.Error(), "worked for it") {
		t.Errorf("a process that has ended gives %v, %v", f, err)
	}
}

// The table of the scan has each engine's peak, and a file whose rows are other than the peers' fails the run.
func TestScanTables(t *testing.T) {
	m := &measured{Name: "scan"}
	for i, e := range []string{"penstock", "duckdb lazy", "polars sink_ipc", "penstock again"} {
		for _, f := range []string{"a", "b"} {
			m.Cases = append(m.Cases, &caseResult{Name: e + "/" + f, Runs: []figures{{"rows": 4, "cpu": 1, "peak": float64((i + 1) << 20)}}})
		}
	}
	m.get("penstock/b").Runs[0]["rows"] = 3
	m.agreeByFile()
	if bad := (&results{Workloads: []*measured{m}}).failed(); len(bad) != 1 || bad[0] != "scan, penstock/b: other rows: 3, not 4" {
		t.Errorf("the run fails by %q", bad)
	}
	var b strings.Builder
	scanTables(&b, m)
	if want := "\n| **peak MiB, all files** | 1 | 2 | - | 3 |"; !strings.Contains(b.String(), want) {
		t.Errorf("%q is not in %s", want, b.String())
	}
}
