package shard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/shard/internal/rows"
)

// DType is the element type of a tensor. Values are little-endian.
type DType uint8

const (
	Auto     = DType(rows.None) // the column's own type
	Bool     = DType(rows.Bool) // one byte per value, 0 or 1
	Int8     = DType(rows.Int8)
	Int16    = DType(rows.Int16)
	Int32    = DType(rows.Int32)
	Int64    = DType(rows.Int64)
	Uint8    = DType(rows.Uint8)
	Uint16   = DType(rows.Uint16)
	Uint32   = DType(rows.Uint32)
	Uint64   = DType(rows.Uint64)
	Float16  = DType(rows.Float16)
	BFloat16 = DType(rows.BFloat16) // the upper half of a float32, rounded to nearest even
	Float32  = DType(rows.Float32)
	Float64  = DType(rows.Float64)
)

var dtypes = [...]string{"auto", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64"}

func (d DType) String() string { return dtypes[d] }

// Size is the bytes of one element.
func (d DType) Size() int { return rows.Type(d).Size() }

// ParseDType reads a name as String gives it; float and double, as types have them, are float32
// and float64.
func ParseDType(s string) (DType, error) {
	switch s {
	case "float":
		return Float32, nil
	case "double":
		return Float64, nil
	}
	if i := slices.Index(dtypes[:], s); i >= 0 {
		return DType(i), nil
	}
	return 0, fault.New(fault.Invalid, "no dtype %q; have %s", s, strings.Join(dtypes[1:], ", "))
}

// dtypeOf maps an Arrow type to the element type of its tensor.
func dtypeOf(t arrow.DataType) (DType, error) {
	if d := rows.Of(t); d != rows.None {
		return DType(d), nil
	}
	return 0, fmt.Errorf("%s has no tensor form", typename.Name(t))
}
