package jsonio

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// parser appends the rows of a text to columns.
type parser struct {
	text
	root   *column
	alone  bool    // nothing but white space follows a row in the text
	scalar bool    // a row is a value of the only column, if that is read, not an object of columns
	seen   *shape  // nil: rows are appended to root; else they are only looked at
	fields *fields // of seen
	strict bool
	known  map[string]bool // strict: columns of the file, also those not read
	raw    map[string]bool // columns that are not read, whose strings need not be UTF-8
	base64 bool            // so bytes are written
	bad    *driver.Error   // first value of the row that its column cannot hold
	b64    []byte
	lend   func(b []byte, used int) *memory.Buffer // of the memory of the text, nil: it is copied
}

// row parses one value at the text's position as a row. It returns errMore or a
// *syntaxError, with nothing appended and the position where the row begins; or a
// *driver.Error of code RowError about a value, with nothing appended and the
// position behind the row.
func (p *parser) row() error {
	if p.seen != nil {
		return p.look()
	}
	s := p.root.s
	n, begin := p.root.n, p.i
	s.begin = s.bytes
	p.bad, p.wrong, p.odds = nil, nil, p.odds[:0]
	c, err := p.space()
	if err == nil {
		switch {
		case p.scalar:
			err = p.single()
		case c == '{':
			err = p.object(p.root, 0)
		default:
			if err = p.skip(0); err == nil {
				p.reject(p.root, "a row is an object, not %s; to read rows of both kinds as text set mixed: text", kindName(c))
			}
		}
	}
	if err == nil {
		err = p.ends()
	}
	if err == nil {
		err = s.take(0)
	}
	if err == nil {
		p.judge(p.root)
		if p.bad == nil {
			return nil
		}
		s.lost += s.bytes - s.begin
	}
	p.root.truncate(n)
	s.bytes = s.begin
	if err != nil {
		p.i = begin
		return err
	}
	return p.bad
}

// reject notes that the row is bad; the first reason stands.
func (p *parser) reject(c *column, format string, args ...any) {
	if p.bad == nil {
		p.bad = driver.Errorf(driver.RowError, format, args...).At(driver.Place{Column: c.path})
	}
}

// judge rejects the row if a string in or before the value of c is no text.
func (p *parser) judge(c *column) {
	if p.wrong != nil {
		p.reject(c, "%w", p.wrong)
	}
}

func kindName(c byte) string {
	switch c {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a bool"
	case 'n':
		return "null"
	}
	return "a number"
}

// single appends the value at the position as a row of the only column.
func (p *parser) single() error {
	if len(p.root.kids) == 0 {
		if err := p.skip(0); err != nil {
			return err
		}
	} else if err := p.value(p.root.kids[0], 0); err != nil {
		return err
	}
	p.root.added()
	return nil
}

// look is row of a sample.
func (p *parser) look() error {
	begin := p.i
	p.wrong, p.odds = nil, p.odds[:0]
	err := p.checked(0)
	if err == nil {
		err = p.ends()
	}
	if err != nil {
		p.i = begin
		return err
	}
	if p.wrong != nil {
		return driver.Errorf(driver.RowError, "%w", p.wrong)
	}
	end := p.i
	p.i = begin
	err = p.seen.observe(&p.text, 0, p.fields)
	p.i = end
	return err
}

// ends refuses text behind the value of a row that is to be alone.
func (p *parser) ends() error {
	if p.alone && !p.blank() {
		return p.fail("%q after the end of the value; write one on each line, or set layout: elements", p.b[p.i])
	}
	return nil
}

// object appends the object at the position to a struct. Fields that it lacks are counted, and
// appended once something follows.
func (p *parser) object(c *column, depth int) error {
	at, next, lacks := c.n, 0, c.kidBits
	err := p.each(depth, '{', func(key []byte) error {
		i := next
		if i >= len(c.kids) || c.kids[i].name != string(key) {
			var ok bool
			if i, ok = c.byName[string(key)]; !ok {
				if p.strict && (c != p.root || !p.known[string(key)]) {
					p.reject(c, "unknown field %q; the schema comes from the first rows and from types", key)
				}
				p.bytes = c == p.root && p.raw[string(key)]
				err := p.skip(depth + 1)
				p.bytes = false
				return err
			}
		}
		next = i + 1
		if c.kids[i].n > at {
			p.reject(c.kids[i], "the key %q is there twice in one object", key)
			return p.skip(depth + 1)
		}
		c.kids[i].pad(at)
		lacks -= c.kids[i].nullBits
		err := p.value(c.kids[i], depth+1)
		p.judge(c.kids[i])
		return err
	})
	if err != nil {
		return err
	}
	if err := c.s.take(lacks / 8); err != nil {
		return err
	}
	c.added()
	return nil
}

// value appends the value at the position to c: one row, null if it does not fit.
func (p *parser) value(c *column, depth int) error {
	ch, err := p.space()
	if err != nil {
		return err
	}
	if err := c.s.take(0); err != nil {
		return err
	}
	if ch == 'n' {
		if err := p.word("null"); err != nil {
			return err
		}
		c.null()
		return nil
	}
	begin := p.i
	if p.isOdd(ch) {
		return p.oddValue(c)
	}
	switch c.kind {
	case kBool:
		if ch == 't' || ch == 'f' {
			w := "true"
			if ch == 'f' {
				w = "false"
			}
			if err := p.word(w); err != nil {
				return err
			}
			c.boolean(ch == 't')
			c.added()
			return nil
		}
		if c.from == given && (ch == '"' || ch == '0' || ch == '1') {
			return p.written(c, ch)
		}
	case kInt, kUint, kFloat32, kFloat64, kDecimal:
		if ch == '-' || ch-'0' < 10 {
			n, err := p.num()
			if err != nil {
				return err
			}
			p.number(c, n)
			return nil
		}
		if ch == '"' && (c.kind >= kFloat32 || c.from == given) {
			s, err := p.str()
			if err != nil {
				return err
			}
			p.word2(c, s)
			return nil
		}
	case kText:
		if ch == '"' {
			s, err := p.once()
			if err != nil {
				return err
			}
			p.variable(c, s)
			return nil
		}
		if c.from != guessed {
			if err := p.skip(depth); err != nil {
				return err
			}
			p.variable(c, p.json(begin))
			return nil
		}
	case kBinary, kFixed, kDate, kTime, kTimestamp:
		if ch == '"' {
			p.bytes = c.kind <= kFixed && !p.base64
			s, err := p.once()
			p.bytes = false
			if err != nil {
				return err
			}
			p.coded(c, s)
			return nil
		}
	case kList, kFixedList:
		if ch == '[' {
			return p.list(c, depth)
		}
	case kStruct:
		if ch == '{' {
			return p.object(c, depth)
		}
	case kMap:
		if ch == '{' {
			return p.mapping(c, depth)
		}
	}
	if err := p.skip(depth); err != nil {
		return err
	}
	p.reject(c, "%s where %s is needed%s", kindName(ch), typename.Name(c.typ), c.both())
	c.null()
	return nil
}

// written appends a bool that is written as a string or number.
func (p *parser) written(c *column, ch byte) (err error) {
	var s []byte
	if ch == '"' {
		s, err = p.str()
	} else {
		var n number
		n, err = p.num()
		s = n.text
	}
	if err != nil {
		return err
	}
	v, ok := textvalue.GivenBool(textvalue.Trim(s))
	if !ok {
		p.reject(c, "%q is no bool", clip(s))
		c.null()
		return nil
	}
	c.boolean(v)
	c.added()
	return nil
}

// oddValue appends NaN or an infinity.
func (p *parser) oddValue(c *column) error {
	n, err := p.num()
	switch {
	case err != nil:
		return err
	case p.odd != oddKeep:
		c.null() // of a row that is bad, or as is wanted
	case kInt <= c.kind && c.kind <= kFloat64 || c.kind == kDecimal:
		p.number(c, n)
	case c.kind == kText && c.from != guessed:
		p.variable(c, n.text)
	default:
		p.reject(c, "%s where %s is needed%s", n.text, typename.Name(c.typ), c.both())
		c.null()
	}
	return nil
}

// json is the text from begin to the position, with null where NaN and infinities are to be that.
func (p *parser) json(begin int) []byte {
	s := p.b[begin:p.i]
	var out []byte
	for _, at := range p.odds {
		if at[0] >= begin {
			out = append(append(out, p.b[begin:at[0]]...), "null"...)
			begin = at[1]
		}
	}
	if out == nil {
		return s
	}
	return append(out, p.b[begin:p.i]...)
}

func (p *parser) list(c *column, depth int) error {
	k := c.kids[0]
	if c.kind == kFixedList {
		k.pad(c.n * c.width)
	}
	at := k.n
	if err := p.each(depth, '[', func([]byte) error { return p.value(k, depth+1) }); err != nil {
		return err
	}
	if c.kind == kList {
		if c.width == 4 && k.n > math.MaxInt32 {
			p.reject(c, "more than 2^31 elements in a batch; set the type large_list")
		}
		c.end(k.n)
		c.added()
		return nil
	}
	if n := k.n - at; n != c.width {
		p.reject(c, "a list of %d where %d elements are needed", n, c.width)
		k.truncate(at)
		c.null()
		return nil
	}
	c.added()
	return nil
}

func (p *parser) mapping(c *column, depth int) error {
	keys := c.kids[0]
	from := keys.n
	err := p.each(depth, '{', func(key []byte) error {
		p.variable(keys, key)
		return p.value(c.kids[1], depth+1)
	})
	if err != nil {
		return err
	}
	if key, twice := keys.twice(from); twice {
		p.reject(c, "the key %q is there twice in one object", key)
	}
	c.end(keys.n)
	c.added()
	return nil
}
