package kernel

import (
	"encoding/binary"
	"unsafe"
)

// Delta decodes DELTA_BINARY_PACKED integers.
type Delta struct {
	src     []byte // behind the miniblock
	widths  []byte // of the miniblocks that follow in this block
	mini    []byte // the miniblock
	pos     int    // of its next value
	inMini  int    // values that it has left
	width   uint   // of its values
	least   uint64 // added to each
	last    uint64 // the value before
	left    int
	perMini int
	minis   int  // of a block
	first   bool // the next value is last itself
}

// Reset begins to read. No bytes are no values.
func (d *Delta) Reset(src []byte) bool {
	*d = Delta{}
	if len(src) == 0 {
		return true
	}
	var head [4]uint64
	for i := range head {
		v, k := binary.Uvarint(src)
		if k <= 0 {
			return false
		}
		head[i], src = v, src[k:]
	}
	block, minis, total := head[0], head[1], head[2]
	if block == 0 || block > 1<<30 || minis == 0 || minis > block || block%minis != 0 || block/minis%8 != 0 || total > 1<<31-1 {
		return false
	}
	d.src, d.left, d.first = src[:len(src):len(src)], int(total), true
	d.perMini, d.minis = int(block/minis), int(minis)
	d.last = unzigzag(head[3])
	return true
}

func unzigzag(v uint64) uint64 { return v>>1 ^ -(v & 1) }

// next enters the next miniblock; values are left.
func (d *Delta) next() bool {
	if len(d.widths) == 0 {
		v, k := binary.Uvarint(d.src)
		if k <= 0 || d.minis > len(d.src)-k {
			return d.fail()
		}
		d.least = unzigzag(v)
		d.widths, d.src = d.src[k:k+d.minis], d.src[k+d.minis:]
	}
	d.width, d.widths = uint(d.widths[0]), d.widths[1:]
	d.inMini = min(d.perMini, d.left)
	size := d.perMini >> 3 * int(d.width)
	if size > len(d.src) {
		size = len(d.src) // the end of the last one may be cut off
		if (d.inMini*int(d.width)+7)>>3 > size {
			return d.fail()
		}
	}
	if d.width > 64 {
		return d.fail()
	}
	d.mini, d.src, d.pos = d.src[:size], d.src[size:], 0
	return true
}

func (d *Delta) fail() bool {
	*d = Delta{}
	return false
}

// Left returns how many values there are still, by what the header claims.
func (d *Delta) Left() int { return d.left }

// Int32 reads values; sums wrap around.
func (d *Delta) Int32(dst []int32) bool { return deltas(d, dst) }

// Int64 reads values; sums wrap around.
func (d *Delta) Int64(dst []int64) bool { return deltas(d, dst) }

func deltas[T int32 | int64](d *Delta, dst []T) bool {
	if len(dst) > d.left {
		return d.fail()
	}
	if d.first && len(dst) > 0 {
		dst[0] = T(d.last)
		d.first = false
		d.left--
		dst = dst[1:]
	}
	for len(dst) > 0 {
		if d.inMini == 0 && !d.next() {
			return false
		}
		dst = dst[take(d, dst[:min(len(dst), d.inMini)]):]
	}
	return true
}

// Skip passes over n values.
func (d *Delta) Skip(n int) bool {
	if n > d.left {
		return d.fail()
	}
	var block [256]int64
	if d.first && n > 0 {
		d.first = false
		d.left--
		n--
	}
	for n > 0 {
		if d.inMini == 0 && !d.next() {
			return false
		}
		k := min(n, d.inMini)
		if d.width == 0 {
			d.last += uint64(k) * d.least
			d.step(k)
		} else {
			k = take(d, block[:min(k, len(block))])
		}
		n -= k
	}
	return true
}

// Rest returns what follows the last value. The values stay to be read.
func (d *Delta) Rest() ([]byte, bool) {
	w := *d
	if w.first && w.left > 0 {
		w.left--
	}
	for {
		w.left -= w.inMini
		if w.left == 0 {
			return w.src, true
		}
		if !w.next() {
			return nil, false
		}
	}
}

func (d *Delta) step(n int) {
	d.pos += n
	d.inMini -= n
	d.left -= n
}

// take reads values of the miniblock, which has as many left, and returns how many:
// one at least.
func take[T int32 | int64](d *Delta, dst []T) int {
	if n := deltasHead(d, dst); n > 0 {
		d.step(n)
		return n
	}
	last, least := d.last, d.least
	switch {
	case d.width == 0:
		for i := range dst {
			last += least
			dst[i] = T(last)
		}
	case unsafe.Sizeof(T(0)) == 8:
		last = sum(unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)), d, last)
	case d.width <= 32:
		last = uint64(sum(unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)), d, uint32(last)))
	default:
		var block [32]uint64
		dst = dst[:min(len(dst), len(block))]
		last = sum(block[:len(dst)], d, last)
		for i, v := range block[:len(dst)] {
			dst[i] = T(v)
		}
	}
	d.last = last
	d.step(len(dst))
	return len(dst)
}

// sum reads values of the miniblock and returns the last.
func sum[T uint32 | uint64](dst []T, d *Delta, last T) T {
	unpackFrom(dst, d.mini, d.pos, d.width)
	least := T(d.least)
	for i, v := range dst {
		last += v + least
		dst[i] = last
	}
	return last
}
