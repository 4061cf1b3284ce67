package blobio

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// PutOptions may be nil.
type PutOptions struct {
	IfNotExist  bool   // an existing object is an Exists error and stays as it is
	ContentType string // "" means application/octet-stream; local files have none
	// Size is how many bytes will be written, about; 0: unknown. Services that take an object in parts, at most 10,000 of them, get larger ones where
	// those of usual size are too many: unknown sizes end at 78 GiB there.
	Size int64
}

// partSize is what a part must have at least so that an object of a size has less than 10,000; 0: the drivers' 8 MiB will do.
func partSize(size int64) int {
	if n := size/8000 + 1; n > 8<<20 {
		return int(n)
	}
	return 0
}

func (o *PutOptions) withDefaults() *PutOptions {
	var r PutOptions
	if o != nil {
		r = *o
	}
	if r.ContentType == "" {
		r.ContentType = "application/octet-stream"
	}
	return &r
}

// A service that takes data is given this many times Options.Timeout before it
// must ask for more (or, at the end, answer): a part of an upload is many
// megabytes, and its progress is not seen from here.
const writePatience = 10

// Put writes a small object at once: it is visible whole or not at all. Retried;
// with IfNotExist an attempt whose answer was lost may report Exists though it
// won: compare. Local files and their names are on disk when it returns;
// directories are made as needed.
func (b *Bucket) Put(ctx context.Context, key string, data []byte, o *PutOptions) error {
	if err := b.checkKey(key); err != nil {
		return err
	}
	o = o.withDefaults()
	if b.root == "" {
		return b.tryFor(ctx, key, writePatience*b.o.Timeout, func(ctx context.Context) error {
			return b.upload(ctx, key, bytes.NewReader(data), o)
		})
	}
	s, err := b.createLocal(ctx, key, o)
	if err != nil {
		return err
	}
	if _, err := s.Write(data); err != nil {
		s.abort()
		return err
	}
	return s.commit()
}

// upload sends r. Not by NewWriter: azureblob's panics when an upload fails (as
// of gocloud.dev v0.47.0), and no driver gains by it.
//
// A service that refuses a create-only write may close the connection while the
// body is still being sent, and its answer is lost. So where one is missing, look.
func (b *Bucket) upload(ctx context.Context, key string, r io.Reader, o *PutOptions) error {
	if b.scheme == "s3" {
		var stop func()
		ctx, r, stop = b.gently(ctx, r)
		defer stop()
	}
	w, err := b.writeOptions(ctx, key, o)
	if err != nil {
		return err
	}
	err = b.remote.Upload(ctx, key, r, w)
	if err != nil && o.IfNotExist && ctx.Err() == nil && codeOf(err) == fault.Unavailable {
		if _, aerr := b.attributes(ctx, key); aerr == nil {
			return fmt.Errorf("%w (%v)", errExists, err)
		}
	}
	return err
}

// stopGrace is how long an S3 upload may go on after its context ended.
const stopGrace = 500 * time.Millisecond

// gently makes an S3 upload stop, when ctx ends, by an error of its reader first
// and by its context a moment later: the SDK sends the request that drops the
// parts already stored in the same context, and they would stay (and cost) if that
// had ended. What an upload that is cut off harder leaves, a lifecycle rule of the
// bucket removes. Other services need their context to end first: their drivers
// take a broken reader for the end of the data and would complete the object.
func (b *Bucket) gently(ctx context.Context, r io.Reader) (context.Context, io.Reader, func()) {
	uctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	ended := context.AfterFunc(ctx, func() {
		grace := stopGrace
		if context.Cause(ctx) == errAborted { // nobody's context ended: there is time
			grace = b.o.Timeout
		}
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case <-t.C:
			cancel(context.Cause(ctx))
		case <-uctx.Done():
		}
	})
	stop := func() {
		ended()
		cancel(nil)
	}
	return uctx, readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		if ctx.Err() != nil { // even if it ended while r was waited for
			return 0, context.Cause(ctx)
		}
		return n, err
	}), stop
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Create starts a streamed object. Nothing is visible before Close returns nil.
// ctx governs all of the write: when it ends, Write and Close fail. As with Put,
// Exists may be reported by the writer that won, if the answer was lost: compare.
func (b *Bucket) Create(ctx context.Context, key string, o *PutOptions) (*Writer, error) {
	if err := b.checkKey(key); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	var s sink
	if b.root == "" {
		if err := b.canceled(ctx, key); err != nil {
			return nil, err
		}
		s = b.createRemote(ctx, key, o)
	} else {
		l, err := b.createLocal(ctx, key, o)
		if err != nil {
			return nil, err
		}
		s = l
	}
	return &Writer{s: s, buf: bufio.NewWriterSize(s, 64<<10), place: b.place(key)}, nil
}

// sink is where a Writer's bytes go. One of commit and abort ends it; both leave
// nothing running and, but for commit without error, no object.
type sink interface {
	io.Writer
	commit() error
	abort()
}

// Writer streams one object. Not safe for concurrent use. Exactly one of Close
// and Abort ends it; Abort leaves nothing behind. Abort after Close does nothing,
// so it can be deferred.
type Writer struct {
	s     sink // nil once ended
	buf   *bufio.Writer
	place fault.Place
}

func (w *Writer) ended() error {
	return fault.New(fault.Internal, "writer: %w", os.ErrClosed).At(w.place)
}

// Write buffers and sends p. After an error only Abort is of use.
func (w *Writer) Write(p []byte) (int, error) {
	if w.s == nil {
		return 0, w.ended()
	}
	return w.buf.Write(p)
}

// Close makes the object visible. After an error there is none (unless the answer
// of the service was lost: look).
func (w *Writer) Close() error {
	if w.s == nil {
		return w.ended()
	}
	if err := w.buf.Flush(); err != nil {
		w.Abort()
		return err
	}
	s := w.s
	w.s = nil
	return s.commit()
}

// Abort ends the write without an object.
func (w *Writer) Abort() {
	if w.s != nil {
		w.s.abort()
		w.s = nil
	}
}

// remoteSink feeds an upload through a pipe.
type remoteSink struct {
	pw     *io.PipeWriter
	cancel context.CancelCauseFunc
	fail   func(error) error
	wg     sync.WaitGroup
	err    error // of the upload, after wg.Wait
}

func (b *Bucket) createRemote(ctx context.Context, key string, o *PutOptions) *remoteSink {
	uctx, cancel := context.WithCancelCause(ctx)
	pr, pw := io.Pipe()
	s := &remoteSink{pw: pw, cancel: cancel, fail: func(err error) error { return b.fail(ctx, key, err) }}
	s.wg.Go(func() {
		s.err = watched(uctx, writePatience*b.o.Timeout, func(ctx context.Context, dog *time.Timer) error {
			return b.upload(ctx, key, &pausing{pr, dog, writePatience * b.o.Timeout}, o)
		})
		if s.err != nil {
			pr.CloseWithError(s.err)
		} else {
			pr.Close()
		}
	})
	return s
}

// pausing stops the watchdog while the upload waits for the writer.
type pausing struct {
	r     io.Reader
	dog   *time.Timer
	limit time.Duration
}

func (p *pausing) Read(b []byte) (int, error) {
	p.dog.Stop()
	defer p.dog.Reset(p.limit)
	return p.r.Read(b)
}

func (s *remoteSink) Write(p []byte) (int, error) {
	n, err := s.pw.Write(p)
	return n, s.fail(err)
}

func (s *remoteSink) commit() error {
	s.pw.Close()
	s.wg.Wait()
	s.cancel(nil)
	return s.fail(s.err)
}

// abort cancels before it breaks the pipe: see gently.
func (s *remoteSink) abort() {
	s.cancel(errAborted)
	s.pw.CloseWithError(errAborted)
	s.wg.Wait()
}
