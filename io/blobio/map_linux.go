package blobio

import "golang.org/x/sys/unix"

// populate has what is mapped of a file at off read now, in large pieces, within a system call: a fault would keep a processor of
// the Go runtime waiting for the disk. If all of it is in memory it is left to faults: one maps sixteen pages at
// once, where this maps them one by one.
func populate(fd uint, off int64, mem []byte) {
	var is unix.Cachestat_t
	err := unix.Cachestat(fd, &unix.CachestatRange{Off: uint64(off), Len: uint64(len(mem))}, &is, 0)
	if err != nil || is.Cache < uint64((int64(len(mem))+pageSize-1)/pageSize) { // older than Linux 6.5, or the file is not ours
		_ = unix.Madvise(mem, unix.MADV_POPULATE_READ) // where the system does not know it, faults read it
	}
}
