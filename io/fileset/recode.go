package fileset

import (
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

// The encodings of text, as options name them, and the two kinds of utf-16.
const (
	utf8Name  = "utf-8"
	utf8Lossy = "utf-8-lossy"
	latin1    = "latin-1"
	cp1252    = "cp1252"
	utf16Name = "utf-16"
	utf16LE   = "utf-16le"
	utf16BE   = "utf-16be"
)

// recoder makes UTF-8 of text in another encoding. What is no text there becomes bytes that are not UTF-8, so that whoever reads the
// lines finds it in its row and column: half of a surrogate pair its three bytes, an undefined byte of cp1252 itself, half a unit of
// utf-16 its byte. Of utf-8-lossy it becomes U+FFFD: one for each longest sequence that begins a character.
type recoder struct {
	in   io.Reader
	step func(dst, src []byte, last bool) (_ []byte, n int) // appends what the first n bytes of src are
	src  []byte                                             // memory of what is read
	rest []byte                                             // of src, not decoded yet
	out  []byte                                             // decoded, not given out yet
	dst  []byte                                             // memory of out
	err  error                                              // of in
}

// recodeBytes are decoded at once.
const recodeBytes = 64 << 10

func newRecoder(encoding string, in io.Reader) *recoder {
	r := &recoder{in: in, src: make([]byte, recodeBytes)}
	switch encoding {
	case utf16LE:
		r.step = decodeUTF16(func(b []byte) uint16 { return uint16(b[0]) | uint16(b[1])<<8 })
	case utf16BE:
		r.step = decodeUTF16(func(b []byte) uint16 { return uint16(b[1]) | uint16(b[0])<<8 })
	case utf8Lossy:
		r.step = decodeLossy
	case cp1252:
		r.step = decodeBytes(&windows)
	default:
		r.step = decodeBytes(nil)
	}
	return r
}

func (r *recoder) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.out) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		n := copy(r.src, r.rest)
		m, err := r.in.Read(r.src[n:])
		r.err = err
		var done int
		r.dst, done = r.step(r.dst[:0], r.src[:n+m], err == io.EOF)
		r.out, r.rest = r.dst, r.src[done:n+m]
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// Close closes what is decoded.
func (r *recoder) Close() error {
	if c, ok := r.in.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// windows are the characters of the bytes 0x80 to 0x9f of cp1252, 0: none.
var windows = [32]rune{
	'€', 0, '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', 0, 'Ž', 0,
	0, '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', 0, 'ž', 'Ÿ',
}

// decodeBytes is for encodings of a character for each byte: that of latin-1, but for those of high.
func decodeBytes(high *[32]rune) func(dst, src []byte, last bool) ([]byte, int) {
	return func(dst, src []byte, last bool) ([]byte, int) {
		for _, b := range src {
			switch {
			case b < 0x80:
				dst = append(dst, b)
			case high == nil || b >= 0xa0:
				dst = utf8.AppendRune(dst, rune(b))
			case high[b-0x80] == 0:
				dst = append(dst, b)
			default:
				dst = utf8.AppendRune(dst, high[b-0x80])
			}
		}
		return dst, len(src)
	}
}

func decodeUTF16(unit func(b []byte) uint16) func(dst, src []byte, last bool) ([]byte, int) {
	return func(dst, src []byte, last bool) ([]byte, int) {
		i := 0
		for ; i+2 <= len(src); i += 2 {
			u := rune(unit(src[i:]))
			if !utf16.IsSurrogate(u) {
				dst = utf8.AppendRune(dst, u)
				continue
			}
			if i+4 > len(src) && !last && u < 0xdc00 {
				return dst, i
			}
			if i+4 <= len(src) {
				if c := utf16.DecodeRune(u, rune(unit(src[i+2:]))); c != utf8.RuneError {
					dst = utf8.AppendRune(dst, c)
					i += 2
					continue
				}
			}
			dst = append(dst, 0xe0|byte(u>>12), 0x80|byte(u>>6)&0x3f, 0x80|byte(u)&0x3f)
		}
		if last && i < len(src) {
			dst, i = append(dst, src[i]|0x80), i+1
		}
		return dst, i
	}
}

func decodeLossy(dst, src []byte, last bool) ([]byte, int) {
	from, i := 0, 0
	for i < len(src) {
		if src[i] < utf8.RuneSelf {
			i++
			continue
		}
		if r, n := utf8.DecodeRune(src[i:]); r != utf8.RuneError || n > 1 {
			i += n
			continue
		}
		if !last && !utf8.FullRune(src[i:]) {
			break
		}
		dst = append(append(dst, src[from:i]...), "\uFFFD"...)
		i += begun(src[i:])
		from = i
	}
	return append(dst, src[from:i]...), i
}

// begun is how many bytes of b, which does not begin with a character, are the begin of one; at least one.
func begun(b []byte) int {
	lo, hi, size := byte(0x80), byte(0xbf), 1
	switch c := b[0]; {
	case 0xc2 <= c && c < 0xe0:
		size = 2
	case c&0xf0 == 0xe0:
		size = 3
		if c == 0xe0 {
			lo = 0xa0
		} else if c == 0xed {
			hi = 0x9f
		}
	case 0xf0 <= c && c < 0xf5:
		size = 4
		if c == 0xf0 {
			lo = 0x90
		} else if c == 0xf4 {
			hi = 0x8f
		}
	}
	n := 1
	for n < size && n < len(b) && lo <= b[n] && b[n] <= hi {
		lo, hi = 0x80, 0xbf
		n++
	}
	return n
}
