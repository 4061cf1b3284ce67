package parquetio

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// form is how the values of a column become those of an Arrow array.
type form uint8

const (
	formSame       form = iota // the same bytes
	formNull                   // no values at all
	formBool                   // bits
	formNarrow                 // an integer of another width
	formDate64                 // days to milliseconds
	formInt96                  // to units since 1970
	formDecimal                // integers to decimals
	formDecimalBig             // big-endian bytes of one length to decimals
	formDecimalVar             // big-endian bytes to decimals
	formString                 // bytes behind 32-bit offsets
	formLarge                  // bytes behind 64-bit offsets
	formDict                   // strings to indexes into a dictionary (entries.go)
)

// layout is how values lie in the file and in memory.
type layout struct {
	form     form
	physical parquet.Type
	pw, ow   int            // bytes of a value in the file and in the array; 0: no fixed number of bytes
	text     bool           // strings, which are to be UTF-8
	unit     arrow.TimeUnit // formInt96
}

// layoutOf refuses what no reader of Parquet makes of the physical type.
func layoutOf(l *leaf) (layout, error) {
	lay := layout{physical: l.physical, text: isText(l.arrow)}
	switch l.physical {
	case parquet.Types.Int32, parquet.Types.Float:
		lay.pw = 4
	case parquet.Types.Int64, parquet.Types.Double:
		lay.pw = 8
	case parquet.Types.Int96:
		lay.pw = 12
	case parquet.Types.FixedLenByteArray:
		lay.pw = l.width
	}
	t := storageType(l.arrow)
	if ft, ok := t.(arrow.FixedWidthDataType); ok {
		lay.ow = ft.BitWidth() / 8
	}
	integer := l.physical == parquet.Types.Int32 || l.physical == parquet.Types.Int64
	ok := false
	switch t := t.(type) {
	case *arrow.NullType:
		lay.form, ok = formNull, true
	case *arrow.BooleanType:
		lay.form, ok = formBool, l.physical == parquet.Types.Boolean
	case *arrow.Float32Type:
		ok = l.physical == parquet.Types.Float
	case *arrow.Float64Type:
		ok = l.physical == parquet.Types.Double
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type, *arrow.Uint8Type, *arrow.Uint16Type, *arrow.Uint32Type,
		*arrow.Uint64Type, *arrow.Date32Type, *arrow.Time32Type, *arrow.Time64Type, *arrow.DurationType:
		if ok = integer; lay.ow != lay.pw {
			lay.form = formNarrow
		}
	case *arrow.Date64Type:
		lay.form, ok = formDate64, l.physical == parquet.Types.Int32
	case *arrow.TimestampType:
		if l.physical == parquet.Types.Int96 {
			lay.form, lay.unit, ok = formInt96, t.Unit, t.Unit != arrow.Second
		} else {
			ok = l.physical == parquet.Types.Int64 && t.Unit != arrow.Second
		}
	case *arrow.Float16Type, *arrow.FixedSizeBinaryType:
		ok = l.physical == parquet.Types.FixedLenByteArray && lay.ow == lay.pw
	case *arrow.Decimal128Type, *arrow.Decimal256Type:
		switch {
		case integer:
			lay.form, ok = formDecimal, true
		case l.physical == parquet.Types.FixedLenByteArray:
			lay.form, ok = formDecimalBig, lay.pw <= lay.ow
		default:
			lay.form, ok = formDecimalVar, l.physical == parquet.Types.ByteArray
		}
	case *arrow.StringType, *arrow.BinaryType:
		lay.form, ok = formString, l.physical == parquet.Types.ByteArray
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		lay.form, ok = formLarge, l.physical == parquet.Types.ByteArray
	case *arrow.DictionaryType:
		lay.form, ok = formDict, l.physical == parquet.Types.ByteArray && t.IndexType.ID() == arrow.INT32
	}
	if !ok {
		return lay, fault.New(fault.Unsupported, "values of type %s cannot be read as %s", l.physical, l.arrow)
	}
	return lay, nil
}

// storageType is the type of the data of t.
func storageType(t arrow.DataType) arrow.DataType {
	if e, ok := t.(arrow.ExtensionType); ok {
		return storageType(e.StorageType())
	}
	return t
}

// convert makes of the k values of src those of the array.
func (l *layout) convert(dst, src []byte, k int) error {
	dst, src = dst[:k*l.ow], src[:k*l.pw]
	switch l.form {
	case formSame:
		copy(dst, src)
	case formNarrow:
		if l.pw == 4 {
			narrow(dst, arrow.Int32Traits.CastFromBytes(src), l.ow)
		} else {
			narrow(dst, arrow.Int64Traits.CastFromBytes(src), l.ow)
		}
	case formDate64:
		kernel.Date64(arrow.Int64Traits.CastFromBytes(dst), arrow.Int32Traits.CastFromBytes(src))
	case formInt96:
		if good := kernel.Int96(arrow.Int64Traits.CastFromBytes(dst), src, int64(l.unit.Multiplier())); good < k {
			return refusal{good, errInt96[l.unit]}
		}
	case formDecimal:
		switch {
		case l.pw == 4 && l.ow == 16:
			kernel.Decimal128Ints(kernel.Cast[[2]uint64](dst), arrow.Int32Traits.CastFromBytes(src))
		case l.pw == 4:
			kernel.Decimal256Ints(kernel.Cast[[4]uint64](dst), arrow.Int32Traits.CastFromBytes(src))
		case l.ow == 16:
			kernel.Decimal128Ints(kernel.Cast[[2]uint64](dst), arrow.Int64Traits.CastFromBytes(src))
		default:
			kernel.Decimal256Ints(kernel.Cast[[4]uint64](dst), arrow.Int64Traits.CastFromBytes(src))
		}
	case formDecimalBig:
		ok := false
		if l.ow == 16 {
			ok = kernel.Decimal128Fixed(kernel.Cast[[2]uint64](dst), src, l.pw)
		} else {
			ok = kernel.Decimal256Fixed(kernel.Cast[[4]uint64](dst), src, l.pw)
		}
		if !ok {
			return errDecimal
		}
	}
	return nil
}

var errDecimal = fault.New(fault.Corrupt, "a decimal has no bytes, or more than its type")

// convertTexts does so for values behind offsets.
func (l *layout) convertTexts(dst []byte, offsets []int32, data []byte) error {
	ok := false
	if l.ow == 16 {
		ok = kernel.Decimal128Bytes(kernel.Cast[[2]uint64](dst), offsets, data)
	} else {
		ok = kernel.Decimal256Bytes(kernel.Cast[[4]uint64](dst), offsets, data)
	}
	if !ok {
		return errDecimal
	}
	return nil
}

func narrow[S int32 | int64](dst []byte, src []S, width int) {
	switch width {
	case 1:
		kernel.Narrow(kernel.Cast[uint8](dst), src)
	case 2:
		kernel.Narrow(kernel.Cast[uint16](dst), src)
	case 4:
		kernel.Narrow(kernel.Cast[uint32](dst), src)
	case 8:
		kernel.Narrow(kernel.Cast[uint64](dst), src)
	}
}
