package whereabouts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const childVar = "PENSTOCK_WHEREABOUTS_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		Begin(func() string { return "a.parquet, row group 1" })()
		Begin(func() string { return "b.parquet, row group 3" })
		Begin(func() string { return "a.parquet, row group 2" })()
		Begin(func() string { return "a" })
		Begin(func() string { return "a" }) // another piece of it
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	os.Exit(m.Run())
}

// A process that kills itself leaves what its tasks were at, and nothing of those that were over.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), childVar+"=1", Env+"="+dir)
		if err := c.Run(); err == nil || c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%v", err)
		}
		if got, want := Read(dir, c.Process.Pid), []string{"a", "b.parquet, row group 3"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := Read(dir, os.Getpid()); got != nil {
		t.Errorf("of another process: %q", got)
	}
}

// What does not fit is cut, or not noted; what others put into the folder does no harm.
func TestOdd(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "1-mine"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := &places{f: f}
	var ends []func()
	for i := range slots + 2 {
		ends = append(ends, p.begin(fmt.Sprintf("%s\n%d", strings.Repeat("ü", slotBytes), i)))
	}
	got := Read(dir, 1)
	if len(got) != slots || len(got[0]) >= slotBytes || !strings.HasPrefix(got[0], "...ü") || !strings.HasSuffix(got[0], "ü?10") {
		t.Errorf("%d, %q", len(got), got[0])
	}
	for _, end := range ends {
		end()
	}
	if err := os.WriteFile(filepath.Join(dir, "1-other"), []byte("\xff\x00x\nrest"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "1-pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "1-link")); err != nil {
		t.Fatal(err)
	}
	if got, want := Read(dir, 1), []string{"\ufffd?x"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := Read(filepath.Join(dir, "none"), 1); got != nil {
		t.Errorf("%q", got)
	}
}
