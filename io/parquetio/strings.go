package parquetio

import (
	"math"
	"unsafe"

	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

const (
	blockTexts  = 4096     // values whose lengths are added up before they are copied
	blockText   = 64 << 10 // bytes of text, about, that are checked when they were decoded: they are in a cache still
	maxForesaid = 8 << 20  // bytes of strings that are allocated because those before suggest it
)

// textSize returns the bytes of the next n values. Of a dictionary the
// indexes are taken; they wait in idx for texts.
func (v *values) textSize(n int) (size int64, err error) {
	if err := v.begin(); err != nil {
		return 0, err
	}
	ok := false
	switch v.enc {
	case encPlain:
		size, _, ok = kernel.PlainBytesSize(v.src, n)
	case encRLEDict:
		idx := scratch(&v.c.d.idx, n)
		if ok = v.codes.Indexes(idx, len(v.c.dict.texts.Offsets)-1); ok {
			size = v.c.dict.texts.Size(idx)
		}
	case encDeltaLength:
		size, ok = v.length.Size(n)
	case encDeltaBytes:
		size, ok = v.front.Size(n)
	}
	return size, orDamaged(ok)
}

// texts decodes the next len(offsets)-1 values, whose size was asked for: offsets[0] is
// set, and dst has room for them at offsets[0], and kernel.Slack behind.
func texts[O int32 | int64](v *values, offsets []O, dst []byte) error {
	ok := false
	switch v.enc {
	case encPlain:
		var used int
		if used, ok = kernel.PlainBytes(offsets, dst, v.src); ok {
			v.src = v.src[used:]
		}
	case encRLEDict:
		ok = kernel.StringsAt(&v.c.dict.texts, offsets, dst, v.c.d.idx[:len(offsets)-1])
	case encDeltaLength:
		ok = kernel.DeltaLengths(&v.length, offsets, dst)
	case encDeltaBytes:
		ok = kernel.DeltaByteArrays(&v.front, offsets, dst)
	}
	return orDamaged(ok)
}

// appendTexts appends k slots of strings at slot at, of which those that o.valid says, defined in number,
// have a value.
func appendTexts[O int32 | int64](c *column, o *leafOut, at, k, defined int) error {
	acct := &c.d.acct
	width := offsetWidth[O]()
	if err := acct.grow(&o.offs, (at+1)*width, (at+k+1)*width); err != nil {
		return err
	}
	offs := castTo[O](o.offs)
	if at == 0 {
		offs[0] = 0
	}
	base := offs[at]
	// The offsets of values come to the end, and are spread from there.
	tail := offs[at+k-defined : at+k+1]
	tail[0] = base
	for done := 0; done < defined; {
		n := min(defined-done, c.textBlock(defined-done))
		if c.vals.enc == encPlain {
			if ok, err := tryTexts(c, o, tail[done:done+n+1], at+done, defined-done); err != nil {
				return err
			} else if ok {
				if err := checkBlock(c, tail[done:done+n+1], o.data); err != nil {
					return behind(err, done)
				}
				done += n
				continue
			}
		}
		size, err := c.vals.textSize(n)
		if err != nil {
			return err
		}
		end := int64(tail[done]) + size
		if width == 4 && end > math.MaxInt32 {
			return errTooLarge{end, math.MaxInt32}
		}
		left := int64(max(o.expect-at-done-n, 0))
		if err := c.foresee(o, int64(tail[done]), end, size*left/int64(n)); err != nil {
			return err
		}
		if err := texts(&c.vals, tail[done:done+n+1], o.data); err != nil {
			return err
		}
		if err := checkBlock(c, tail[done:done+n+1], o.data); err != nil {
			return behind(err, done)
		}
		done += n
	}
	switch {
	case defined == 0:
		for i := range k {
			offs[at+i+1] = base
		}
	case defined < k:
		return orDamaged(kernel.ExpandOffsets(offs[at:at+k+1], tail, o.valid, at))
	}
	return nil
}

// textBlock is how many values are decoded at once, of a page with so many more for this read.
func (c *column) textBlock(more int) int {
	if v := &c.vals; c.text && v.enc == encPlain {
		each := len(v.src) / max(c.left+more, 1)
		return min(max(blockText/max(each, 1), 64), blockTexts)
	}
	return blockTexts
}

// checkBlock refuses the first of some values that were just decoded and is not UTF-8, if the column is text.
func checkBlock[O int32 | int64](c *column, offsets []O, data []byte) error {
	switch {
	case !c.text:
		return nil
	case c.vals.enc == encRLEDict:
		return c.dict.check(c.d.idx[:len(offsets)-1])
	}
	return checkTexts(offsets, data)
}

// foresee makes room for strings up to end, of which those up to used are there, and for
// about more behind.
func (c *column) foresee(o *leafOut, used, end, more int64) error {
	want := end + kernel.Slack
	if want <= int64(len(o.data)) {
		return nil
	}
	acct := &c.d.acct
	more = min(more*17/16, maxForesaid, (acct.limit-acct.used)/4)
	return acct.grow(&o.data, int(used), int(want+max(more, 0)))
}

// tryTexts decodes PLAIN strings without adding up their lengths first, which takes as long: into
// the room that there is, or that strings as long as the page's average need; more are left of it in this read. False if it was too small.
func tryTexts[O int32 | int64](c *column, o *leafOut, offsets []O, at, more int) (bool, error) {
	v := &c.vals
	if err := v.begin(); err != nil {
		return false, err
	}
	n, rest := int64(len(offsets)-1), int64(max(c.left+more, 1))
	size := max(int64(len(v.src))-4*rest, 0) * n / rest
	used := int64(offsets[0])
	if acct := &c.d.acct; used+size > min(math.MaxInt32, (acct.limit-acct.used)/2) {
		return false, nil // near a limit only what is certain
	}
	if used == 0 {
		if err := c.foresee(o, 0, size, size/8+size*max(int64(o.expect-at)-n, 0)/n); err != nil {
			return false, err
		}
	}
	if used+size+kernel.Slack > int64(len(o.data)) {
		return false, nil
	}
	took, ok := kernel.PlainBytes(offsets, o.data, v.src)
	if ok {
		v.src = v.src[took:]
	}
	return ok, nil
}

// castTo sees b as integers; bytes left over are left out.
func castTo[T int32 | int64](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/offsetWidth[T]())
}

// offsetWidth is the bytes of an offset.
func offsetWidth[O int32 | int64]() int { return int(unsafe.Sizeof(O(0))) }
