package dataset

import (
	"encoding/base64"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/jsontext"
)

// valueBytes is about how much of a value is rendered: more than a cell shows of any.
const valueBytes = 1 << 10

// value is one value as text, or the beginning of a long one: no more of it is rendered.
func value(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	switch a := a.(type) {
	case *array.Binary:
		return fmt.Sprintf("<%d bytes>", len(a.Value(i)))
	case *array.LargeBinary:
		return fmt.Sprintf("<%d bytes>", len(a.Value(i)))
	case *array.Timestamp:
		if to, err := a.DataType().(*arrow.TimestampType).GetToTimeFunc(); err == nil {
			return to(a.Value(i)).Format("2006-01-02 15:04:05.999999999")
		}
	case *array.Dictionary:
		return value(a.Dictionary(), a.GetValueIndex(i))
	case array.ListLike, *array.Struct:
		return string(jsontext.Append(nil, a, i, valueBytes))
	case interface{ Value(int) string }:
		return jsontext.Head(a.Value(i), valueBytes)
	case interface{ Value(int) []byte }:
		return base64.StdEncoding.EncodeToString(jsontext.Head(a.Value(i), valueBytes))
	case array.ExtensionArray:
		if _, fixed := a.Storage().DataType().(arrow.FixedWidthDataType); !fixed {
			return value(a.Storage(), i)
		}
	}
	return a.ValueStr(i)
}
