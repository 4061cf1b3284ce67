package fileset

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// form is what a text file is.
type form struct {
	packed string // its compression
	enc    string // how its text is decoded: utf16LE, utf16BE, an encoding but utf-8, or ""
	skip   int    // bytes of a byte order mark that is no part of the decoded text
}

// lines says that lines of the file are found in its bytes.
func (f form) lines() bool { return f.packed == "" && f.enc != utf16LE && f.enc != utf16BE }

// bytewise says that bytes of the text are bytes of the file.
func (f form) bytewise() bool { return f.packed == "" && f.enc == "" }

// firstBytes are enough to know a form.
const firstBytes = 16

// packing is the compression of a file by its first bytes, all of them where there are fewer than firstBytes. Its name speaks for
// bytes that end before they say something, and for those that are no text. What is neither text nor compressed in a way that is
// read is an Unsupported error.
func packing(name string, first []byte) (string, error) {
	for _, c := range codecs {
		if bytes.HasPrefix(first, []byte(c.magic)) && (c.kind != "bzip2" || isBzip2(first)) {
			return c.kind, nil
		}
	}
	if len(first) >= 4 && first[0]&0xf0 == 0x50 && string(first[1:4]) == "\x2a\x4d\x18" { // a frame that is skipped
		return "zstd", nil
	}
	for _, o := range others {
		if bytes.HasPrefix(first, []byte(o.magic)) {
			return "", fault.New(fault.Unsupported, "the file is no text: it begins like %s", o.what)
		}
	}
	named := Compression(name)
	for _, c := range codecs {
		if c.kind == named && (strings.HasPrefix(c.magic, string(first)) || bytes.ContainsFunc(first, isControl)) && markOf(first) == "" {
			return named, nil
		}
	}
	return "", nil
}

// isBzip2 tells bzip2 from text that begins like it: a block, or the end of an empty file, follows.
func isBzip2(first []byte) bool {
	rest := first[3:]
	return len(rest) == 0 || rest[0]-'1' < 9 && (strings.HasPrefix("\x31\x41\x59\x26\x53\x59", string(rest[1:min(7, len(rest))])) ||
		strings.HasPrefix("\x17\x72\x45\x38\x50\x90", string(rest[1:min(7, len(rest))])))
}

// isControl says that text holds no such character.
func isControl(r rune) bool { return r < 0x20 && (r < '\t' || r > '\r') && r != 0x1b }

// others are what people take for text.
var others = []struct{ magic, what string }{
	{"PK\x03\x04", "a zip archive: unpack it"},
	{"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"},
	{"\x1f\x9d", "the output of compress (.Z): compress it with gzip or zstd"},
	{"\x04\x22\x4d\x18", "lz4: compress it with gzip or zstd"},
	{"\xff\x06\x00\x00sNaPpY", "framed Snappy: compress it with gzip or zstd"},
	{"PAR1\x15", "Parquet: read it with the format parquet"},
	{"ARROW1\x00\x00", "Arrow IPC: read it with the format ipc"},
	{"FEA1\x00", "Feather: read it with the format ipc"},
	{"Obj\x01", "Avro, which is not read"},
	{"SQLite format 3\x00", "an SQLite database, which is not read"},
	{"\x89HDF\r\n", "HDF5, which is not read"},
	{"\xff\xfe\x00\x00", "UTF-32: convert it to UTF-8"},
	{"\x00\x00\xfe\xff", "UTF-32: convert it to UTF-8"},
}

// markOf is the encoding that a byte order mark says.
func markOf(first []byte) string {
	switch {
	case bytes.HasPrefix(first, []byte("\xef\xbb\xbf")):
		return utf8Name
	case bytes.HasPrefix(first, []byte("\xff\xfe")):
		return utf16LE
	case bytes.HasPrefix(first, []byte("\xfe\xff")):
		return utf16BE
	}
	return ""
}

// decoding is how text is decoded that begins with first, in a source of this encoding.
func decoding(encoding string, first []byte) (enc string, skip int) {
	switch m := markOf(first); m {
	case utf16LE, utf16BE:
		return m, 2
	case utf8Name:
		if encoding == utf8Lossy {
			return utf8Lossy, 0
		}
		return "", 0 // who reads lines of UTF-8 knows the mark
	}
	switch {
	case encoding == utf8Name:
		return "", 0
	case encoding != utf16Name:
		return encoding, 0
	case len(first) > 1 && first[0] == 0 && first[1] != 0:
		return utf16BE, 0
	}
	return utf16LE, 0
}

// look reads the first bytes of file i.
func (s *Set) look(ctx context.Context, i int, encoding string) (form, error) {
	obj := s.Object(i, nil)
	first := make([]byte, min(firstBytes, obj.Size()))
	if n, err := obj.ReadAt(ctx, first, 0); n < len(first) {
		return form{}, fault.Wrap(err, fault.Place{File: s.Files[i].Path})
	}
	packed, err := packing(s.Files[i].Info.Key, first)
	f := form{packed: packed}
	if packed == "" {
		f.enc, f.skip = decoding(encoding, first)
	}
	return f, fault.Wrap(err, fault.Place{File: s.Files[i].Path})
}

// Stream is the text of a file from its beginning: decompressed and decoded, whatever its name says. Not safe for concurrent use.
type Stream struct {
	ctx    context.Context
	set    *Set
	part   Part
	obj    *Object
	raw    io.ReadCloser
	unpack io.Closer // of raw; nil: it is not compressed
	in     io.Reader // nil until the first Read
	form   form
	strict bool // what is not bytewise is an error
	err    error
}

// OpenStream reads the text of p, the whole of a file, or lines at its beginning. Nothing is read before Read.
func (s *Set) OpenStream(ctx context.Context, p Part, o *driver.ScanOptions) *Stream {
	return &Stream{ctx: ctx, set: s, part: p, obj: s.Object(p.File, o.Stats), strict: o.Offsets || o.FromByte > 0}
}

// Start reads the first bytes; Read does it too.
func (s *Stream) Start() error {
	if s.in == nil && s.err == nil {
		s.err = s.open()
	}
	return s.err
}

func (s *Stream) Read(p []byte) (int, error) {
	if err := s.Start(); err != nil {
		return 0, err
	}
	return s.in.Read(p)
}

func (s *Stream) open() error {
	n := s.part.Range.Len
	s.raw = s.obj.Stream(s.ctx, 0, n)
	first, in, err := peek(s.raw)
	if err != nil {
		return err
	}
	if s.form.packed, err = packing(s.set.Files[s.part.File].Info.Key, first); err != nil {
		return err
	}
	if s.form.packed == "" {
		s.form.enc, s.form.skip = decoding(s.part.encoding, first)
	}
	if s.form.bytewise() {
		s.in = in
		return nil
	}
	if s.strict {
		return fault.New(fault.Unsupported, "the file is %s, though its name does not say so, and cannot be cut by bytes; give it the ending of its compression, or convert it to UTF-8", s.form)
	}
	if size := s.obj.Size(); n < size {
		if err := s.raw.Close(); err != nil {
			return err
		}
		s.raw = s.obj.Stream(s.ctx, 0, size)
		in = s.raw
	}
	if s.form.packed != "" {
		d, err := Decompress(s.form.packed, in, s.set.opts.MaxGrowth)
		if err != nil {
			return err
		}
		s.unpack = d
		if first, in, err = peek(d); err != nil {
			return err
		}
		s.form.enc, s.form.skip = decoding(s.part.encoding, first)
	}
	if s.form.skip > 0 {
		if _, err := io.CopyN(io.Discard, in, int64(s.form.skip)); err != nil {
			return err
		}
	}
	s.in = in
	if s.form.enc != "" {
		s.in = newRecoder(s.form.enc, in)
	}
	return nil
}

// String is for messages.
func (f form) String() string {
	if f.packed != "" {
		return f.packed
	}
	return f.enc
}

// peek reads the first bytes of r; in gives all of them.
func peek(r io.Reader) (first []byte, in io.Reader, err error) {
	first = make([]byte, 0, firstBytes)
	for len(first) < firstBytes {
		n, err := r.Read(first[len(first):firstBytes])
		first = first[:len(first)+n]
		if err == io.EOF {
			return first, bytes.NewReader(first), nil
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return first, io.MultiReader(bytes.NewReader(first), r), nil
}

// Close is idempotent.
func (s *Stream) Close() (err error) {
	if s.unpack != nil {
		err = s.unpack.Close()
		s.unpack = nil
	}
	if s.raw != nil {
		err = errors.Join(err, s.raw.Close())
		s.raw = nil
	}
	s.in, s.err = nil, fault.New(fault.Internal, "read after close")
	return err
}
