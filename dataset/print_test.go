package dataset_test

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/cell"
	"github.com/penstock-data/penstock/internal/memtest"
)

// odd are names that files may have: breaks, none, twice, long, wide, made to harm a terminal.
var odd = []string{"a\nb", "t\tt", "", "twice", "twice", strings.Repeat("long", 100), "日本語の列", "\x1b[2Jgone", " blank", "e\u0301", "\u202eback"}

// Whatever columns are called and hold, a table has one line for each row and its columns stand below each other.
func TestPrintOddNames(t *testing.T) {
	var fields []arrow.Field
	for _, name := range odd {
		fields = append(fields, arrow.Field{Name: name, Type: arrow.BinaryTypes.String}, arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Int64, Nullable: true})
	}
	schema := arrow.NewSchema(fields, nil)
	b := array.NewRecordBuilder(memtest.New(t), schema)
	defer b.Release()
	for i, name := range odd {
		for k := range fields {
			if s, ok := b.Field(k).(*array.StringBuilder); ok {
				s.Append(strings.Repeat(name, (i+k)%3))
			} else {
				b.Field(k).(*array.Int64Builder).Append(int64(i * k * k * k))
			}
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var out strings.Builder
	if err := dataset.Fprint(&out, rec); err != nil {
		t.Fatal(err)
	}
	table := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(table) != 3+len(odd) {
		t.Fatalf("%d lines for %d rows:\n%s", len(table), len(odd), out.String())
	}
	var edges []int // between columns, from the line of hyphens
	for i, c := range table[2] {
		if c == ' ' {
			edges = append(edges, i)
		}
	}
	if len(edges) != 2*(len(fields)-1) {
		t.Fatalf("%d blanks in %q", len(edges), table[2])
	}
	for _, line := range table {
		if strings.ContainsAny(line, "\t\r\x1b\u202e") {
			t.Errorf("not escaped: %q", line)
		}
		at, edge := 0, 0
		for _, r := range line {
			if cell.Width(string(r)) > 0 && edge < len(edges) && at == edges[edge] {
				if edge++; r != ' ' {
					t.Errorf("%q in place of a blank at column %d of %q", r, at, line)
				}
			}
			at += cell.Width(string(r))
		}
		if at > len(table[2]) || at <= edges[len(edges)-1] {
			t.Errorf("%d columns, want at most %d: %q", at, len(table[2]), line)
		}
	}
	for _, want := range []string{`"a\nb"`, `"t\tt"`, `""`, "日本語の列", `"\x1b[2Jgone"`, `" blank"`, `"\u202eback"`, "longlonglonglonglonglonglonglonglongl..."} {
		if !strings.Contains(table[0], want) {
			t.Errorf("the header has no %s: %s", want, table[0])
		}
	}

	out.Reset()
	if err := dataset.FprintSchema(&out, schema); err != nil {
		t.Fatal(err)
	}
	list := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(list) != len(fields) {
		t.Fatalf("%d lines for %d columns", len(list), len(fields))
	}
	for i, line := range list {
		name, want := cell.Name(fields[i].Name, 0), "  string not null"
		if i%2 == 1 {
			want = "  int64"
		}
		if !strings.HasPrefix(line, name) || !strings.HasSuffix(line, want) || cell.Width(name) < 20 && cell.Width(line) != len(`"\x1b[2Jgone"`)+len(want) {
			t.Errorf("column %q: %q", fields[i].Name, line)
		}
	}
}
