package agent

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"testing"
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
