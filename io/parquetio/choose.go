package parquetio

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	rowgather "github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/sift"
	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// chosen are the rows of a read that are wanted. The others are dropped as early as a column can: between the indexes of a
// dictionary and what they stand for, or out of the page. A nil *chosen is all rows.
type chosen struct {
	rows []uint64 // see package kernel
	n    int      // rows chosen
}

// chooseFrom makes a choice of bytes, 1 for each row that is wanted and 0 for the others.
func chooseFrom(mask []byte) *chosen {
	c := &chosen{rows: make([]uint64, kernel.WordsOf(len(mask)))}
	c.n = kernel.AtLeast(kernel.BytesOf(c.rows), 0, mask, 1)
	return c
}

// part is the choice of rows [at, at+n).
func (c *chosen) part(at, n int) *chosen {
	if c == nil {
		return nil
	}
	p := &chosen{rows: make([]uint64, kernel.WordsOf(n))}
	kernel.PartBits(p.rows, c.rows, at, n)
	p.n = sift.Count(p.rows)
	return p
}

// count is how many of n rows are chosen.
func (c *chosen) count(n int) int {
	if c == nil {
		return n
	}
	return c.n
}

// positions are those of the rows chosen, the first row having the one given.
func (c *chosen) positions(first int64) []int64 {
	out := make([]int64, c.n)
	sift.Index(out, c.rows, first)
	return out
}

// runs are the rows chosen, of one record.
func (c *chosen) runs() []rowgather.Run {
	idx := make([]int32, c.n)
	sift.Index(idx, c.rows, 0)
	var out []rowgather.Run
	for _, r := range idx {
		if n := len(out); n > 0 && out[n-1].Row+out[n-1].N == r {
			out[n-1].N++
			continue
		}
		out = append(out, rowgather.Run{Row: r, N: 1})
	}
	return out
}

// of returns the chosen rows of an array, which is decoded whole, as a reference.
func (c *chosen) of(a arrow.Array, acct *account) (arrow.Array, error) {
	t, fixed := storageType(a.DataType()).(arrow.FixedWidthDataType)
	data := a.Data()
	if !fixed || a.NullN() > 0 || t.BitWidth()%8 != 0 || len(data.Buffers()) != 2 || data.Buffers()[1] == nil || a.DataType().ID() == arrow.DICTIONARY {
		runs := c.runs()
		if len(runs) == 1 {
			return partOf(a, int64(runs[0].Row), int64(runs[0].N), acct.alloc)
		}
		return rowgather.Column(acct.alloc, []arrow.Array{a}, runs)
	}
	w := t.BitWidth() / 8
	out := acct.alloc.Allocate(c.n * w)
	kernel.KeepBytes(out, data.Buffers()[1].Bytes()[data.Offset()*w:(data.Offset()+data.Len())*w], w, c.rows)
	acct.used += int64(len(out))
	d := newData(a.DataType(), c.n, []*memory.Buffer{nil, acct.buffer(&out, len(out))}, nil, 0)
	defer d.Release()
	return array.MakeFromData(d), nil
}

// chooses reports whether the column of a field can drop rows as it decodes them.
func (d *decoder) chooses(f *decodedField) bool {
	if len(f.cols) != 1 || d.sharers > 0 {
		return false
	}
	c := f.cols[0]
	switch c.form {
	case formNull, formBool, formString, formLarge, formDict, formDecimalVar:
		return false
	}
	return c.way == wayFlat && c.ow > 0 && c.ow <= maxForeseen
}

// readChosen is readFlat for some of n rows, of a column that can choose.
func (c *column) readChosen(ctx context.Context, o *leafOut, n int, keep *chosen) error {
	w := c.ow
	if err := c.d.acct.grow(&o.data, 0, keep.n*w); err != nil {
		return err
	}
	for o.levels < n {
		if c.left == 0 {
			if ok, err := c.open(ctx); err != nil || !ok {
				return orEnds(c, err)
			}
		}
		if c.body == nil && !c.slices.open && c.sliced() { // what is left is then left of a slice
			if err := c.slicePage(ctx); err != nil {
				return err
			}
		}
		k := min(n-o.levels, c.left)
		rows := scratch(&c.d.chosen, kernel.WordsOf(k))
		kernel.PartBits(rows, keep.rows, o.levels, k)
		m := sift.Count(rows)
		o.levels += k
		c.row += int64(k)
		if m == 0 && k == c.left { // nothing of the rest is needed
			c.win.hint = 0
			c.left, c.body = 0, nil
			continue
		}
		if err := c.load(ctx); err != nil {
			return err
		}
		if m == 0 {
			if err := c.pass(k); err != nil {
				return err
			}
			continue
		}
		c.left -= k
		at := o.n
		o.n += m
		dst := o.data[at*w : o.n*w : o.n*w]
		valid, defined, err := c.defined(k)
		if err != nil {
			return err
		}
		if valid == nil {
			if o.valid != nil {
				kernel.FillBits(o.valid, at, m, true)
			}
			if err := c.vals.choose(dst, k, rows); err != nil {
				return c.inChosen(o, k, nil, err)
			}
			continue
		}
		if err := c.chooseValid(o, at, m, keep.n, valid, rows); err != nil {
			return err
		}
		// Which of the values are those of rows that are chosen: they come to the end of dst, and are spread from there.
		some := scratch(&c.d.valued, kernel.WordsOf(defined))
		sift.Bits(some, func(k int) uint64 { return rows[k] }, valid)
		have := sift.Count(some)
		tail := dst[(m-have)*w:]
		if err := c.vals.choose(tail, defined, some); err != nil {
			return c.inChosen(o, k, valid, err)
		}
		o.nulls += m - have
		if err := orDamaged(expand(dst, tail, w, o.valid, at)); err != nil {
			return err
		}
	}
	return nil
}

// inChosen makes of a refused value of the last k rows an error that has the row; valid nil: all of them have a value.
func (c *column) inChosen(o *leafOut, k int, valid []uint64, err error) error {
	r, ok := err.(refusal)
	if !ok {
		return err
	}
	if valid != nil {
		r.at = nthBit(kernel.BytesOf(valid), 0, r.at)
	}
	e := *r.why
	return e.At(fault.Place{Row: fault.N(o.first + int64(o.levels-k+r.at))})
}

// defined takes the definition levels of k rows: which have a value, and how many; nil if all have.
func (c *column) defined(k int) (valid []uint64, n int, err error) {
	most := uint32(c.leaf.maxDef)
	if most == 0 {
		return nil, k, nil
	}
	probe := c.def
	n, ok := probe.Count(k, most)
	if !ok {
		return nil, 0, errLevels
	}
	if n == k {
		c.def = probe
		return nil, k, nil
	}
	valid = scratch(&c.d.valid, kernel.WordsOf(k))
	clear(valid)
	if n, ok = c.def.Validity(kernel.BytesOf(valid), 0, k); !ok {
		return nil, 0, errLevels
	}
	return valid, n, nil
}

// chooseValid writes to the bitmap of o, which is for total rows, which of the m chosen ones from at on are not null.
func (c *column) chooseValid(o *leafOut, at, m, total int, valid, rows []uint64) error {
	if o.valid == nil {
		var err error
		if o.valid, err = c.d.acct.get((total + 7) / 8); err != nil {
			return err
		}
		kernel.FillBits(o.valid, 0, at, true)
	}
	kept := scratch(&c.d.keptValid, kernel.WordsOf(m))
	sift.Bits(kept, func(k int) uint64 { return valid[k] }, rows)
	kernel.CopyBits(o.valid, at, kernel.BytesOf(kept), 0, m)
	return nil
}

// choose writes, of the next k values, those that rows says to dst, which has room for just them.
func (v *values) choose(dst []byte, k int, rows []uint64) error {
	if len(dst) == 0 {
		return v.skip(k)
	}
	if err := v.begin(); err != nil {
		return err
	}
	l := &v.c.layout
	w := l.ow
	most := blockValues
	switch {
	case v.enc == encRLEDict:
		if err := v.checkCodes(k, rows); err != nil {
			return err
		}
		return orDamaged(gatherChosen(&v.codes, dst, v.c.dict.fixed, w, k, rows))
	case v.enc == encPlain && v.at == 0 && l.form == formSame:
		if int64(k)*int64(w) > v.left() {
			return errValues
		}
		src := v.src[:k*w]
		v.pass(len(src))
		kernel.KeepBytes(dst, src, w, rows)
		return nil
	case v.at > 0: // each block is a read of the file
		most = k
	}
	for done := 0; k > 0; {
		n := min(k, most, max(blockBytes/w&^63, 64))
		words := rows[:kernel.WordsOf(n)]
		m := sift.Count(words)
		if m == 0 {
			if err := v.skip(n); err != nil {
				return err
			}
		} else {
			all := scratch(&v.c.d.whole, n*w)
			if err := v.fixed(all, n); err != nil {
				return behind(err, done)
			}
			kernel.KeepBytes(dst[:m*w], all, w, words)
		}
		dst, rows, k, done = dst[m*w:], rows[len(words):], k-n, done+n
	}
	return nil
}

// blockBytes are decoded at a time of which some are dropped.
const blockBytes = 256 << 10

func gatherChosen(h *kernel.Hybrid, dst, dict []byte, w, n int, rows []uint64) bool {
	switch w {
	case 1:
		return kernel.GatherChosen(h, dst, dict, n, rows)
	case 2:
		return kernel.GatherChosen(h, kernel.Cast[uint16](dst), kernel.Cast[uint16](dict), n, rows)
	case 4:
		return kernel.GatherChosen(h, kernel.Cast[uint32](dst), kernel.Cast[uint32](dict), n, rows)
	case 8:
		return kernel.GatherChosen(h, kernel.Cast[uint64](dst), kernel.Cast[uint64](dict), n, rows)
	case 16:
		return kernel.GatherChosen(h, kernel.Cast[[2]uint64](dst), kernel.Cast[[2]uint64](dict), n, rows)
	case 32:
		return kernel.GatherChosen(h, kernel.Cast[[4]uint64](dst), kernel.Cast[[4]uint64](dict), n, rows)
	}
	return kernel.GatherBytesChosen(h, dst, dict, w, n, rows)
}
