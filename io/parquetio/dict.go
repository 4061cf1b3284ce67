package parquetio

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// dictionary is the values of a dictionary page, in the form of the array.
type dictionary struct {
	n     int
	fixed []byte            // n values
	texts kernel.StringDict // or strings
	mem   [][]byte          // of both, in the allocator's memory

	refused []uint64     // entries that must not be used; nil: none
	why     *fault.Error // of these

	values arrow.ArrayData // formDict: the strings as an array, which batches share
	offs   *memory.Buffer  // of texts, then
}

// newDictionary makes a dictionary of the page body, which claims n values: a copy, or where the values stay as they
// are and the page is the column's own memory, that.
func (c *column) newDictionary(body []byte, n int) (*dictionary, error) {
	width := c.pw
	switch {
	case c.form == formNull:
		return &dictionary{}, nil
	case c.form == formBool:
		return nil, fault.New(fault.Corrupt, "a dictionary of booleans")
	case c.physical == parquet.Types.ByteArray:
		width = 4 // of a length, at least
	}
	if int64(n)*int64(width) > int64(len(body)) {
		return nil, fault.New(fault.Corrupt, "a dictionary claims %d values in %d bytes", n, len(body))
	}
	if e := c.hdr.enc; e != encPlain && e != encPlainDict {
		return nil, fault.New(fault.Unsupported, "dictionaries in encoding %s are not supported", parquet.Encoding(e))
	}
	alloc := c.d.acct.alloc
	d := &dictionary{n: n}
	get := func(n int) []byte {
		b := alloc.Allocate(max(n, 1))
		d.mem = append(d.mem, b)
		return b[:n]
	}
	err := func() error {
		if c.physical != parquet.Types.ByteArray {
			if c.form == formSame && n > 0 && len(c.mem) > 0 && &c.mem[0] == &body[0] {
				d.fixed = body[:n*c.ow]
				d.mem = append(d.mem, c.d.takePage(c))
				return nil
			}
			d.fixed = get(n * c.ow)
			return c.convertEntries(d, body)
		}
		size, _, ok := kernel.PlainBytesSize(body, n)
		if !ok {
			return errValues
		}
		offs := castTo[int32](get(4 * (n + 1)))
		offs[0] = 0
		data := get(int(size) + kernel.Slack)
		if _, ok := kernel.PlainBytes(offs, data, body); !ok {
			return errValues
		}
		if c.form == formDecimalVar {
			d.fixed = get(n * c.ow)
			return c.convertTexts(d.fixed, offs, data)
		}
		d.texts = kernel.StringDict{Offsets: offs, Data: data[:size]}
		if c.text {
			d.checkTexts(offs, data)
		}
		if c.form == formDict {
			buffer := func(i, n int) *memory.Buffer {
				b := memory.NewBufferWithAllocator(d.mem[i], alloc)
				b.ResizeNoShrink(n)
				return b
			}
			t := storageType(c.leaf.arrow).(*arrow.DictionaryType).ValueType
			d.offs = buffer(0, 4*(n+1))
			d.offs.Retain()
			d.values = entriesData(t, n, d.offs, buffer(1, int(size)), alloc)
			d.mem = nil
			return nil
		}
		if 16*int64(n) <= max(4*size, 4<<10) { // cells are larger than the values, but not by much
			d.texts.FillCells(kernel.Cast[[2]uint64](get(16 * n)))
		}
		return nil
	}()
	if err != nil {
		d.free(alloc)
		return nil, err
	}
	return d, nil
}

// convertEntries makes the entries of a page, and notes which are refused.
func (c *column) convertEntries(d *dictionary, body []byte) error {
	for from := 0; ; {
		err := c.convert(d.fixed[from*c.ow:], body[from*c.pw:], d.n-from)
		r, ok := err.(refusal)
		if !ok {
			return err
		}
		from += r.at
		d.refuse(from, r.why)
		from++
	}
}

// takePage hands over the memory of c's page.
func (d *decoder) takePage(c *column) []byte {
	m := c.mem
	d.kept -= int64(len(m))
	c.mem, c.body = nil, nil
	return m
}

func (d *dictionary) free(alloc memory.Allocator) {
	if d == nil {
		return
	}
	for _, b := range d.mem {
		alloc.Free(b)
	}
	if d.values != nil {
		d.values.Release()
		d.offs.Release()
	}
	*d = dictionary{}
}
