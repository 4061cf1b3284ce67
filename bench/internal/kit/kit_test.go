package kit

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	parts := []string{"scan", "cache", "hedge"}
	self := func(s string) string { return s }
	for names, want := range map[string][]string{"": parts, "hedge,scan": {"hedge", "scan"}} {
		if got, err := Choose(parts, self, names); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q gives %v, %v", names, got, err)
		}
	}
	if _, err := Choose(parts, self, "scan,hegde"); err == nil || !strings.Contains(err.Error(), `"hegde"; have scan, cache, hedge`) {
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
