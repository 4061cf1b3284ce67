package csvio

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/fileset"
)

// dialect is how a file tells records and fields apart.
type dialect struct {
	delim, eol             byte // eol: \n, before which a \r does not count, or \r
	quote, escape, comment byte // 0: none
	multiline              bool
	after                  bool // text behind a closing quote belongs to the field
}

// field is where the text of a field lies in the data that was tokenized: 30 bits
// of length below 32 of start below two flags.
type field uint64

const (
	quoted  field = 1 << 62
	escaped field = 1 << 63 // holds doubled or escaped quotes, or the closing one
	missing       = quoted | escaped
	lenBits       = 30
)

func span(start, n int) field { return field(start)<<lenBits | field(n) }
func (f field) len() int      { return int(f & (1<<lenBits - 1)) }
func (f field) of(data []byte) []byte {
	s := int(f >> lenBits & (1<<32 - 1))
	return data[s : s+f.len()]
}

// tokenizer finds the wanted fields of the records of a chunk.
type tokenizer struct {
	dialect
	want    []bool // by field of a record; its length is the fields that one must have
	last    int    // fields from here on are not wanted
	vars    []int  // ordinals among the wanted of those whose size in memory is that of the text
	fixed   int64  // bytes of memory of all others, per row
	missing bool   // fields may be missing at the end of a record
	quotes  bool   // the data has quotes

	places bool // where rows begin is wanted

	fields  []field // of the last scan, row by row, only wanted ones
	at      []int   // of the last scan, if places: where each row begins
	rows    int
	bad     []badRow // rows that are no records; their fields are missing
	scratch []field
}

// badRow is a row that does not parse, and why.
type badRow struct {
	row int // in what was tokenized
	pos int // where its record begins in the data
	err *fault.Error
}

// tell adds to the error where the record is in the file, and its first line where the error does not
// show that yet. line is the number of that in the file, 0 if it is not known.
func (d *dialect) tell(b badRow, data []byte, line int64) {
	where := ""
	if line > 0 {
		where = fmt.Sprintf("line %d of the file", line)
	}
	if b.err.Column != "" {
		start := bytes.LastIndexByte(data[:b.pos], d.eol) + 1
		end, _ := d.lineEnd(data, b.pos)
		if where == "" {
			where = "the line is"
		} else {
			where += ":"
		}
		where += " " + showLine(data[start:end])
	}
	if where != "" {
		b.err.Err = fmt.Errorf("%w (%s)", b.err.Err, where)
	}
}

func (t *tokenizer) setWant(want []bool, vars []int, fixed int64) {
	t.want, t.last, t.vars, t.fixed = want, 0, vars, fixed
	for i, w := range want {
		if w {
			t.last = i + 1
		}
	}
}

// look says what the next scans will see.
func (t *tokenizer) look(data []byte) { t.quotes = t.quote != 0 && bytes.IndexByte(data, t.quote) >= 0 }

// scan tokenizes records of data from pos on, until maxRows, or maxBytes of memory (but for at least
// one row), or the end of data. It returns where the next record begins. Unless final, data may end
// inside a quoted field (multiline only): then more says that the record at the returned place needs more data.
func (t *tokenizer) scan(data []byte, pos, maxRows int, maxBytes int64, final bool) (next int, more bool) {
	t.fields, t.rows, t.bad, t.at = t.fields[:0], 0, t.bad[:0], t.at[:0]
	var size int64
	for pos < len(data) && t.rows < maxRows {
		if data[pos] == t.eol && len(t.want) != 1 { // a blank line, perhaps of many
			pos++
			continue
		}
		end, after := t.lineEnd(data, pos)
		if t.skip(data[pos:end], len(t.want)) {
			pos = after
			continue
		}
		base := len(t.fields)
		var err *fault.Error
		n := 0
		if t.quotes && bytes.IndexByte(data[pos:end], t.quote) >= 0 {
			var fs []field
			fs, after, err = t.record(data, pos, final, t.scratch[:0])
			if err == errMore {
				return pos, true
			}
			t.scratch = fs
			if n = len(fs); err == nil {
				for k := 0; k < n && k < t.last; k++ {
					if t.want[k] {
						t.fields = append(t.fields, fs[k])
					}
				}
			}
		} else {
			line, want, delim := data[pos:end], t.want[:t.last], t.delim
			start := 0
			if len(want) > 0 {
				w := want[0]
				for i, c := range line {
					if c != delim {
						continue
					}
					if w {
						t.fields = append(t.fields, span(pos+start, i-start))
					}
					start = i + 1
					if n++; n == len(want) {
						break
					}
					w = want[n]
				}
				if n < len(want) && w {
					t.fields = append(t.fields, span(pos+start, len(line)-start))
				}
			}
			n++
			if n > t.last {
				n += bytes.Count(line[start:], t.delims())
			}
		}
		if t.eol == '\r' && err == nil && bytes.IndexByte(data[pos:end], '\n') >= 0 && bytes.IndexByte(data[pos:end], t.quote) < 0 {
			err = fault.New(fault.RowError, "lines end in CR alone at the begin of the file, and here in LF: %s", showLine(data[pos:end]))
		}
		if err == nil && n != len(t.want) && (n > len(t.want) || !t.missing) {
			err = fault.New(fault.RowError, "the record has %d fields, not %d: %s", n, len(t.want), showLine(data[pos:end]))
			if n < len(t.want) {
				err = fault.New(fault.RowError, "%w; allow_missing takes fields missing at the end for null", err)
			}
		}
		if err != nil {
			t.bad = append(t.bad, badRow{t.rows, pos, err})
			t.fields = t.fields[:base]
		}
		if err != nil || n < t.last {
			for k, have := 0, len(t.fields)-base; k < t.last; k++ {
				if t.want[k] {
					if have--; have < 0 {
						t.fields = append(t.fields, missing)
					}
				}
			}
		}
		size += t.fixed
		for _, v := range t.vars {
			size += int64(t.fields[base+v].len())
		}
		if size > maxBytes && t.rows > 0 {
			t.fields = t.fields[:base]
			if err != nil {
				t.bad = t.bad[:len(t.bad)-1]
			}
			return pos, false
		}
		if t.places {
			t.at = append(t.at, pos)
		}
		t.rows++
		pos = after
	}
	return pos, false
}

// delims is the delimiter for bytes.Count, without allocation.
func (d *dialect) delims() []byte { return oneByte[d.delim : int(d.delim)+1] }

var oneByte = func() (b [256]byte) {
	for i := range b {
		b[i] = byte(i)
	}
	return b
}()

// skip reports whether a line is no record: a comment, or blank. Where a record
// has one field, a blank line is a record.
func (d *dialect) skip(line []byte, fields int) bool {
	return len(line) == 0 && fields != 1 || d.comment != 0 && len(line) > 0 && line[0] == d.comment
}

// lineEnd finds the end of the line at pos without what ends it, and where the next one begins.
func (d *dialect) lineEnd(data []byte, pos int) (end, after int) {
	if i := bytes.IndexByte(data[pos:], d.eol); i >= 0 {
		end, after = pos+i, pos+i+1
	} else {
		end, after = len(data), len(data)
	}
	if end > pos && data[end-1] == '\r' && d.eol == '\n' {
		end--
	}
	return end, after
}

var errMore = fault.New(fault.Internal, "more data is needed")

// record tokenizes one record that may have quotes, appending all its fields. On
// an error after is the line behind the place where it was seen.
func (d *dialect) record(data []byte, pos int, final bool, fs []field) (_ []field, after int, _ *fault.Error) {
	i := pos
	end, after := d.lineEnd(data, pos)
	for {
		if len(fs) == fileset.MaxColumns {
			return fs, after, fault.New(fault.RowError, "the record has more than %d fields: is the delimiter right? %s", fileset.MaxColumns, showLine(data[pos:end]))
		}
		if i >= end || data[i] != d.quote || d.quote == 0 {
			n := bytes.IndexByte(data[i:end], d.delim)
			if n < 0 {
				return append(fs, span(i, end-i)), after, nil
			}
			fs = append(fs, span(i, n))
			i += n + 1
			continue
		}
		start, lim, flags := i+1, end, quoted
		if d.multiline {
			lim = len(data)
		}
		for i = start; ; i += 2 {
			n := d.special(data[i:lim])
			if n < 0 || i+n+1 >= lim && !final && d.multiline {
				if d.multiline && !final {
					return fs, pos, errMore
				}
				why := "; set multiline: true if fields hold line breaks"
				if d.multiline {
					why = ""
				}
				return fs, after, fault.New(fault.RowError, "a quoted field does not end%s: %s", why, showLine(data[start-1:end]))
			}
			i += n
			next := i+1 < lim && (data[i+1] == d.quote || data[i+1] == d.escape && d.escape != 0)
			if data[i] == d.quote && !(next && data[i+1] == d.quote) {
				break
			}
			if next {
				flags |= escaped
			} else {
				i-- // an escape before what needs none
			}
		}
		stop := i
		i++
		if i > end {
			end, after = d.lineEnd(data, i)
		}
		if i < end && data[i] != d.delim {
			if !d.after {
				return fs, after, fault.New(fault.RowError, "text follows the end of a quoted field; set text_after_quote: true if it belongs to it: %s",
					showLine(data[start-1:end]))
			}
			if stop = end; bytes.IndexByte(data[i:end], d.delim) >= 0 {
				stop = i + bytes.IndexByte(data[i:end], d.delim)
			}
			i = stop
			flags |= escaped
		}
		fs = append(fs, span(start, stop-start)|flags)
		if i >= end {
			return fs, after, nil
		}
		i++
	}
}

// special finds the first quote or escape, -1 if there is none.
func (d *dialect) special(b []byte) int {
	n := bytes.IndexByte(b, d.quote)
	if d.escape == 0 {
		return n
	}
	if n >= 0 {
		b = b[:n]
	}
	if e := bytes.IndexByte(b, d.escape); e >= 0 {
		return e
	}
	return n
}

// unquote appends the text of a field to dst. What comes behind its closing quote is taken as it is.
func (d *dialect) unquote(dst, b []byte, f field) []byte {
	if f&escaped == 0 || f == missing {
		return append(dst, b...)
	}
	for {
		i := d.special(b)
		if i < 0 {
			return append(dst, b...)
		}
		dst = append(dst, b[:i]...)
		next := i+1 < len(b) && (b[i+1] == d.quote || b[i+1] == d.escape && d.escape != 0)
		switch {
		case b[i] == d.quote && !(next && b[i+1] == d.quote): // the closing one
			return append(dst, b[i+1:]...)
		case next:
			dst = append(dst, b[i+1])
			b = b[i+2:]
		default:
			dst = append(dst, b[i])
			b = b[i+1:]
		}
	}
}

// show quotes a value for messages, cut at 100 bytes; showLine a record, at 1000.
func show(b []byte) string     { return cut(b, 100) }
func showLine(b []byte) string { return cut(b, 1000) }

func cut(b []byte, most int) string {
	if len(b) <= most {
		return strconv.Quote(string(b))
	}
	return strconv.Quote(string(b[:most])) + "..."
}
