package typename

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// Name is the inverse of Parse: the name of t that messages and schemas have. Unions, extension types and
// decimals of 32 and 64 bits have none that Parse takes, as no column is cast to them.
func Name(t arrow.DataType) string {
	switch t := t.(type) {
	case *arrow.Float32Type:
		return "float"
	case *arrow.Float64Type:
		return "double"
	case *arrow.StringType:
		return "string"
	case *arrow.LargeStringType:
		return "large_string"
	case *arrow.Float16Type:
		return "float16"
	case *arrow.Date32Type:
		return "date"
	case *arrow.Date64Type:
		return "date64"
	case *arrow.TimestampType:
		switch {
		case t.TimeZone != "":
			return "timestamp[" + t.Unit.String() + ", " + t.TimeZone + "]"
		case t.Unit != arrow.Microsecond:
			return "timestamp[" + t.Unit.String() + "]"
		}
		return "timestamp"
	case *arrow.DurationType:
		if t.Unit == arrow.Microsecond {
			return "duration"
		}
		return "duration[" + t.Unit.String() + "]"
	case *arrow.Time32Type:
		return "time32[" + t.Unit.String() + "]"
	case *arrow.Time64Type:
		return "time64[" + t.Unit.String() + "]"
	case *arrow.Decimal128Type:
		return fmt.Sprintf("decimal(%d, %d)", t.Precision, t.Scale)
	case *arrow.Decimal256Type:
		return fmt.Sprintf("decimal256(%d, %d)", t.Precision, t.Scale)
	case *arrow.FixedSizeBinaryType:
		return fmt.Sprintf("fixed_size_binary(%d)", t.ByteWidth)
	case *arrow.ListType:
		return "list<" + Name(t.Elem()) + ">"
	case *arrow.LargeListType:
		return "large_list<" + Name(t.Elem()) + ">"
	case *arrow.FixedSizeListType:
		return fmt.Sprintf("fixed_size_list<%s>(%d)", Name(t.Elem()), t.Len())
	case *arrow.ListViewType:
		return "list_view<" + Name(t.Elem()) + ">"
	case *arrow.LargeListViewType:
		return "large_list_view<" + Name(t.Elem()) + ">"
	case *arrow.DictionaryType:
		return "dictionary<" + Name(t.IndexType) + ", " + Name(t.ValueType) + ">"
	case *arrow.RunEndEncodedType:
		return "run_end_encoded<" + Name(t.RunEnds()) + ", " + Name(t.Encoded()) + ">"
	case *arrow.MapType:
		return "map<" + Name(t.KeyType()) + ", " + Name(t.ItemType()) + ">"
	case *arrow.StructType:
		var b strings.Builder
		b.WriteString("struct<")
		for i, f := range t.Fields() {
			if i > 0 {
				b.WriteString(", ")
			}
			n := f.Name
			if w := (&parser{rest: n}); n == "" || w.word() != n {
				n = strconv.Quote(n)
			}
			b.WriteString(n + ": " + Name(f.Type))
		}
		return b.String() + ">"
	case *arrow.BooleanType:
		return "bool"
	}
	return t.String()
}
