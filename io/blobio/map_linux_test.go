package blobio_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
	"golang.org/x/sys/unix"
)

// What is not in memory of a file is read when it is mapped, not by faults.
func TestMapReads(t *testing.T) {
	dir := t.TempDir()
	b := open(t, "file://"+dir, nil)
	info := put(t, b, "k", randomBytes(3, 8<<20))
	raw, err := os.Open(filepath.Join(dir, "k"))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	fd := int(raw.Fd())
	cached := func() uint64 {
		var is unix.Cachestat_t
		if err := unix.Cachestat(uint(fd), &unix.CachestatRange{Len: uint64(info.Size)}, &is, 0); err != nil {
			memtest.Skip(t, "this system does not say what of a file is in memory: %v", err)
		}
		return is.Cache
	}
	if err := raw.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if n := cached(); n > 0 {
		memtest.Skip(t, "this file system keeps %d pages in memory", n)
	}
	f, err := b.Object(info, nil).Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := f.Map(t.Context(), 0, info.Size, info.Size)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	if n, want := cached(), uint64(info.Size)/uint64(os.Getpagesize()); n != want {
		t.Errorf("%d pages of %d are in memory", n, want)
	}
}
