package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/trainer/launch"
)

// What matters of an end is in its first line, and all of it behind that.
func TestMatters(t *testing.T) {
	for _, c := range []struct {
		e     launch.Exit
		class string
		want  string
	}{
		{launch.Exit{Memory: true, OverLimit: true, Signal: syscall.SIGKILL, Detail: "it used 2.1 GiB, its limit is 2 GiB"}, "memory", "it passed its limit of 2 GiB; give it more with --memory"},
		{launch.Exit{Memory: true, Signal: syscall.SIGKILL, Detail: "the machine was out of memory"}, "memory", "the machine was out of memory"},
		{launch.Exit{Memory: true, Signal: syscall.SIGKILL}, "memory", "it was ended for its memory"},
		{launch.Exit{Code: 2, Tail: []string{"2026/11/22 begins", "panic: boom", "", "goroutine 1 [running]:", "main.main()", "\t/x.go:4"}}, "user", "exit code 2: panic: boom"},
		{launch.Exit{Code: 1, Tail: []string{"Traceback (most recent call last):", "ValueError: no rows", ""}}, "user", "exit code 1: ValueError: no rows"},
		{launch.Exit{Code: 1}, "user", "exit code 1"},
		{launch.Exit{Signal: syscall.SIGSEGV, Code: -1, Tail: []string{"hello"}}, "worker", "signal 11 (SIGSEGV): hello"},
		{launch.Exit{Signal: syscall.SIGKILL, Code: -1, Detail: "not by Penstock"}, "worker", "signal 9 (SIGKILL): not by Penstock"},
		{launch.Exit{Code: 75, Tail: []string{"again"}}, "preemption", "exit code 75: again"},
		{launch.Exit{Code: -1, Detail: "SIGKILL has no effect"}, "user", "process (pid 7) did not end: SIGKILL has no effect"},
	} {
		c.e.Name, c.e.PID = "process", 7
		x := ended(c.e, limit{2 << 30, "--memory"}, nil)
		if all := append([]string{c.want, c.e.String()}, c.e.Tail...); x.GetClass() != c.class || x.GetText() != strings.Join(all, "\n") {
			t.Errorf("%+v: %s: %q", c.e, x.GetClass(), x.GetText())
		}
	}
}

// A log that lacks lines is said of every end, and changes none.
func TestLacks(t *testing.T) {
	full := &os.PathError{Op: "write", Path: "/logs/process.log", Err: syscall.ENOSPC}
	if x := ended(launch.Exit{Lacks: full}, limit{}, nil); x.GetClass() != "" || x.GetCode() != 0 || x.GetText() != "its log lacks lines: write /logs/process.log: no space left on device" {
		t.Errorf("%v", x)
	}
	x := ended(launch.Exit{Code: 3, Tail: []string{"last"}, Name: "process", Lacks: full}, limit{}, nil)
	if want := "exit code 3: last\nprocess ended with exit code 3\nits log lacks lines: write /logs/process.log: no space left on device\nlast"; x.GetClass() != "user" || x.GetCode() != 3 || x.GetText() != want {
		t.Errorf("%v", x)
	}
}

// What a process was at is in the first line of its end, four places at most; of one that is to start again it says nothing.
func TestPlaces(t *testing.T) {
	killed := launch.Exit{Signal: syscall.SIGKILL, Code: -1, Name: "process", PID: 7}
	for _, c := range []struct {
		e    launch.Exit
		at   string
		want string
	}{
		{killed, "a.parquet, row group 3", "signal 9 (SIGKILL); it was at a.parquet, row group 3"},
		{killed, "a|b", "signal 9 (SIGKILL); it was at a, and at b"},
		{killed, "a|b|c|d|e|f", "signal 9 (SIGKILL); it was at a, and at b, and at c, and at d, and at 2 more"},
		{launch.Exit{Memory: true, OverLimit: true, Signal: syscall.SIGKILL}, "a", "it passed its limit of 2 GiB; give it more with --memory; it was at a"},
		{launch.Exit{Code: 2, Tail: []string{"panic: boom"}}, "a", "exit code 2: panic: boom; it was at a"},
		{launch.Exit{Code: 75}, "a", "exit code 75"},
		{launch.Exit{}, "a", ""},
	} {
		x := ended(c.e, limit{2 << 30, "--memory"}, strings.Split(c.at, "|"))
		if got := firstLine(x.GetText()); got != c.want || strings.Contains(c.want, " at ") != (len(x.GetAt()) > 0) {
			t.Errorf("%q at %q, want %q", got, x.GetAt(), c.want)
		}
	}
}

// A file of the working directory, of which every attempt has a copy elsewhere, is named by its path in that.
func TestPlacesIn(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "1-1"), []byte("/run/j1-1-0/work/data/a.parquet, row group 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := placesIn(dir, "/run/j1-1-0/work", 1); !slices.Equal(got, []string{"data/a.parquet, row group 3"}) {
		t.Errorf("%q", got)
	}
}

// Who passed its limit on a data node is told the flag of data nodes.
func TestMemoryFlag(t *testing.T) {
	for process, want := range map[string]string{"j1/1/0": "--memory", "j1/1/1": "--memory", "j1/1/1/x3": "--memory", "j1/1/2": "--data-memory", "j1/1/2/x1": "--data-memory", "j1/12/3": "--data-memory"} {
		if got := memoryFlag(&pb.Start{Process: process, Members: 4, Data: 2}); got != want {
			t.Errorf("%s: %s", process, got)
		}
	}
	if got := memoryFlag(&pb.Start{Process: "j1/1/0", Members: 1}); got != "--memory" {
		t.Error(got)
	}
}
