package kernel

import (
	"bytes"
	"unsafe"
)

// DeltaLength decodes DELTA_LENGTH_BYTE_ARRAY: lengths, then the bytes of all values.
type DeltaLength struct {
	lengths Delta
	data    []byte // of the values that are left
}

// Reset begins to read. No bytes are no values.
func (d *DeltaLength) Reset(src []byte) (ok bool) {
	if !d.lengths.Reset(src) {
		return false
	}
	if d.lengths.Left() == 0 {
		d.data = nil // some writers leave rubbish behind no values
		return true
	}
	d.data, ok = d.lengths.Rest()
	return ok
}

// Left returns how many values there are still, by what the header claims.
func (d *DeltaLength) Left() int { return d.lengths.Left() }

// Size returns how long the next n values are together. They stay to be read.
func (d *DeltaLength) Size(n int) (int64, bool) {
	lengths := d.lengths
	size, ok := sizes(&lengths, n)
	return size, ok && size <= int64(len(d.data))
}

// sizes reads n lengths and adds them up.
func sizes(d *Delta, n int) (size int64, ok bool) {
	var block [256]int32
	for n > 0 {
		part := block[:min(n, len(block))]
		if !d.Int32(part) {
			return 0, false
		}
		sign := int32(0)
		for _, k := range part {
			sign |= k
			size += int64(k)
		}
		if sign < 0 {
			return 0, d.fail()
		}
		n -= len(part)
	}
	return size, true
}

// Skip passes over n values.
func (d *DeltaLength) Skip(n int) bool {
	size, ok := sizes(&d.lengths, n)
	if !ok || size > int64(len(d.data)) {
		return d.fail()
	}
	d.data = d.data[size:]
	return true
}

func (d *DeltaLength) fail() bool {
	*d = DeltaLength{}
	return false
}

// DeltaLengths reads values. Value i goes to dst[offsets[i]:offsets[i+1]]; the caller
// sets offsets[0]. False if dst is too short.
func DeltaLengths[O int32 | int64](d *DeltaLength, offsets []O, dst []byte) bool {
	if len(offsets) == 0 {
		return d.fail()
	}
	dst = dst[:room[O](dst)]
	from := int(offsets[0])
	if from < 0 || from > len(dst) {
		return d.fail()
	}
	offsets = offsets[1:]
	pos, end := from, from+min(len(dst)-from, len(d.data))
	var block [256]int32
	for len(offsets) > 0 {
		part := block[:min(len(offsets), len(block))]
		if !d.lengths.Int32(part) {
			return d.fail()
		}
		sign := int32(0)
		for i, k := range part {
			sign |= k
			pos += int(k)
			offsets[i] = O(pos)
		}
		if sign < 0 || pos > end {
			return d.fail()
		}
		offsets = offsets[len(part):]
	}
	d.data = d.data[copy(dst[from:pos], d.data):]
	return true
}

// DeltaBytes decodes DELTA_BYTE_ARRAY: every value is a prefix of the one before and
// a suffix of its own. Between calls it keeps a copy of the last value, which is not
// longer than the source.
type DeltaBytes struct {
	prefixes Delta
	suffixes DeltaLength
	last     []byte
}

// Reset begins to read. No bytes are no values.
func (d *DeltaBytes) Reset(src []byte) bool {
	*d = DeltaBytes{}
	if !d.prefixes.Reset(src) {
		return false
	}
	if d.prefixes.Left() == 0 {
		return true // some writers leave rubbish behind no values
	}
	rest, ok := d.prefixes.Rest()
	return ok && d.suffixes.Reset(rest) && d.suffixes.Left() == d.prefixes.Left() || d.fail()
}

func (d *DeltaBytes) fail() bool {
	*d = DeltaBytes{}
	return false
}

// Left returns how many values there are still, by what the header claims.
func (d *DeltaBytes) Left() int { return d.prefixes.Left() }

// cuts are the lengths of some values: what is taken over, what is added.
type cuts struct {
	prefix, suffix [128]int32
}

// read reads n lengths, at most as many as there is room for, and checks that no
// prefix is longer than the value before, of which the first is as long as before,
// and that the suffixes are there. It returns the last value's length, and that of all.
func (c *cuts) read(d *DeltaBytes, n, before int) (last int, size int64, ok bool) {
	if !d.prefixes.Int32(c.prefix[:n]) || !d.suffixes.lengths.Int32(c.suffix[:n]) {
		return 0, 0, false
	}
	last = before
	added := 0
	for i, p := range c.prefix[:n] {
		s := c.suffix[i]
		if p < 0 || s < 0 || int(p) > last {
			return 0, 0, false
		}
		last = int(p) + int(s)
		added += int(s)
		size += int64(last)
	}
	return last, size, added <= len(d.suffixes.data)
}

// Size returns how long the next n values are together, which can be far more than
// the source. They stay to be read.
func (d *DeltaBytes) Size(n int) (size int64, ok bool) {
	var c cuts
	w, before, data := *d, len(d.last), len(d.suffixes.data)
	for n > 0 {
		k := min(n, len(c.prefix))
		last, part, ok := c.read(&w, k, before)
		if !ok {
			return 0, false
		}
		for _, s := range c.suffix[:k] {
			data -= int(s)
		}
		if data < 0 {
			return 0, false
		}
		size, before, n = size+part, last, n-k
	}
	return size, true
}

// Skip passes over n values.
func (d *DeltaBytes) Skip(n int) bool {
	if n == 0 {
		return true
	}
	var c cuts
	last := bytes.Clone(d.last)
	for n > 0 {
		k := min(n, len(c.prefix))
		if _, _, ok := c.read(d, k, len(last)); !ok {
			return d.fail()
		}
		data := d.suffixes.data
		for i, p := range c.prefix[:k] {
			s := c.suffix[i]
			last = append(last[:p], data[:s]...)
			data = data[s:]
		}
		d.suffixes.data = data
		n -= k
	}
	d.last = last
	return true
}

// DeltaByteArrays reads values. Value i goes to dst[offsets[i]:offsets[i+1]]; the
// caller sets offsets[0]. It may write up to Slack bytes behind the last. False if
// dst is too short.
func DeltaByteArrays[O int32 | int64](d *DeltaBytes, offsets []O, dst []byte) bool {
	if len(offsets) == 0 {
		return d.fail()
	}
	if len(offsets) == 1 {
		return true
	}
	dst = dst[:room[O](dst)]
	pos := int(offsets[0])
	if pos < 0 || pos > len(dst) {
		return d.fail()
	}
	offsets = offsets[1:]
	var c cuts
	before := d.last
	for len(offsets) > 0 {
		k := min(len(offsets), len(c.prefix))
		_, size, ok := c.read(d, k, len(before))
		if !ok || size > int64(len(dst)-pos) {
			return d.fail()
		}
		data := d.suffixes.data
		for i, p := range c.prefix[:k] {
			n := int(p) + int(c.suffix[i])
			if n <= 32 && pos+64 <= len(dst) && cap(before) >= 32 && len(data) >= 32 {
				copy32(unsafe.Pointer(at(dst, pos)), unsafe.Pointer(unsafe.SliceData(before)))
				copy32(unsafe.Pointer(at(dst, pos+int(p))), unsafe.Pointer(unsafe.SliceData(data)))
			} else {
				copy(dst[pos:], before[:p])
				copy(dst[pos+int(p):pos+n], data)
			}
			before, data = dst[pos:pos+n], data[n-int(p):]
			pos += n
			offsets[i] = O(pos)
		}
		d.suffixes.data = data
		offsets = offsets[k:]
	}
	d.last = bytes.Clone(before)
	return true
}

// Fixed reads values that all have width bytes.
func (d *DeltaBytes) Fixed(dst []byte, width int) bool {
	if width <= 0 || len(dst)%width != 0 {
		return d.fail()
	}
	if len(dst) == 0 {
		return true
	}
	var c cuts
	before := d.last
	for len(dst) > 0 {
		k := min(len(dst)/width, len(c.prefix))
		if _, _, ok := c.read(d, k, len(before)); !ok {
			return d.fail()
		}
		data := d.suffixes.data
		for i, p := range c.prefix[:k] {
			if int(p)+int(c.suffix[i]) != width {
				return d.fail()
			}
			v := dst[:width]
			data = data[copy(v[copy(v, before[:p]):], data):]
			before, dst = v, dst[width:]
		}
		d.suffixes.data = data
	}
	d.last = bytes.Clone(before)
	return true
}
