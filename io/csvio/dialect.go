package csvio

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/fileset"
)

// head is how a file begins.
type head struct {
	dialect
	names []string
	data  int64 // offset of the first record behind the header
}

// headBytes is how much of a file may be passed over for its header, beside lines that skip_rows says.
const headBytes = 16 << 20

// parseHead finds the header in data, the first bytes of a file, errMore if it is not
// whole there. A file without records has no columns.
func (t *table) parseHead(b *beginning, file int, data []byte) error {
	bom := int64(0)
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		bom, data = 3, data[3:]
	}
	d := t.dialect()
	d.eol = b.chunks.LineEnd()
	pos, begin := 0, 0 // begin: of what is not passed over
	for n := 0; pos < len(data); n++ {
		if n == t.SkipRows {
			begin = pos
		}
		if n >= t.SkipRows && pos-begin > headBytes {
			return fault.New(fault.Corrupt, "the file begins with %d MiB of blank lines and comments; leave them out of the file", headBytes>>20)
		}
		end, after := d.lineEnd(data, pos)
		if n >= t.SkipRows && !d.skip(data[pos:end], 0) {
			break
		}
		pos = after
	}
	if pos == len(data) {
		if !b.whole {
			return errMore
		}
		b.head = &head{dialect: d, data: bom + int64(pos)}
		return nil
	}
	if d.delim == 0 {
		likely, perhaps := t.delimiters(t.set.Files[file].Info.Key)
		if d.delim = t.detect(d, likely, data[pos:]); d.delim == 0 {
			d.delim = t.detect(d, perhaps, data[pos:])
		}
		if d.delim == 0 {
			d.delim = append(likely, perhaps...)[0] // quote, escape and comment are three of four at most
		}
	}
	h := &head{dialect: d, data: bom + int64(begin)}
	for k := 0; k < max(t.HeaderRows, 1); {
		end, after := d.lineEnd(data, pos)
		if pos < len(data) && k > 0 && d.skip(data[pos:end], len(h.names)) {
			pos = after
			continue
		}
		if pos == len(data) {
			if !b.whole {
				return errMore
			}
			return fault.New(fault.Corrupt, "the header has %d lines, not %d", k, t.HeaderRows)
		}
		fs, after, ferr := d.record(data, pos, b.whole, nil)
		if ferr == errMore {
			return errMore
		}
		if ferr != nil {
			ferr.Code = fault.Corrupt
			return fault.New(fault.Corrupt, "header: %w", ferr)
		}
		if k > 0 && len(fs) != len(h.names) {
			return fault.New(fault.Corrupt, "header: line %d has %d fields, and line 1 has %d", k+1, len(fs), len(h.names))
		}
		if k == 0 {
			h.names = make([]string, len(fs))
		}
		for i, f := range fs {
			if err := h.name(i, string(d.unquote(nil, f.of(data), f))); err != nil && !t.NoHeader && t.Names == nil {
				return err
			}
		}
		pos = after
		k++
	}
	if !t.NoHeader {
		h.data = bom + int64(pos)
	}
	if t.Names != nil {
		if len(t.Names) != len(h.names) {
			return fault.New(fault.Invalid, "the file has %d columns, but names lists %d", len(h.names), len(t.Names))
		}
		h.names = t.Names
	} else if err := h.distinct(t.NoHeader, t.DuplicateNames == "error"); err != nil {
		return err
	}
	b.head, b.data = h, data[h.data-bom:]
	return nil
}

// name adds a line's field to the name of column i.
func (h *head) name(i int, s string) error {
	if !utf8.ValidString(s) {
		return fault.New(fault.Corrupt, "the name of column %d, %s, is not valid UTF-8; say with encoding what it is, or convert the file", i+1, show([]byte(s)))
	}
	if h.names[i] != "" && s != "" {
		s = "_" + s
	}
	if len(h.names[i])+len(s) > fileset.MaxName {
		return fault.New(fault.Corrupt, "header: the name of column %d has more than %d bytes: is the delimiter right, and is there a header? %s", i+1, fileset.MaxName, showLine([]byte(s)))
	}
	h.names[i] += s
	return nil
}

// distinct gives names to columns that have none (in the file, or in the header), and others to those that
// have a name of a column before: a, a_1, a_2, but for what is in the header itself.
func (h *head) distinct(none, refuse bool) error {
	names := slices.Clone(h.names)
	made := func(i int) bool { return none || h.names[i] == "" }
	for i := range names {
		if made(i) {
			names[i] = fmt.Sprintf("column_%d", i+1)
		}
	}
	distinct := fileset.Distinct(names, made)
	for i, n := range names {
		if refuse && distinct[i] != n {
			return fault.New(fault.Invalid, "two columns have the name %q; give them others with names, or leave out duplicate_names", n)
		}
	}
	h.names = distinct
	return nil
}

// What of a file is looked at for its delimiter.
const (
	detectBytes   = 32 << 10
	detectRecords = 1000
)

// detect finds the delimiter in the first records of a file: the one by which the first record has two
// fields at least, and half of all as many; of several the one of the most such records, then of the most
// fields, then the first in order. 0: none is like that, as in a file of one column.
func (t *table) detect(d dialect, order, data []byte) byte {
	if len(data) > detectBytes {
		if i := bytes.LastIndexByte(data[:detectBytes], d.eol); i >= 0 {
			data = data[:i+1]
		}
	}
	best, part, fields := byte(0), 0.5, 0
	var fs []field
	for _, c := range order {
		d.delim = c
		first, same, all := 0, 0, 0
		for pos := 0; pos < len(data) && all < detectRecords; {
			end, after := d.lineEnd(data, pos)
			if d.skip(data[pos:end], 2) {
				pos = after
				continue
			}
			var err *fault.Error
			if fs, after, err = d.record(data, pos, false, fs[:0]); err == errMore {
				break
			}
			n := len(fs)
			if all++; all == 1 {
				if err != nil || n < 2 || t.Names != nil && n != len(t.Names) {
					break
				}
				first = n
			}
			if err == nil && (n == first || t.AllowMissing && n < first) {
				same++
			}
			pos = after
		}
		if first == 0 {
			continue
		}
		if p := float64(same) / float64(all); p > part || p == part && first > fields {
			best, part, fields = c, p, first
		}
	}
	return best
}

// ReadBy is what explain says of how the files are read: what was found out of the first.
func (t *table) ReadBy() string {
	t.mu.Lock()
	h := t.heads[0]
	t.mu.Unlock()
	if h == nil || len(h.names) == 0 {
		return "CSV"
	}
	names := map[byte]string{',': "comma", '\t': "tab"}
	name := names[h.delim]
	if name == "" {
		name = string(h.delim)
	}
	by := "CSV, delimiter " + name
	if t.Delimiter == "" {
		by += " (found in the first file)"
	}
	if h.eol == '\r' {
		by += ", lines end in CR"
	}
	return by
}
