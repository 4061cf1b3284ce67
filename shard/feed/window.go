package feed

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcmeta"
	"github.com/penstock-data/penstock/internal/mem"
	"golang.org/x/sys/unix"
)

// window is a consumer's view of a ring. It stays mapped until it is closed and the last batch is given back. As the
// memory.Allocator of batches it only frees. Safe for concurrent use.
type window struct {
	ring []byte
	free func(in span) // tells the data process

	mu     sync.Mutex
	views  int // batches out
	closed bool
}

// take makes a buffer of what a frame says.
func (w *window) take(in span) (*memory.Buffer, error) {
	n := uint64(len(w.ring))
	switch {
	case in.length == 0:
		return memory.NewBufferBytes(nil), nil
	case in.offset%alignment != 0 || in.offset > n || in.length > n-in.offset:
		return nil, errDamaged
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.views++
	end := in.offset + in.length
	return memory.NewBufferWithAllocator(w.ring[in.offset:end:end], (*views)(w)), nil
}

// views is a window as an allocator: that of the buffers that take makes.
type views window

func (*views) Allocate(int) []byte {
	panic(fault.New(fault.Internal, "a ring is written by the data process"))
}

func (v *views) Reallocate(n int, _ []byte) []byte { return v.Allocate(n) }

// Free gives a batch back.
func (v *views) Free(b []byte) {
	w := (*window)(v)
	offset := uint64(uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&w.ring[0])))
	w.mu.Lock()
	tell := !w.closed
	w.mu.Unlock()
	if tell {
		w.free(span{offset, uint64(len(b))})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.views--
	w.leave()
}

// close ends what the data process is told.
func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.leave()
}

// leave needs w.mu.
func (w *window) leave() {
	if w.closed && w.views == 0 && w.ring != nil {
		mem.UnmapShared(w.ring)
		w.ring = nil
	}
}

// greeting reads a connection up to the welcome, and keeps the file that comes with it.
type greeting struct {
	c    *net.UnixConn
	file *os.File
	over bool // files are not looked for any more
}

func (g *greeting) Read(b []byte) (int, error) {
	if g.over {
		return g.c.Read(b)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := g.c.ReadMsgUnix(b, oob)
	if m > 0 {
		g.keep(oob[:m])
	}
	return max(n, 0), err // -1 with an error
}

// keep takes the first file, and closes others.
func (g *greeting) keep(oob []byte) {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range all {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if g.file != nil {
				unix.Close(fd)
				continue
			}
			g.file = os.NewFile(uintptr(fd), "ring")
		}
	}
}

func (g *greeting) close() {
	g.over = true
	if g.file != nil {
		g.file.Close()
		g.file = nil
	}
}

// readStream reads the record of an IPC stream that fills a buffer. Its buffers are parts of that one; the caller owns it.
func readStream(buf *memory.Buffer, limit int64) (arrow.RecordBatch, error) {
	alloc := ipcmeta.Bounded{Allocator: memory.DefaultAllocator, Max: int(limit)}
	ms := &messages{buf: buf, rest: buf.Bytes()}
	defer ms.Release()
	r, err := ipc.NewReaderFromMessageReader(ms, ipc.WithAllocator(alloc))
	if err != nil {
		return nil, damaged(err)
	}
	defer r.Release()
	if !r.Next() {
		if err = r.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
		return nil, damaged(err)
	}
	rec := r.RecordBatch()
	if err := validate(rec); err != nil {
		return nil, damaged(err)
	}
	rec.Retain()
	return rec, nil
}

// messages are those of an IPC stream in memory; their bodies are parts of it.
type messages struct {
	buf    *memory.Buffer
	rest   []byte // of buf
	stream ipcmeta.Stream
	last   *ipc.Message
}

func (m *messages) Message() (*ipc.Message, error) {
	m.Release()
	at := 8 // behind the mark and the length of the metadata
	if len(m.rest) < at || binary.LittleEndian.Uint32(m.rest) != 0xffffffff {
		return nil, io.ErrUnexpectedEOF
	}
	n := int64(binary.LittleEndian.Uint32(m.rest[4:]))
	if n == 0 {
		return nil, io.EOF
	}
	if n < 4 || n > int64(len(m.rest)-at) {
		return nil, fmt.Errorf("a message with %d bytes of metadata; %d follow", n, len(m.rest)-at)
	}
	meta := append([]byte(nil), m.rest[at:at+int(n)]...)
	m.rest = m.rest[at+int(n):]
	size, err := m.stream.Check(meta)
	if err != nil {
		return nil, err
	}
	if size < 0 || size > int64(len(m.rest)) {
		return nil, fmt.Errorf("a message with a body of %d bytes; %d follow", size, len(m.rest))
	}
	body := memory.SliceBuffer(m.buf, m.buf.Len()-len(m.rest), int(size))
	defer body.Release()
	m.rest = m.rest[size:]
	m.last = ipc.NewMessage(memory.NewBufferBytes(meta), body)
	return m.last, nil
}

// Retain does nothing: there is one owner.
func (m *messages) Retain() {}

// Release frees the last message. Idempotent.
func (m *messages) Release() {
	if m.last != nil {
		m.last.Release()
		m.last = nil
	}
}

func damaged(err error) error { return fault.New(fault.Corrupt, "the feed is damaged: %w", err) }

// validate checks offsets, lengths and text, so that nothing later reads outside of buffers.
func validate(rec arrow.RecordBatch) (err error) {
	defer func() {
		if p := recover(); p != nil { // some checks of arrow-go read what they are to check
			err = fmt.Errorf("%v", p)
		}
	}()
	return array.ValidateRecordFull(rec)
}
