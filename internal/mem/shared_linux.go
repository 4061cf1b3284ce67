package mem

import (
	"os"
	"unsafe"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// newShared makes and maps a file of n bytes, or of as many as there are addresses for.
func newShared(n int) (f *os.File, base uintptr, size int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("penstock", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // Linux before 6.3
		fd, err = unix.MemfdCreate("penstock", flags)
	}
	if err != nil {
		return nil, 0, 0, fault.New(fault.Exhausted, "shared memory: memfd_create: %w", err)
	}
	f = os.NewFile(uintptr(fd), "shared memory")
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	var most unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &most) == nil && most.Cur < uint64(n) { // a larger one would be a signal
		n = int(most.Cur) &^ (chunk - 1)
	}
	for least := min(n, 64<<20); n >= max(least, chunk); n = n / 2 &^ (chunk - 1) {
		if base, err = mapFile(fd, n); err == nil {
			break
		}
	}
	if base == 0 {
		return nil, 0, 0, fault.New(fault.Exhausted, "shared memory: no %d bytes of addresses (%v): raise the limits of this process (ulimit -v, ulimit -f)", n, err)
	}
	if err = unix.Ftruncate(fd, int64(n)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		unmap(base, uintptr(n))
		return nil, 0, 0, fault.New(fault.Exhausted, "shared memory of %d bytes: %w", n, err)
	}
	return f, base, n, nil
}

func mapFile(fd, n int) (uintptr, error) {
	at, err := unix.MmapPtr(fd, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return 0, err
	}
	_ = unix.Madvise(unsafe.Slice((*byte)(at), n), unix.MADV_DONTDUMP) // a hint
	return uintptr(at), nil
}

// punch gives pages back to the system, of all processes that map them.
func punch(f *os.File, at, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
}

// MapShared maps size bytes of the File of another process's [Shared], for reading and writing. It refuses a file that could
// be made smaller: looking at what is gone would end this process. Give it to [UnmapShared].
func MapShared(f *os.File, size int64) ([]byte, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fault.New(fault.Corrupt, "shared memory: not a file that is sealed against shrinking")
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fault.New(fault.Unavailable, "shared memory: %w", err)
	}
	if size <= 0 || size > st.Size {
		return nil, fault.New(fault.Corrupt, "shared memory: a file of %d bytes, not %d", st.Size, size)
	}
	base, err := mapFile(int(f.Fd()), int(size))
	if err != nil {
		return nil, fault.New(fault.Exhausted, "shared memory: no %d bytes of addresses (%w): raise the limit of this process (ulimit -v)", size, err)
	}
	return bytesAt(base, int(size)), nil
}

// UnmapShared gives back what MapShared returned; nothing of it may be used any more.
func UnmapShared(b []byte) { unmap(addr(b), uintptr(len(b))) }
