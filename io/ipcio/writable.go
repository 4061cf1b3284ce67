package ipcio

import (
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/internal/badvalue"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// checkSchema reports the first column that a file cannot hold so that others read it.
func checkSchema(s *arrow.Schema) error {
	seen := map[string]bool{}
	for _, f := range s.Fields() {
		at := driver.Place{Column: f.Name}
		if seen[f.Name] {
			return driver.Errorf(driver.Invalid, "two columns have this name").At(at)
		}
		seen[f.Name] = true
		if err := writable(f); err != nil {
			return driver.Wrap(err, at)
		}
	}
	return nil
}

func writable(f arrow.Field) error {
	if !utf8.ValidString(f.Name) {
		return driver.Errorf(driver.Invalid, "the name %q is not UTF-8; rename it", f.Name)
	}
	bad := func(why string) error {
		return driver.Errorf(driver.Invalid, "type %s cannot be written as Arrow IPC%s", typename.Name(f.Type), why)
	}
	switch t := f.Type.(type) {
	case arrow.ExtensionType:
		return writable(arrow.Field{Type: t.StorageType()})
	case *arrow.DictionaryType:
		return writable(arrow.Field{Type: t.ValueType})
	case arrow.DecimalType:
		_, most := decimalOf(0, 0, int32(t.BitWidth()))
		if p, s := t.GetPrecision(), t.GetScale(); p < 1 || p > most || s < 0 || s > p {
			return bad(fmt.Sprintf(": a decimal of %d bits has 1 to %d digits, and a scale of 0 to as many; cast it first", t.BitWidth(), most))
		}
	case *arrow.FixedSizeBinaryType:
		if t.ByteWidth < 0 || t.ByteWidth > math.MaxInt32 {
			return bad("; cast it first")
		}
	case *arrow.TimestampType:
		if !utf8.ValidString(t.TimeZone) {
			return bad(": the time zone is not UTF-8")
		}
	case *arrow.ListViewType, *arrow.LargeListViewType, *arrow.RunEndEncodedType, arrow.UnionType:
		return bad("; cast it first")
	case arrow.NestedType:
		for _, c := range t.Fields() {
			if err := writable(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// allowed is a check of all values: others refuse files with such that are not.
var allowed = badvalue.Check{
	Of: func(t arrow.DataType) bool { return isText(t) || badvalue.IsBounded(t) },
	In: func(d arrow.ArrayData, from, to int64, bad badvalue.Found) {
		if isText(d.DataType()) {
			textIn(d, from, to, bad)
		} else {
			badvalue.BoundedIn(d, from, to, bad)
		}
	},
	Dicts: true,
}
