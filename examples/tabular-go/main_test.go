package main

import (
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

var last = regexp.MustCompile(`in (\d+) attempts, validation loss ([0-9.]+)`)

// TestKill: a run whose worker is killed ends with the loss, to the last bit, of one in which nothing happens. On another number of workers only the order of summation differs.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "tabular-go")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(name string, args ...string) (attempts string, loss string) {
		t.Helper()
		out, err := exec.Command(bin, append([]string{"-storage", dir, "-name", name, "-epochs", "3"}, args...)...).CombinedOutput()
		m := last.FindSubmatch(out)
		if err != nil || m == nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(m[1]), string(m[2])
	}
	attempts, want := run("undisturbed")
	if attempts != "1" {
		t.Fatalf("%s attempts", attempts)
	}
	if attempts, got := run("killed", "-crash", "30"); attempts != "2" || got != want {
		t.Errorf("killed: loss %s after %s attempts, want %s after 2", got, attempts, want)
	}
	_, got := run("three", "-workers", "3")
	a, _ := strconv.ParseFloat(got, 64)
	b, _ := strconv.ParseFloat(want, 64)
	if math.Abs(a-b) > 1e-3 {
		t.Errorf("three workers: loss %s, want %s", got, want)
	}
}
