package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A ratio is ours to another's, smaller is better for us, with the spread of the A/A control: the
// largest factor, either way, between two runs of ours in the same round. What is within it says nothing.
type ratio struct {
	value, spread float64
	once          bool // one round: no spread of the other is known
}

// text never rounds in our favour: up.
func (r ratio) text() string {
	switch {
	case math.IsNaN(r.value):
		return "-"
	case r.value <= r.spread && r.value >= 1/r.spread:
		return fmt.Sprintf("<= A/A (%s)", up(r.value, 2))
	}
	return up(r.value, 2)
}

// goal is what the project must reach.
type goal struct {
	what, figure, aa, want string
	met                    string // yes, no, or with how little room
}

func median(v []float64) float64 {
	v = slices.DeleteFunc(slices.Clone(v), math.IsNaN)
	if len(v) == 0 {
		return nan
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func values(fs []figures, c column) (v []float64) {
	for _, f := range fs {
		v = append(v, c.get(f))
	}
	return v
}

// cost is a column as "smaller is better".
func cost(c column) column {
	if !c.rate {
		return c
	}
	get := c.get
	c.get = func(f figures) float64 { return 1 / get(f) }
	return c
}

// spread of a column in the control.
func (m *measured) spread(c column) float64 {
	return spreadOf(m.Cases[0].Runs, m.get("penstock again").Runs, c)
}

func spreadOf(a, b []figures, c column) float64 {
	s := 1.0
	for i := range min(len(a), len(b)) {
		if r := c.get(a[i]) / c.get(b[i]); !math.IsNaN(r) {
			s = max(s, r, 1/r)
		}
	}
	return s
}

// against is the ratio of ours to another case: the median over rounds.
func (m *measured) against(ours, other string, c column) ratio {
	c = cost(c)
	return ratioOf(m.get(ours), m.get(other), c, m.spread(c))
}

func ratioOf(a, b *caseResult, c column, spread float64) ratio {
	r := ratio{value: nan, spread: spread, once: len(b.Runs) == 1}
	if a.Err != "" || b.Err != "" || len(a.Runs) == 0 || len(b.Runs) == 0 {
		return r
	}
	if len(a.Runs) != len(b.Runs) {
		r.value = median(values(a.Runs, c)) / median(values(b.Runs, c))
		return r
	}
	var v []float64
	for i := range a.Runs {
		v = append(v, c.get(a.Runs[i])/c.get(b.Runs[i]))
	}
	r.value = median(v)
	return r
}

// verdict of a figure that must be at most a bound, with a spread.
func verdict(v, bound, spread float64) string {
	switch {
	case math.IsNaN(v):
		return "not measured"
	case v <= bound && v*spread > bound:
		return "yes, within A/A"
	case v <= bound:
		return "yes"
	case v/spread <= bound:
		return "**no**, within A/A"
	}
	return "**no**"
}

// least is a goal on the ratio of ours to another case.
func (m *measured) least(other string, c column, bound float64) goal {
	return m.between("penstock", other, c, bound)
}

func (m *measured) between(ours, other string, c column, bound float64) goal {
	r := m.against(ours, other, c)
	what := fmt.Sprintf("%s: %s, %s / %s", m.w.title, strings.TrimSuffix(c.title, " s"), ours, other)
	return goal{what: what, figure: up(r.value, 2) + "x", aa: aa(r.spread), want: "<= " + down(bound, 2) + "x", met: verdict(r.value, bound, r.spread)}
}

// of is the same workload seen from another of our cases.
func (m *measured) of(name string) *measured {
	return &measured{Name: m.Name, Cases: []*caseResult{m.get(name)}, w: m.w}
}

// own are a figure's values of our first case; none where it is wrong.
func (m *measured) own(c column) []float64 {
	if m.Cases[0].Err != "" {
		return nil
	}
	return values(m.Cases[0].Runs, c)
}

// atMost is a goal on a figure of ours: the median.
func (m *measured) atMost(what string, c column, bound float64, unit string) goal {
	v, s := median(m.own(c)), m.spread(c)
	return goal{what: m.w.title + ": " + what, figure: strings.TrimSpace(up(v, c.digits) + " " + unit), aa: aa(s), want: fmt.Sprintf("<= %s", down(bound, c.digits)), met: verdict(v, bound, s)}
}

// atLeast is the other way round, of the worst run.
func (m *measured) atLeast(what string, c column, bound float64, unit string) goal {
	v := nan
	if vs := m.own(c); len(vs) > 0 {
		v = slices.Min(vs)
	}
	g := goal{what: m.w.title + ": " + what, figure: strings.TrimSpace(down(v, c.digits) + " " + unit), aa: "-", want: fmt.Sprintf(">= %s", up(bound, c.digits)), met: "**no**"}
	switch {
	case math.IsNaN(v):
		g.met = "not measured"
	case v >= bound:
		g.met = "yes"
	}
	return g
}

func aa(spread float64) string {
	if spread == 1 { // of figures without a control
		return "-"
	}
	return "x" + up(spread, 2)
}

// up and down print a number rounded away from zero or towards it.
func up(v float64, digits int) string   { return rounded(v, digits, math.Ceil) }
func down(v float64, digits int) string { return rounded(v, digits, math.Floor) }

func rounded(v float64, digits int, f func(float64) float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "-"
	}
	p := math.Pow(10, float64(digits))
	x := v * p
	if math.Abs(x-math.Round(x)) < 1e-9*max(1, math.Abs(x)) { // a bound such as 0.7 is what it says
		x = math.Round(x)
	}
	s := fmt.Sprintf("%.*f", digits, f(x)/p)
	if digits == 0 && len(s) > 4 { // thousands
		for i := len(s) - 3; i > 0; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
	}
	return s
}

func geomean(v []float64) float64 {
	sum, n := 0.0, 0
	for _, x := range v {
		if !math.IsNaN(x) {
			sum += math.Log(x)
			n++
		}
	}
	if n == 0 {
		return nan
	}
	return math.Exp(sum / float64(n))
}
