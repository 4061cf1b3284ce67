package agent

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// resident is how many bytes of files are in this process's memory.
func resident(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if f := bytes.Fields(s.Bytes()); len(f) == 3 && string(f[0]) == "RssFile:" {
			n, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no RssFile")
	return 0
}

// What was touched of the program goes, and the program goes on.
func TestTrim(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe") // in the page cache, so that touching maps it
	if err != nil || len(exe) == 0 {
		t.Fatal(err)
	}
	before := resident(t)
	trim()
	after := resident(t)
	t.Logf("%d KiB of files before, %d after", before>>10, after>>10)
	if after > before/2 {
		t.Errorf("%d KiB of files before, %d after", before>>10, after>>10)
	}
}

// A mapping that was written before it was made read-only stays as it is: the loader does that with addresses of functions.
func TestTrimWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, bytes.Repeat([]byte("file"), 4<<10), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 16<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	copy(b[8<<10:], "ours")
	if err := unix.Mprotect(b, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	trimFile(file)
	if got := string(b[8<<10:][:8]); got != "oursfile" {
		t.Errorf("it is %q", got)
	}
}
