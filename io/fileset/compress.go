package fileset

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/penstock-data/penstock/internal/fault"
)

// codecs are the compressions that are read, by the ends of names and by the first bytes.
var codecs = []struct {
	kind  string
	ends  []string
	magic string
}{
	{"gzip", []string{".gz"}, "\x1f\x8b\x08"},
	{"zstd", []string{".zst", ".zstd"}, "\x28\xb5\x2f\xfd"},
	{"bzip2", []string{".bz2"}, "BZh"},
	{"xz", []string{".xz"}, "\xfd7zXZ\x00"},
}

// Compression of a file by its name: "gzip" (.gz), "zstd" (.zst, .zstd), "bzip2" (.bz2), "xz" (.xz)
// or "". It is a guess: what a file is its first bytes say.
func Compression(name string) string {
	n := strings.ToLower(name)
	for _, c := range codecs {
		for _, end := range c.ends {
			if strings.HasSuffix(n, end) {
				return c.kind
			}
		}
	}
	return ""
}

// Uncompressed is a name without the end that says a compression.
func Uncompressed(name string) string {
	for _, c := range codecs {
		for _, end := range c.ends {
			if n := len(name) - len(end); n >= 0 && strings.EqualFold(name[n:], end) {
				return name[:n]
			}
		}
	}
	return name
}

// Compressed adds to extensions theirs with every compression.
func Compressed(extensions ...string) []string {
	all := extensions
	for _, c := range codecs {
		for _, end := range c.ends {
			for _, e := range extensions {
				all = append(all[:len(all):len(all)], e+end)
			}
		}
	}
	return all
}

// CompressionExtension is the inverse of Compression for what is written: ".gz", ".zst" or "".
func CompressionExtension(kind string) string {
	return map[string]string{"gzip": ".gz", "zstd": ".zst"}[kind]
}

// maxWindow bounds what a decoder allocates.
const maxWindow = 64 << 20

// Decompress wraps r; nothing is read before the first Read. Output is bounded by the
// caller's reads; a decoder never allocates more than a window of 64 MiB. Bytes that
// do not decode, or end early, are a Corrupt error; errors of r stay what they are. Several
// members or frames are read as one, zeros behind a member of gzip are none. Close does not close r. most bytes, of which a line counts 8 more, may come of each of r, beyond 64 MiB: more is a
// Corrupt error, as what comes out may be passed over, and then is nothing that a Growth counts; 0 means DefaultTextGrowth.
func Decompress(kind string, r io.Reader, most int64) (io.ReadCloser, error) {
	if kind == "" {
		return io.NopCloser(r), nil
	}
	for _, c := range codecs {
		if c.kind == kind {
			return &decoder{kind: kind, src: source{r: r}, most: cmp.Or(most, DefaultTextGrowth)}, nil
		}
	}
	return nil, fault.New(fault.Unsupported, "unknown compression %q; have gzip, zstd, bzip2 and xz", kind)
}

type decoder struct {
	kind string
	src  source
	out  io.Reader // nil until something is read
	zs   *zstd.Decoder
	made float64 // bytes and lines, as they count
	most int64   // of them for each byte of src
	err  error
}

// source remembers what the wrapped reader said.
type source struct {
	r   io.Reader
	n   int64
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func (d *decoder) Read(p []byte) (n int, err error) {
	if d.err != nil {
		return 0, d.err
	}
	if d.out == nil {
		if err = d.open(); err != nil {
			return 0, d.fail(err)
		}
	}
	n, err = d.out.Read(p)
	if over := d.spend(int64(n) + rowCost*int64(bytes.Count(p[:n], []byte{'\n'}))); over != nil && (err == nil || err == io.EOF) {
		err = over
	}
	if err != nil {
		err = d.fail(err)
	}
	return n, err
}

// spend counts bytes that were made, or taken to make some.
func (d *decoder) spend(bytes int64) error {
	if d.made += float64(bytes); d.made <= float64(d.src.n)*float64(d.most)+freeText {
		return nil
	}
	return fault.New(fault.Corrupt, "%d bytes of %s data have become more than max_growth (%d for each, and %d of a file at any rate) allows: "+
		"the file is damaged, or was made to take time; if it is right, set max_growth of the source higher, in a spec", d.src.n, d.kind, d.most, int64(freeText))
}

func (d *decoder) open() (err error) {
	in := bufio.NewReaderSize(&d.src, 32<<10) // decoders ask for the few bytes of a header
	switch d.kind {
	case "gzip":
		d.out = &members{in: in}
	case "bzip2":
		d.out = bzip2.NewReader(in)
	case "xz":
		d.out = &xzReader{in: in, spend: d.spend}
	default:
		d.zs, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(1<<62))
		d.out = d.zs
	}
	return err
}

// members are those of a gzip file, with zeros behind each, which tapes and block devices leave.
type members struct {
	in *bufio.Reader
	gz *gzip.Reader
}

func (m *members) Read(p []byte) (int, error) {
	for {
		if m.gz == nil {
			gz, err := gzip.NewReader(m.in)
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return 0, err
			}
			gz.Multistream(false)
			m.gz = gz
		}
		n, err := m.gz.Read(p)
		if err != io.EOF || n > 0 {
			if err == io.EOF {
				err = nil // it comes again
			}
			return n, err
		}
		for {
			b, err := m.in.ReadByte()
			if err != nil {
				return 0, err
			}
			if b != 0 {
				break
			}
		}
		if err := errors.Join(m.in.UnreadByte(), m.gz.Reset(m.in)); err != nil {
			return 0, err
		}
		m.gz.Multistream(false)
	}
}

func (d *decoder) fail(err error) error {
	switch {
	case d.src.err != nil:
		err = d.src.err
	case err == io.EOF && d.src.n > 0:
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		err = fault.New(fault.Corrupt, "%s data ends early, after %d bytes: the file is truncated", d.kind, d.src.n)
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		err = fault.New(fault.Unsupported, "zstd window is over %d MiB; compress again without --ultra or --long", maxWindow>>20)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), fault.CodeOf(err) == fault.Corrupt, fault.CodeOf(err) == fault.Unsupported:
	default:
		err = fault.New(fault.Corrupt, "bad %s data near byte %d: %w", d.kind, d.src.n, err)
	}
	d.err = err
	return err
}

func (d *decoder) Close() error {
	if d.zs != nil {
		d.zs.Close()
	}
	d.out, d.zs = nil, nil
	if d.err == nil {
		d.err = fault.New(fault.Internal, "read after close")
	}
	return nil
}

// Compress is the other direction, for encoders: level 0 means default, else 1 to 9
// (gzip) or 22 (zstd). The same writes give the same bytes. Close does not close w.
func Compress(kind string, level int, w io.Writer) (io.WriteCloser, error) {
	switch kind {
	case "":
		if level != 0 {
			return nil, fault.New(fault.Invalid, "compression level %d without compression", level)
		}
		return nopCloser{w}, nil
	case "gzip":
		if level == 0 {
			level = gzip.DefaultCompression
		} else if level < 1 || level > 9 {
			return nil, fault.New(fault.Invalid, "level of gzip must be 1 to 9, not %d", level)
		}
		return gzip.NewWriterLevel(w, level)
	case "zstd":
		if level == 0 {
			level = 3
		} else if level < 1 || level > 22 {
			return nil, fault.New(fault.Invalid, "level of zstd must be 1 to 22, not %d", level)
		}
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)))
	}
	return nil, fault.New(fault.Unsupported, "unknown compression %q; have gzip and zstd", kind)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
