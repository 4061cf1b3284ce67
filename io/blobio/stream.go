package blobio

import (
	"context"
	"io"
	"os"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
)

// Stream reads from off to the end of [off, off+n) in order, or to the end of
// the object if that comes first. Nothing is read before the first Read. Where
// the bucket is remote up to four pieces are read ahead, the first of 1 MiB, later
// ones of up to MaxRequest, in Go memory; a failed or canceled read is the error
// of every later Read. Close stops and joins the reads; it must be called.
func (o *Object) Stream(ctx context.Context, off, n int64) io.ReadCloser {
	end := min(o.info.Size, off+n)
	if off < 0 || n < 0 || off+n < off {
		return &failedStream{fault.New(fault.Invalid, "stream of [%d, +%d)", off, n).At(o.b.place(o.info.Key))}
	}
	if o.b.root != "" {
		read := func(f *os.File, p []byte, off int64) error { return o.pread(ctx, f, p, off) }
		return &localStream{o: o, read: read, off: off, end: end}
	}
	ctx, cancel := context.WithCancel(ctx)
	return &stream{o: o, cancel: cancel, next: off, end: end, size: min(1<<20, o.b.o.MaxRequest),
		get: func(dst []byte, off int64) error { return o.read(ctx, dst, off) }}
}

type failedStream struct{ err error }

func (s *failedStream) Read([]byte) (int, error) { return 0, s.err }
func (s *failedStream) Close() error             { return nil }

// localStream reads a file; the kernel reads ahead.
type localStream struct {
	o        *Object
	read     func(f *os.File, p []byte, off int64) error
	f        *os.File
	off, end int64
	err      error
}

func (s *localStream) Read(p []byte) (int, error) {
	if s.err == nil && s.f == nil {
		s.f, s.err = s.o.openLocal()
	}
	if s.err == nil && s.off >= s.end {
		s.err = io.EOF
	}
	if s.err != nil {
		return 0, s.err
	}
	p = p[:min(int64(len(p)), s.end-s.off, s.o.b.o.MaxRequest)]
	if s.err = s.read(s.f, p, s.off); s.err != nil {
		return 0, s.err
	}
	s.off += int64(len(p))
	return len(p), nil
}

func (s *localStream) Close() error {
	if s.f != nil {
		s.f.Close() // read only: nothing can be lost
		s.f = nil
	}
	if s.err == nil {
		s.err = os.ErrClosed
	}
	return nil
}

const readAhead = 4

// stream reads pieces ahead into a ring of buffers. taken and started count
// pieces; those between are in flight or done.
type stream struct {
	o              *Object
	get            func(dst []byte, off int64) error
	cancel         context.CancelFunc
	wg             sync.WaitGroup
	ring           [readAhead]slot
	taken, started int
	next, end      int64 // not yet asked for
	size           int64 // of the next piece
	cur            []byte
	err            error
}

type slot struct {
	buf  []byte
	done chan error
}

func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(s.cur) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		// The buffer of the piece just used up is free again. The window opens with
		// use: a reader that stops early costs little.
		for s.next < s.end && s.started-s.taken < min(readAhead, 1+s.taken) {
			s.start()
		}
		if s.started == s.taken {
			s.err = io.EOF
			return 0, s.err
		}
		sl := &s.ring[s.taken%readAhead]
		if s.err = <-sl.done; s.err == nil {
			s.cur = sl.buf
		}
		s.taken++
	}
	n := copy(p, s.cur)
	s.cur = s.cur[n:]
	return n, nil
}

func (s *stream) start() {
	n, off := min(s.size, s.end-s.next), s.next
	s.next += n
	s.size = min(2*s.size, s.o.b.o.MaxRequest)
	sl := &s.ring[s.started%readAhead]
	s.started++
	if int64(cap(sl.buf)) < n {
		sl.buf = make([]byte, n)
	}
	buf, done := sl.buf[:n], make(chan error, 1)
	sl.buf, sl.done = buf, done
	s.wg.Go(func() { done <- s.get(buf, off) })
}

func (s *stream) Close() error {
	s.cancel()
	s.wg.Wait()
	s.cur, s.ring = nil, [readAhead]slot{}
	if s.err == nil {
		s.err = os.ErrClosed
	}
	return nil
}
