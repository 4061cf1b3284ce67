package shard

import (
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
)

// DType is the element type of a tensor. Values are little-endian.
type DType uint8

const (
	Auto DType = iota // the column's own type
	Bool              // one byte per value, 0 or 1
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float16
	BFloat16 // the upper half of a float32, rounded to nearest even
	Float32
	Float64
)

var dtypes = [...]struct {
	name string
	size int
}{{"auto", 0}, {"bool", 1}, {"int8", 1}, {"int16", 2}, {"int32", 4}, {"int64", 8}, {"uint8", 1}, {"uint16", 2}, {"uint32", 4},
	{"uint64", 8}, {"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"float64", 8}}

func (d DType) String() string { return dtypes[d].name }

// Size is the bytes of one element.
func (d DType) Size() int { return dtypes[d].size }

// ParseDType reads a name as String gives it.
func ParseDType(s string) (DType, error) {
	names := make([]string, len(dtypes))
	for i, d := range dtypes {
		if d.name == s {
			return DType(i), nil
		}
		names[i] = d.name
	}
	return 0, fault.New(fault.Invalid, "no dtype %q; have %s", s, strings.Join(names[1:], ", "))
}

// dtypeOf maps an Arrow type to the element type of its tensor.
func dtypeOf(t arrow.DataType) (DType, error) {
	switch t.ID() {
	case arrow.BOOL:
		return Bool, nil
	case arrow.INT8:
		return Int8, nil
	case arrow.INT16:
		return Int16, nil
	case arrow.INT32, arrow.DATE32, arrow.TIME32:
		return Int32, nil
	case arrow.INT64, arrow.DATE64, arrow.TIME64, arrow.TIMESTAMP, arrow.DURATION:
		return Int64, nil
	case arrow.UINT8:
		return Uint8, nil
	case arrow.UINT16:
		return Uint16, nil
	case arrow.UINT32:
		return Uint32, nil
	case arrow.UINT64:
		return Uint64, nil
	case arrow.FLOAT16:
		return Float16, nil
	case arrow.FLOAT32:
		return Float32, nil
	case arrow.FLOAT64:
		return Float64, nil
	}
	return 0, fmt.Errorf("type %s has no tensor form", t)
}
