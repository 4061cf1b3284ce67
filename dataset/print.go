package dataset

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/ops/expr"
)

const cellWidth = 40

// Fprint prints a record as a table for people: names, types, then the rows;
// long values are cut.
func Fprint(w io.Writer, rec arrow.RecordBatch) error {
	n := int(rec.NumCols())
	rows := make([][]string, 2, 2+rec.NumRows())
	rows[0], rows[1] = make([]string, n), make([]string, n)
	right := make([]bool, n)
	for j, f := range rec.Schema().Fields() {
		rows[0][j], rows[1][j] = f.Name, expr.TypeName(f.Type)
		_, fixed := f.Type.(arrow.FixedWidthDataType)
		right[j] = fixed && f.Type.ID() != arrow.BOOL
	}
	for i := range int(rec.NumRows()) {
		r := make([]string, n)
		for j := range r {
			r[j] = cell(rec.Column(j), i)
		}
		rows = append(rows, r)
	}
	width := make([]int, n)
	for _, r := range rows {
		for j, c := range r {
			width[j] = max(width[j], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for i, r := range rows {
		for j, c := range r {
			if j > 0 {
				b.WriteString("  ")
			}
			pad := strings.Repeat(" ", width[j]-utf8.RuneCountInString(c))
			if right[j] {
				b.WriteString(pad + c)
			} else if b.WriteString(c); j < n-1 {
				b.WriteString(pad)
			}
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

func cell(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	var s string
	switch a := a.(type) {
	case *array.Binary:
		s = fmt.Sprintf("<%d bytes>", len(a.Value(i)))
	case *array.LargeBinary:
		s = fmt.Sprintf("<%d bytes>", len(a.Value(i)))
	case *array.Timestamp:
		t := a.DataType().(*arrow.TimestampType)
		to, err := t.GetToTimeFunc()
		if err != nil {
			s = a.ValueStr(i)
		} else {
			s = to(a.Value(i)).Format("2006-01-02 15:04:05.999999999")
		}
	default:
		s = a.ValueStr(i)
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > cellWidth {
		s = string(r[:cellWidth-3]) + "..."
	}
	return s
}
