package kit

import (
	"cmp"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Table is what a program prints: each figure beside its goal and the command that prints it.
type Table struct {
	Out     io.Writer
	Program string // its name in bench/run.sh
	Title   string
	About   string // goes on after how it was made
	Foot    string
	Part    string // that is measured now
}

// Add is a line. A goal of "" is none.
func (t *Table) Add(what, goal, figure string, args ...any) {
	fmt.Fprintf(t.Out, "| %s | %s | %s | `bin/bench-%s -only %s DIR` |\n", what, fmt.Sprintf(figure, args...), cmp.Or(goal, "-"), t.Program, t.Part)
}

// Measure prints the table of the parts, each of which runs with b. versions is said of what is on this machine besides.
func Measure[B any](t *Table, versions string, parts []Part[func(B) error], b B) error {
	fmt.Fprintf(t.Out, "# %s, measured\n\n%s, %d cores, %s, %s/%s, %s%s. Made by `ONLY=%s bench/run.sh`%s\n\n| what | figure | goal | command |\n|---|---|---|---|\n",
		t.Title, time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), cpuModel(), runtime.GOOS, runtime.GOARCH, runtime.Version(), versions, t.Program, t.About)
	load, begin := LoadAverage(), time.Now()
	for _, p := range parts {
		t.Part = p.Name
		from := time.Now()
		if err := p.Run(b); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		log.Printf("%s: %.0f s", p.Name, time.Since(from).Seconds())
	}
	fmt.Fprintf(t.Out, "\nLoad average: %s at the beginning, %s at the end; %.0f s in all. %s\n", load, LoadAverage(), time.Since(begin).Seconds(), t.Foot)
	return nil
}

// Spread is a figure of several rounds: each number as format says.
func Spread(format, unit string, xs []float64) string {
	return fmt.Sprintf(format+"%s ("+format+" to "+format+", of %d)", Median(xs), unit, slices.Min(xs), slices.Max(xs), len(xs))
}

// CheckTable is a test of what a part printed: lines with so many columns, and numbers in them.
func CheckTable(t testing.TB, text string, columns int) {
	t.Helper()
	if text == "" {
		t.Error("nothing is printed")
	}
	for line := range strings.Lines(text) {
		if strings.Count(line, "|") != columns+1 || strings.Contains(line, "%!") || strings.Contains(line, "NaN") {
			t.Errorf("a line of the table is %q", line)
		}
	}
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // unknown where it is not there
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, "\t :\n")
		}
	}
	return "processor unknown"
}
