package mem

import (
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/penstock-data/penstock/internal/memtest"
	"golang.org/x/sys/unix"
)

// TestClosedPoolTouchesNothing: a closed pool that is used on lets the pages alone that were its own, whoever has them.
func TestClosedPoolTouchesNothing(t *testing.T) {
	for range 100 { // sync.Pool promises nothing of a single turn
		p := New(33 << 20)
		if !p.OffHeap() {
			memtest.Skip(t, "no memory outside the Go heap here")
		}
		b := p.Allocate(16 << 20)
		clear(b)
		p.Free(b)
		p.Close()
		// A page in front of the addresses keeps a larger mapping out of the hole that they leave.
		page := uintptr(unix.Getpagesize())
		front, err := unix.MmapPtr(-1, 0, pointer(p.base-page), page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
		if err == nil {
			defer unmap(uintptr(front), page)
		}
		New(1 << 30).Close() // of another shape: what p left is unmapped
		at, err := unix.MmapPtr(-1, 0, pointer(p.base), p.end-p.base, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE)
		if err != nil {
			continue
		}
		block := bytesAt(addr(b), len(b)) // somebody else's now
		for i := range block {
			block[i] = 7
		}
		if p.Owns(block) || p.Cached() != 0 {
			t.Errorf("a closed pool owns memory, or has %d bytes cached", p.Cached())
		}
		p.Outside(64 << 20)
		p.Free(p.Allocate(1 << 20))
		p.Trim()
		p.Close()
		for i, v := range block {
			if v != 7 {
				t.Fatalf("byte %d of memory that is not the pool's is %d", i, v)
			}
		}
		if err := unix.MunmapPtr(at, p.end-p.base); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Error("the addresses were never free: the test does not test")
}

// The block that slows the collector down takes no memory, also where the heap was used before; a huge page may lie across its ends.
func TestPaceIsUntouched(t *testing.T) {
	used := make([]byte, 4*paceBytes)
	for i := range used {
		used[i] = 1
	}
	used = nil
	runtime.GC()
	b := newPace()
	page := uintptr(unix.Getpagesize())
	pages := make([]byte, paceBytes/page)
	if _, _, err := unix.Syscall(unix.SYS_MINCORE, addr(b)&^(page-1), paceBytes, uintptr(unsafe.Pointer(&pages[0]))); err != 0 {
		t.Fatal(err)
	}
	touched := 0
	for _, b := range pages {
		touched += int(b & 1)
	}
	if touched > len(pages)/4 {
		t.Errorf("%d pages of %d were touched", touched, len(pages))
	}
	runtime.KeepAlive(b)
}

// A limit of the heap that is near has no room for it.
func TestPaceUnderLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(200 << 20))
	if newPace() != nil {
		t.Error("a block that counts in a limit of 200 MiB")
	}
}
