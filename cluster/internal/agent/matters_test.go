package agent

import (
	"strings"
	"syscall"
	"testing"

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
		x := ended(c.e, 2<<30)
		if all := append([]string{c.want, c.e.String()}, c.e.Tail...); x.GetClass() != c.class || x.GetText() != strings.Join(all, "\n") {
			t.Errorf("%+v: %s: %q", c.e, x.GetClass(), x.GetText())
		}
	}
}
