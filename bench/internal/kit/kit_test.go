package kit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	parts := []Part[int]{{"scan", 0}, {"cache", 1}, {"hedge", 2}}
	for names, want := range map[string][]Part[int]{"": parts, "hedge,scan": {{"hedge", 2}, {"scan", 0}}} {
		if got, err := Choose(parts, names); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q gives %v, %v", names, got, err)
		}
	}
	if _, err := Choose(parts, "scan,hegde"); err == nil || !strings.Contains(err.Error(), `"hegde"; have scan, cache, hedge`) {
		t.Errorf("a part that is not there gives %v", err)
	}
}

// A quantile leaves the numbers in their places: ratios of rounds are of the same places of two lists.
func TestQuantile(t *testing.T) {
	xs := []float64{3, 1, 4, 2}
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 1: 4} {
		if got := Quantile(xs, q); got != want {
			t.Errorf("quantile %v is %v", q, got)
		}
	}
	if !slices.Equal(xs, []float64{3, 1, 4, 2}) || Median(xs) != 3 || Median([]int{}) != 0 {
		t.Errorf("%v, %v", xs, Median(xs))
	}
}

// Close undoes everything, the last first.
func TestHost(t *testing.T) {
	h := NewHost(t.Context(), filepath.Join(t.TempDir(), "new"), nil)
	t.Setenv("KIT_SET", "before")
	h.Setenv("KIT_SET", "now")
	h.Setenv("KIT_SET", "later")
	h.Setenv("KIT_UNSET", "now")
	dir := h.TempDir()
	if _, err := os.Stat(dir); err != nil || os.Getenv("KIT_SET") != "later" {
		t.Fatal(err)
	}
	h.Close()
	if _, there := os.LookupEnv("KIT_UNSET"); there || os.Getenv("KIT_SET") != "before" {
		t.Error("the environment is not as it was")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder is left")
	}
}

// A table has a head, the lines of its parts, and ends with the part that fails.
func TestTable(t *testing.T) {
	var out strings.Builder
	table := &Table{Out: &out, Program: "p", Title: "Things", About: ": all of them.", Foot: "The end."}
	part := func(table *Table) error {
		table.Add("speed", "", "%s", Spread("%.1f", " MB/s", []float64{3, 1, 2}))
		return nil
	}
	parts := []Part[func(*Table) error]{{"one", part}, {"two", func(*Table) error { return os.ErrInvalid }}}
	if err := Measure(table, ", Python 9", parts[:1], table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Things, measured\n\n", ", Python 9. Made by `ONLY=p bench/run.sh`: all of them.\n\n| what |", "| speed | 2.0 MB/s (1.0 to 3.0, of 3) | - | `bin/bench-p -only one DIR` |\n", " in all. The end.\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %q", want, out.String())
		}
	}
	if err := Measure(table, "", parts[1:], table); err == nil || err.Error() != "two: invalid argument" {
		t.Errorf("a part that fails gives %v", err)
	}
}
