// Package narrow sends the buffers of columns between machines in fewer bytes, for less than the bytes would cost: words that lie near each other in bytes as few as they differ in. Numbers that rise, codes, timestamps, offsets and
// floats that were integers take a quarter; what does not get smaller, as text and random floats, is looked at for a moment and goes as it is.
//
// It is the frame of reference of Goldstein, Ramakrishnan and Shaft ("Compressing Relations and Indexes", 1998), by exclusive or in place of a difference, as in Gorilla (Pelkonen et al., 2015): that leaves out the low bits, too, that
// all words share. What is written are segments:
//
//	0   0: bytes as they are; 4, 8: words of so many bytes
//	1   bytes: how many, 4 bytes; they follow
//	1   words: bytes of each
//	2          bits that each is shifted by
//	3          how many, 2 bytes
//	5          the first word, 8 bytes; the others follow, each without what it shares with that
//
// Numbers are little-endian.
package narrow

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"math/bits"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	// chunk is the bytes that have a first word in common. Those of a chunk fit into a first-level cache, before and after.
	chunk = 8 << 10
	// glance is the bytes by which a chunk is judged first.
	glance = 256
	// worth is the most bytes that 8 may take. Where they take more, those that are saved cost less to send than to find.
	worth = 4

	headRaw, headWords = 5, 13

	// Buffer is the least size of the buffer from which Read reads.
	Buffer = chunk
)

// Writer writes what is written to it in a narrow form. What one Write gets are words from its beginning: a buffer of a column. Not safe for concurrent use.
type Writer struct {
	w   io.Writer
	buf [headWords + chunk + 8]byte
}

// NewWriter is a Writer to w, which wants to be buffered.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write implements io.Writer. Everything of p has gone to the writer beneath when it returns.
func (w *Writer) Write(p []byte) (int, error) {
	done := 0
	for at := 0; at < len(p); at += chunk {
		c := p[at:min(at+chunk, len(p))]
		c = c[:len(c)&^7]
		f := formOf(c)
		if !f.saves(len(c)) {
			continue
		}
		if err := w.raw(p[done:at]); err != nil {
			return done, err
		}
		if _, err := w.w.Write(w.buf[:f.put(&w.buf, c)]); err != nil {
			return done, err
		}
		done = at + len(c)
	}
	if err := w.raw(p[done:]); err != nil {
		return done, err
	}
	return len(p), nil
}

// raw writes bytes as they are.
func (w *Writer) raw(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), math.MaxUint32)
		w.buf[0] = 0
		binary.LittleEndian.PutUint32(w.buf[1:], uint32(n))
		if _, err := w.w.Write(w.buf[:headRaw]); err != nil {
			return err
		}
		if _, err := w.w.Write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// form is how the words of a chunk are written.
type form struct {
	word  int // bytes of a word; 0: as they are
	width int // bytes that each takes
	shift int
	base  uint64 // the first
}

// formOf is the form of a chunk, whose length is a multiple of 8, that takes the fewest bytes.
func formOf(c []byte) form {
	if len(c) > 2*glance && narrowest(c[:glance]).word == 0 {
		return form{}
	}
	return narrowest(c)
}

func narrowest(c []byte) form {
	if len(c) == 0 {
		return form{}
	}
	base := u8(c)
	d8 := differ(c, base)
	d4 := uint32(d8) | uint32(d8>>32) | (uint32(base) ^ uint32(base>>32))
	s8, s4 := bits.TrailingZeros64(d8)&63, bits.TrailingZeros32(d4)&31
	w8, w4 := (bits.Len64(d8>>s8)+7)/8, (bits.Len32(d4>>s4)+7)/8
	switch {
	case w8 <= 2*w4 && w8 <= worth:
		return form{8, w8, s8, base}
	case 2*w4 <= worth:
		return form{4, w4, s4, uint64(uint32(base))}
	}
	return form{}
}

// differ has the bits in which any of the words is not as base.
func differ(c []byte, base uint64) uint64 {
	var a, b uint64
	for ; len(c) >= 32; c = c[32:] {
		a |= (u8(c) ^ base) | (u8(c[8:]) ^ base)
		b |= (u8(c[16:]) ^ base) | (u8(c[24:]) ^ base)
	}
	for ; len(c) >= 8; c = c[8:] {
		a |= u8(c) ^ base
	}
	return a | b
}

func (f *form) saves(n int) bool {
	return f.word > 0 && headWords+n/f.word*f.width+headRaw < n
}

// put writes a segment of c, and says how many bytes it has.
func (f *form) put(b *[headWords + chunk + 8]byte, c []byte) int {
	n := len(c) / f.word
	b[0], b[1], b[2] = byte(f.word), byte(f.width), byte(f.shift)
	binary.LittleEndian.PutUint16(b[3:], uint16(n))
	binary.LittleEndian.PutUint64(b[5:], f.base)
	if f.word == 8 {
		pack8(b[headWords:], c, f)
	} else {
		pack4(b[headWords:], c, f)
	}
	return headWords + n*f.width
}

// u8 and u4 read a number.
func u8(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
func u4(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// put8 and put4 write one.
func put8(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }
func put4(b []byte, v uint32) { binary.LittleEndian.PutUint32(b, v) }

// pack8 writes words of 8 bytes, those of usual widths 8 bytes at a time. It writes up to 8 bytes more than they take.
func pack8(to, c []byte, f *form) {
	x, s, width := f.base, f.shift&63, f.width
	switch width {
	case 0:
		return
	case 1:
		for ; len(c) >= 64 && len(to) >= 8; c, to = c[64:], to[8:] {
			put8(to, (u8(c)^x)>>s|(u8(c[8:])^x)>>s<<8|(u8(c[16:])^x)>>s<<16|(u8(c[24:])^x)>>s<<24|
				(u8(c[32:])^x)>>s<<32|(u8(c[40:])^x)>>s<<40|(u8(c[48:])^x)>>s<<48|(u8(c[56:])^x)>>s<<56)
		}
	case 2:
		for ; len(c) >= 32 && len(to) >= 8; c, to = c[32:], to[8:] {
			put8(to, (u8(c)^x)>>s|(u8(c[8:])^x)>>s<<16|(u8(c[16:])^x)>>s<<32|(u8(c[24:])^x)>>s<<48)
		}
	case 4:
		for ; len(c) >= 16 && len(to) >= 8; c, to = c[16:], to[8:] {
			put8(to, (u8(c)^x)>>s|(u8(c[8:])^x)>>s<<32)
		}
	}
	for ; len(c) >= 8 && len(to) >= 8; c, to = c[8:], to[width:] {
		put8(to, (u8(c)^x)>>s)
	}
}

// pack4 is pack8 of words of 4.
func pack4(to, c []byte, f *form) {
	x, s, width := uint32(f.base), f.shift&31, f.width
	switch width {
	case 0:
		return
	case 1:
		for ; len(c) >= 16 && len(to) >= 4; c, to = c[16:], to[4:] {
			put4(to, (u4(c)^x)>>s|(u4(c[4:])^x)>>s<<8|(u4(c[8:])^x)>>s<<16|(u4(c[12:])^x)>>s<<24)
		}
	case 2:
		for ; len(c) >= 16 && len(to) >= 8; c, to = c[16:], to[8:] {
			put8(to, uint64((u4(c)^x)>>s|(u4(c[4:])^x)>>s<<16)|uint64((u4(c[8:])^x)>>s|(u4(c[12:])^x)>>s<<16)<<32)
		}
	}
	for ; len(c) >= 4 && len(to) >= 4; c, to = c[4:], to[width:] {
		put4(to, (u4(c)^x)>>s)
	}
}

var errDamaged = fault.New(fault.Corrupt, "what comes over the connection is damaged: no narrow form of so many bytes")

// Read fills to from what Writers wrote to make so many bytes; r has a buffer of Buffer bytes or more. io.EOF: r ended, perhaps in the midst. Corrupt: it is something else.
func Read(r *bufio.Reader, to []byte) error {
	for len(to) > 0 {
		n, f, err := next(r, int64(len(to)))
		if err != nil {
			return err
		}
		if f.word == 0 {
			if _, err := io.ReadFull(r, to[:n]); err != nil {
				return noEOF(err)
			}
			to = to[n:]
			continue
		}
		from, err := r.Peek(n / f.word * f.width)
		if err != nil {
			return noEOF(err)
		}
		if f.word == 8 {
			unpack8(to[:n], from, &f)
		} else {
			unpack4(to[:n], from, &f)
		}
		r.Discard(len(from))
		to = to[n:]
	}
	return nil
}

// Skip is Read of n bytes that nobody wants.
func Skip(r *bufio.Reader, n int64) error {
	for n > 0 {
		k, f, err := next(r, n)
		if err != nil {
			return err
		}
		left := k
		if f.word > 0 {
			left = k / f.word * f.width
		}
		if _, err := r.Discard(left); err != nil {
			return noEOF(err)
		}
		n -= int64(k)
	}
	return nil
}

// next reads the head of a segment that makes n bytes, at most most.
func next(r *bufio.Reader, most int64) (n int, f form, err error) {
	h, err := r.Peek(headRaw)
	if err != nil {
		return 0, f, err
	}
	if h[0] == 0 {
		n = int(binary.LittleEndian.Uint32(h[1:]))
		if n == 0 || int64(n) > most {
			return 0, f, errDamaged
		}
		r.Discard(headRaw)
		return n, f, nil
	}
	if h, err = r.Peek(headWords); err != nil {
		return 0, f, err
	}
	f = form{word: int(h[0]), width: int(h[1]), shift: int(h[2]), base: binary.LittleEndian.Uint64(h[5:])}
	n = int(binary.LittleEndian.Uint16(h[3:])) * f.word
	if f.word != 4 && f.word != 8 || f.width >= f.word || f.shift >= 8*f.word || n == 0 || n > chunk || int64(n) > most {
		return 0, f, errDamaged
	}
	r.Discard(headWords)
	return n, f, nil
}

// unpack8 makes words of 8 bytes again.
func unpack8(to, from []byte, f *form) {
	x, s, width := f.base, f.shift&63, f.width
	switch width {
	case 0:
		for ; len(to) >= 8; to = to[8:] {
			put8(to, x)
		}
	case 1:
		for ; len(to) >= 64 && len(from) >= 8; to, from = to[64:], from[8:] {
			v := u8(from)
			put8(to, v&0xff<<s^x)
			put8(to[8:], v>>8&0xff<<s^x)
			put8(to[16:], v>>16&0xff<<s^x)
			put8(to[24:], v>>24&0xff<<s^x)
			put8(to[32:], v>>32&0xff<<s^x)
			put8(to[40:], v>>40&0xff<<s^x)
			put8(to[48:], v>>48&0xff<<s^x)
			put8(to[56:], v>>56<<s^x)
		}
	case 2:
		for ; len(to) >= 32 && len(from) >= 8; to, from = to[32:], from[8:] {
			v := u8(from)
			put8(to, v&0xffff<<s^x)
			put8(to[8:], v>>16&0xffff<<s^x)
			put8(to[16:], v>>32&0xffff<<s^x)
			put8(to[24:], v>>48<<s^x)
		}
	case 4:
		for ; len(to) >= 16 && len(from) >= 8; to, from = to[16:], from[8:] {
			v := u8(from)
			put8(to, v&0xffffffff<<s^x)
			put8(to[8:], v>>32<<s^x)
		}
	}
	mask := uint64(1)<<(8*width) - 1
	for ; len(to) >= 8 && len(from) >= 8; to, from = to[8:], from[width:] {
		put8(to, u8(from)&mask<<s^x)
	}
	for ; len(to) >= 8; to, from = to[8:], from[width:] { // the last ones
		var last [8]byte
		copy(last[:width], from)
		put8(to, u8(last[:])<<s^x)
	}
}

// unpack4 is unpack8 of words of 4.
func unpack4(to, from []byte, f *form) {
	x, s, width := uint32(f.base), f.shift&31, f.width
	switch width {
	case 0:
		for ; len(to) >= 4; to = to[4:] {
			put4(to, x)
		}
	case 1:
		for ; len(to) >= 16 && len(from) >= 4; to, from = to[16:], from[4:] {
			v := u4(from)
			put4(to, v&0xff<<s^x)
			put4(to[4:], v>>8&0xff<<s^x)
			put4(to[8:], v>>16&0xff<<s^x)
			put4(to[12:], v>>24<<s^x)
		}
	case 2:
		for ; len(to) >= 16 && len(from) >= 8; to, from = to[16:], from[8:] {
			v, w := u4(from), u4(from[4:])
			put4(to, v&0xffff<<s^x)
			put4(to[4:], v>>16<<s^x)
			put4(to[8:], w&0xffff<<s^x)
			put4(to[12:], w>>16<<s^x)
		}
	}
	mask := uint32(1)<<(8*width) - 1
	for ; len(to) >= 4 && len(from) >= 4; to, from = to[4:], from[width:] {
		put4(to, u4(from)&mask<<s^x)
	}
	for ; len(to) >= 4; to, from = to[4:], from[width:] {
		var last [4]byte
		copy(last[:width], from)
		put4(to, u4(last[:])<<s^x)
	}
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
