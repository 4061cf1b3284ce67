package cut_test

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/io/drivertest"
)

// The bytes of neighbours add up, whatever the slices, and batches keep their bound.
func TestBytesAndNext(t *testing.T) {
	whole := drivertest.Records(drivertest.Schema(), 5, 0, 800)
	defer whole.Release()
	rec := whole.NewSlice(13, 790)
	defer rec.Release()
	size := func(from, to int64) (n int64) {
		for _, c := range rec.Columns() {
			n += cut.Bytes(c.Data(), from, to)
		}
		return n
	}
	if a, b, all := size(0, 160), size(160, rec.NumRows()), size(0, rec.NumRows()); a+b < all || a+b > all+int64(8*rec.NumCols()) {
		t.Errorf("%d + %d is not %d", a, b, all)
	}
	for _, max := range []int64{1, 500, 4096, 1 << 30} {
		for at := int64(0); at < rec.NumRows(); {
			to := cut.Next(rec.Columns(), at, rec.NumRows(), 100, max)
			if to <= at || to > at+100 || to > at+1 && size(at, to) > max {
				t.Fatalf("[%d, %d) takes %d bytes of %d", at, to, size(at, to), max)
			}
			if to < rec.NumRows() && to < at+100 && size(at, to+1) <= max {
				t.Fatalf("[%d, %d) leaves room", at, to)
			}
			at = to
		}
	}
}

func TestColumns(t *testing.T) {
	s := drivertest.Schema()
	if idx, got, err := cut.Columns(s, []string{"ts", "id"}); err != nil || idx[1] != 0 || got.Field(0).Name != "ts" {
		t.Errorf("%v %v %v", idx, got, err)
	}
	if _, got, err := cut.Columns(s, []string{}); err != nil || got.NumFields() != 0 {
		t.Errorf("%v %v", got, err)
	}
	if _, _, err := cut.Columns(s, []string{"idd"}); err == nil {
		t.Error("no error")
	}
	if _, got, _ := cut.Columns(arrow.NewSchema(nil, nil), nil); got.NumFields() != 0 {
		t.Error(got)
	}
}
