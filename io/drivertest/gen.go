package drivertest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Records makes rows [first, first+rows) of the endless random table that seed
// names: "id" counts, all else is random with nulls where the field allows them,
// extremes, and awkward text; floats are finite. The caller releases it.
func Records(schema *arrow.Schema, seed uint64, first, rows int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for r := first; r < first+rows; r++ {
		rng := rand.New(rand.NewPCG(seed, uint64(r)))
		for i, f := range schema.Fields() {
			if f.Name == "id" {
				b.Field(i).(*array.Int64Builder).Append(r)
				continue
			}
			appendRandom(b.Field(i), f, rng)
		}
	}
	return b.NewRecordBatch()
}

var words = []string{"", "a", "penstock", "two words", "comma, and", `"quoted"`, "tab\tand\\", "line\nbreak", "é世界🙂", "null", "NaN", "true", "12", "-0.5", "2024-01-31", " padded "}

// Text returns a random string.
func Text(rng *rand.Rand) string {
	if rng.IntN(4) > 0 {
		return words[rng.IntN(len(words))]
	}
	return strings.Repeat(words[rng.IntN(len(words))], rng.IntN(8))
}

func integer(rng *rand.Rand, bits int) int64 {
	lo, hi := int64(math.MinInt64)>>(64-bits), int64(math.MaxInt64)>>(64-bits)
	switch rng.IntN(8) {
	case 0:
		return lo
	case 1:
		return hi
	case 2, 3, 4:
		return rng.Int64N(21) - 10
	}
	return int64(rng.Uint64()) >> (64 - bits)
}

func float(rng *rand.Rand) float64 {
	switch rng.IntN(8) {
	case 0:
		return 0
	case 1, 2, 3:
		return float64(rng.IntN(2001)-1000) / 8
	case 4:
		return math.Copysign(math.MaxFloat32, rng.Float64()-0.5)
	}
	return rng.NormFloat64() * math.Pow(10, float64(rng.IntN(40)-20))
}

func appendRandom(b array.Builder, f arrow.Field, rng *rand.Rand) {
	if f.Nullable && rng.IntN(6) == 0 {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(rng.IntN(2) == 0)
	case *array.Int8Builder:
		b.Append(int8(integer(rng, 8)))
	case *array.Int16Builder:
		b.Append(int16(integer(rng, 16)))
	case *array.Int32Builder:
		b.Append(int32(integer(rng, 32)))
	case *array.Int64Builder:
		b.Append(integer(rng, 64))
	case *array.Uint8Builder:
		b.Append(uint8(rng.Uint32()))
	case *array.Uint16Builder:
		b.Append(uint16(rng.Uint32()))
	case *array.Uint32Builder:
		b.Append(rng.Uint32())
	case *array.Uint64Builder:
		b.Append(uint64(integer(rng, 64)))
	case *array.Float32Builder:
		b.Append(float32(float(rng)))
	case *array.Float64Builder:
		b.Append(float(rng))
	case *array.StringBuilder:
		b.Append(Text(rng))
	case *array.LargeStringBuilder:
		b.Append(Text(rng))
	case *array.BinaryBuilder: // also large binary
		p := []byte(Text(rng))
		for range rng.IntN(8) {
			p = append(p, byte(rng.Uint32()))
		}
		b.Append(p)
	case *array.FixedSizeBinaryBuilder:
		p := make([]byte, b.Type().(*arrow.FixedSizeBinaryType).ByteWidth)
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		b.Append(p)
	case *array.Date32Builder:
		b.Append(arrow.Date32(rng.IntN(40000) - 10000))
	case *array.Time32Builder:
		b.Append(arrow.Time32(rng.Int64N(int64(24 * time.Hour / b.Type().(*arrow.Time32Type).Unit.Multiplier()))))
	case *array.Time64Builder:
		b.Append(arrow.Time64(rng.Int64N(int64(24 * time.Hour / b.Type().(*arrow.Time64Type).Unit.Multiplier()))))
	case *array.DurationBuilder:
		b.Append(arrow.Duration(integer(rng, 64)))
	case *array.TimestampBuilder:
		// Years 1700 to 2200 in any unit.
		per := int64(1e9 / b.Type().(*arrow.TimestampType).Unit.Multiplier())
		b.Append(arrow.Timestamp((rng.Int64N(15_700_000_000)-8_500_000_000)*per + rng.Int64N(per)))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(integer(rng, 60)))
	case *array.ListBuilder:
		b.Append(true)
		e := b.Type().(*arrow.ListType).ElemField()
		for range rng.IntN(4) {
			appendRandom(b.ValueBuilder(), e, rng)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i, c := range b.Type().(*arrow.StructType).Fields() {
			appendRandom(b.FieldBuilder(i), c, rng)
		}
	default:
		panic(fmt.Sprintf("drivertest.Records cannot make %v; set Harness.Gen", f.Type))
	}
}
