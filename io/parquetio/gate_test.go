package parquetio

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/io/driver"
)

// converted types and the statistics' fields.
func ofKind(converted int64) []thriftField { return []thriftField{i32At(6, converted)} }

func minMax(lo, hi string, more ...thriftField) []thriftField {
	return append([]thriftField{textAt(5, hi), textAt(6, lo)}, more...)
}

func oldMinMax(lo, hi string) []thriftField { return []thriftField{textAt(1, hi), textAt(2, lo)} }

func nullCountAt(n int64) thriftField { return i64At(3, n) }

// TestFalseStatistics: what files say of their values and cannot be true leaves out no row, is counted by its reason, and what is true is
// used: each case is a file of one column, of bytes made by hand.
func TestFalseStatistics(t *testing.T) {
	w32 := func(v int32) string { return *le32(v)[0] }
	w64 := func(v int64) string { return *le64(v)[0] }
	dbl := func(v float64) string { return *doubles(v)[0] }
	long := strings.Repeat("m", 16)
	ints := [][]*string{le32(1, 2, 3, 4), le32(5, 6, 7, 8)}
	words := [][]*string{strs("apple", "beech"), strs(long+"zz", "cedar")}
	for name, c := range map[string]struct {
		col       handColumn
		by        string
		unordered bool
		says      string // of what is ignored; "": nothing
	}{
		"true": {col: handColumn{physical: pInt32, pages: ints, stats: minMax(w32(1), w32(8), nullCountAt(0)),
			index: pageStats([]bool{false, false}, []string{w32(1), w32(5)}, []string{w32(4), w32(8)}, []int64{0, 0})}},
		"crossed": {col: handColumn{physical: pInt32, pages: ints, stats: minMax(w32(8), w32(1))},
			says: "chunks (a minimum above the maximum: 1)"},
		"crossed, unsigned as signed": {col: handColumn{physical: pInt32, kind: ofKind(13), pages: [][]*string{le32(1, -1, 5)}, stats: minMax(w32(-1), w32(5))},
			says: "a minimum above the maximum: 1"},
		"alone, unsigned": {col: handColumn{physical: pInt64, kind: ofKind(14), pages: [][]*string{le64(1, -1, 5)}, stats: []thriftField{textAt(5, w64(5))}},
			says: "one without the other: 1"},
		"uint8 beyond": {col: handColumn{physical: pInt32, kind: ofKind(11), pages: [][]*string{le32(1, 255, 128)}, stats: minMax(w32(-128), w32(1))},
			says: "outside the range of the type: 1"},
		"int8 beyond": {col: handColumn{physical: pInt32, kind: ofKind(15), pages: [][]*string{le32(1, -1, -128)}, stats: minMax(w32(1), w32(255))},
			says: "outside the range of the type: 1"},
		"uint16 beyond": {col: handColumn{physical: pInt32, kind: ofKind(12), pages: [][]*string{le32(1, 65535)}, stats: minMax(w32(-1), w32(1))},
			says: "outside the range of the type: 1"},
		"width": {col: handColumn{physical: pInt64, pages: [][]*string{le64(1<<40, 5)}, stats: minMax(w32(0), w32(5))},
			says: "no value of the type: 1"},
		"boolean": {col: handColumn{physical: pBool, pages: [][]*string{{ptr("\x01")}}, stats: minMax("\x02", "\x02")},
			says: "no value of the type: 1"},
		"NaN": {col: handColumn{physical: pDouble, pages: [][]*string{doubles(math.NaN(), 1, 9)}, stats: minMax(dbl(math.NaN()), dbl(1))},
			says: "NaN: 1"},
		"signed zeros": {col: handColumn{physical: pDouble, pages: [][]*string{doubles(0, math.Copysign(0, -1))}, stats: minMax(dbl(0), dbl(math.Copysign(0, -1)))}},
		"float of parquet-go": {col: handColumn{physical: pDouble, pages: [][]*string{doubles(math.NaN(), 1, 9)}, stats: minMax(dbl(1), dbl(1))},
			by: "github.com/parquet-go/parquet-go version 0.20.0(build )", says: "by a writer that is known for wrong ones: 1"},
		"deprecated, signed": {col: handColumn{physical: pInt32, pages: ints, stats: oldMinMax(w32(1), w32(8))}},
		"deprecated, bytes": {col: handColumn{physical: pBytes, kind: ofKind(0), pages: [][]*string{strs("a", "ü")}, stats: oldMinMax("ü", "a")},
			says: "no order is defined: 1"},
		"no orders": {col: handColumn{physical: pBytes, kind: ofKind(0), pages: [][]*string{strs("a", "ü")}, stats: minMax("a", "b"),
			index: pageStats([]bool{false}, []string{"a"}, []string{"b"}, nil)},
			unordered: true, says: "chunks (no order is defined: 1); page indexes (no order is defined: 1)"},
		"old parquet-mr": {col: handColumn{physical: pBytes, pages: [][]*string{strs("a", "z")}, stats: minMax("a", "b")},
			by: "parquet-mr version 1.7.0 (build abc)", says: "by a writer"},
		"parquet-mr of no version": {col: handColumn{physical: pBytes, pages: [][]*string{strs("a", "z")}, stats: minMax("a", "b")},
			by: "parquet-mr", says: "by a writer"},
		"old parquet-cpp": {col: handColumn{physical: pInt32, kind: ofKind(13), pages: [][]*string{le32(1, -1)}, stats: minMax(w32(0), w32(1))},
			by: "parquet-cpp version 1.2.9", says: "by a writer"},
		"length in front": {col: handColumn{physical: pBytes, pages: [][]*string{strs("bird", "z")}, stats: minMax("\x04\x00\x00\x00bird", "\x04\x00\x00\x00bird")},
			says: "no value of the type: 1"},
		"maximum cut":                  {col: handColumn{physical: pBytes, kind: ofKind(0), pages: words, stats: minMax("apple", long)}},
		"maximum cut, said":            {col: handColumn{physical: pBytes, kind: ofKind(0), pages: words, stats: minMax("apple", long, boolAt(7, false), boolAt(8, true))}},
		"maximum cut, in the index":    {col: handColumn{physical: pBytes, kind: ofKind(0), pages: words, index: pageStats([]bool{false, false}, []string{"apple", "cedar"}, []string{"beech", long}, nil)}},
		"exact, but half a character":  {col: handColumn{physical: pBytes, kind: ofKind(0), pages: [][]*string{strs("é", "éa")}, stats: minMax("\xc3", "\xc3", boolAt(7, true), boolAt(8, true))}},
		"fixed, longer than the type":  {col: handColumn{physical: pFixed, width: 2, pages: [][]*string{{ptr("ab"), ptr("zz")}}, stats: minMax("ab", "abc")}, says: "no value of the type: 1"},
		"fixed, cut":                   {col: handColumn{physical: pFixed, width: 2, pages: [][]*string{{ptr("ab"), ptr("ac")}}, stats: minMax("a", "a", boolAt(7, true), boolAt(8, true))}},
		"nulls in a required column":   {col: handColumn{physical: pInt32, pages: ints, stats: []thriftField{nullCountAt(8)}}, says: "null counts of column chunks (impossible counts of nulls: 1)"},
		"fewer nulls than none":        {col: handColumn{physical: pInt32, optional: true, pages: [][]*string{{nil, le32(1)[0]}}, stats: []thriftField{nullCountAt(-5)}}, says: "impossible counts of nulls: 1"},
		"more nulls than rows":         {col: handColumn{physical: pInt32, optional: true, pages: [][]*string{{nil, le32(1)[0]}}, stats: []thriftField{nullCountAt(3)}}, says: "impossible counts of nulls: 1"},
		"bounds of nulls":              {col: handColumn{physical: pInt32, optional: true, pages: [][]*string{{nil, le32(1)[0]}}, stats: minMaxNulls(w32(1), w32(1), 2)}, says: "bounds of nulls alone: 1"},
		"null pages, required":         {col: handColumn{physical: pInt32, pages: ints, index: pageStats([]bool{true, true}, []string{"", ""}, []string{"", ""}, []int64{-1, -1})}, says: "page indexes (impossible counts of nulls"},
		"null pages, counts -1":        {col: handColumn{physical: pInt32, optional: true, pages: ints, index: pageStats([]bool{true, true}, []string{"", ""}, []string{"", ""}, []int64{-1, -1})}, says: "page indexes (impossible counts of nulls"},
		"null pages with bounds":       {col: handColumn{physical: pInt32, optional: true, pages: ints, index: pageStats([]bool{true, true}, []string{w32(1), w32(5)}, []string{w32(4), w32(8)}, nil)}, says: "page indexes (bounds of nulls alone"},
		"null pages without nulls":     {col: handColumn{physical: pInt32, optional: true, pages: ints, index: pageStats([]bool{true, false}, []string{"", w32(5)}, []string{"", w32(8)}, []int64{0, 0})}, says: "page indexes (impossible counts of nulls"},
		"pages against the chunk":      {col: handColumn{physical: pInt32, pages: ints, stats: minMax(w32(1), w32(8)), index: pageStats([]bool{false, false}, []string{w32(9), w32(9)}, []string{w32(9), w32(9)}, nil)}, says: "page indexes (not what the column chunk says"},
		"nulls of pages and chunk":     {col: handColumn{physical: pInt32, optional: true, pages: [][]*string{{nil, le32(1)[0]}}, stats: []thriftField{nullCountAt(1)}, index: pageStats([]bool{false}, []string{w32(1)}, []string{w32(1)}, []int64{0})}, says: "page indexes (not what the column chunk says"},
		"crossed pages":                {col: handColumn{physical: pInt32, pages: ints, index: pageStats([]bool{false, false}, []string{w32(4), w32(8)}, []string{w32(1), w32(5)}, nil)}, says: "page indexes (a minimum above the maximum"},
		"crossed pages of bytes":       {col: handColumn{physical: pBytes, pages: words, index: pageStats([]bool{false, false}, []string{"b", "x"}, []string{"a", "d"}, nil)}, says: "page indexes (a minimum above the maximum"},
		"pages of another type":        {col: handColumn{physical: pInt32, kind: ofKind(11), pages: [][]*string{le32(1, 255)}, index: pageStats([]bool{false}, []string{w32(-1)}, []string{w32(1)}, nil)}, says: "page indexes (outside the range of the type"},
		"too few pages":                {col: handColumn{physical: pInt32, pages: ints, index: pageStats([]bool{false}, []string{w32(1)}, []string{w32(1)}, nil)}, says: "page indexes (damaged"},
		"sizes leave out page headers": {col: handColumn{physical: pInt32, pages: ints, headless: true, index: pageStats([]bool{false, false}, []string{w32(1), w32(5)}, []string{w32(4), w32(8)}, nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			c.col.name = "a"
			f := handFile{columns: []handColumn{c.col}, by: c.by, unordered: c.unordered}
			path := f.write(t)
			all := filters{rng: rand.New(rand.NewPCG(1, 2)), share: 1}
			all.file(t, path)
			if all.tried < 2 {
				t.Fatal("no filter was tried")
			}
			tab := mustOpen(t, nil, path)
			for _, v := range []any{int64(5), uint64(5), 5.0, "cedar", true} { // to have page indexes judged
				if err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Predicate: driver.Predicate{{Column: "a", Op: driver.Ne, Values: []any{v}}}}, nil); err != nil {
					t.Fatal(err)
				}
			}
			got := tab.(*table).Ignored()
			if !strings.Contains(got, c.says) || (c.says == "") != (got == "") {
				t.Errorf("ignored is %q, want %q", got, c.says)
			}
		})
	}
}

func ptr(s string) *string { return &s }

func minMaxNulls(lo, hi string, nulls int64) []thriftField {
	return []thriftField{nullCountAt(nulls), textAt(5, hi), textAt(6, lo)}
}

// bloomOf is a filter of one block.
func bloomOf(values ...*string) []byte {
	bits := make([]byte, bloomBlock)
	for _, v := range values {
		h := uint32(bloomHash.Sum64([]byte(*v)))
		for i, salt := range bloomSalt {
			word := binary.LittleEndian.Uint32(bits[4*i:])
			binary.LittleEndian.PutUint32(bits[4*i:], word|1<<(h*salt>>27))
		}
	}
	return bits
}

// TestFalseBloom: a filter is used only if it is as long as the footer says, and has the bounds that are values of the chunk.
func TestFalseBloom(t *testing.T) {
	vals := le64(3, 70, 500)
	member := func(id int16) thriftField { return structAt(id, structAt(1)) }
	head := thriftStruct(i32At(1, bloomBlock), member(2), member(3), member(4))
	right := bloomOf(vals...)
	bounds := []thriftField{textAt(5, *vals[2]), textAt(6, *vals[0])}
	shifted := append([]byte{0, 0, 0, 0}, right[:28]...)
	for name, c := range map[string]struct {
		bits []byte
		says int64 // more than there is
		none bool  // no bounds
		want string
	}{
		"right":                {bits: right},
		"right, no bounds":     {bits: right, none: true},
		"shorter header":       {bits: right, says: 4, none: true, want: "bloom filters (not as long as the footer says"},
		"of other values":      {bits: bloomOf(le64(1, 2)...), want: "bloom filters (without a value that is there"},
		"shifted":              {bits: shifted, none: true, want: "bloom filters (damaged"},
		"empty":                {bits: make([]byte, bloomBlock), none: true, want: "bloom filters (without a value that is there"},
		"of narrower encoding": {bits: bloomOf(le32(3, 70, 500)...), want: "bloom filters (without a value that is there"},
	} {
		t.Run(name, func(t *testing.T) {
			col := handColumn{name: "r", physical: pInt64, pages: [][]*string{vals}, stats: bounds, bloom: append(head[:len(head):len(head)], c.bits...)}
			col.bloomLen = int64(len(col.bloom)) + c.says
			if c.none {
				col.stats = []thriftField{nullCountAt(0)}
			}
			f := handFile{columns: []handColumn{col}}
			path := f.write(t)
			all := filters{rng: rand.New(rand.NewPCG(1, 2)), share: 1}
			all.file(t, path)
			tab := mustOpen(t, nil, path)
			p := driver.Predicate{{Column: "r", Op: driver.Eq, Values: []any{int64(71)}}}
			keep, err := tab.(driver.Pruner).Keep(t.Context(), p)
			if got := tab.(*table).Ignored(); err != nil || !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("ignored is %q, %v; want %q", got, err, c.want)
			}
			if keep[0] != (c.want != "") {
				t.Errorf("71 may be there: %t", keep[0])
			}
		})
	}
}

// TestNullPagesOfChecksumFiles: the page indexes of these shared files call all pages of required columns null.
func TestNullPagesOfChecksumFiles(t *testing.T) {
	path := datatest.Dir(t, "parquet-testing", "data", "datapage_v1-uncompressed-checksum.parquet")
	tab := mustOpen(t, nil, path)
	rows := int64(0)
	o := &driver.ScanOptions{Predicate: driver.Predicate{{Column: "a", Op: driver.Ne, Values: []any{int64(5)}}}}
	if err := readAll(t.Context(), tab, 0, o, func(b driver.Batch) { rows += b.Record.NumRows() }); err != nil || rows != 5120 {
		t.Errorf("%d rows of 5120, %v", rows, err)
	}
}
