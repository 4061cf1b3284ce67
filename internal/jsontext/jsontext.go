// Package jsontext writes values of Arrow as JSON, as Arrow does, but no more of them than is asked for.
package jsontext

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// Append appends value i of a to b. Once b has most bytes, what is left of the value is left out, brackets aside, so
// that a text of most bytes or more is a part of one that may be longer.
func Append(b []byte, a arrow.Array, i, most int) []byte {
	if a.IsNull(i) {
		return append(b, "null"...)
	}
	switch a := a.(type) {
	case *array.Dictionary:
		return Append(b, a.Dictionary(), a.GetValueIndex(i), most)
	case array.ListLike:
		from, to := a.ValueOffsets(i)
		return append(elements(append(b, '['), a.ListValues(), from, to, most), ']')
	case *array.Struct:
		t := a.DataType().(*arrow.StructType)
		name := func(k int) string { return t.Field(k).Name }
		return object(b, t.NumFields(), name, most, func(b []byte, k int) []byte { return Append(b, a.Field(k), i, most) })
	case interface{ Value(int) string }:
		return text(b, a.Value(i), most)
	case interface{ Value(int) []byte }:
		b = base64.StdEncoding.AppendEncode(append(b, '"'), Head(a.Value(i), most-len(b)))
		return append(b, '"')
	case array.ExtensionArray:
		if _, fixed := a.Storage().DataType().(arrow.FixedWidthDataType); !fixed {
			return Append(b, a.Storage(), i, most)
		}
	}
	return flat(b, a, int64(i), int64(i)+1)
}

// AppendRow appends row i of a record as an object, as Append does.
func AppendRow(b []byte, rec arrow.RecordBatch, i, most int) []byte {
	name := func(k int) string { return rec.ColumnName(k) }
	return object(b, int(rec.NumCols()), name, most, func(b []byte, k int) []byte { return Append(b, rec.Column(k), i, most) })
}

// Head is s, or its first most bytes, and those that make groups of base64 whole.
func Head[T string | []byte](s T, most int) T {
	most = max(most, 0)
	return s[:min(len(s), most+2-(most+2)%3)]
}

// object appends n fields in the order of their names, as JSON of Go has them.
func object(b []byte, n int, name func(k int) string, most int, value func(b []byte, k int) []byte) []byte {
	order := make([]int, n)
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(name(i), name(j)) })
	b = append(b, '{')
	for at, k := range order {
		if len(b) >= most {
			break
		}
		if at > 0 {
			b = append(b, ',')
		}
		b = value(append(text(b, name(k), most), ':'), k)
	}
	return append(b, '}')
}

// together is how many values are written at once.
const together = 1 << 10

// elements appends values from to to, with commas.
func elements(b []byte, a arrow.Array, from, to int64, most int) []byte {
	step := int64(1)
	if t := a.DataType(); t.ID() != arrow.FIXED_SIZE_LIST && t.ID() != arrow.FIXED_SIZE_BINARY && t.ID() != arrow.DICTIONARY && t.ID() != arrow.EXTENSION {
		if _, fixed := t.(arrow.FixedWidthDataType); fixed {
			step = together
		}
	}
	for k := from; k < to && len(b) < most; k += step {
		if k > from {
			b = append(b, ',')
		}
		if step == 1 {
			b = Append(b, a, int(k), most)
		} else {
			b = flat(b, a, k, min(to, k+step, k+int64(most-len(b))))
		}
	}
	return b
}

// flat appends values that have a bounded size each, of types whose values Arrow always writes.
func flat(b []byte, a arrow.Array, from, to int64) []byte {
	some := array.NewSlice(a, from, to)
	defer some.Release()
	list, err := some.MarshalJSON()
	if list = bytes.TrimSpace(list); err != nil || len(list) < 2 {
		return append(b, "null"...)
	}
	return append(b, bytes.TrimSpace(list[1:len(list)-1])...)
}

// text appends a string.
func text(b []byte, s string, most int) []byte {
	quoted, _ := json.Marshal(Head(s, most-len(b))) // no string fails
	return append(b, quoted...)
}
