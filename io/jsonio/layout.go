package jsonio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// layout is how the values lie in a file.
type layout uint8

const (
	onLines  layout = iota // one on each line
	inArray                // elements of one array
	inBehind               // one behind another, over any number of lines
)

var layouts = map[string]layout{"lines": onLines, "array": inArray, "elements": inBehind}

// window is what of the text b, which begins with what is no white space, tells its layout: the first 4 KiB, and the first line, up to
// sampleBytes of it. It is nil if more of the text is needed.
func window(b []byte, whole bool) []byte {
	n := layoutBytes
	if len(b) > 0 && b[0] != '[' {
		if line := bytes.IndexByte(b[:min(len(b), sampleBytes)], '\n'); line >= 0 {
			n = max(n, line+1)
		} else {
			n = sampleBytes
		}
	}
	switch {
	case n <= len(b):
		return b[:n]
	case whole:
		return b
	}
	return nil
}

const (
	layoutBytes = 4 << 10
	sampleBytes = 1 << 20
	headBytes   = 16 << 20 // of white space before the first row
)

// layoutOf finds the layout of the text that begins with b, or is all of it.
//
// One array, as far as it can be seen, is an array. Text each line of which is a value is lines. What is values one behind another
// without that is such; and what is neither is lines if one of them is a value of the first one's kind, or if the first is wrong
// by itself: the others are bad rows then.
func layoutOf(b []byte, whole bool) layout {
	x := text{b: b, more: !whole}
	first, err := x.space()
	if err != nil {
		return onLines
	}
	begin, values := x.i, 0
	for err = nil; err == nil && !x.blank(); values++ {
		err = x.skip(0)
	}
	if err != nil {
		values--
	}
	broken := err != nil && err != errMore
	if first == '[' && (values == 0 || values == 1 && (broken || x.blank())) {
		return inArray
	}
	good, bad := 0, 0
	for rest := b; len(rest) > 0; {
		line, behind, ended := bytes.Cut(rest, []byte("\n"))
		rest = behind
		ended = ended || whole
		y := text{b: line, more: !ended}
		if y.blank() {
			continue
		}
		c := y.b[y.i]
		switch err := y.skip(0); {
		case err == errMore:
		case err != nil || !y.blank():
			bad++
		case ended && c == first:
			good++
		}
	}
	if bad == 0 || good > 0 && broken {
		return onLines
	}
	if e, ok := err.(*syntaxError); ok && !bytes.Contains(b[begin:min(e.at, len(b))], []byte("\n")) {
		return onLines
	}
	return inBehind
}

// head is what the beginning of a file tells.
type head struct {
	layout layout
	seen   shape // of whole rows, if they were asked for
	rows   int   // of them
	err    error // of the first row that does not parse
}

var bom = []byte("\xEF\xBB\xBF")

// head reads the beginning of file i: until its layout is known, or whole rows of
// the first MiB, at least one.
func (t *table) head(ctx context.Context, i int, rows bool, looks *fileset.Looks) (h head, err error) {
	in := t.set.OpenStream(ctx, t.set.Begin(i, t.o.Text, math.MaxInt64), &driver.ScanOptions{})
	defer in.Close()
	size := layoutBytes
	if rows {
		size = sampleBytes
	}
	b, from := make([]byte, size), 0
	growth := t.set.TextGrowth(t.set.Begin(i, t.o.Text, math.MaxInt64))
	most := int(min(fileset.MaxLine, growth.Row()))
	scratch := looks.Scratch()
	defer scratch.Close()
	defer func() { scratch.Free(b) }()
	for {
		n, err := io.ReadFull(in, b[from:])
		from += n
		if err := looks.Take(int64(n)); err != nil {
			return h, err
		}
		whole := err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !whole {
			return h, err
		}
		begin := bytes.TrimLeft(bytes.TrimPrefix(b[:from], bom), " \t\r\n")
		if len(begin) == 0 && from > headBytes {
			return h, driver.Errorf(driver.Corrupt, "the file begins with %d MiB of white space; leave it out of the file", headBytes>>20)
		}
		if look := window(begin, whole); look != nil || whole {
			h = head{layout: layouts[t.o.Layout]}
			if t.o.Layout == "" {
				h.layout = layoutOf(look, whole && len(look) == len(begin))
			}
			if rows {
				seen := &fields{types: t.types}
				if h.sample(b[:from], whole, t.odd, seen); seen.err != nil {
					return h, seen.err
				}
			}
			if whole || !rows || h.rows > 0 || h.err != nil {
				return h, nil
			}
		}
		switch {
		case size > most && most < fileset.MaxLine:
			return h, growth.LargeRow("the text of the first row has")
		case size > most:
			return h, driver.Errorf(driver.Corrupt, "the first row is larger than %d bytes", fileset.MaxLine)
		}
		size = min(2*size, most+1)
		b = scratch.Reallocate(size, b)
	}
}

// sample looks at the whole rows of b, the beginning of a file or all of it.
func (h *head) sample(b []byte, whole bool, odd nonFinite, seen *fields) {
	p := &parser{seen: &h.seen, fields: seen, text: text{odd: odd}}
	row := h.elements(p, b, whole)
	if h.layout == onLines {
		row = h.lines(p, b, whole)
	}
	for {
		switch err := row(); {
		case err == nil:
			h.rows++
		case err == io.EOF, err == errMore:
			return
		default:
			if h.err == nil {
				h.err = err
			}
			if e, ok := err.(*driver.Error); !ok || e.Code != driver.RowError {
				return
			}
		}
	}
}

func (h *head) lines(p *parser, b []byte, whole bool) func() error {
	n := len(b)
	if !whole {
		n = bytes.LastIndexByte(b, '\n') + 1
	}
	p.alone = true
	l := &lines{p: p, chunk: b[:n], number: 1, first: true}
	l.begun()
	return func() error {
		if !l.line() {
			return io.EOF
		}
		return l.parse(l.chunk[l.last:l.at])
	}
}

func (h *head) elements(p *parser, b []byte, whole bool) func() error {
	a := &elements{p: p, bare: h.layout == inBehind}
	p.text.b, p.text.more = b, !whole
	return func() error {
		begin := p.i
		err := a.step(false)
		if err == errMore {
			return err
		}
		return a.explain(err, begin)
	}
}
