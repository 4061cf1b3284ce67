package parquetio

import (
	"errors"
	"math"
	"math/bits"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// A value that its type does not hold (text that is not UTF-8, an INT96 timestamp that the unit cannot say) is found where it is
// decoded, by its place among the values of a call. Here that becomes the row, which can be left out: the other rows can be read.
// Of a dictionary page an entry is refused only where a row has it.

// refusal is a value, the at-th of those that were asked for.
type refusal struct {
	at  int
	why *fault.Error
}

func (r refusal) Error() string { return r.why.Error() }

// behind says that n values were decoded before those that err is of.
func behind(err error, n int) error {
	if r, ok := err.(refusal); ok {
		r.at += n
		return r
	}
	return err
}

// badValue is in the chain of errors about one row's value.
type badValue struct{ text string }

func (b badValue) Error() string { return b.text }

var (
	errText  = fault.New(fault.Corrupt, "%w", badValue{"a text is not UTF-8; repair it where the file is made, read the column as bytes (types: {COLUMN: binary}), or leave it out"})
	errKey   = fault.New(fault.RowError, "%w", badValue{"a key of a map is null, which Arrow's maps do not have; leave the row or the column out, or repair it where the file is made"})
	errInt96 = map[arrow.TimeUnit]*fault.Error{
		arrow.Nanosecond: fault.New(fault.RowError, "%w", badValue{"an INT96 timestamp lies outside of 1677 to 2262, which is all that nanoseconds since 1970 can say; " +
			"read with int96: us"}),
		arrow.Microsecond: fault.New(fault.RowError, "%w", badValue{"an INT96 timestamp has parts of a microsecond, or is none; read with int96: ns"}),
		arrow.Millisecond: fault.New(fault.RowError, "%w", badValue{"an INT96 timestamp has parts of a millisecond, or is none; read with int96: us or ns"}),
	}
)

// badRow is the row in which err refuses a value, if it does.
func badRow(err error) (int64, bool) {
	if _, ok := errors.AsType[badValue](err); !ok {
		return 0, false
	}
	return fault.PlaceOf(err).Row.Get()
}

// inRow makes of a refused value among the last k slots of o, of which those that o.valid says, defined in number, have one, an error
// that has the row.
func (c *column) inRow(o *leafOut, at, k, defined int, err error) error {
	r, ok := err.(refusal)
	if !ok {
		return err
	}
	slot := at + r.at
	if defined < k {
		slot = nthBit(o.valid, at, r.at)
	}
	e := *r.why
	return e.At(fault.Place{Row: fault.N(o.first + int64(c.rowOf(o, slot)))})
}

// firstUnset is the first position from from on of a bit that is not set.
func firstUnset(b []byte, from int) int {
	for b[from/8]>>(from%8)&1 != 0 {
		from++
	}
	return from
}

// nthBit is the position of set bit n, counted from 0 at position from.
func nthBit(b []byte, from, n int) int {
	for i := from; i < 8*len(b); i++ {
		if b[i/8]>>(i%8)&1 != 0 {
			if n == 0 {
				return i
			}
			n--
		}
	}
	return from
}

// rowOf is the row, counted from o's first one, that a slot is of.
func (c *column) rowOf(o *leafOut, slot int) int {
	switch c.way {
	case wayList:
		return listOf(o, slot, c.large)
	case wayNested:
		row := -1
		for i, rep := range o.rep[:o.levels] {
			if rep == 0 {
				row++
			}
			if o.def[i] >= c.leaf.anc {
				if slot == 0 {
					break
				}
				slot--
			}
		}
		return max(row, 0)
	}
	return slot
}

// listOf is the last list that begins at slot or before.
func listOf(o *leafOut, slot int, large bool) int {
	row := 0
	for j := range o.lists {
		begin := 0
		if large {
			begin = int(castTo[int64](o.listOffs)[j])
		} else {
			begin = int(castTo[int32](o.listOffs)[j])
		}
		if begin > slot {
			break
		}
		row = j
	}
	return row
}

// isText says that values are text: they must be UTF-8.
func isText(t arrow.DataType) bool {
	switch t := storageType(t).(type) {
	case *arrow.StringType, *arrow.LargeStringType:
		return true
	case *arrow.DictionaryType:
		return isText(t.ValueType)
	}
	return false
}

// checkTexts refuses the first of some values that is not UTF-8.
func checkTexts[O int32 | int64](offsets []O, data []byte) error {
	n := len(offsets) - 1
	all := data[offsets[0]:offsets[n]]
	if kernel.ASCII(all) {
		return nil
	}
	whole := utf8.Valid(all)
	for _, at := range offsets[:n] { // no value begins within a character
		if !whole {
			break
		}
		whole = at == offsets[n] || utf8.RuneStart(data[at])
	}
	if whole {
		return nil
	}
	for i := range n {
		if !utf8.Valid(data[offsets[i]:offsets[i+1]]) {
			return refusal{i, errText}
		}
	}
	return nil
}

// refuse notes that entry i is refused, if it is used.
func (d *dictionary) refuse(i int, why *fault.Error) {
	if d.refused == nil {
		d.refused = make([]uint64, kernel.WordsOf(d.n))
	}
	d.refused[i/64] |= 1 << (i % 64)
	d.why = why
}

// checkTexts refuses entries that are not UTF-8. Nothing of them is left in the dictionary, which consumers get whole.
func (d *dictionary) checkTexts(offsets []int32, data []byte) {
	for from := 0; from < d.n; {
		r, ok := checkTexts(offsets[from:], data).(refusal)
		if !ok {
			return
		}
		i := from + r.at
		d.refuse(i, r.why)
		for k := offsets[i]; k < offsets[i+1]; k++ {
			data[k] = '?'
		}
		from = i + 1
	}
}

// check refuses the first of some indexes whose entry is refused.
func (d *dictionary) check(idx []uint32) error {
	if d.refused == nil {
		return nil
	}
	for i, x := range idx {
		if d.refused[x/64]>>(x%64)&1 != 0 {
			return refusal{i, d.why}
		}
	}
	return nil
}

// checkCodes does so for the next k values, or for the chosen ones, without taking them.
func (v *values) checkCodes(k int, rows []uint64) error {
	d := v.c.dict
	if d.refused == nil {
		return nil
	}
	codes := v.codes
	for done := 0; done < k; {
		n := min(k-done, math.MaxInt16+1) // a multiple of 64
		idx := scratch(&v.c.d.codes, n)
		if err := orDamaged(codes.Indexes(idx, d.n)); err != nil {
			return err
		}
		if rows == nil {
			if err := d.check(idx); err != nil {
				return behind(err, done)
			}
		} else {
			for w, word := range rows[done/64 : done/64+kernel.WordsOf(n)] {
				for ; word != 0; word &= word - 1 {
					i := 64*w + bits.TrailingZeros64(word)
					if err := d.check(idx[i : i+1]); err != nil {
						return refusal{done + i, d.why}
					}
				}
			}
		}
		done += n
	}
	return nil
}
