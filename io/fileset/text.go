package fileset

import (
	"cmp"
	"context"
	"strconv"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"golang.org/x/sync/errgroup"
)

// Text are the options of text formats, beside [Options].
type Text struct {
	// Encoding is how the bytes of files are text; "" is utf-8. A byte order mark of UTF-8 or UTF-16 says more than it.
	Encoding string `json:"encoding,omitempty" doc:"how the bytes of files are text: utf-8 (default; what is no UTF-8 is a bad row), utf-8-lossy (U+FFFD stands for it), latin-1, cp1252 (Windows), utf-16 (by its byte order mark, else by its first character, ASCII). A byte order mark of UTF-8 or UTF-16 says more than this. A file of UTF-16 is one split" enum:"utf-8|utf-8-lossy|latin-1|cp1252|utf-16"`
}

// Check checks what can be checked without I/O.
func (t *Text) Check() error {
	switch t.Encoding {
	case "", utf8Name, utf8Lossy, utf16Name, latin1, cp1252:
		return nil
	}
	return fault.New(fault.Invalid, "encoding: %q must be utf-8, utf-8-lossy, latin-1, cp1252 or utf-16; convert files of another", t.Encoding)
}

func (t *Text) encoding() string { return cmp.Or(t.Encoding, utf8Name) }

// Part is the place of a split of a text format: a byte range of a file.
type Part struct {
	File  int // index in Set.Files
	Range blobio.Range

	encoding string
	form     *form // nil: not looked at, and all of the file or its beginning
}

// Begin is the part of the first n bytes of file i, at most, or of all if they are not lines that can be told from the rest.
func (s *Set) Begin(i int, t Text, n int64) Part {
	size := s.Files[i].Info.Size
	if Compression(s.Files[i].Info.Key) == "" && t.encoding() == utf8Name {
		size = min(size, n)
	}
	return Part{File: i, Range: blobio.Range{Len: size}, encoding: t.encoding()}
}

// Bytewise says that the bytes of a part's text are those of the file, as far as is known before it is read: if they are not, reading
// with FromByte or Offsets is an error.
func (s *Set) Bytewise(p Part) bool {
	if p.form != nil {
		return p.form.bytewise()
	}
	return Compression(s.Files[p.File].Info.Key) == "" && p.encoding == utf8Name
}

// Packed says that a part is of compressed text, as far as is known before it is read.
func (s *Set) Packed(p Part) bool {
	if p.form != nil {
		return p.form.packed != ""
	}
	return Compression(s.Files[p.File].Info.Key) != ""
}

// looks is how many files are looked at at once.
const looks = 32

// Parts cuts every file into splits of about splitBytes (0: the default). A file whose name or first bytes say that it is
// compressed, one in UTF-16, and any that whole says, is one split. Rows are unknown; a row column over a file of several splits is
// an Unsupported error.
func (s *Set) Parts(ctx context.Context, t Text, splitBytes int64, whole func(file int) bool) ([]driver.Split, []Part, error) {
	forms := make([]*form, len(s.Files)) // of those that may become several
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(looks)
	for i := range s.Files {
		f := &s.Files[i]
		if len(Ranges(f.Info.Size, splitBytes)) == 1 || whole(i) || Compression(f.Info.Key) != "" || t.Encoding == utf16Name {
			continue
		}
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			f, err := s.look(gctx, i, t.encoding())
			forms[i] = &f
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	if ctx.Err() != nil {
		return nil, nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	var splits []driver.Split
	var parts []Part
	for i := range s.Files {
		f := &s.Files[i]
		rs := []blobio.Range{{Len: f.Info.Size}}
		if forms[i] != nil && forms[i].lines() {
			rs = Ranges(f.Info.Size, splitBytes)
		}
		if err := s.CheckRows(i, len(rs)); err != nil {
			return nil, nil, err
		}
		for k, r := range rs {
			splits = append(splits, driver.Split{ID: f.Rel + "#" + strconv.Itoa(k), File: f.Path, Index: int64(k), Rows: -1, Bytes: r.Len})
			parts = append(parts, Part{i, r, t.encoding(), forms[i]})
		}
	}
	return splits, parts, nil
}

// CheckBytes refuses scans by byte of a split whose rows have no known place in its
// bytes: offsets is what driver.Offsetter says of it.
func CheckBytes(o *driver.ScanOptions, offsets bool, split *driver.Split) error {
	if offsets || o.FromByte == 0 && !o.Offsets {
		return nil
	}
	return fault.New(fault.Invalid, "the split can only be read from its begin: it is compressed or not in UTF-8, or its rows are not lines; leave out FromByte and Offsets").
		At(fault.Place{File: split.File, RowGroup: fault.N(split.Index)})
}
