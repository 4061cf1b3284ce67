package csvio

import (
	"context"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/io/fileset"
)

// guess is what the fields of one column have in common.
type guess struct {
	textvalue.Guess
	bytes, rows int64
}

func (g *guess) merge(o *guess) {
	g.Merge(&o.Guess)
	g.bytes += o.bytes
	g.rows += o.rows
}

// width is the mean length of the text.
func (g *guess) width() float64 { return float64(g.bytes) / float64(max(g.rows, 1)) }

// sample looks at the first bytes of a file. Records that do not parse are left
// for the scan to report.
func (t *table) sample(ctx context.Context, file int, limit int64, looks *fileset.Looks) (*head, []*guess, error) {
	b, err := t.begin(ctx, file, limit, looks)
	if err != nil {
		return nil, nil, err
	}
	defer b.close()
	h, data := b.head, b.data
	gs := make([]*guess, len(h.names))
	want := make([]bool, len(gs))
	for i := range gs {
		gs[i] = &guess{Guess: textvalue.Guess{Format: t.format}}
		want[i] = true
	}
	if len(data) == 0 || len(gs) == 0 {
		return h, gs, nil
	}
	tok := tokenizer{dialect: h.dialect, missing: true}
	tok.setWant(want, nil, int64(len(want))*8)
	tok.look(data)
	var buf []byte
	// A field that is there has a byte. Short rows of many columns would cost what is not in the
	// sample.
	left := 4*len(data) + 1<<20
	for pos := 0; pos < len(data) && left > 0; {
		if err := ctx.Err(); err != nil {
			return nil, nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		next, more := tok.scan(data, pos, 4096, 4<<20, b.whole)
		if more {
			break
		}
		pos = next
		left -= tok.rows * len(gs)
		for r := 0; r < tok.rows; r++ {
			for c, g := range gs {
				f := tok.fields[r*len(gs)+c]
				if f == missing {
					continue
				}
				b := f.of(data)
				g.rows++
				g.bytes += int64(len(b))
				if b = t.value(&h.dialect, b, f, &buf); b != nil { // else null in anything but text
					g.Add(b)
				}
			}
		}
	}
	return h, gs, nil
}

// shortText is what a field has at most that may be something else than text.
const shortText = 4096

// value is the text b of a field of a column that is not text, in buf perhaps; nil if it is null there.
func (r *rules) value(d *dialect, b []byte, f field, buf *[]byte) []byte {
	if f&escaped != 0 && f != missing && len(b) <= shortText {
		*buf = d.unquote((*buf)[:0], b, f)
		b = *buf
	}
	if r.nullWord(b, f, false) {
		return nil
	}
	if t := textvalue.Trim(b); len(t) < len(b) {
		if b = t; len(b) == 0 || r.nullWord(b, f, false) {
			return nil
		}
	}
	return b
}

// nullWord reports whether a field means null; text says that its column is text.
func (r *rules) nullWord(b []byte, f field, text bool) bool {
	if f == missing || len(b) == 0 && (!text || !r.given && f&quoted == 0) {
		return true
	}
	if f&quoted != 0 || text && !r.given {
		return false
	}
	for _, w := range r.nulls {
		if string(b) == w {
			return true
		}
	}
	return false
}
