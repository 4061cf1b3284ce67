package parquetio

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/big"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	pqschema "github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/io/driver"
)

// kind is how the statistics of a leaf are encoded and ordered.
type kind uint8

const (
	kindNone  kind = iota // not usable: INT96, decimals, intervals, float16, nested
	kindBool              // one byte
	kindInt               // 4 or 8 bytes, signed
	kindUint              // 4 or 8 bytes, unsigned
	kindFloat             // 4 or 8 bytes, IEEE
	kindBytes             // unsigned bytewise; bounds may be truncated
)

// signed reports whether the order of deprecated statistics is that of the values.
func (k kind) signed() bool { return k == kindBool || k == kindInt || k == kindFloat }

// kindOf says how a top-level column's statistics relate to its Arrow values.
func kindOf(l *leaf, t arrow.DataType, d *pqschema.Column) kind {
	if l.maxRep > 0 {
		return kindNone
	}
	switch l.physical {
	case parquet.Types.Boolean:
		return kindBool
	case parquet.Types.Int32, parquet.Types.Int64:
		switch t.ID() {
		case arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64:
			return kindUint
		case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.DATE32,
			arrow.TIME32, arrow.TIME64, arrow.TIMESTAMP, arrow.DURATION:
			return kindInt
		}
	case parquet.Types.Float, parquet.Types.Double:
		return kindFloat
	case parquet.Types.ByteArray:
		switch t.ID() {
		case arrow.STRING, arrow.LARGE_STRING, arrow.BINARY, arrow.LARGE_BINARY:
			return kindBytes
		}
	case parquet.Types.FixedLenByteArray:
		if t.ID() == arrow.FIXED_SIZE_BINARY {
			if _, ok := d.LogicalType().(pqschema.NoLogicalType); ok || d.LogicalType() == nil {
				return kindBytes
			}
		}
	}
	return kindNone
}

// bounds are the statistics of a column chunk or page.
type bounds struct {
	kind               kind
	min, max           string
	hasMin, hasMax     bool
	minExact, maxExact bool
	nulls, values      int64 // -1: unknown
}

func (c *chunk) bounds(k kind) bounds {
	return bounds{
		kind: k, min: c.min, max: c.max,
		hasMin: c.flags&hasMin != 0, hasMax: c.flags&hasMax != 0,
		minExact: c.flags&minExact != 0, maxExact: c.flags&maxExact != 0,
		nulls: c.nulls, values: c.values,
	}
}

// keep reports whether a value may be there for which t is true.
func (b *bounds) keep(t *driver.Term) bool {
	allNull := b.nulls >= 0 && b.values >= 0 && b.nulls >= b.values
	switch t.Op {
	case driver.IsNull:
		return b.nulls != 0
	case driver.NotNull:
		return !allNull
	}
	if allNull {
		return false
	}
	switch t.Op {
	case driver.In:
		for _, v := range t.Values {
			if b.keepOp(driver.Eq, v) {
				return true
			}
		}
		return len(t.Values) == 0 // an empty list is for the filter to judge
	default:
		return len(t.Values) != 1 || b.keepOp(t.Op, t.Values[0])
	}
}

// keepOp compares with one literal. Bounds say nothing of NaN, for which only
// Ne is true.
func (b *bounds) keepOp(op driver.Op, v any) bool {
	lo, loOK := b.cmp(b.min, b.hasMin, v) // minimum against literal
	hi, hiOK := b.cmp(b.max, b.hasMax && !b.begins(v), v)
	switch op {
	case driver.Eq:
		return !(loOK && lo > 0 || hiOK && hi < 0)
	case driver.Ne:
		return !(loOK && hiOK && lo == 0 && hi == 0 && b.minExact && b.maxExact && b.kind != kindFloat)
	case driver.Lt:
		return !(loOK && lo >= 0)
	case driver.Le:
		return !(loOK && lo > 0)
	case driver.Gt:
		return !(hiOK && hi <= 0)
	case driver.Ge:
		return !(hiOK && hi < 0)
	}
	return true
}

// begins reports whether the maximum, which some writers cut short without making it the next one, may be the begin of a value
// that is as great as the literal.
func (b *bounds) begins(lit any) bool {
	l, ok := lit.(string)
	return ok && b.kind == kindBytes && !b.maxExact && strings.HasPrefix(l, b.max)
}

// cmp compares an encoded bound with a literal; false if that cannot be done.
func (b *bounds) cmp(enc string, has bool, lit any) (int, bool) {
	if !has {
		return 0, false
	}
	switch b.kind {
	case kindBool:
		l, ok := lit.(bool)
		if !ok || len(enc) != 1 {
			return 0, false
		}
		return int(enc[0]&1) - b2i(l), true
	case kindInt, kindUint:
		u, ok := fixed(enc)
		if !ok {
			return 0, false
		}
		if b.kind == kindUint {
			return cmpInt(0, u, true, lit)
		}
		return cmpInt(signExtend(u, len(enc)), 0, false, lit)
	case kindFloat:
		u, ok := fixed(enc)
		l, isFloat := lit.(float64)
		if !ok || !isFloat {
			return 0, false
		}
		f := floatOf(u, len(enc))
		if math.IsNaN(l) {
			return 0, false
		}
		switch { // -0 and +0 are equal
		case f < l:
			return -1, true
		case f > l:
			return 1, true
		}
		return 0, true
	case kindBytes:
		l, ok := lit.(string)
		return cmp.Compare(enc, l), ok
	}
	return 0, false
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func fixed(enc string) (uint64, bool) {
	switch len(enc) {
	case 4:
		return uint64(binary.LittleEndian.Uint32([]byte(enc))), true
	case 8:
		return binary.LittleEndian.Uint64([]byte(enc)), true
	}
	return 0, false
}

func signExtend(u uint64, width int) int64 {
	if width == 4 {
		return int64(int32(u))
	}
	return int64(u)
}

// cmpInt compares an integer (u if unsigned, else i) with a literal of any
// numeric type, exactly.
func cmpInt(i int64, u uint64, unsigned bool, lit any) (int, bool) {
	switch l := lit.(type) {
	case int64:
		if !unsigned {
			return cmp.Compare(i, l), true
		}
		if l < 0 {
			return 1, true
		}
		return cmp.Compare(u, uint64(l)), true
	case uint64:
		if unsigned {
			return cmp.Compare(u, l), true
		}
		if i < 0 {
			return -1, true
		}
		return cmp.Compare(uint64(i), l), true
	case float64:
		if math.IsNaN(l) {
			return 0, false
		}
		if math.IsInf(l, 0) {
			return -int(math.Copysign(1, l)), true
		}
		x := new(big.Float).SetInt64(i)
		if unsigned {
			x.SetUint64(u)
		}
		return x.Cmp(big.NewFloat(l)), true
	}
	return 0, false
}
