package agent

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"strconv"
	"strings"
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

// content is a hash of what of the program's file is in memory and read-only.
func content(t *testing.T) []byte {
	t.Helper()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	h := sha256.New()
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) != 6 || f[5] != exe || strings.Contains(f[1], "w") {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		a, err := strconv.ParseInt(from, 16, 64)
		b, err2 := strconv.ParseInt(to, 16, 64)
		if err != nil || err2 != nil {
			t.Fatal(line)
		}
		if _, err := io.Copy(h, io.NewSectionReader(mem, a, b-a)); err != nil {
			t.Fatal(err)
		}
	}
	return h.Sum(nil)
}

// What was touched of the program goes, and the program goes on.
func TestTrim(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe") // in the page cache, so that touching maps it
	if err != nil || len(exe) == 0 {
		t.Fatal(err)
	}
	was := content(t)
	before := resident(t)
	trim()
	after := resident(t)
	if !bytes.Equal(content(t), was) {
		t.Error("the program is not what it was: pages that the loader had written are lost")
	}
	t.Logf("%d KiB of files before, %d after", before>>10, after>>10)
	if after > before/2 {
		t.Errorf("%d KiB of files before, %d after", before>>10, after>>10)
	}
}
