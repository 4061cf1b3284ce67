package dataset

import (
	"bufio"
	"context"
	"io"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/internal/cell"
	"github.com/penstock-data/penstock/ops/expr"
)

const (
	cellWidth = 40  // columns of a terminal
	cellCost  = 16  // bytes of memory that a cell takes beside its text
	nameWidth = 120 // in a list of names: longer ones are whole, but others are not moved for them
)

// Fprint prints a record as a table for people: names, types, then the rows. What is
// long is cut; line breaks and what else does not show are escaped, and names that hold such are quoted.
// Columns are as wide as the first 1,000 rows need (fewer, if those are MiB of text); wider cells of later rows
// move what is behind them.
func Fprint(w io.Writer, rec arrow.RecordBatch) error {
	p := newPrinter(w, rec.Schema())
	if err := p.add(rec); err != nil {
		return err
	}
	return p.flush()
}

// Show prints the first n rows as Fprint does, in canonical order, as they come: none is kept that is printed. An
// error before the widths are known prints nothing.
func (d *Dataset) Show(ctx context.Context, w io.Writer, n int64, o *RunOptions) error {
	if err := d.plain(ctx); err != nil {
		return err
	}
	s, err := d.Schema(ctx)
	if err != nil {
		return err
	}
	p := newPrinter(w, s)
	for rec, err := range d.Limit(n).Records(ctx, o) {
		if err == nil {
			err = p.add(rec)
		}
		if err != nil {
			return err
		}
	}
	return p.flush()
}

const (
	measuredRows  = 1000    // whose cells widths are from
	measuredBytes = 4 << 20 // of the text of such cells
	bufferBytes   = 64 << 10
)

// printer prints a table: the head and the first rows once their widths are known, then row by row.
type printer struct {
	w     *bufio.Writer
	right []bool
	width []int
	first [][]string // names, types, rows; nil once they are printed
	bytes int        // of the text of first
}

func newPrinter(w io.Writer, s *arrow.Schema) *printer {
	n := s.NumFields()
	p := &printer{w: bufio.NewWriterSize(w, bufferBytes), right: make([]bool, n), width: make([]int, n)}
	names, types := make([]string, n), make([]string, n)
	for j, f := range s.Fields() {
		names[j], types[j] = cell.Name(f.Name, cellWidth), cell.Text(expr.TypeName(f.Type), cellWidth)
		_, fixed := f.Type.(arrow.FixedWidthDataType)
		p.right[j] = fixed && f.Type.ID() != arrow.BOOL
	}
	p.first = [][]string{names, types}
	return p
}

// add prints the rows of a record, or keeps them to measure.
func (p *printer) add(rec arrow.RecordBatch) error {
	row := make([]string, len(p.width))
	for i := range int(rec.NumRows()) {
		for j := range row {
			row[j] = cell.Text(value(rec.Column(j), i), cellWidth)
			p.bytes += len(row[j]) + cellCost
		}
		if p.first == nil {
			if err := p.line(row); err != nil {
				return err
			}
			continue
		}
		p.first = append(p.first, slices.Clone(row))
		if len(p.first) >= measuredRows+2 || p.bytes >= measuredBytes {
			if err := p.head(); err != nil {
				return err
			}
		}
	}
	return nil
}

// head prints what was kept.
func (p *printer) head() error {
	for _, r := range p.first {
		for j, c := range r {
			p.width[j] = max(p.width[j], cell.Width(c))
		}
	}
	for i, r := range p.first {
		if err := p.line(r); err != nil {
			return err
		}
		if i != 1 {
			continue
		}
		rule := make([]string, len(p.width))
		for j, n := range p.width {
			rule[j] = strings.Repeat("-", n)
		}
		if err := p.line(rule); err != nil {
			return err
		}
	}
	p.first = nil
	return nil
}

func (p *printer) line(cells []string) error {
	for j, c := range cells {
		if j > 0 {
			p.w.WriteString("  ") // an error comes again
		}
		if p.right[j] || j < len(cells)-1 {
			c = cell.Pad(c, p.width[j], p.right[j])
		}
		p.w.WriteString(c)
	}
	return p.w.WriteByte('\n')
}

// flush prints what is left.
func (p *printer) flush() error {
	if p.first != nil {
		if err := p.head(); err != nil {
			return err
		}
	}
	return p.w.Flush()
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
