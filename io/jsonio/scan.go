package jsonio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of one row.
const maxDepth = 64

// errMore says that the text ends inside a value and that there is more of it.
var errMore = errors.New("more text is needed")

// syntaxError is a row that is not JSON.
type syntaxError struct {
	at    int // byte in the text given
	msg   string
	short bool // the text ends inside a value
}

func (e *syntaxError) Error() string { return e.msg }

// text walks over JSON text. It accepts what RFC 8259 does, nested up to maxDepth, and the words NaN,
// Infinity and -Infinity for numbers. Strings that are no text, and these words unless they are wanted, are
// walked over like others, and noted in wrong.
type text struct {
	b     []byte
	i     int
	more  bool      // b is not the end of the text
	ours  bool      // b may be changed: it is read once
	bytes bool      // strings need not be UTF-8
	buf   []byte    // of unescaped strings
	odd   nonFinite // what becomes of the words
	odds  [][2]int  // oddNull: where in b such words are
	wrong error     // the first string, key or value, that is not UTF-8 or has half a surrogate pair; or word
}

// nonFinite is what becomes of NaN and the infinities.
type nonFinite uint8

const (
	oddError nonFinite = iota
	oddNull
	oddKeep
)

var nonFinites = map[string]nonFinite{"": oddError, "error": oddError, "null": oddNull, "keep": oddKeep}

var (
	errNotUTF8 = errors.New("a string is not valid UTF-8; set encoding of the source if the file has another (latin-1, cp1252, utf-16), or utf-8-lossy to replace such bytes")
	errHalf    = errors.New("a string has half of a surrogate pair (\\ud800 to \\udfff), which is no character")
	errOdd     = errors.New("NaN and Infinity are not JSON; set non_finite of the source to keep them (keep), or to null")
)

// note keeps the first error of a string.
func (t *text) note(err error) {
	if t.wrong == nil {
		t.wrong = err
	}
}

func (t *text) fail(format string, args ...any) error {
	return &syntaxError{at: t.i, msg: fmt.Sprintf(format, args...)}
}

// short is the error of text that ends.
func (t *text) short() error {
	if t.more {
		return errMore
	}
	return &syntaxError{at: t.i, msg: "the text ends inside a value", short: true}
}

// blank skips white space and reports whether nothing follows it.
func (t *text) blank() bool {
	for ; t.i < len(t.b); t.i++ {
		switch t.b[t.i] {
		case ' ', '\t', '\r', '\n':
		default:
			return false
		}
	}
	return true
}

// space skips white space and returns the byte that follows.
func (t *text) space() (byte, error) {
	if t.i < len(t.b) && t.b[t.i] > ' ' {
		return t.b[t.i], nil
	}
	if t.blank() {
		return 0, t.short()
	}
	return t.b[t.i], nil
}

// word consumes true, false or null.
func (t *text) word(w string) error {
	if len(t.b)-t.i >= len(w) {
		if string(t.b[t.i:t.i+len(w)]) != w {
			return t.fail("an unknown word; only true, false and null are written without quotes")
		}
		t.i += len(w)
		return nil
	}
	return t.short()
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain returns the index of the first byte from i on that is a quote, a
// backslash, a control character or not ASCII.
func plain(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		q := w ^ (ones * '"')
		s := w ^ (ones * '\\')
		m := (q - ones) & ^q // a zero byte borrows into its high bit
		m |= (s - ones) & ^s
		m |= (w - ones*0x20) // below 0x20; exact for the lowest byte that is one
		m |= w
		if m &= highs; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x80 {
			return i
		}
	}
	return i
}

// str consumes a string and returns its value, valid until the next call.
func (t *text) str() ([]byte, error) {
	begin := t.i + 1
	i := plain(t.b, begin)
	if i < len(t.b) && t.b[i] == '"' {
		t.i = i + 1
		return t.b[begin:i], nil
	}
	s, buf, err := t.long(begin, i, t.buf[:0], true)
	t.buf = buf
	return s, err
}

// once is str of a string that nobody looks at again in b: it may be unescaped where it lies.
func (t *text) once() ([]byte, error) {
	if !t.ours {
		return t.str()
	}
	begin := t.i + 1
	s, _, err := t.long(begin, begin, t.b[begin:begin], true)
	return s, err
}

// pass consumes a string.
func (t *text) pass() error {
	_, _, err := t.long(t.i+1, t.i+1, t.buf[:0], false)
	return err
}

// long is str of the string that begins behind its quote, whose bytes before i need no care; buf is where it is unescaped, which takes
// no more bytes. Unless keep the value is not unescaped.
func (t *text) long(begin, i int, buf []byte, keep bool) (s, _ []byte, err error) {
	from, utf := begin, false
	for {
		i = plain(t.b, i)
		if i >= len(t.b) {
			return nil, buf, t.short()
		}
		switch c := t.b[i]; {
		case c == '"':
			t.i = i + 1
			s := t.b[from:i]
			switch {
			case !keep:
				s = t.b[begin:i]
			case from != begin:
				buf = append(buf, s...)
				s = buf
			}
			if utf && !t.bytes && !utf8.Valid(s) {
				t.note(errNotUTF8)
			}
			return s, buf, nil
		case c == '\\':
			if keep {
				buf = append(buf, t.b[from:i]...)
			} else {
				buf = buf[:0]
			}
			if buf, i, err = t.escape(buf, i); err != nil {
				return nil, buf, err
			}
			from = i // beyond begin, as an escape takes bytes
		case c >= 0x80:
			utf = true
			i++
		case c < 0x20:
			t.i = i
			return nil, buf, t.fail("the control character %#x in a string; write it as an escape", c)
		}
	}
}

// escape appends what the escape at i stands for and returns the index behind it.
func (t *text) escape(buf []byte, i int) ([]byte, int, error) {
	if i+1 >= len(t.b) {
		return buf, i, t.short()
	}
	c := t.b[i+1]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		r, err := t.hex(i + 2)
		if err != nil {
			return buf, i, err
		}
		i += 6
		if utf16.IsSurrogate(r) {
			// A pair is one character; half of one is none. Whether a pair follows must
			// be known, so more text is awaited.
			if t.more && len(t.b)-i < 6 {
				return buf, i, errMore
			}
			if i+1 < len(t.b) && t.b[i] == '\\' && t.b[i+1] == 'u' {
				low, err := t.hex(i + 2)
				if err != nil {
					return buf, i, err
				}
				if p := utf16.DecodeRune(r, low); p != utf8.RuneError {
					return utf8.AppendRune(buf, p), i + 6, nil
				}
			}
			t.note(errHalf)
			return buf, i, nil
		}
		return utf8.AppendRune(buf, r), i, nil
	default:
		t.i = i
		return buf, i, t.fail("the escape \\%c does not exist", c)
	}
	return append(buf, c), i + 2, nil
}

func (t *text) hex(i int) (r rune, err error) {
	if i+4 > len(t.b) {
		return 0, t.short()
	}
	for _, c := range t.b[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			t.i = i
			return 0, t.fail("\\u takes four hexadecimal digits")
		}
		r = r<<4 | rune(c)
	}
	return r, nil
}

// number is a number as it is written.
type number struct {
	text  []byte
	mant  uint64 // all digits, if there are at most 19
	exp   int    // value is mant * 10^exp
	neg   bool
	odd   bool // NaN or an infinity
	whole bool // neither fraction nor exponent
	exact bool // mant and exp say it all
}

// num consumes a number.
func (t *text) num() (n number, err error) {
	b, i := t.b, t.i
	if i < len(b) && b[i] == '-' {
		n.neg = true
		i++
	}
	if i < len(b) && (b[i] == 'I' || b[i] == 'N' && !n.neg) {
		return t.oddNumber(i)
	}
	first := i
	for i < len(b) && b[i]-'0' < 10 {
		n.mant = n.mant*10 + uint64(b[i]-'0')
		i++
	}
	digits := i - first
	if digits == 0 {
		if i == len(b) {
			return n, t.short()
		}
		return n, t.fail("%q does not begin a value", b[i])
	}
	if digits > 1 && b[first] == '0' {
		return n, t.fail("a number has a leading 0")
	}
	n.whole = true
	if i < len(b) && b[i] == '.' {
		n.whole = false
		i++
		from := i
		for i < len(b) && b[i]-'0' < 10 {
			n.mant = n.mant*10 + uint64(b[i]-'0')
			i++
		}
		if i == from {
			if i == len(b) {
				return n, t.short()
			}
			return n, t.fail("a number ends in a point")
		}
		n.exp = from - i
		digits += i - from
	}
	n.exact = digits <= 19
	if i < len(b) && b[i]|0x20 == 'e' {
		n.whole = false
		i++
		neg := false
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			neg = b[i] == '-'
			i++
		}
		from, e := i, 0
		for i < len(b) && b[i]-'0' < 10 {
			if e < 1e6 {
				e = e*10 + int(b[i]-'0')
			}
			i++
		}
		if i == from {
			if i == len(b) {
				return n, t.short()
			}
			return n, t.fail("a number has an empty exponent")
		}
		if neg {
			e = -e
		}
		n.exp += e
	}
	if i == len(b) && t.more {
		return n, errMore
	}
	n.text = b[t.i:i]
	t.i = i
	return n, nil
}

// oddNumber consumes NaN or an infinity, whose word is at i.
func (t *text) oddNumber(i int) (n number, err error) {
	begin, w := t.i, "NaN"
	if t.b[i] == 'I' {
		w = "Infinity"
	}
	t.i = i
	if err := t.word(w); err != nil {
		t.i = begin
		return n, err
	}
	switch t.odd {
	case oddError:
		t.note(errOdd)
	case oddNull:
		t.odds = append(t.odds, [2]int{begin, t.i})
	}
	return number{text: t.b[begin:t.i], odd: true, neg: i > begin}, nil
}

// isOdd says that the value at the position, which begins with c, is NaN or an infinity.
func (t *text) isOdd(c byte) bool {
	return c == 'N' || c == 'I' || c == '-' && t.i+1 < len(t.b) && t.b[t.i+1] == 'I'
}

// skip consumes a value of any kind.
func (t *text) skip(depth int) error {
	c, err := t.space()
	if err != nil {
		return err
	}
	switch c {
	case '"':
		return t.pass()
	case '{', '[':
		return t.each(depth, c, func([]byte) error { return t.skip(depth + 1) })
	case 't':
		return t.word("true")
	case 'f':
		return t.word("false")
	case 'n':
		return t.word("null")
	}
	_, err = t.num()
	return err
}

// checked is skip of a row of the sample: it also notes a key that is there twice in one object.
func (t *text) checked(depth int) error {
	c, err := t.space()
	if err != nil {
		return err
	}
	if c != '{' && c != '[' {
		return t.skip(depth)
	}
	var keys map[string]bool
	return t.each(depth, c, func(key []byte) error {
		if c == '{' {
			if keys[string(key)] && t.wrong == nil {
				t.note(fmt.Errorf("the key %q is there twice in one object", key))
			}
			if keys == nil {
				keys = map[string]bool{}
			}
			keys[string(key)] = true
		}
		return t.checked(depth + 1)
	})
}

// each consumes the object or array that open begins, calling value in front of
// every value, with its key, which is valid until value consumes something.
func (t *text) each(depth int, open byte, value func(key []byte) error) error {
	if depth >= maxDepth {
		return t.fail("nested deeper than %d", maxDepth)
	}
	shut := open + 2 // '}' and ']'
	t.i++
	c, err := t.space()
	if err != nil {
		return err
	}
	if c == shut {
		t.i++
		return nil
	}
	for {
		var key []byte
		if open == '{' {
			if c != '"' {
				return t.fail("%q where a key in quotes is needed", c)
			}
			if key, err = t.str(); err != nil {
				return err
			}
			if c, err = t.space(); err != nil {
				return err
			}
			if c != ':' {
				return t.fail("%q after a key, where a colon is needed", c)
			}
			t.i++
		}
		if err := value(key); err != nil {
			return err
		}
		if c, err = t.space(); err != nil {
			return err
		}
		t.i++
		if c == shut {
			return nil
		}
		if c != ',' {
			t.i--
			return t.fail("%q where a comma or %q is needed", c, shut)
		}
		if c, err = t.space(); err != nil {
			return err
		}
	}
}
