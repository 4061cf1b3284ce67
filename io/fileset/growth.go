package fileset

import (
	"cmp"
	"math"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/internal/fault"
)

const (
	// DefaultMaxGrowth is Options.MaxGrowth where that is 0. The most that writers make of one
	// constant column alone, which no other column comes with, is about a quarter of it.
	DefaultMaxGrowth = 100_000
	// DefaultTextGrowth is the same of text, whose rows cost more for what they take: one of two
	// bytes that lacks 2,000 columns becomes less.
	DefaultTextGrowth = 10_000
	// freeGrowth is what every file may become: less than a second's work. A constant column of 64
	// Mi numbers is no more.
	freeGrowth = 1 << 30
	freeText   = 64 << 20
	// rowCost is what a row counts beside its values, and an element of a list that has no bytes:
	// they cost time too.
	rowCost = 8
	// arrayCost is what each array of a record counts beside its values: thousands of columns of a
	// few rows cost time too.
	arrayCost = 2 << 10
	// heldShare is which part of what bytes may become may be decompressed of them at once.
	heldShare = 100
	// freeRow is what one row of every file may take, and rowBytes what it may take more for each
	// byte of the file where max_growth is the default: a row is held whole before it is counted.
	freeRow  = 128 << 20
	rowBytes = 100
)

// What the columns of text may be called and how many there may be: each costs time and memory for every batch.
const (
	MaxColumns = 1 << 16
	MaxName    = 64 << 10 // bytes
)

// Extent is how much of a file something is, as the file says.
type Extent struct{ Rows, Bytes int64 }

// Growth bounds what a reader makes of a part of a file, so that a small file cannot demand work
// without end: a dictionary's one entry, repeated as often as a few bytes say, nulls, rows without
// columns, what compresses to nothing. Counted is what is decoded, wanted or not; what is passed
// over without that is free, and so is what metadata answers. A nil Growth has no bound. Not safe
// for concurrent use.
type Growth struct {
	bytes, made, most int64
	max, free         int64
	row               int64 // bytes that one row may take
}

// Growth is the bound of the reader of own, a part of file i, all parts of which are together as
// large as all. What the file may become is dealt to its parts by their bytes, or, as far as no
// part has them, by rows: parts that lie on each other, or have none of the file, get no more than
// that.
func (s *Set) Growth(i int, own, all Extent) *Growth {
	return s.growth(i, own, all, DefaultMaxGrowth, freeGrowth)
}

func (s *Set) growth(i int, own, all Extent, most, free int64) *Growth {
	g := &Growth{max: cmp.Or(s.opts.MaxGrowth, most), free: free}
	size := float64(s.Files[i].Info.Size)
	g.row = rowMost(size, g.max, most)
	bytes := float64(own.Bytes)
	if claimed := float64(all.Bytes); claimed > size {
		bytes *= size / claimed
	}
	share := 1.0
	if all.Rows > 0 {
		share = float64(own.Rows) / float64(all.Rows)
	}
	bytes += max(size-float64(all.Bytes), 0) * share
	g.bytes = int64(math.Ceil(bytes))
	g.most = int64(min(bytes*float64(g.max)+float64(free)*share, math.MaxInt64/2))
	return g
}

// TextGrowth is the bound of the reader of a split of text.
func (s *Set) TextGrowth(p Part) *Growth {
	all := Extent{1, max(p.Range.Len, s.Files[p.File].Info.Size)}
	return s.growth(p.File, Extent{1, p.Range.Len}, all, DefaultTextGrowth, freeText)
}

// rowMost is what one row of files of size bytes together may take, where the default of max_growth
// is usual.
func rowMost(size float64, max, usual int64) int64 {
	return int64(min(freeRow+size*rowBytes*float64(max)/float64(usual), math.MaxInt64/2))
}

// Row is how many bytes of memory may be taken for one row, or a value, or what they are decoded
// from, before it is counted by Add: a part of what the file may become, and no more than is left
// of that.
func (g *Growth) Row() int64 {
	if g == nil {
		return math.MaxInt64 / 2
	}
	return max(min(g.row, g.most-g.made), 0)
}

// LargeRow is the error of what takes more than Row says; what says what it is: "the row takes", "a
// page has".
func (g *Growth) LargeRow(what string) error {
	return largeRow(what, g.Row(), g.max)
}

func largeRow(what string, most, max int64) error {
	return fault.New(fault.Corrupt, "%s more than %d bytes, which is what max_growth (%d for each byte of the file) leaves to one row: "+
		"the file is damaged, or was made to take memory; if it is right, set max_growth of the source higher, in a spec", what, most, max)
}

// Add counts rows whose values, and what they were decoded from, take bytes of memory. More than
// the bound is a Corrupt error.
func (g *Growth) Add(rows, bytes int64) error {
	if g == nil {
		return nil
	}
	if g.made += bytes; rows > (math.MaxInt64-g.made)/rowCost {
		g.made = math.MaxInt64
	} else {
		g.made += rowCost * rows
	}
	if g.made <= g.most {
		return nil
	}
	return fault.New(fault.Corrupt, "%d bytes of the file have become %d bytes of rows, more than max_growth (%d for each, and %d of a file at any rate) allows: "+
		"the file is damaged, or was made to take time; if it is right, set max_growth of the source higher, in a spec", g.bytes, g.made, g.max, g.free)
}

// AddRecord counts the rows of a record.
func (g *Growth) AddRecord(rec arrow.RecordBatch) error {
	var bytes int64
	for _, c := range rec.Columns() {
		bytes += cut.Bytes(c.Data(), 0, rec.NumRows()) + arrayCost*arrays(c.Data()) + Hollow(c)
	}
	return g.Add(rec.NumRows(), bytes)
}

// Hollow is what the elements of lists of a count that take no bytes.
func Hollow(a arrow.Array) int64 { return rowCost * cut.Hollow(a.Data(), 0, int64(a.Len())) }

// Hold bounds the memory that n bytes of the file decompress to, where all of it, size bytes, is
// held at once.
func (g *Growth) Hold(n, size int64) error {
	if g != nil && size > freeGrowth && float64(size-freeGrowth) > float64(n)*float64(g.max)/heldShare {
		return fault.New(fault.Corrupt, "%d bytes of the file claim to decompress to %d bytes, which is more than a hundredth of what max_growth (%d for each byte) allows, and %d: "+
			"the file is damaged, or was made to take memory; if it is right, set the source's max_growth higher", n, size, g.max, int64(freeGrowth))
	}
	return nil
}

// arrays is how many an array is of, with what is in it.
func arrays(d arrow.ArrayData) int64 {
	n := int64(1)
	for _, k := range d.Children() {
		n += arrays(k)
	}
	return n
}
