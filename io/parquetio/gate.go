package parquetio

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
)

// gate judges what files say of their values before anything is left out because of it: the statistics of column chunks, page
// indexes, bloom filters. What cannot be true is not used, as if the file did not say it, and is counted. Nothing else decides
// whether a statistic is used. Safe for concurrent use.
//
// What passes may still be wrong; it is then a lie that no reader can tell.
type gate struct{ n [whats][reasons]atomic.Int64 }

// what is judged.
type what uint8

const (
	ofChunk what = iota // minimum and maximum of a column chunk
	ofNulls             // its count of nulls
	ofIndex             // its page index
	ofBloom             // its bloom filter
	whats
)

var whatNames = [whats]string{"minimum and maximum of column chunks", "null counts of column chunks", "page indexes", "bloom filters"}

// reason is why something is not used.
type reason uint8

const (
	good      reason = iota
	byWriter         // the library that wrote them is known for wrong ones
	noOrder          // nothing says in which order they are least and greatest
	noValue          // bytes that no value of the column's type has
	outside          // values that its logical type does not have
	crossed          // a minimum above its maximum
	notNumber        // NaN, which has no place in the order
	alone            // one bound of an unsigned type, which no other can confirm
	nullCount        // more nulls than values, fewer than none, or nulls where there can be none
	nullBound        // bounds of nothing but nulls
	rowCount         // other numbers of values than there are rows
	disagree         // other than what the column chunk says
	damaged          // cannot be parsed
	wrongSize        // of another length than is said elsewhere
	lacks            // a filter that lacks a value that is there
	reasons
)

var reasonNames = [reasons]string{
	byWriter:  "by a writer that is known for wrong ones",
	noOrder:   "no order is defined",
	noValue:   "no value of the type",
	outside:   "outside the range of the type",
	crossed:   "a minimum above the maximum",
	notNumber: "NaN",
	alone:     "one without the other",
	nullCount: "impossible counts of nulls",
	nullBound: "bounds of nulls alone",
	rowCount:  "not as many values as rows",
	disagree:  "not what the column chunk says",
	damaged:   "damaged",
	wrongSize: "not as long as the footer says",
	lacks:     "without a value that is there",
}

// ignore counts a verdict.
func (g *gate) ignore(w what, why reason) { g.n[w][why].Add(1) }

// String says what was not used so far, and why; "" if there was nothing.
func (g *gate) String() string {
	var all []string
	for w := range g.n {
		var whys []string
		for r := range g.n[w] {
			if n := g.n[w][r].Load(); n > 0 {
				whys = append(whys, fmt.Sprintf("%s: %d", reasonNames[r], n))
			}
		}
		if len(whys) > 0 {
			all = append(all, whatNames[w]+" ("+strings.Join(whys, ", ")+")")
		}
	}
	return strings.Join(all, "; ")
}

// writer is what created_by says.
type writer struct {
	app     string
	version [3]int // zeros where there is none: older than any
	nan     bool   // parquet-go's, whose bounds of floats leave out what comes behind a NaN
}

func writerOf(createdBy string) (w writer) {
	app, version, _ := strings.Cut(createdBy, " version ")
	w.app = app
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &w.version[0], &w.version[1], &w.version[2]) // what it cannot read stays 0
	// arrow-go says the same name without a path. Seen of 0.32.0; of earlier versions nobody knows.
	w.nan = strings.Contains(createdBy, "/parquet-go ")
	return w
}

// before reports whether app wrote the file, in a version before this one.
func (w *writer) before(app string, version ...int) bool {
	if w.app != app {
		return false
	}
	for i, v := range version {
		if w.version[i] != v {
			return w.version[i] < v
		}
	}
	return false
}

// distrusts reports whether bounds by w are wrong for a column: floats of parquet-go; and in orders other than the signed one
// those of parquet-mr before 1.10 (PARQUET-251, PARQUET-1025) and parquet-cpp before 1.3.
func (w *writer) distrusts(k kind) bool {
	return w.nan && k == kindFloat || !k.signed() && (w.before("parquet-mr", 1, 10, 0) || w.before("parquet-cpp", 1, 3, 0))
}

// chunk judges the statistics of a column chunk of so many rows, shortens the long ones, and drops what is not used. What a page
// index or a bloom filter has is judged where it is read, but not read where who wrote it says enough.
func (g *gate) chunk(c *chunk, l *leaf, rows int64, w *writer) {
	if l.kind == kindNone {
		c.dropBounds()
		return
	}
	if why := c.countsFail(l, rows); why != good {
		g.ignore(ofNulls, why)
		c.nulls = -1
		if why != nullCount && c.flags&(hasMin|hasMax) != 0 {
			g.ignore(ofChunk, why)
			c.dropBounds()
		}
	}
	c.nulls = max(c.nulls, -1)
	why := good
	switch {
	case w.distrusts(l.kind):
		why = byWriter
	case !l.ordered && !l.kind.signed():
		why = noOrder
	}
	if why != good && c.ciLen > 0 {
		g.ignore(ofIndex, why)
		c.ciLen = 0
	}
	if why == good && c.flags&deprecated != 0 && !l.kind.signed() { // of these fields only the signed order can be trusted
		why = noOrder
	}
	if c.flags&(hasMin|hasMax) == 0 {
		c.dropBounds()
		return
	}
	if why == good {
		b := c.bounds(l.kind)
		why = l.boundsFail(&b)
	}
	if why != good {
		g.ignore(ofChunk, why)
		c.dropBounds()
		return
	}
	c.exactness(l)
}

// countsFail judges the numbers of rows, values and nulls.
func (c *chunk) countsFail(l *leaf, rows int64) reason {
	switch {
	case c.values != rows:
		return rowCount
	case c.nulls < -1 || c.nulls > rows || c.nulls > 0 && l.maxDef == 0:
		return nullCount
	case rows > 0 && c.nulls == rows && c.flags&(hasMin|hasMax) != 0:
		return nullBound
	}
	return good
}

func (c *chunk) dropBounds() {
	c.min, c.max = "", ""
	c.flags &^= hasMin | hasMax | minExact | maxExact
}

// exactness sets which bounds are values of the chunk, and shortens what is long.
func (c *chunk) exactness(l *leaf) {
	if l.kind != kindBytes {
		if c.flags&minCut == 0 {
			c.flags |= minExact
		}
		if c.flags&maxCut == 0 {
			c.flags |= maxExact
		}
		return
	}
	if !l.whole(c.min) || len(c.min) > maxStat {
		c.flags &^= minExact
	}
	if !l.whole(c.max) {
		c.flags &^= maxExact
	}
	if len(c.min) > maxStat { // a prefix is a lower bound
		c.min = c.min[:maxStat]
	}
	if len(c.max) > maxStat { // and no upper bound
		c.max = ""
		c.flags &^= hasMax | maxExact
	}
}

// whole reports whether b can be a value of a column of bytes, and not only the begin of one.
func (l *leaf) whole(b string) bool {
	if l.physical == parquet.Types.FixedLenByteArray {
		return len(b) == l.width
	}
	return l.arrow.ID() != arrow.STRING && l.arrow.ID() != arrow.LARGE_STRING || utf8.ValidString(b)
}

// boundsFail judges the bounds of a chunk or page.
func (l *leaf) boundsFail(b *bounds) reason {
	for _, x := range [2]struct {
		has bool
		enc string
	}{{b.hasMin, b.min}, {b.hasMax, b.max}} {
		if !x.has {
			continue
		}
		if why := l.boundFails(x.enc); why != good {
			return why
		}
	}
	switch {
	case b.hasMin != b.hasMax && l.kind == kindUint:
		return alone
	case b.hasMin && b.hasMax && l.less(b.max, b.min):
		return crossed
	}
	return good
}

// boundFails judges one bound by itself.
func (l *leaf) boundFails(enc string) reason {
	switch l.kind {
	case kindBool:
		if len(enc) != 1 || enc[0] > 1 {
			return noValue
		}
	case kindInt, kindUint, kindFloat:
		width := 8
		if l.physical == parquet.Types.Int32 || l.physical == parquet.Types.Float {
			width = 4
		}
		u, ok := fixed(enc)
		switch {
		case !ok || len(enc) != width:
			return noValue
		case l.kind == kindFloat && math.IsNaN(floatOf(u, width)):
			return notNumber
		case l.kind != kindFloat && !l.inRange(signExtend(u, width)):
			return outside
		}
	case kindBytes:
		if l.physical == parquet.Types.FixedLenByteArray && len(enc) > l.width {
			return noValue
		}
		// An old writer puts the length in front, as it does with values.
		if n := len(enc) - 4; n > 0 && uint64(binary.LittleEndian.Uint32([]byte(enc[:4]))) == uint64(n) {
			return noValue
		}
	}
	return good
}

// inRange reports whether the physical value v is one of the logical type.
func (l *leaf) inRange(v int64) bool {
	switch l.arrow.ID() {
	case arrow.INT8:
		return v == int64(int8(v))
	case arrow.INT16:
		return v == int64(int16(v))
	case arrow.INT32, arrow.DATE32, arrow.TIME32:
		return v == int64(int32(v))
	case arrow.UINT8:
		return v == int64(uint8(v))
	case arrow.UINT16:
		return v == int64(uint16(v))
	case arrow.UINT32:
		return v == int64(uint32(v)) || l.physical == parquet.Types.Int32
	}
	return true
}

// less compares two bounds that do not fail.
func (l *leaf) less(a, b string) bool {
	switch l.kind {
	case kindBool, kindBytes:
		return a < b
	}
	x, _ := fixed(a)
	y, _ := fixed(b)
	switch l.kind {
	case kindInt:
		return signExtend(x, len(a)) < signExtend(y, len(b))
	case kindFloat:
		return floatOf(x, len(a)) < floatOf(y, len(b))
	}
	return x < y
}

// index judges the statistics of pages against themselves and against c, of whose rows ps are the pages.
func (g *gate) index(l *leaf, c *chunk, rows int64, ps []pageLoc, ci *columnIndex) bool {
	why := damaged
	if ci != nil {
		why = l.indexFails(c, rows, ps, ci)
	}
	if why != good {
		g.ignore(ofIndex, why)
	}
	return why == good
}

func (l *leaf) indexFails(c *chunk, rows int64, ps []pageLoc, ci *columnIndex) reason {
	var nulls int64
	bounded := false
	for i := range ps {
		r := pageRows(ps, i, rows)
		n := r.to - r.from
		if ci.nulls != nil {
			k := ci.nulls[i]
			if nulls += k; k < 0 || k > n || k > 0 && l.maxDef == 0 || (k == n) != ci.null[i] && n > 0 {
				return nullCount
			}
		}
		if ci.null[i] {
			if n > 0 && l.maxDef == 0 {
				return nullCount
			}
			if len(ci.min[i]) > 0 || len(ci.max[i]) > 0 {
				return nullBound
			}
			continue
		}
		b := ci.bounds(i, l.kind, n)
		if why := l.boundsFail(&b); why != good {
			return why
		}
		bounded = true
		if l.kind != kindBytes && (c.flags&hasMin != 0 && l.less(b.min, c.min) || c.flags&hasMax != 0 && l.less(c.max, b.max)) {
			return disagree
		}
	}
	if c.flags&(hasMin|hasMax) != 0 && !bounded || ci.nulls != nil && c.nulls >= 0 && c.nulls != nulls {
		return disagree
	}
	return good
}

// bloom judges the bits of a filter of c. head is the length of its header.
func (g *gate) bloom(l *leaf, c *chunk, head int, bits []byte) bool {
	why := good
	switch {
	case c.bloomLen > 0 && head+len(bits) != int(c.bloomLen):
		why = wrongSize
	case !wholeBlocks(bits):
		why = damaged
	case c.flags&minExact != 0 && !l.mayHoldBound(bits, c.min), c.flags&maxExact != 0 && !l.mayHoldBound(bits, c.max):
		why = lacks
	case c.nulls >= 0 && c.nulls < c.values && empty(bits):
		why = lacks
	}
	if why != good {
		g.ignore(ofBloom, why)
	}
	return why == good
}

// wholeBlocks reports whether each block has a bit in all of its words or in none: every value sets one in each.
func wholeBlocks(bits []byte) bool {
	for ; len(bits) >= bloomBlock; bits = bits[bloomBlock:] {
		some := 0
		for w := 0; w < bloomBlock; w += 4 {
			if binary.LittleEndian.Uint32(bits[w:]) != 0 {
				some++
			}
		}
		if some != 0 && some != len(bloomSalt) {
			return false
		}
	}
	return true
}

func empty(bits []byte) bool {
	for _, b := range bits {
		if b != 0 {
			return false
		}
	}
	return true
}

// mayHoldBound is false if the filter lacks a value that the chunk has.
func (l *leaf) mayHoldBound(bits []byte, enc string) bool {
	if l.kind == kindBool {
		return true
	}
	if u, ok := fixed(enc); l.kind == kindFloat && (!ok || floatOf(u, len(enc)) == 0) { // one of two zeros
		return true
	}
	return inBloom(bits, []byte(enc))
}

func floatOf(u uint64, width int) float64 {
	if width == 4 {
		return float64(math.Float32frombits(uint32(u)))
	}
	return math.Float64frombits(u)
}
