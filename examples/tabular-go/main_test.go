package main

import (
	"bufio"
	"log"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// The loss is printed with as many digits as tell it from every other number.
var last = regexp.MustCompile(`in (\d+) attempts, validation loss ([0-9.e+-]+)`)

var bin string // of this program

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tabular-go-")
	if err != nil {
		log.Fatal(err)
	}
	bin = filepath.Join(dir, "tabular-go")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		log.Fatalf("%v\n%s", err, out)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func train(t *testing.T, args ...string) (attempts string, loss float64) {
	t.Helper()
	out, err := exec.Command(bin, args...).CombinedOutput()
	m := last.FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	loss, err = strconv.ParseFloat(string(m[2]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return string(m[1]), loss
}

// A run whose worker is killed ends with the loss, to the last bit, of one in which nothing happens. On another number of workers only the order of summation differs.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, args ...string) (attempts string, loss float64) {
		t.Helper()
		return train(t, append([]string{"-storage", dir, "-name", name, "-epochs", "3"}, args...)...)
	}
	attempts, want := run("undisturbed")
	if attempts != "1" {
		t.Fatalf("%s attempts", attempts)
	}
	if attempts, got := run("killed", "-crash", "30"); attempts != "2" || got != want {
		t.Errorf("killed: loss %v after %s attempts, want %v after 2", got, attempts, want)
	}
	if _, got := run("three", "-workers", "3"); math.Abs(got-want) > 1e-3 {
		t.Errorf("three workers: loss %v, want %v", got, want)
	}
}

// A run that is stopped by SIGTERM saves, and goes on by -resume: it ends with the loss, to the last bit, of one in which nothing happens.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	c := exec.Command(bin, "-storage", dir, "-name", "stopped", "-epochs", "10000")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	epochs := 0
	for s := bufio.NewScanner(out); s.Scan(); {
		if !strings.HasPrefix(s.Text(), "epoch ") {
			continue
		}
		if epochs++; epochs == 1 {
			if err := c.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 75 || epochs == 0 || epochs > 100 {
		t.Fatalf("exit code %d after %d epochs, want 75 (preempted) soon after the first\n%s", code, epochs, &errs)
	}
	to := strconv.Itoa(epochs + 2)
	_, got := train(t, "-storage", dir, "-name", "stopped", "-resume", "-epochs", to)
	_, want := train(t, "-storage", dir, "-name", "undisturbed", "-epochs", to)
	if got != want {
		t.Errorf("stopped and resumed: loss %v, want %v", got, want)
	}
}
