package mem

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

var pageMask = uintptr(os.Getpagesize() - 1)

// reserve maps n bytes that take memory only once written.
func reserve(n uintptr) (uintptr, bool) {
	at, err := unix.MmapPtr(-1, 0, nil, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return 0, false
	}
	// Huge pages would count memory that no block uses; a core dump wants none of it. Both are hints.
	b := unsafe.Slice((*byte)(at), n)
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	_ = unix.Madvise(b, unix.MADV_DONTDUMP)
	return uintptr(at), true
}

func unmap(at, n uintptr) {
	if err := unix.MunmapPtr(pointer(at), n); err != nil {
		panic(err)
	}
}

// discard gives the whole pages in [at, at+n) back to the system.
func discard(at, n uintptr) {
	lo, hi := (at+pageMask)&^pageMask, (at+n)&^pageMask
	if lo < hi {
		_ = unix.Madvise(bytesAt(lo, int(hi-lo)), unix.MADV_DONTNEED)
	}
}

// pointer makes a pointer of an address outside the Go heap, where none of the collector's rules apply.
func pointer(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

func bytesAt(at uintptr, n int) []byte { return unsafe.Slice((*byte)(pointer(at)), n) }
