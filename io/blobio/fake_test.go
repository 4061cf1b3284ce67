package blobio_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock-data/penstock/io/blobio"
	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// fakeDriver is a gocloud driver of one object (and of what is written) whose
// answers follow a script. Its time is that of the test's bubble.
type fakeDriver struct {
	driver.Bucket // what is not implemented panics

	data   []byte
	mtime  time.Time
	script func(i int, off, n int64) step // i counts requests; nil: all is well
	list   func(i int, token string) ([]string, error)
	write  func(i int) (stall bool, err error)

	mu        sync.Mutex
	asked     []blobio.Range
	inFlight  int
	most      int
	lists     int
	writes    int
	abandoned int // answers whose context ended
	written   map[string][]byte
}

// step is the answer to one range request.
type step struct {
	wait time.Duration // before the answer begins
	err  error         // instead of one
	cut  int64         // the body ends after so many bytes, if > 0
	stay int64         // the body stops after so many bytes, if > 0; -1: at once
	each time.Duration // wait before every byte
	mod  time.Duration // the object is that much younger
}

var errNet = errors.New("connection reset by peer")

type coded struct {
	error
	code gcerrors.ErrorCode
}

type statusError struct{ StatusCode int }

func (e *statusError) Error() string { return fmt.Sprint("status ", e.StatusCode) }

func (d *fakeDriver) ErrorCode(err error) gcerrors.ErrorCode {
	if c, ok := errors.AsType[coded](err); ok {
		return c.code
	}
	return gcerrors.Unknown
}
func (d *fakeDriver) As(any) bool             { return false }
func (d *fakeDriver) ErrorAs(error, any) bool { return false }
func (d *fakeDriver) Close() error            { return nil }

func (d *fakeDriver) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	return &driver.Attributes{Size: int64(len(d.data)), ModTime: d.mtime}, nil
}

func pause(ctx context.Context, t time.Duration) error {
	if t <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *fakeDriver) NewRangeReader(ctx context.Context, key string, off, n int64, _ *driver.ReaderOptions) (driver.Reader, error) {
	d.mu.Lock()
	i := len(d.asked)
	d.asked = append(d.asked, blobio.Range{Off: off, Len: n})
	d.inFlight++
	d.most = max(d.most, d.inFlight)
	var s step
	if d.script != nil {
		s = d.script(i, off, n)
	}
	d.mu.Unlock()
	r := &fakeReader{d: d, ctx: ctx, step: s, rest: d.data[off : off+n]}
	err := pause(ctx, s.wait)
	if err == nil {
		err = s.err
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	if s.cut > 0 {
		r.rest = r.rest[:s.cut]
	}
	return r, nil
}

type fakeReader struct {
	d    *fakeDriver
	ctx  context.Context
	step step
	rest []byte
	n    int64
}

func (r *fakeReader) Read(p []byte) (int, error) {
	if r.step.stay < 0 || r.step.stay > 0 && r.n >= r.step.stay {
		<-r.ctx.Done()
	}
	if r.step.each > 0 {
		pause(r.ctx, r.step.each)
		p = p[:1]
	}
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	if r.step.stay > 0 {
		p = p[:min(int64(len(p)), r.step.stay-r.n)]
	}
	n := copy(p, r.rest)
	r.rest, r.n = r.rest[n:], r.n+int64(n)
	return n, nil
}

func (r *fakeReader) Close() error {
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.d.inFlight--
	if r.ctx.Err() != nil {
		r.d.abandoned++
	}
	return nil
}
func (r *fakeReader) As(any) bool { return false }
func (r *fakeReader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: int64(len(r.d.data)), ModTime: r.d.mtime.Add(r.step.mod), ContentType: "x/y"}
}

func (d *fakeDriver) ListPaged(ctx context.Context, o *driver.ListOptions) (*driver.ListPage, error) {
	d.mu.Lock()
	i := d.lists
	d.lists++
	d.mu.Unlock()
	ks, err := d.list(i, string(o.PageToken))
	if err != nil {
		return nil, err
	}
	page := &driver.ListPage{}
	for _, k := range ks {
		if k == "more" {
			page.NextPageToken = []byte("next")
			continue
		}
		page.Objects = append(page.Objects, &driver.ListObject{Key: k, Size: 1, ModTime: d.mtime, IsDir: o.Delimiter != "" && strings.HasSuffix(k, "/")})
	}
	return page, nil
}

func (d *fakeDriver) NewTypedWriter(ctx context.Context, key, ct string, o *driver.WriterOptions) (driver.Writer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.writes
	d.writes++
	stall, err := d.write(i)
	return &fakeWriter{d: d, ctx: ctx, key: key, stall: stall, err: err}, nil
}

type fakeWriter struct {
	d     *fakeDriver
	ctx   context.Context
	key   string
	stall bool
	err   error
	buf   bytes.Buffer
}

func (w *fakeWriter) Write(p []byte) (int, error) { return w.buf.Write(p) }
func (w *fakeWriter) Close() error {
	if w.stall {
		<-w.ctx.Done()
	}
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if w.err == nil {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		if w.d.written == nil {
			w.d.written = map[string][]byte{}
		}
		w.d.written[w.key] = slices.Clone(w.buf.Bytes())
	}
	return w.err
}

// fakes opens fake://name as the driver of that name.
type fakes struct {
	mu sync.Mutex
	m  map[string]*fakeDriver
}

var fakeMux = func() *fakes {
	f := &fakes{m: map[string]*fakeDriver{}}
	blob.DefaultURLMux().RegisterBucket("fake", f)
	return f
}()

func (f *fakes) OpenBucketURL(_ context.Context, u *url.URL) (*blob.Bucket, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.m[u.Host]; d != nil {
		return blob.NewBucket(d), nil
	}
	return nil, fmt.Errorf("no fake %q", u.Host)
}

// openFake opens d, and its object of n bytes.
func openFake(t *testing.T, d *fakeDriver, n int, o *blobio.Options) (*blobio.Bucket, *blobio.Object, *blobio.Stats) {
	t.Helper()
	d.data, d.mtime = randomBytes(1, n), time.Unix(1e9, 5e8)
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	fakeMux.mu.Lock()
	fakeMux.m[name] = d
	fakeMux.mu.Unlock()
	b := open(t, "fake://"+name, o)
	var s blobio.Stats
	return b, b.Object(stat(t, b, "k"), &s), &s
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
