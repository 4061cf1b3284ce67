package dataset

import (
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/cell"
	"github.com/penstock-data/penstock/ops/expr"
)

const (
	cellWidth = 40  // columns of a terminal
	nameWidth = 120 // in a list of names: longer ones are whole, but others are not moved for them
)

// Fprint prints a record as a table for people: names, types, then the rows. What is
// long is cut; line breaks and what else does not show are escaped, and names that hold such are quoted.
func Fprint(w io.Writer, rec arrow.RecordBatch) error {
	n := int(rec.NumCols())
	rows := make([][]string, 2, 2+rec.NumRows())
	rows[0], rows[1] = make([]string, n), make([]string, n)
	right := make([]bool, n)
	for j, f := range rec.Schema().Fields() {
		rows[0][j], rows[1][j] = cell.Name(f.Name, cellWidth), cell.Text(expr.TypeName(f.Type), cellWidth)
		_, fixed := f.Type.(arrow.FixedWidthDataType)
		right[j] = fixed && f.Type.ID() != arrow.BOOL
	}
	for i := range int(rec.NumRows()) {
		r := make([]string, n)
		for j := range r {
			r[j] = cell.Text(value(rec.Column(j), i), cellWidth)
		}
		rows = append(rows, r)
	}
	width := make([]int, n)
	for _, r := range rows {
		for j, c := range r {
			width[j] = max(width[j], cell.Width(c))
		}
	}
	var b strings.Builder
	for i, r := range rows {
		for j, c := range r {
			if j > 0 {
				b.WriteString("  ")
			}
			if right[j] || j < n-1 {
				c = cell.Pad(c, width[j], right[j])
			}
			b.WriteString(c)
		}
		b.WriteByte('\n')
		if i == 1 {
			for j := range n {
				if j > 0 {
					b.WriteString("  ")
				}
				b.WriteString(strings.Repeat("-", width[j]))
			}
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// FprintSchema prints the columns of a schema, one a line: name, type, and "not null" where that is so.
func FprintSchema(w io.Writer, s *arrow.Schema) error {
	width := 0
	names := make([]string, s.NumFields())
	for i, f := range s.Fields() {
		names[i] = cell.Name(f.Name, 0)
		if n := cell.Width(names[i]); n <= nameWidth {
			width = max(width, n)
		}
	}
	var b strings.Builder
	for i, f := range s.Fields() {
		b.WriteString(cell.Pad(names[i], width, false) + "  " + cell.Text(expr.TypeName(f.Type), 0))
		if !f.Nullable {
			b.WriteString(" not null")
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// value is one value as text.
func value(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	switch a := a.(type) {
	case *array.Binary:
		return fmt.Sprintf("<%d bytes>", len(a.Value(i)))
	case *array.LargeBinary:
		return fmt.Sprintf("<%d bytes>", len(a.Value(i)))
	case *array.Timestamp:
		if to, err := a.DataType().(*arrow.TimestampType).GetToTimeFunc(); err == nil {
			return to(a.Value(i)).Format("2006-01-02 15:04:05.999999999")
		}
	}
	return a.ValueStr(i)
}
