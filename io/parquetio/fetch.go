package parquetio

import (
	"context"
	"errors"
	"io"
	"math"
	"runtime/debug"
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/fileset"
)

// blob is what is read: *fileset.Object, or a test's bytes.
type blob interface {
	Size() int64
	// ReadAt fills p; fewer bytes only with io.EOF or an error.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
}

// fetcher is a blob that reads ranges together.
type fetcher interface {
	Fetch(ctx context.Context, rs []blobio.Range, alloc memory.Allocator) (*blobio.Fetched, error)
	// Gap is how many bytes there may be between ranges that are fetched in one request.
	Gap() int64
}

// input is a file. fetch is nil for local files: they are read where and
// when bytes are needed.
//
// Windows map local files, and pages may lie in mapped files of the reader (pageFile). What is mapped may change, or be gone, while it
// is used: whoever reads out of windows and pages does that inside decodedField.use. One goroutine at a time, but for the blob.
type input struct {
	blob
	fetch fetcher

	local *fileset.Object // blob, if it is a local file
	file  *fileset.Local  // of local: opened by the first window, until close
	noMap bool            // the system refused
}

// open opens a local file; nil for other blobs.
func (f *input) open() (*fileset.Local, error) {
	if f.file != nil || f.local == nil {
		return f.file, nil
	}
	file, err := f.local.Open()
	if err != nil {
		return nil, err
	}
	f.file = file
	return file, nil
}

func (f *input) close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// use calls read, which reads out of the windows of f's columns, and returns its error; or, in place of an error, that the file is
// not the one any more that was opened. errTooLarge is returned as it is: nothing came of it. What came without an error is good
// only if the file is unchanged afterwards.
func (f *decodedField) use(read func() error) error {
	if len(f.cols) == 0 {
		return read()
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	err := read()
	file := f.cols[0].win.f.file
	if at, ok := errors.AsType[errFault](err); ok {
		for _, c := range f.cols {
			if c.out.holds(uintptr(at)) {
				return fault.New(fault.Unavailable, "a page that was put in the folder for temporary files (TMPDIR) cannot be read from there: is its disk sound?")
			}
			if i, ok := c.win.view.Offset(uintptr(at)); ok {
				return file.Fault(c.win.off + i)
			}
		}
		return fault.New(fault.Internal, "%w at %#x, where no file is mapped: memory was used after its release", at, uintptr(at))
	}
	if _, ok := errors.AsType[errTooLarge](err); ok || file == nil {
		return err
	}
	if err != nil {
		if changed := file.Check(); changed != nil {
			return changed
		}
	}
	return err
}

// unchanged is an error if the file is not the one any more that was opened. Asked once for all columns of a batch, behind the
// last: whatever was read before is then of the version that was opened.
func (f *input) unchanged() error {
	if f.file == nil {
		return nil
	}
	return f.file.Check()
}

// errFault is an access to memory that faulted, at this address.
type errFault uintptr

func (errFault) Error() string { return "memory fault" }

// readFull reads all of p; a file that is shorter is Corrupt.
func readFull(ctx context.Context, f blob, p []byte, off int64) error {
	if in, ok := f.(*input); ok && in.file != nil {
		return in.file.ReadAt(ctx, p, off)
	}
	n, err := f.ReadAt(ctx, p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		return fault.New(fault.Corrupt, "truncated: %d bytes at offset %d, not %d", n, off, len(p))
	}
	return err
}

// readRanges reads small ranges into Go memory.
func (f *input) readRanges(ctx context.Context, rs []blobio.Range) (map[blobio.Range][]byte, error) {
	out := make(map[blobio.Range][]byte, len(rs))
	if f.fetch != nil && len(rs) > 1 {
		got, err := f.fetch.Fetch(ctx, rs, memory.DefaultAllocator)
		if err != nil {
			return nil, err
		}
		defer got.Release()
		for _, r := range rs {
			b, _ := got.Bytes(r.Off, r.Len)
			out[r] = slices.Clone(b)
		}
		return out, nil
	}
	for _, r := range rs {
		b := make([]byte, r.Len)
		if err := readFull(ctx, f, b, r.Off); err != nil {
			return nil, err
		}
		out[r] = b
	}
	return out, nil
}

// window serves the bytes of one column chunk in order, out of bounded reads, and
// its dictionary at any time, where that is apart. Of a remote file the next read is
// under way while this one is used; it is bound to no call's context, but ended by close.
type window struct {
	f     *input
	alloc memory.Allocator
	dict  blobio.Range   // read once and kept: a decoder that enters in the middle comes back for it
	runs  []blobio.Range // what will be read, in order
	step  int64          // bytes of one read; more if one page needs it
	hint  int64          // local: bytes that the next page may have; 0: not known
	keep  int64          // local: bytes held behind a page that is used up

	off  int64 // file offset of buf[0]
	buf  []byte
	mem  []byte         // buf is inside
	view blobio.Mapping // or inside this
	next *readAhead

	dictBuf []byte // the bytes of dict; nil: not read yet

	first      *firstFetch // remote: what was fetched for all columns at once
	firstRange blobio.Range
}

// readAhead is one read under way.
type readAhead struct {
	off  int64
	buf  []byte
	done chan error // buffered

	cancel context.CancelFunc
}

// bytes returns [off, off+n), valid until the next call. It reads to the end of
// the run that holds off, or step bytes, and never beyond the run.
func (w *window) bytes(ctx context.Context, off, n int64) ([]byte, error) {
	if d := w.dict; off >= d.Off && off < d.Off+d.Len {
		if off+n > d.Off+d.Len {
			return nil, fault.New(fault.Corrupt, "a dictionary of %d bytes at offset %d is not where the page index says", n, off)
		}
		if w.dictBuf == nil {
			b := w.alloc.Allocate(int(d.Len))
			if err := readFull(ctx, w.f, b, d.Off); err != nil {
				w.alloc.Free(b)
				return nil, err
			}
			w.dictBuf = b
		}
		return w.dictBuf[off-d.Off : off-d.Off+n], nil
	}
	if off >= w.off && off+n <= w.off+int64(len(w.buf)) {
		return w.buf[off-w.off : off-w.off+n], nil
	}
	if r := w.firstRange; w.first != nil && off >= r.Off {
		if off >= r.Off+r.Len {
			w.dropFirst()
		} else if b, ok := w.first.got.Bytes(off, n); ok && off+n <= r.Off+r.Len {
			w.ahead(ctx, r.Off+r.Len)
			return b, nil
		}
	}
	end := w.runEnd(off)
	if off+n > end {
		return nil, fault.New(fault.Corrupt, "a page of %d bytes at offset %d is not where the page index says", n, off)
	}
	want := max(n, w.step, w.hint)
	if w.hint == 0 && w.f.fetch == nil && n < probeBytes && end-off > w.step {
		want = probeBytes // a header, of a page that may be skipped, or be larger than a step
	}
	want = min(want, end-off)
	if mapped, err := w.mapAt(ctx, off, want); mapped || err != nil {
		return w.buf[:min(n, int64(len(w.buf)))], err
	}
	if off < w.off || off > w.off+int64(len(w.buf)) {
		w.buf, w.off = w.buf[:0], off
	} else {
		w.buf, w.off = w.buf[off-w.off:], off
	}
	have := int64(len(w.buf))
	if int64(cap(w.mem)) < want {
		mem := w.alloc.Allocate(int(want))
		copy(mem, w.buf)
		if w.mem != nil {
			w.alloc.Free(w.mem)
		}
		w.mem = mem
	} else {
		copy(w.mem[:have], w.buf)
	}
	w.view.Unmap()
	w.buf = w.mem[:have]
	for have < want {
		k, err := w.read(ctx, w.mem[have:want], off+have)
		if err != nil {
			return nil, err
		}
		have += k
		w.buf = w.mem[:have]
		if have >= n && w.f.fetch != nil {
			break
		}
	}
	return w.buf[:n], nil
}

// has reports whether [off, off+n) is in the window.
func (w *window) has(off, n int64) bool { return off >= w.off && off+n <= w.off+int64(len(w.buf)) }

// fill reads p from off, beside the window, which keeps what it has. Of local files only.
func (w *window) fill(ctx context.Context, p []byte, off int64) error {
	if at := off - w.off; at >= 0 && at < int64(len(w.buf)) {
		k := copy(p, w.buf[at:])
		p, off = p[k:], off+int64(k)
	}
	if len(p) == 0 {
		return nil
	}
	return readFull(ctx, w.f, p, off)
}

// minBeside is the least that is mapped, or read beside the window. What the window may keep (window.keep) is read: mapping saves
// memory of the size of a page, and no time, as the end of a mapping stops the other threads of the process for a moment. From
// minMap on it is mapped all the same. Variables for tests.
var (
	minBeside int64 = 256 << 10
	minMap    int64 = math.MaxInt64
)

// mapAt makes buf a view of n bytes at off, in place of what was mapped before; false if it must be read.
func (w *window) mapAt(ctx context.Context, off, n int64) (bool, error) {
	if w.f.local == nil {
		return false, nil
	}
	file, err := w.f.open()
	if err != nil {
		return false, err
	}
	if w.f.noMap || n < minBeside || n < minMap && n <= w.keep {
		return false, nil
	}
	fresh := n
	if end := w.off + int64(len(w.buf)); off >= w.off && off < end {
		fresh = off + n - end
	}
	w.unmap() // first: what is resident at once is bounded
	view, err := file.Map(ctx, off, n, fresh)
	if errors.Is(err, blobio.ErrNoMap) {
		w.f.noMap = true
		return false, nil
	}
	if err != nil {
		return false, err
	}
	w.freeMem()
	w.view, w.buf, w.off = view, view.Bytes(), off
	return true, nil
}

// holds reports whether b, which bytes returned, is in a mapping.
func (w *window) holds(b []byte) bool {
	m := w.view.Bytes()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(m)))
	return at < uintptr(len(m))
}

// unmap ends the mapping.
func (w *window) unmap() {
	if w.view.Bytes() != nil {
		w.view.Unmap()
		w.buf = nil
	}
}

func (w *window) freeMem() {
	if w.mem != nil {
		w.alloc.Free(w.mem)
		w.mem, w.buf = nil, nil
	}
}

// probeBytes are read of a local file for the header of a page of which nothing is known.
const probeBytes = 16 << 10

// maxWindow is what the window of a local file may hold behind a page that is used up, maxWindows what all do.
const (
	maxWindow  = 2 << 20
	maxWindows = 32 << 20
)

// shrink gives back the memory of a page that was larger than others and is not needed any more: it can be
// read again.
func (w *window) shrink() {
	if w.f.fetch == nil && int64(max(len(w.mem), len(w.view.Bytes()))) > w.keep {
		w.unmap()
		w.freeMem()
		w.hint = 0
	}
}

// keepDict makes b, which is at off, the dictionary.
func (w *window) keepDict(b []byte, off int64) {
	w.freeDict()
	w.dict = blobio.Range{Off: off, Len: int64(len(b))}
	w.dictBuf = w.alloc.Allocate(len(b))
	copy(w.dictBuf, b)
}

func (w *window) freeDict() {
	if w.dictBuf != nil {
		w.alloc.Free(w.dictBuf)
		w.dictBuf = nil
	}
}

// runEnd is the end of the dictionary or run that holds off; off where none does.
func (w *window) runEnd(off int64) int64 {
	if off >= w.dict.Off && off < w.dict.Off+w.dict.Len {
		return w.dict.Off + w.dict.Len
	}
	for _, r := range w.runs {
		if off >= r.Off && off < r.Off+r.Len {
			return r.Off + r.Len
		}
	}
	return off
}

// read fills some of p.
func (w *window) read(ctx context.Context, p []byte, off int64) (int64, error) {
	if w.f.fetch == nil {
		return int64(len(p)), readFull(ctx, w.f, p, off)
	}
	if r := w.firstRange; w.first != nil && off >= r.Off && off < r.Off+r.Len {
		b, ok := w.first.got.Bytes(off, min(int64(len(p)), r.Off+r.Len-off))
		if ok {
			k := int64(copy(p, b))
			if off+k == r.Off+r.Len {
				w.dropFirst()
				w.ahead(ctx, off+k)
			}
			return k, nil
		}
	}
	if a := w.next; a != nil && off >= a.off && off < a.off+int64(len(a.buf)) {
		select {
		case err := <-a.done:
			a.done <- err
			if err != nil {
				return 0, err
			}
		case <-ctx.Done():
			return 0, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		k := copy(p, a.buf[off-a.off:])
		if off+int64(k) == a.off+int64(len(a.buf)) {
			w.drop()
			w.start(ctx, off+int64(k))
		}
		return int64(k), nil
	}
	w.drop()
	if err := readFull(ctx, w.f, p, off); err != nil {
		return 0, err
	}
	w.start(ctx, off+int64(len(p)))
	return int64(len(p)), nil
}

// ahead starts the read of what follows off, unless it is under way.
func (w *window) ahead(ctx context.Context, off int64) {
	if w.next == nil {
		w.start(ctx, off)
	}
}

// start begins to read what follows off, in this run or the next. The read
// outlives ctx, until drop ends it.
func (w *window) start(ctx context.Context, off int64) {
	for _, r := range w.runs {
		if off >= r.Off+r.Len {
			continue
		}
		off = max(off, r.Off)
		a := &readAhead{off: off, buf: w.alloc.Allocate(int(min(w.step, r.Off+r.Len-off))), done: make(chan error, 1)}
		ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
		w.next = a
		go func() { a.done <- readFull(ctx, w.f, a.buf, a.off) }()
		return
	}
}

// drop ends the read under way and frees it.
func (w *window) drop() {
	if a := w.next; a != nil {
		a.cancel()
		<-a.done
		w.alloc.Free(a.buf)
		w.next = nil
	}
}

func (w *window) dropFirst() {
	if w.first != nil {
		w.first.release()
		w.first = nil
	}
}

func (w *window) close() {
	w.drop()
	w.dropFirst()
	w.freeDict()
	w.unmap()
	w.freeMem()
	w.off = 0
}

// firstFetch is what the windows of a row group begin with, fetched together.
type firstFetch struct {
	got  *blobio.Fetched
	refs int
}

func (f *firstFetch) release() {
	if f.refs--; f.refs == 0 {
		f.got.Release()
	}
}

// fetchFirst fills the windows of a remote file with one set of requests.
func fetchFirst(ctx context.Context, f *input, ws []*window, alloc memory.Allocator) error {
	var rs []blobio.Range
	var live []*window
	for _, w := range ws {
		var sum int64
		for _, r := range w.runs {
			sum += r.Len
		}
		if n := len(w.runs); n > 0 {
			live = append(live, w)
			w.firstRange = blobio.Range{Off: w.runs[0].Off, Len: min(w.step, w.runs[0].Len)}
			if sum <= w.step { // all of it
				w.firstRange.Len = w.runs[n-1].Off + w.runs[n-1].Len - w.runs[0].Off
				rs = append(rs, w.runs...)
			} else {
				rs = append(rs, w.firstRange)
			}
		}
		if w.dict.Len > 0 {
			rs = append(rs, w.dict)
		}
	}
	if len(rs) == 0 {
		return nil
	}
	got, err := f.fetch.Fetch(ctx, rs, alloc)
	if err != nil {
		return err
	}
	first := &firstFetch{got, len(live)}
	for _, w := range live {
		w.first = first
		// Gaps between columns were fetched with them: what is there is not fetched again.
		for _, r := range w.runs {
			n := r.Off + r.Len - w.firstRange.Off
			if _, ok := got.Bytes(w.firstRange.Off, n); !ok {
				break
			}
			w.firstRange.Len = max(w.firstRange.Len, n)
		}
		if w.dict.Len > 0 {
			b, _ := got.Bytes(w.dict.Off, w.dict.Len)
			w.keepDict(b, w.dict.Off)
		}
	}
	return nil
}
