package parquetio

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"unsafe"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

const (
	tailBytes      = 64 << 10  // first read of a footer
	maxTail        = 1 << 20   // the same, where other files of the table have larger ones
	maxFooter      = 256 << 20 // larger ones are refused
	maxColumns     = 100_000
	maxSchemaDepth = 100
	maxStat        = 64 // bytes kept of a minimum or maximum
)

// footer is what is kept of a file's metadata.
type footer struct {
	schema *fileSchema
	groups []groupInfo
	chunks packed         // of all row groups
	all    fileset.Extent // what they are together
	end    int64          // offset of the footer: no data lies beyond
	hash   [16]byte       // of the footer's bytes

	partitions string // what it has under driver.PartitionTypes
}

// chunk is the metadata of one column chunk, unpacked.
type chunk struct {
	start, size int64 // compressed pages: [start, start+size)
	raw         int64 // bytes of the pages uncompressed
	values      int64 // including nulls and empty lists
	ci, oi      int64 // offsets of column index and offset index; length 0: none
	bloom       int64 // bloom filter; 0: none
	nulls       int64 // -1: unknown
	text        int64 // bytes of strings, decoded; -1: unknown
	min, max    string
	ciLen       int32
	oiLen       int32
	bloomLen    int32 // 0: unknown
	codec       int8
	flags       chunkFlags
}

type chunkFlags uint16

const (
	hasDict chunkFlags = 1 << iota
	hasMin
	hasMax
	minExact // the minimum is a value of the chunk
	maxExact
	encrypted
	external // pages are in another file
	beyond   // pages lie where the file has no data

	// From here on known to the gate alone: they are not packed.
	deprecated // min and max are of the fields without a defined order
	minCut     // said not to be exact
	maxCut
)

// readFooter reads and checks the metadata of a file. Errors have no place yet
// but the column. buf is scratch of at least tailBytes; schemas are shared through cache.
func readFooter(ctx context.Context, f blob, buf []byte, cache *schemaCache) (*footer, error) {
	size := f.Size()
	if size < 12 {
		return nil, fault.New(fault.Corrupt, "not a Parquet file: %d bytes", size)
	}
	scratch := footerScratches.Get().(*footerScratch)
	defer scratch.free()
	// The footers of a table are much alike: after the first few, one read does.
	want := min(size, max(tailBytes, min(cache.tail.Load(), maxTail)))
	if want > int64(len(buf)) {
		if int64(cap(scratch.tail)) < want {
			scratch.tail = make([]byte, want)
		}
		buf = scratch.tail[:want]
	}
	tail := buf[:want]
	if err := readFull(ctx, f, tail, size-int64(len(tail))); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(tail[len(tail)-8:]))
	switch magic := string(tail[len(tail)-4:]); {
	case magic == "PARE":
		return nil, fault.New(fault.Unsupported, "encrypted Parquet files are not supported")
	case magic != "PAR1":
		return nil, fault.New(fault.Corrupt, "not a Parquet file, or truncated: it does not end in PAR1")
	case n > size-12:
		return nil, fault.New(fault.Corrupt, "the footer claims %d bytes in a file of %d", n, size)
	case n > maxFooter:
		return nil, fault.New(fault.Unsupported, "a footer of %d bytes is over the limit of %d", n, maxFooter)
	}
	cache.tail.Store(n + n/16 + 8)
	end := size - 8 - n
	var raw []byte
	if n <= int64(len(tail)-8) {
		raw = tail[int64(len(tail))-8-n : len(tail)-8]
	} else {
		raw = make([]byte, n)
		if err := readFull(ctx, f, raw, end); err != nil {
			return nil, err
		}
	}
	return parseFooter(raw, end, cache, scratch)
}

// parseFooter checks everything that the rest relies on. Nothing of raw is kept.
func parseFooter(raw []byte, end int64, cache *schemaCache, scratch *footerScratch) (*footer, error) {
	f := &footer{end: end}
	sum := sha256.Sum256(raw)
	copy(f.hash[:], sum[:])
	var (
		k         schemaKey
		groupsAt  [2]int // of the list of row groups
		createdBy string
		leaves    int
		unknown   [][2]int // logical types to be left out
		err       error
	)
	r := &thriftReader{b: raw}
	r.fields(func(id int16, typ byte) {
		from := r.i
		switch {
		case id == 2 && typ == tList:
			leaves, unknown, err = checkTree(r)
			k.schema = string(raw[from:r.i])
		case id == 4 && typ == tList:
			r.each(tStruct, func(int) { parseGroup(r, scratch) })
			groupsAt = [2]int{from, r.i}
		case id == 5 && typ == tList:
			r.each(tStruct, func(int) {
				var key, val string
				r.fields(func(id int16, typ byte) {
					switch {
					case id == 1 && typ == tBinary:
						key = string(r.bin())
					case id == 2 && typ == tBinary:
						val = string(r.bin())
					default:
						r.skip(typ, false)
					}
				})
				switch key {
				case arrowSchemaKey:
					k.arrow = val
				case driver.PartitionTypes:
					f.partitions = val
				}
			})
		case id == 6 && typ == tBinary:
			createdBy = string(r.bin())
		default:
			if r.skip(typ, false); id == 7 {
				k.orders = string(raw[from:r.i])
			}
		}
	})
	if r.bad {
		return nil, fault.New(fault.Corrupt, "the footer is damaged: %w", errThrift)
	}
	if err != nil {
		return nil, err
	}
	if groupsAt[1] == 0 || k.schema == "" {
		return nil, fault.New(fault.Corrupt, "the footer lacks its schema or its row groups")
	}
	// The same footer without row groups is what arrow-go is given.
	k.cut = func() []byte {
		var b []byte
		at := 0
		for _, u := range unknown {
			b, at = append(b, raw[at:u[0]]...), u[1]
		}
		b = append(b, raw[at:groupsAt[0]]...)
		return append(append(b, tStruct), raw[groupsAt[1]:]...)
	}
	if f.schema, err = cache.get(k); err != nil {
		return nil, err
	}
	if len(f.schema.leaves) != leaves {
		return nil, fault.New(fault.Corrupt, "the schema has %d columns, not %d", len(f.schema.leaves), leaves)
	}
	return f, f.pack(scratch, writerOf(createdBy))
}

// lastLogical is the last logical type that arrow-go knows: geography.
const lastLogical = 18

// checkTree reads the list of schema elements: the tree must be whole, and not
// deeper than recursion can bear. It returns the number of leaves, and where
// logical types are that this build does not know: these columns are read as
// their physical type.
func checkTree(r *thriftReader) (leaves int, unknown [][2]int, err error) {
	var left []int64 // children still to come, by depth
	r.each(tStruct, func(i int) {
		var kids int64
		r.fields(func(id int16, typ byte) {
			from := r.i - 1
			switch {
			case id == 5 && typ == tI32:
				kids = r.int()
				return
			case id == 10 && typ == tStruct:
				known := false
				r.fields(func(member int16, typ byte) {
					known = member > 0 && member <= lastLogical && member != 9
					r.skip(typ, false)
				})
				if !known && r.i < len(r.b) && r.b[r.i] == tStop {
					unknown = append(unknown, [2]int{from, r.i})
				}
				return
			}
			r.skip(typ, false)
		})
		if i > 0 {
			if len(left) == 0 {
				err = fault.New(fault.Corrupt, "the schema is not one tree")
				r.fail()
				return
			}
			left[len(left)-1]--
		}
		switch {
		case kids < 0 || len(left) >= maxSchemaDepth:
			err = fault.New(fault.Corrupt, "the schema is nested deeper than %d", maxSchemaDepth)
			r.fail()
		case kids > 0:
			left = append(left, kids)
		case i > 0: // the root is no column, if it has none
			leaves++
		}
		for len(left) > 0 && left[len(left)-1] == 0 {
			left = left[:len(left)-1]
		}
	})
	if err == nil && !r.bad && len(left) > 0 {
		err = fault.New(fault.Corrupt, "the schema lacks elements")
	}
	if err == nil && leaves > maxColumns {
		err = fault.New(fault.Unsupported, "%d columns are over the limit of %d", leaves, maxColumns)
	}
	return leaves, unknown, err
}

func parseGroup(r *thriftReader, s *footerScratch) {
	g := parsedGroup{from: len(s.chunks)}
	r.fields(func(id int16, typ byte) {
		switch {
		case id == 1 && typ == tList:
			r.each(tStruct, func(i int) {
				if i >= maxColumns {
					r.fail()
					return
				}
				s.chunks = append(s.chunks, chunk{nulls: -1, text: -1, codec: -1, start: -1})
				parseChunk(r, &s.chunks[len(s.chunks)-1])
			})
		case id == 3 && typ == tI64:
			g.rows = r.int()
		default:
			r.skip(typ, false)
		}
	})
	g.to = len(s.chunks)
	s.groups = append(s.groups, g)
}

// field begins the next field of a struct, whose number is counted on from id: tStop after the last. It
// is what fields does, without a call per field.
func (r *thriftReader) field(id *int16) byte {
	h := r.byte()
	typ := h & 15
	if r.bad || typ == tStop {
		return tStop
	}
	if d := int16(h >> 4); d != 0 {
		*id += d
	} else {
		*id = int16(r.int())
	}
	return typ
}

// parseChunk leaves min and max as views of the raw footer.
func parseChunk(r *thriftReader, c *chunk) {
	var id int16
	for typ := r.field(&id); typ != tStop; typ = r.field(&id) {
		switch {
		case id == 1 && typ == tBinary:
			if len(r.bin()) > 0 {
				c.flags |= external
			}
		case id == 3 && typ == tStruct:
			parseColumnMeta(r, c)
		case id == 4 && typ == tI64:
			c.oi = r.int()
		case id == 5 && typ == tI32:
			c.oiLen = r.i32()
		case id == 6 && typ == tI64:
			c.ci = r.int()
		case id == 7 && typ == tI32:
			c.ciLen = r.i32()
		case id == 8:
			c.flags |= encrypted
			r.skip(typ, false)
		default:
			r.skip(typ, false)
		}
	}
}

func parseColumnMeta(r *thriftReader, c *chunk) {
	var data, dict int64 = -1, 0
	var id int16
	for typ := r.field(&id); typ != tStop; typ = r.field(&id) {
		switch {
		case id == 2 && typ == tList:
			r.each(tI32, func(int) {
				if e := r.int(); e == encPlainDict || e == encRLEDict {
					c.flags |= hasDict
				}
			})
		case id == 4 && typ == tI32:
			if v := r.int(); v >= 0 && v < 127 {
				c.codec = int8(v)
			}
		case id == 5 && typ == tI64:
			c.values = r.int()
		case id == 6 && typ == tI64:
			c.raw = r.int()
		case id == 7 && typ == tI64:
			c.size = r.int()
		case id == 9 && typ == tI64:
			data = r.int()
		case id == 11 && typ == tI64:
			dict = r.int()
		case id == 12 && typ == tStruct:
			parseStats(r, c)
		case id == 14 && typ == tI64:
			c.bloom = r.int()
		case id == 15 && typ == tI32:
			c.bloomLen = r.i32()
		case id == 16 && typ == tStruct:
			r.fields(func(id int16, typ byte) {
				if id == 1 && typ == tI64 {
					c.text = r.int()
					return
				}
				r.skip(typ, false)
			})
		default:
			r.skip(typ, false)
		}
	}
	c.start = data
	if dict > 0 {
		c.flags |= hasDict
		if dict < data {
			c.start = dict
		}
	}
}

// parseStats takes the current fields, or else the deprecated ones.
func parseStats(r *thriftReader, c *chunk) {
	var lo, hi, oldLo, oldHi []byte
	var current bool
	var id int16
	for typ := r.field(&id); typ != tStop; typ = r.field(&id) {
		switch {
		case id == 1 && typ == tBinary:
			oldHi = r.bin()
		case id == 2 && typ == tBinary:
			oldLo = r.bin()
		case id == 3 && typ == tI64:
			c.nulls = r.int()
		case id == 5 && typ == tBinary:
			hi, current = r.bin(), true
		case id == 6 && typ == tBinary:
			lo, current = r.bin(), true
		case id == 7 && typ == tTrue:
			c.flags |= maxExact
		case id == 7 && typ == tFalse:
			c.flags |= maxCut
		case id == 8 && typ == tTrue:
			c.flags |= minExact
		case id == 8 && typ == tFalse:
			c.flags |= minCut
		default:
			r.skip(typ, false)
		}
	}
	if !current {
		lo, hi = oldLo, oldHi
		c.flags |= deprecated
	}
	if lo != nil {
		c.flags |= hasMin
		c.min = unsafe.String(unsafe.SliceData(lo), len(lo))
	}
	if hi != nil {
		c.flags |= hasMax
		c.max = unsafe.String(unsafe.SliceData(hi), len(hi))
	}
}

func inside(off, n, end int64) bool { return n > 0 && off >= 4 && off <= end && n <= end-off }
