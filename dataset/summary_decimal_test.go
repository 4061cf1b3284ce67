package dataset

import (
	"math"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// TestHugeScales: decimals whose type claims a scale that takes gigabytes to write are refused.
func TestHugeScales(t *testing.T) {
	alloc := memtest.New(t)
	for _, scale := range []int32{maxScale, -maxScale, maxScale + 1, -maxScale - 1, math.MaxInt32, math.MinInt32} {
		b := array.NewDecimal128Builder(alloc, &arrow.Decimal128Type{Precision: 38, Scale: scale})
		b.Append(decimal128.FromI64(7))
		col := b.NewArray()
		var s summary
		err := s.add(col)
		if scale == maxScale || scale == -maxScale {
			if sum, rerr := s.result("sum"); err != nil || rerr != nil || len(sum.(string)) < maxScale {
				t.Errorf("scale %d: %v, %v, %v", scale, sum, err, rerr)
			}
		} else if fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("scale %d: %v, want Unsupported", scale, err)
		}
		col.Release()
		b.Release()
	}
	alloc.AssertSize(t, 0)
}
