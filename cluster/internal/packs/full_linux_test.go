package packs

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"golang.org/x/sys/unix"
)

// A disk that is full is said to be, nothing half is left, and when there is room it goes on.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		memtest.Skip(t, "cannot mount a small file system: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	s := must(OpenStore(filepath.Join(dir, "packs"), 0, Limits{}))
	h, b := blob(1, 500_000)
	wants(t, s.Put(t.Context(), h, bytes.NewReader(b)), fault.Exhausted, "no space")
	src := write(t.TempDir(), map[string]string{"zeros": strings.Repeat("\x00", 400_000), "small": "x"})
	info := must(s.Create(t.Context(), src))
	out := filepath.Join(dir, "job")
	wants(t, s.Unpack(t.Context(), info.Hash, out), fault.Exhausted, "no space", out)
	if n := names(dir); len(n) != 1 || len(names(filepath.Join(dir, "packs"))) != 1 {
		t.Errorf("left: %v %v", n, names(filepath.Join(dir, "packs")))
	}
	h, b = blob(2, 100_000)
	ok(s.Put(t.Context(), h, bytes.NewReader(b)))
}

// Packs that come at once do not take the disk: beyond the limit again they are refused.
func TestManyAtOnce(t *testing.T) {
	s := must(OpenStore(filepath.Join(t.TempDir(), "packs"), 10_000, Limits{Packed: 8000}))
	h1, b1 := blob(1, 6000)
	h2, b2 := blob(2, 6000)
	first, w := io.Pipe()
	done := make(chan error)
	go func() { done <- s.Put(t.Context(), h1, first) }()
	must(w.Write(b1[:5900])) // returns when it was read; what is in flight was counted before the next read
	must(w.Write(b1[5900:5950]))
	wants(t, s.Put(t.Context(), h2, bytes.NewReader(b2)), fault.Exhausted, "at once")
	w.CloseWithError(errors.New("gone"))
	if err := <-done; err == nil {
		t.Error("half a pack is kept")
	}
	ok(s.Put(t.Context(), h2, bytes.NewReader(b2)))
	ok(s.Put(t.Context(), h1, bytes.NewReader(b1)))
	if len(s.half) != 0 || !s.Has(h1) {
		t.Errorf("%v bytes counted as being written", s.half)
	}
}
