package blobio

import (
	"context"
	"errors"
	"os"
	"unsafe"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// File is a local object that is held open: one descriptor, until Close. Every
// read, and every mapping before it is used, checks that it is the version that was
// listed; whoever uses a mapping checks once more afterwards. Safe for concurrent
// use, but for Close.
type File struct {
	o *Object
	f *os.File
}

// Open opens a local object and checks that it is the version that was listed.
// Objects of other buckets are Unsupported.
func (o *Object) Open() (*File, error) {
	if o.b.root == "" {
		return nil, fault.New(fault.Unsupported, "not a local file: read it with ReadAt or Fetch").At(o.b.place(o.info.Key))
	}
	f, err := o.openLocal()
	if err != nil {
		return nil, err
	}
	return &File{o, f}, nil
}

// Check is an error if the file is not the version any more that was listed.
func (f *File) Check() error { return f.o.b.wrap(f.o.info.Key, f.o.checkLocal(f.f)) }

// Close closes the descriptor; mappings stay.
func (f *File) Close() error { return f.o.b.wrap(f.o.info.Key, f.f.Close()) }

// ReadAt fills p from off. A file that is shorter than it was is an error, as every change is.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) error {
	return f.o.fillLocal(ctx, f.f, f.o.cut(nil, p, off))
}

// ErrNoMap says that the system does not map this file now: read it instead.
var ErrNoMap = errors.New("this file cannot be mapped into memory: read it instead")

var pageSize = int64(os.Getpagesize())

// Mapping is a piece of a file in memory, read only. The zero Mapping is empty.
//
// A file that is truncated while it is mapped raises a fault on access. Use
// mappings under debug.SetPanicOnFault, and ask Fault what it was.
type Mapping struct {
	mem  []byte // whole pages
	skip int    // of mem, before Bytes
}

// Map maps [off, off+n), which must be inside the object and not empty. fresh of
// these bytes are counted as read, in one request. The caller unmaps it. ErrNoMap (by errors.Is)
// where the system refuses.
func (f *File) Map(ctx context.Context, off, n, fresh int64) (Mapping, error) {
	o := f.o
	if err := o.b.canceled(ctx, o.info.Key); err != nil {
		return Mapping{}, err
	}
	if off < 0 || n <= 0 || n > o.info.Size-off {
		return Mapping{}, fault.New(fault.Invalid, "range [%d, +%d) is not inside the object of %d bytes", off, n, o.info.Size).At(o.b.place(o.info.Key))
	}
	if err := f.Check(); err != nil {
		return Mapping{}, err
	}
	skip := off & (pageSize - 1)
	fd := f.f.Fd()
	p, err := unix.MmapPtr(int(fd), off-skip, nil, uintptr(n+skip), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil { // ENODEV, EACCES, ENOMEM, EAGAIN: a read tells what is wrong with the file, if anything is
		return Mapping{}, ErrNoMap
	}
	o.count(func(s *Stats) { s.Requests.Add(1); s.Bytes.Add(fresh) })
	mem := unsafe.Slice((*byte)(p), n+skip)
	populate(uint(fd), off-skip, mem)
	return Mapping{mem, int(skip)}, nil
}

// Bytes is what is mapped, nil if nothing is.
func (m *Mapping) Bytes() []byte { return m.mem[m.skip:] }

// Offset returns where in Bytes the address of a fault is; false if it is not in the mapping.
func (m *Mapping) Offset(addr uintptr) (int64, bool) {
	if len(m.mem) == 0 {
		return 0, false
	}
	at := addr - uintptr(unsafe.Pointer(&m.mem[0]))
	size := (uintptr(len(m.mem)) + uintptr(pageSize) - 1) &^ (uintptr(pageSize) - 1)
	return int64(at) - int64(m.skip), at < size
}

// Unmap ends the mapping: nothing may refer to Bytes any more. Idempotent.
func (m *Mapping) Unmap() {
	if m.mem != nil {
		if err := unix.MunmapPtr(unsafe.Pointer(&m.mem[0]), uintptr(len(m.mem))); err != nil {
			panic(err) // not a mapping of ours
		}
		*m = Mapping{}
	}
}

// Fault is the error of an access to a mapping at file offset off that faulted: that
// the file changed, or what the system says when the byte is read.
func (f *File) Fault(off int64) error {
	err := f.o.checkLocal(f.f)
	if err == nil {
		if _, err = f.f.ReadAt(make([]byte, 1), max(off, 0)); err == nil || off >= f.o.info.Size {
			err = errChanged // and back again
		}
	}
	return f.o.b.wrap(f.o.info.Key, err)
}
