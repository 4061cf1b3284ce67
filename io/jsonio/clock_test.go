package jsonio

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

// Times out of a day, and days with a part of one, would be written as what is left of them.
func TestTimesOutOfADay(t *testing.T) {
	for _, typ := range []arrow.DataType{arrow.FixedWidthTypes.Time32s, arrow.FixedWidthTypes.Time32ms, arrow.FixedWidthTypes.Time64us,
		arrow.FixedWidthTypes.Time64ns, arrow.FixedWidthTypes.Date64} {
		for v, bad := range map[int64]bool{0: false, -1: true, 1e9: true, 86400e9: true} {
			for _, list := range []bool{false, true} {
				b := array.NewListBuilder(memory.DefaultAllocator, typ)
				b.Append(true)
				switch b := b.ValueBuilder().(type) {
				case *array.Time32Builder:
					if v > 1e9 {
						continue
					}
					b.Append(arrow.Time32(v))
				case *array.Time64Builder:
					if v == 1e9 {
						continue
					}
					b.Append(arrow.Time64(v))
				case *array.Date64Builder:
					if v == 86400e9 {
						continue
					}
					b.Append(arrow.Date64(v))
				}
				lists := b.NewListArray()
				a := arrow.Array(lists)
				if !list {
					a = lists.ListValues()
				}
				s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: a.DataType(), Nullable: true}}, nil)
				enc, err := NewEncoding(nil)
				if err != nil {
					t.Fatal(err)
				}
				var out bytes.Buffer
				e, err := enc.NewEncoder(&out, s, memory.DefaultAllocator)
				if err != nil {
					t.Fatal(err)
				}
				err = e.Write(array.NewRecordBatch(s, []arrow.Array{a}, 1))
				e.Abort()
				if bad != (fault.CodeOf(err) == fault.RowError && fault.PlaceOf(err).Column == "x") {
					t.Errorf("%v of %d, in a list: %v: %v", typ, v, list, err)
				}
			}
		}
	}
}
