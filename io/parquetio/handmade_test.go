package parquetio

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// thriftField is a field of a structure in the compact protocol.
type thriftField struct {
	id  int16
	typ byte
	val []byte
}

func i32At(id int16, v int64) thriftField {
	return thriftField{id, tI32, binary.AppendVarint(nil, v)}
}

func i64At(id int16, v int64) thriftField {
	return thriftField{id, tI64, binary.AppendVarint(nil, v)}
}

func textAt(id int16, s string) thriftField { return thriftField{id, tBinary, thriftText(s)} }

func boolAt(id int16, v bool) thriftField {
	if v {
		return thriftField{id, tTrue, nil}
	}
	return thriftField{id, tFalse, nil}
}

func structAt(id int16, fields ...thriftField) thriftField {
	return thriftField{id, tStruct, thriftStruct(fields...)}
}

func listAt(id int16, typ byte, elems ...[]byte) thriftField {
	b := []byte{0xF0 | typ}
	b = binary.AppendUvarint(b, uint64(len(elems)))
	for _, e := range elems {
		b = append(b, e...)
	}
	return thriftField{id, tList, b}
}

func thriftText(s string) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(s))), s...)
}

// thriftStruct has its fields by their numbers, which ascend.
func thriftStruct(fields ...thriftField) (b []byte) {
	last := int16(0)
	for _, f := range fields {
		b = append(append(b, byte(f.id-last)<<4|f.typ), f.val...)
		last = f.id
	}
	return append(b, tStop)
}

// handColumn is a column of a file that is made byte by byte: pages of values in PLAIN, nil for null.
type handColumn struct {
	name     string
	physical int64         // number of the physical type
	width    int64         // of FIXED_LEN_BYTE_ARRAY
	kind     []thriftField // of the schema's element, behind the name: converted type (6), scale, precision, logical type (10)
	optional bool
	pages    [][]*string
	stats    []thriftField // nil: none
	index    []byte        // ColumnIndex; nil: none
	away     int64         // how far behind its pages the chunk is said to begin
	headless bool          // the sizes of the offset index leave out the headers
	bloom    []byte        // header and bits; nil: none
	bloomLen int64
}

// handFile is a file of such columns, with a row group of all rows.
type handFile struct {
	columns   []handColumn
	by        string // created_by
	unordered bool   // no column orders
}

// values of columns.
func le32(vs ...int32) (out []*string) {
	for _, v := range vs {
		s := string(binary.LittleEndian.AppendUint32(nil, uint32(v)))
		out = append(out, &s)
	}
	return out
}

func le64(vs ...int64) (out []*string) {
	for _, v := range vs {
		s := string(binary.LittleEndian.AppendUint64(nil, uint64(v)))
		out = append(out, &s)
	}
	return out
}

func doubles(vs ...float64) (out []*string) {
	for _, v := range vs {
		out = append(out, le64(int64(math.Float64bits(v)))...)
	}
	return out
}

func strs(vs ...string) (out []*string) {
	for _, v := range vs {
		s := string(binary.LittleEndian.AppendUint32(nil, uint32(len(v)))) + v
		out = append(out, &s)
	}
	return out
}

const (
	pBool, pInt32, pInt64, pInt96, pFloat, pDouble, pBytes, pFixed = 0, 1, 2, 3, 4, 5, 6, 7
)

// write makes the file and returns its path.
func (f *handFile) write(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hand.parquet")
	if err := os.WriteFile(path, f.bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (f *handFile) bytes() []byte {
	b := []byte("PAR1")
	var elems, chunks, orders [][]byte
	elems = append(elems, thriftStruct(textAt(4, "schema"), i32At(5, int64(len(f.columns)))))
	rows, total := int64(0), int64(0)
	type placed struct {
		begin, size, values int64
		locs                [][]byte
	}
	at := make([]placed, len(f.columns))
	for i := range f.columns {
		c, p := &f.columns[i], &at[i]
		p.begin = int64(len(b))
		for _, page := range c.pages {
			var body, levels []byte
			for _, v := range page {
				if v == nil {
					levels = append(levels, 1<<1, 0)
				} else {
					levels = append(levels, 1<<1, 1)
					body = append(body, *v...)
				}
			}
			if c.optional {
				levels = append(binary.LittleEndian.AppendUint32(nil, uint32(len(levels))), levels...)
				body = append(levels, body...)
			}
			head := thriftStruct(i32At(1, pageData), i32At(2, int64(len(body))), i32At(3, int64(len(body))),
				structAt(5, i32At(1, int64(len(page))), i32At(2, encPlain), i32At(3, encRLE), i32At(4, encRLE)))
			size := int64(len(body))
			if !c.headless {
				size += int64(len(head))
			}
			p.locs = append(p.locs, thriftStruct(i64At(1, int64(len(b))), i32At(2, size), i64At(3, p.values)))
			b = append(append(b, head...), body...)
			p.values += int64(len(page))
		}
		p.size = int64(len(b)) - p.begin
		total += p.size
		rows = p.values
	}
	for i := range f.columns {
		c, p := &f.columns[i], &at[i]
		rep := int64(0)
		if c.optional {
			rep = 1
		}
		elem := []thriftField{i32At(1, c.physical)}
		if c.physical == pFixed {
			elem = append(elem, i32At(2, c.width))
		}
		elems = append(elems, thriftStruct(append(append(elem, i32At(3, rep), textAt(4, c.name)), c.kind...)...))
		orders = append(orders, thriftStruct(structAt(1)))
		meta := []thriftField{i32At(1, c.physical), listAt(2, tI32, binary.AppendVarint(nil, encPlain)), listAt(3, tBinary, thriftText(c.name)),
			i32At(4, 0), i64At(5, p.values), i64At(6, p.size), i64At(7, p.size), i64At(9, p.begin+c.away)}
		if c.stats != nil {
			meta = append(meta, structAt(12, c.stats...))
		}
		if c.bloom != nil {
			meta = append(meta, i64At(14, int64(len(b))))
			b = append(b, c.bloom...)
			if c.bloomLen != 0 {
				meta = append(meta, i32At(15, c.bloomLen))
			}
		}
		chunk := []thriftField{i64At(2, p.begin), structAt(3, meta...)}
		if c.index != nil || c.headless {
			oi := thriftStruct(listAt(1, tStruct, p.locs...))
			chunk = append(chunk, i64At(4, int64(len(b))), i32At(5, int64(len(oi))))
			b = append(b, oi...)
		}
		if c.index != nil {
			chunk = append(chunk, i64At(6, int64(len(b))), i32At(7, int64(len(c.index))))
			b = append(b, c.index...)
		}
		chunks = append(chunks, thriftStruct(chunk...))
	}
	foot := []thriftField{i32At(1, 1), listAt(2, tStruct, elems...), i64At(3, rows),
		listAt(4, tStruct, thriftStruct(listAt(1, tStruct, chunks...), i64At(2, total), i64At(3, rows)))}
	if f.by != "" {
		foot = append(foot, textAt(6, f.by))
	}
	if !f.unordered {
		foot = append(foot, listAt(7, tStruct, orders...))
	}
	footer := thriftStruct(foot...)
	b = append(b, footer...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(footer)))
	return append(b, "PAR1"...)
}

// pageStats is a ColumnIndex.
func pageStats(null []bool, mins, maxs []string, nulls []int64) []byte {
	fields := []thriftField{}
	var a, lo, hi, n [][]byte
	for i := range null {
		v := byte(tFalse)
		if null[i] {
			v = tTrue
		}
		a, lo, hi = append(a, []byte{v}), append(lo, thriftText(mins[i])), append(hi, thriftText(maxs[i]))
	}
	fields = append(fields, listAt(1, tTrue, a...), listAt(2, tBinary, lo...), listAt(3, tBinary, hi...), i32At(4, 0))
	if nulls != nil {
		for _, v := range nulls {
			n = append(n, binary.AppendVarint(nil, v))
		}
		fields = append(fields, listAt(5, tI64, n...))
	}
	return thriftStruct(fields...)
}
