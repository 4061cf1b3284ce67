//go:build linux

package hosttest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Small makes the folder dir a file system in memory, for the rest of the test. size is what mount takes after size=.
func Small(t testing.TB, dir, size string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("penstock-test", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		lacks(t, err, "no small file system can be made here")
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 2) }) // MNT_DETACH
}

// Fill takes all that is left in dir, to the last byte, and returns what gives it back.
func Fill(t testing.TB, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "fill")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 1<<20); len(b) > 0; b = b[:len(b)/2] {
		for err = nil; err == nil; {
			_, err = f.Write(b)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}
