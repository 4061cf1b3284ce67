package dataset

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// valueBytes is about how much of a value is rendered: more than a cell shows of any.
const valueBytes = 768 // of which base64 makes 1 KiB, without a rest

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
		return string(appendJSON(nil, a, i))
	case interface{ Value(int) string }:
		return head(a.Value(i))
	case interface{ Value(int) []byte }:
		return base64.StdEncoding.EncodeToString(head(a.Value(i)))
	case array.ExtensionArray:
		if _, fixed := a.Storage().DataType().(arrow.FixedWidthDataType); !fixed {
			return value(a.Storage(), i)
		}
	}
	return a.ValueStr(i)
}

// appendJSON appends one value as JSON, as Arrow writes it, until b is long enough.
func appendJSON(b []byte, a arrow.Array, i int) []byte {
	if a.IsNull(i) {
		return append(b, "null"...)
	}
	switch a := a.(type) {
	case *array.Dictionary:
		return appendJSON(b, a.Dictionary(), a.GetValueIndex(i))
	case array.ListLike:
		b = append(b, '[')
		first, end := a.ValueOffsets(i)
		for k := first; k < end && len(b) < valueBytes; k++ {
			if k > first {
				b = append(b, ',')
			}
			b = appendJSON(b, a.ListValues(), int(k))
		}
		return append(b, ']')
	case *array.Struct:
		b = append(b, '{')
		for n, k := range byName(a.DataType().(*arrow.StructType)) {
			if len(b) >= valueBytes {
				break
			}
			if n > 0 {
				b = append(b, ',')
			}
			b = append(appendText(b, a.DataType().(*arrow.StructType).Field(k).Name), ':')
			b = appendJSON(b, a.Field(k), i)
		}
		return append(b, '}')
	case interface{ Value(int) string }:
		return appendText(b, a.Value(i))
	case interface{ Value(int) []byte }:
		b = base64.StdEncoding.AppendEncode(append(b, '"'), head(a.Value(i)))
		return append(b, '"')
	case array.ExtensionArray:
		if _, fixed := a.Storage().DataType().(arrow.FixedWidthDataType); !fixed {
			return appendJSON(b, a.Storage(), i)
		}
	}
	one := array.NewSlice(a, int64(i), int64(i)+1)
	defer one.Release()
	list, err := one.MarshalJSON()
	if err != nil || len(list) < 2 {
		return append(b, "null"...)
	}
	list = bytes.TrimSpace(list)
	return append(b, bytes.TrimSpace(list[1:len(list)-1])...)
}

// appendText appends a string of JSON.
func appendText(b []byte, s string) []byte {
	text, _ := json.Marshal(head(s)) // no string fails
	return append(b, text...)
}

// byName are the fields of a struct in the order of JSON.
func byName(t *arrow.StructType) []int {
	order := make([]int, t.NumFields())
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(t.Field(i).Name, t.Field(j).Name) })
	return order
}

// head is as much of s as is rendered.
func head[T string | []byte](s T) T { return s[:min(len(s), valueBytes)] }
