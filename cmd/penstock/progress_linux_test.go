package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/memtest"
)

// The line says how far the run is, how fast, how long it will take, what it holds and what is slowest; it leaves out what it cannot know.
func TestProgressLine(t *testing.T) {
	for want, st := range map[string]exec.Stats{
		" 25% 1,234,500 rows, 123,450 rows/s, 1.0 MiB/s, 30s left, memory 5.0 MiB, slowest: map": {Splits: 8, SplitsDone: 2, RowsIn: 1_234_500, BytesRead: 10 << 20, HeldBytes: 5 << 20, Bottleneck: "map"},
		"100% 10 rows, 1 rows/s, 0 B/s, memory 0 B":                                              {Splits: 8, SplitsDone: 8, RowsIn: 10},
		"0 rows, 0 rows/s, 0 B/s, memory 0 B":                                                    {},
	} {
		if got := line(st, exec.Stats{}, 10*time.Second); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// What an earlier run has done is no pace; requests that storage failed are worth a word.
	st := exec.Stats{Splits: 8, SplitsDone: 4, RowsIn: 1000, StorageRetries: 7}
	if got, want := line(st, exec.Stats{SplitsDone: 2, RowsIn: 900}, 10*time.Second), " 50% 1,000 rows, 10 rows/s, 0 B/s, 20s left, memory 0 B, 7 requests made again"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// terminal makes one: what is written to tty is read from ptmx.
func terminal(t *testing.T) (ptmx, tty *os.File) {
	t.Helper()
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		memtest.Skip(t, "no terminals here: %v", err)
	}
	t.Cleanup(func() { ptmx.Close() })
	if err := unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ptmx, tty
}

// On a terminal a run draws its line over and over and wipes it at the end; where there is none it says nothing.
func TestProgress(t *testing.T) {
	const spec = "version: 1\nsource: {range: {n: 20000000000}}\nsteps: [{filter: id % 7 == 3}]\nsink: {count: {}}\n"
	ptmx, tty := terminal(t)
	c := command(t, "run", writeSpec(t, spec))
	c.Stderr = tty
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	var text strings.Builder
	buf := make([]byte, 4096)
	for stopped := false; ; {
		k, err := ptmx.Read(buf) // an error when the last who had the terminal open is gone
		text.Write(buf[:k])
		if err != nil {
			if err != io.EOF && !strings.Contains(err.Error(), "input/output error") {
				t.Error(err)
			}
			break
		}
		if !stopped && strings.Count(text.String(), "rows/s") >= 2 {
			stopped = true
			if err := c.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = c.Wait()
	got := text.String()
	last := got[strings.LastIndex(got, "rows/s"):]
	if c.ProcessState.ExitCode() != 130 || !strings.Contains(got, "\r\x1b[K") || !strings.Contains(got, "memory ") || !strings.Contains(last, "\r\x1b[K") {
		t.Errorf("exit %d: %q", c.ProcessState.ExitCode(), got)
	}
}

// The bytes of a log are not for a terminal.
func TestRawLogs(t *testing.T) {
	_, tty := terminal(t)
	c := command(t, "logs", "--raw", "j1", "--cluster", t.TempDir())
	var stderr strings.Builder
	c.Stdout, c.Stderr = tty, &stderr
	_ = c.Run()
	tty.Close()
	if c.ProcessState.ExitCode() != exitUsage || !strings.Contains(stderr.String(), "penstock logs --raw j1 > log") {
		t.Errorf("exit %d: %s", c.ProcessState.ExitCode(), stderr.String())
	}
}
