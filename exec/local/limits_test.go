package local_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/internal/fault"
)

// skipping is 12 splits of 200 rows, of which every step has its share that it cannot process: more in the first half.
func skipping(own *exec.OnError) *exec.Graph {
	g := exectest.Scan(exectest.NewTable(12, 200), exectest.FailRows(fault.RowError, func(id int64) bool { return id < 1200 && id%50 == 7 || id%200 == 9 }))
	g.Root.Ops[0].OnError = own
	return g
}

// ofEarlier is what a message says of where rows were skipped, and of what to do.
var ofEarlier = regexp.MustCompile(` \(\d+ of them by an earlier run of this job\)|: raise max_(rows|rate)(?s:.*)$`)

// A job of which some parts are finished ends as it does undisturbed, whichever they are: with the same rows, numbers and errors.
func TestLimitsOfDoneParts(t *testing.T) {
	all := &exectest.Sink{PerPart: 2}
	want, st, err := write(t, skipping(nil), all, exec.Options{OnError: exec.OnError{Policy: exec.Skip}})
	if err != nil || st.Skipped != 36 || st.RowsIn != 2400 || st.RowsOut != 2364 {
		t.Fatalf("%d rows, %+v, %v", len(want), st, err)
	}
	if got := all.Tallies[0]; got.Read != 400 || got.Span != 400 || !maps.Equal(got.Skipped, map[string]int64{"0 step (fail rows)": 10}) {
		t.Fatalf("%+v", got)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		o, own *exec.OnError
		want   string
	}{
		{&exec.OnError{Policy: exec.Skip, MaxRows: 36, MaxRate: 0.025}, nil, ""},
		{&exec.OnError{Policy: exec.Skip, MaxRows: 35}, nil, "on_error: 36 rows skipped, more than max_rows 35"},
		{&exec.OnError{Policy: exec.Skip, MaxRate: 0.02}, nil, "on_error: 30 of 1200 rows skipped, more than max_rate 0.02"},
		{&exec.OnError{Policy: exec.Skip, MaxRows: 1}, &exec.OnError{Policy: exec.Skip, MaxRows: 40, MaxRate: 0.03}, ""},
		{&exec.OnError{}, &exec.OnError{Policy: exec.Skip, MaxRows: 35}, "on_error: 36 rows skipped by step (fail rows), more than max_rows 35"},
		{&exec.OnError{}, &exec.OnError{Policy: exec.Skip, MaxRate: 0.01}, "on_error: 30 of 1200 rows skipped by step (fail rows), more than max_rate 0.01"},
	} {
		for n := range 20 {
			var done []int
			for part := range 6 {
				if rng.IntN(2) == 0 && n > 0 {
					done = append(done, part)
				}
			}
			s := &exectest.Sink{PerPart: 2, Done: done, Tallies: maps.Clone(all.Tallies)}
			_, st, err := write(t, skipping(c.own), s, exec.Options{CPUs: 1 + rng.IntN(4), BatchRows: 1 + rng.IntN(300), Unordered: n%2 == 0, OnError: *c.o})
			got := ""
			if err != nil {
				got = ofEarlier.ReplaceAllString(err.Error(), "")
			}
			if got != c.want || err != nil && fault.CodeOf(err) != fault.Exhausted {
				t.Errorf("%+v, %+v, with %v done: %v, want %q", c.o, c.own, done, err, c.want)
			}
			if err == nil && (st.Skipped != 36 || st.RowsIn != 2400) {
				t.Errorf("with %v done: %+v", done, st)
			}
		}
	}
}

// Where what is finished decides, the run fails before it opens anything, and says what to do.
func TestLimitsAtOnce(t *testing.T) {
	skip := func(rows int64, rate float64) exec.OnError {
		return exec.OnError{Policy: exec.Skip, MaxRows: rows, MaxRate: rate}
	}
	for _, c := range []struct {
		one   bool
		done  []int
		tally exec.Tally
		o     exec.OnError
		want  string
	}{
		{false, []int{3}, exec.Tally{Span: 200, Skipped: map[string]int64{"0 ": 6}}, skip(5, 0), "6 rows skipped (6 of them by an earlier run of this job), more than max_rows 5: raise max_rows to go on from its finished parts, or mend the data"},
		{false, []int{0, 1}, exec.Tally{Span: 500, Skipped: map[string]int64{"0 ": 6}}, skip(0, 0.01), "12 of 1000 rows skipped (12 of them by an earlier run of this job), more than max_rate 0.01: raise max_rate to go on from its finished parts, or mend the data"},
		{false, []int{2}, exec.Tally{Span: 200, Skipped: map[string]int64{"0 x": 6}}, exec.OnError{}, "policy fail, and an earlier run of this job has skipped 6 rows in parts that it finished: set policy skip to go on"},
		{false, []int{0}, exec.Tally{Span: 200, Skipped: map[string]int64{"0 ": 5}}, skip(5, 0.03), ""},
		{true, []int{0}, exec.Tally{Span: 900, Skipped: map[string]int64{"0 ": 6}}, skip(5, 0), "6 rows skipped (6 of them"},
		{true, []int{0}, exec.Tally{Span: 900, Skipped: map[string]int64{"0 ": 6}}, skip(0, 0.001), "6 of 900 rows skipped (6 of them"},
		{true, []int{0}, exec.Tally{Span: 900, Skipped: map[string]int64{"0 ": 6}}, exec.OnError{}, "policy fail, and"},
		{true, []int{0}, exec.Tally{Read: 7, Span: 900, Skipped: map[string]int64{"0 ": 6}}, skip(6, 0.1), ""},
	} {
		tb := exectest.NewTable(4, 200)
		g := exectest.Scan(tb)
		if c.one {
			g = exectest.Graph(exectest.Cut(1<<40, []*exec.Stage{g.Root}))
		}
		s := &exectest.Sink{Done: c.done, Tallies: map[int]exec.Tally{}}
		for _, d := range c.done {
			s.Tallies[d] = c.tally
		}
		var seen func() exec.Stats
		_, st, err := write(t, g, s, exec.Options{CPUs: 2, OnError: c.o, Observe: func(f func() exec.Stats) { seen = f }})
		if got := seen(); got.Skipped != st.Skipped || got.SplitsDone != st.SplitsDone {
			t.Errorf("%+v: who observes sees %+v, not %+v", c, got, st)
		}
		if c.want == "" {
			if err != nil || st.Skipped != int64(len(c.done))*c.tally.AllSkipped() {
				t.Errorf("%+v: %+v, %v", c, st, err)
			}
			continue
		}
		if fault.CodeOf(err) != fault.Exhausted || !strings.Contains(fmt.Sprint(err), "on_error: "+c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if o := tb.Opens(); slices.Max(o) > 0 || st.Skipped != int64(len(c.done))*c.tally.AllSkipped() {
			t.Errorf("%+v: opened %v, %+v", c, o, st)
		}
	}
}
