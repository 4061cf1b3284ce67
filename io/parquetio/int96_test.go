package parquetio

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// int96 are values of INT96; nil for the zero time.
func int96(ts ...time.Time) (out []*string) {
	for _, ts := range ts {
		if ts.IsZero() {
			out = append(out, nil)
			continue
		}
		midnight := time.Date(ts.Year(), ts.Month(), ts.Day(), 0, 0, 0, 0, time.UTC)
		b := binary.LittleEndian.AppendUint64(nil, uint64(ts.Sub(midnight)))
		b = binary.LittleEndian.AppendUint32(b, uint32(midnight.Unix()/86400+2440588))
		s := string(b)
		out = append(out, &s)
	}
	return out
}

func utc(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t
}

// Years 1 to 9999 are what they are in microseconds, also to filters; what a unit does not hold exactly is an error of its row that names
// the option.
func TestInt96Units(t *testing.T) {
	times := []time.Time{utc("0001-01-01T00:00:00.000001Z"), {}, utc("1969-12-31T23:59:59.999999Z"), utc("2024-02-29T12:00:00.123Z"), utc("9999-12-31T23:59:59.999999Z"),
		utc("2024-01-01T00:00:00.123456789Z"), utc("1677-09-21T00:12:43.145225Z"), utc("2262-04-11T23:47:16.854775Z"), utc("2262-04-11T23:47:16.854776Z")}
	f := handFile{columns: []handColumn{{name: "n", physical: pInt32, pages: [][]*string{le32(0, 1, 2, 3), le32(4, 5, 6, 7, 8)}},
		{name: "t", physical: pInt96, optional: true, pages: [][]*string{int96(times[:4]...), int96(times[4:]...)}}}}
	path := f.write(t)
	for unit, bad := range map[string][]int64{"": {5}, "us": {5}, "ns": {0, 4, 8}, "ms": {0, 2, 4, 5, 6, 7, 8}} {
		tab := mustOpen(t, &Options{Int96: unit}, path)
		u, err := unitOf(unit)
		if err != nil {
			t.Fatal(err)
		}
		if typ := tab.Schema().Field(1).Type; !arrow.TypeEqual(typ, &arrow.TimestampType{Unit: u}) {
			t.Errorf("%s: the type is %v", unit, typ)
		}
		late := driver.Predicate{{Column: "n", Op: driver.Ne, Values: []any{int64(1)}}}
		for _, o := range []driver.ScanOptions{{}, {BatchRows: 2}, {Gaps: true, Predicate: late}} {
			o.Alloc = memtest.New(t)
			got, told := map[int64]bool{}, []int64(nil)
			o.OnBadRow = func(err error) error {
				p := fault.PlaceOf(err)
				row, _ := p.Row.Get()
				if fault.CodeOf(err) != fault.RowError || p.File != path || p.RowGroup != fault.N(0) || p.Column != "t" || !strings.Contains(err.Error(), "int96: ") {
					t.Errorf("%s: %v", unit, err)
				}
				told = append(told, row)
				return nil
			}
			if err := readAll(t.Context(), tab, 0, &o, func(b driver.Batch) {
				n, c := b.Record.Column(0).(*array.Int32), b.Record.Column(1).(*array.Timestamp)
				for i := range n.Len() {
					row := int64(n.Value(i))
					got[row] = true
					if c.IsNull(i) != times[row].IsZero() || c.IsValid(i) && !c.Value(i).ToTime(u).Equal(times[row]) {
						t.Errorf("%s: row %d is %v, want %v", unit, row, c.ValueStr(i), times[row])
					}
				}
			}); err != nil {
				t.Fatal(err)
			}
			rows := len(times) - len(bad)
			if len(o.Predicate) > 0 {
				rows-- // row 1
			}
			if len(got) != rows || len(told) != len(bad) {
				t.Errorf("%s, %+v: %d rows, want %d; refused %d, want %d", unit, o, len(got), rows, told, bad)
			}
			o.OnBadRow = nil
			if err := readAll(t.Context(), tab, 0, &o, nil); fault.PlaceOf(err).Row != fault.N(bad[0]) {
				t.Errorf("%s: %v, want row %d", unit, err, bad[0])
			}
		}
	}
	if _, err := open(t, &Options{Int96: "s"}, path); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "int96") {
		t.Error(err)
	}
}

// TestInt96Filters: filters at, beside and beyond the bounds of the units, with and without rows
// that a unit cannot say, leave out no row that a scan without them has.
func TestInt96Filters(t *testing.T) {
	all := []time.Time{utc("0001-01-01T00:00:01Z"), utc("1677-09-21T00:12:43Z"), utc("1677-09-21T00:12:44Z"), utc("1970-01-01T00:00:00Z"), {},
		utc("2024-02-29T12:00:00.123Z"), utc("2262-04-11T23:47:16Z"), utc("2262-04-11T23:47:17Z"), utc("9999-12-31T23:59:59.999Z")}
	for unit, times := range map[string][]time.Time{"us": all, "ms": all, "ns": all[2:7]} {
		f := handFile{columns: []handColumn{{name: "t", physical: pInt96, optional: true, pages: [][]*string{int96(times[:3]...), int96(times[3:]...)}}}}
		path := f.write(t)
		u, err := unitOf(unit)
		if err != nil {
			t.Fatal(err)
		}
		tab := mustOpen(t, &Options{Int96: unit}, path)
		var rows []any
		for _, ts := range times {
			v, err := arrow.TimestampFromTime(ts, u)
			if !ts.IsZero() && err != nil {
				t.Fatal(err)
			}
			rows = append(rows, orNil(ts.IsZero(), int64(v)))
		}
		fs := filters{rng: rand.New(rand.NewPCG(96, 1)), share: 1}
		for _, v := range rows {
			if v == nil {
				continue
			}
			for _, lit := range append(beside(v), v, v.(int64)/2, int64(math.MinInt64), int64(math.MaxInt64)) {
				for _, op := range []driver.Op{driver.Eq, driver.Ne, driver.Lt, driver.Le, driver.Gt, driver.Ge, driver.In} {
					fs.try(t, tab, 0, path, driver.Term{Column: "t", Op: op, Values: []any{lit}}, rows)
				}
			}
		}
		for _, op := range []driver.Op{driver.IsNull, driver.NotNull} {
			fs.try(t, tab, 0, path, driver.Term{Column: "t", Op: op}, rows)
		}
	}
}
