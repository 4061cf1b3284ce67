package parquetio

import (
	"encoding/binary"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// blockValues are converted, or looked up, at a time: they stay in the first cache.
const blockValues = 2048

// values takes the values of a page, which are those that are not null, in their order.
type values struct {
	c     *column
	enc   int32
	begun bool
	src   []byte // what is behind the levels; of PLAIN what is left of it
	at    int64  // not 0: they are not read yet: rest bytes at this offset of the file
	rest  int64
	pos   int // values taken: booleans in PLAIN, BYTE_STREAM_SPLIT

	codes  kernel.Hybrid // dictionary indexes, booleans in RLE
	delta  kernel.Delta
	length kernel.DeltaLength
	front  kernel.DeltaBytes
}

var errValues = fault.New(fault.Corrupt, "a page has damaged values, or too few")

// begin sets up the encoding, at the first value: pages of nulls may hold anything.
func (v *values) begin() error {
	if v.begun {
		return nil
	}
	v.begun = true
	p := v.c.physical
	texts := p == parquet.Types.ByteArray
	ok, supported := true, true
	switch v.enc {
	case encPlain:
	case encPlainDict, encRLEDict:
		if v.c.dict == nil {
			return fault.New(fault.Corrupt, "a page needs a dictionary, and the column chunk has none")
		}
		if ok = len(v.src) > 0 && v.codes.Reset(v.src[1:], uint(v.src[0])); ok {
			v.enc = encRLEDict
		}
	case encRLE:
		if supported = p == parquet.Types.Boolean; supported {
			ok = len(v.src) >= 4
			if ok {
				n := int64(binary.LittleEndian.Uint32(v.src))
				ok = n <= int64(len(v.src)-4) && v.codes.Reset(v.src[4:4+n], 1)
			}
		}
	case encDelta:
		supported = p == parquet.Types.Int32 || p == parquet.Types.Int64
		ok = !supported || v.delta.Reset(v.src)
	case encDeltaLength:
		supported = texts
		ok = !supported || v.length.Reset(v.src)
	case encDeltaBytes:
		supported = texts || p == parquet.Types.FixedLenByteArray
		ok = !supported || v.front.Reset(v.src)
	case encByteSplit:
		supported = v.c.pw > 0 && p != parquet.Types.Int96
	default:
		supported = false
	}
	if !supported {
		return fault.New(fault.Unsupported, "values of type %s in encoding %s are not supported", p, parquet.Encoding(v.enc))
	}
	if !ok {
		return errValues
	}
	return nil
}

// skip passes n values.
func (v *values) skip(n int) error {
	if n == 0 || v.c.form == formNull {
		return nil
	}
	if err := v.begin(); err != nil {
		return err
	}
	ok := true
	switch v.enc {
	case encPlain:
		switch w := v.c.pw; {
		case w > 0:
			if ok = int64(n)*int64(w) <= v.left(); ok {
				v.pass(n * w)
			}
		case v.c.physical == parquet.Types.Boolean:
			v.pos += n
		default:
			var used int
			if _, used, ok = kernel.PlainBytesSize(v.src, n); ok {
				v.src = v.src[used:]
			}
		}
	case encRLEDict, encRLE:
		ok = v.codes.Skip(n)
	case encDelta:
		ok = v.delta.Skip(n)
	case encDeltaLength:
		ok = v.length.Skip(n)
	case encDeltaBytes:
		ok = v.front.Skip(n)
	case encByteSplit:
		v.pos += n
	}
	if !ok {
		return errValues
	}
	return nil
}

// fixed writes the next k values, in the form of the array, to dst.
func (v *values) fixed(dst []byte, k int) error {
	if k == 0 {
		return nil
	}
	if err := v.begin(); err != nil {
		return err
	}
	l := &v.c.layout
	dst = dst[: k*l.ow : k*l.ow]
	if v.enc == encRLEDict {
		if err := v.checkCodes(k, nil); err != nil {
			return err
		}
		return orDamaged(gather(&v.codes, dst, v.c.dict.fixed, l.ow))
	}
	if l.form == formDecimalVar {
		return v.decimals(dst, k)
	}
	if v.enc == encPlain {
		if int64(k)*int64(l.pw) > v.left() {
			return errValues
		}
		if v.at > 0 {
			return v.readDirect(dst)
		}
		src := v.src[:k*l.pw]
		v.pass(len(src))
		return l.convert(dst, src, k)
	}
	if l.form == formSame {
		return v.raw(dst, k)
	}
	for done := 0; done < k; {
		n := min(k-done, blockValues)
		tmp := scratch(&v.c.d.tmp, n*l.pw)
		if err := v.raw(tmp, n); err != nil {
			return err
		}
		if err := l.convert(dst, tmp, n); err != nil {
			return behind(err, done)
		}
		dst, done = dst[n*l.ow:], done+n
	}
	return nil
}

// raw writes the next k values of an encoding other than PLAIN as they are in the file.
func (v *values) raw(dst []byte, k int) error {
	w := v.c.pw
	switch v.enc {
	case encDelta:
		if w == 4 {
			return orDamaged(v.delta.Int32(arrow.Int32Traits.CastFromBytes(dst)))
		}
		return orDamaged(v.delta.Int64(arrow.Int64Traits.CastFromBytes(dst)))
	case encDeltaBytes:
		return orDamaged(v.front.Fixed(dst, w))
	default: // BYTE_STREAM_SPLIT
		total := len(v.src) / w
		if v.pos > total-k {
			return errValues
		}
		v.pos += k
		return orDamaged(kernel.ByteStreamSplit(dst, v.src, w, total, v.pos-k))
	}
}

// decimals writes the next k values of BYTE_ARRAY.
func (v *values) decimals(dst []byte, k int) error {
	d, w := v.c.d, v.c.ow
	for k > 0 {
		n := min(k, blockValues)
		size, err := v.textSize(n)
		if err != nil {
			return err
		}
		if size > int64(n*w) {
			return errDecimal
		}
		offs := scratch(&d.offs, n+1)
		offs[0] = 0
		data := scratch(&d.texts, int(size)+kernel.Slack)
		if err := texts(v, offs, data); err != nil {
			return err
		}
		if err := v.c.convertTexts(dst[:n*w], offs, data); err != nil {
			return err
		}
		dst, k = dst[n*w:], k-n
	}
	return nil
}

// bools writes the next defined of k booleans to bits [at, at+k) of dst, those that valid
// has if they are fewer.
func (v *values) bools(dst []byte, at, k, defined int, valid []byte) error {
	if defined == 0 {
		kernel.FillBits(dst, at, k, false)
		return nil
	}
	if err := v.begin(); err != nil {
		return err
	}
	src, from := v.src, v.pos
	if v.enc == encRLE {
		if defined == k {
			_, ok := v.codes.Validity(dst, at, k)
			return orDamaged(ok)
		}
		src, from = scratch(&v.c.d.dense, (defined+7)/8), 0
		if _, ok := v.codes.Validity(src, 0, defined); !ok {
			return errValues
		}
	} else if v.pos += defined; int64(v.pos) > 8*int64(len(src)) {
		return errValues
	}
	if defined == k {
		kernel.CopyBits(dst, at, src, from, k)
	} else {
		kernel.ExpandBits(dst, at, src, from, valid, at, k)
	}
	return nil
}

func orDamaged(ok bool) error {
	if ok {
		return nil
	}
	return errValues
}

// slots appends k slots to the values of o, of which those that o.valid says,
// defined in number, have one.
func (c *column) slots(o *leafOut, k, defined int) error {
	at := o.n
	o.n += k
	if c.leaf.key && defined < k {
		e := *errKey
		return e.At(fault.Place{Row: fault.N(o.first + int64(c.rowOf(o, firstUnset(o.valid, at))))})
	}
	return c.inRow(o, at, k, defined, c.append(o, at, k, defined))
}

// append appends the values of k slots at slot at.
func (c *column) append(o *leafOut, at, k, defined int) error {
	switch c.form {
	case formNull:
		return nil
	case formBool:
		if err := c.d.acct.grow(&o.data, (at+7)/8, (o.n+7)/8); err != nil {
			return err
		}
		return c.vals.bools(o.data, at, k, defined, o.valid)
	case formString:
		return appendTexts[int32](c, o, at, k, defined)
	case formLarge:
		return appendTexts[int64](c, o, at, k, defined)
	case formDict:
		return c.appendCodes(o, at, k, defined)
	}
	w := c.ow
	if c.vals.enc == encPlain && int64(defined)*int64(c.pw) > c.vals.left() {
		return errValues // before memory is taken for them
	}
	if err := c.d.acct.grow(&o.data, at*w, o.n*w); err != nil {
		return err
	}
	dst := o.data[at*w : o.n*w : o.n*w]
	if defined == k {
		return c.vals.fixed(dst, k)
	}
	if defined == 0 {
		clear(dst)
		return nil
	}
	// The values come to the end of dst, and are spread from there.
	tail := dst[(k-defined)*w:]
	if err := c.vals.fixed(tail, defined); err != nil {
		return err
	}
	return orDamaged(expand(dst, tail, w, o.valid, at))
}

func gather(h *kernel.Hybrid, dst, dict []byte, w int) bool {
	switch w {
	case 1:
		return kernel.Gather(h, dst, dict)
	case 2:
		return kernel.Gather(h, kernel.Cast[uint16](dst), kernel.Cast[uint16](dict))
	case 4:
		return kernel.Gather(h, kernel.Cast[uint32](dst), kernel.Cast[uint32](dict))
	case 8:
		return kernel.Gather(h, kernel.Cast[uint64](dst), kernel.Cast[uint64](dict))
	case 16:
		return kernel.Gather(h, kernel.Cast[[2]uint64](dst), kernel.Cast[[2]uint64](dict))
	case 32:
		return kernel.Gather(h, kernel.Cast[[4]uint64](dst), kernel.Cast[[4]uint64](dict))
	}
	return kernel.GatherBytes(h, dst, dict, w)
}

func expand(dst, dense []byte, w int, valid []byte, at int) bool {
	switch w {
	case 1:
		return kernel.Expand(dst, dense, valid, at)
	case 2:
		return kernel.Expand(kernel.Cast[uint16](dst), kernel.Cast[uint16](dense), valid, at)
	case 4:
		return kernel.Expand(kernel.Cast[uint32](dst), kernel.Cast[uint32](dense), valid, at)
	case 8:
		return kernel.Expand(kernel.Cast[uint64](dst), kernel.Cast[uint64](dense), valid, at)
	case 16:
		return kernel.Expand(kernel.Cast[[2]uint64](dst), kernel.Cast[[2]uint64](dense), valid, at)
	case 32:
		return kernel.Expand(kernel.Cast[[4]uint64](dst), kernel.Cast[[4]uint64](dense), valid, at)
	}
	return kernel.ExpandBytes(dst, dense, w, valid, at)
}
