package expr_test

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops/expr"
)

// A column that cannot be read may be passed on whole, and is an error in everything that looks at it.
func TestUnreadable(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: driver.NewUnreadable("f", "x", "int128", "int64")}}, nil)
	for text, ok := range map[string]bool{"x": true, "is_null(x)": false, "hash(x) > 0": false, "x == x": false, "x > 1": false, "true ? x : x": false, "coalesce(x, 1)": false} {
		e, err := expr.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = e.Bind(s, 0); ok != (err == nil) || !ok && (fault.CodeOf(err) != fault.Unsupported || fault.PlaceOf(err).File != "f") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
