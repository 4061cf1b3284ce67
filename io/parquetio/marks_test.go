package parquetio

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// TestExtensionsAndDecimalsInFiles: UUIDs and JSON, nested too, are of Parquet's own types, which
// pyarrow reads with and without the stored schema, and come back as what they were; decimals of 32
// and 64 bits come back as those of 128.
func TestExtensionsAndDecimalsInFiles(t *testing.T) {
	uuid := arrow.Field{Name: "u", Type: &arrow.FixedSizeBinaryType{ByteWidth: 16}, Nullable: true, Metadata: extension("arrow.uuid", "")}
	js := func(name string, typ arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: typ, Nullable: true, Metadata: extension("arrow.json", "")}
	}
	coded := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	d32, d64 := &arrow.Decimal32Type{Precision: 9, Scale: 2}, &arrow.Decimal64Type{Precision: 18, Scale: 3}
	in := arrow.StructOf(uuid, js("j", arrow.BinaryTypes.LargeString), arrow.Field{Name: "d", Type: d32, Nullable: true})
	s := arrow.NewSchema([]arrow.Field{
		uuid, js("j", arrow.BinaryTypes.String), js("c", coded), js("no", arrow.BinaryTypes.Binary),
		{Name: "d32", Type: d32, Nullable: true}, {Name: "d64", Type: d64, Nullable: true},
		{Name: "s", Type: in, Nullable: true}, {Name: "l", Type: arrow.ListOfField(js("item", arrow.BinaryTypes.String)), Nullable: true},
		{Name: "f", Type: arrow.FixedSizeListOfField(1, uuid), Nullable: true},
		{Name: "m", Type: arrow.MapOfFields(arrow.Field{Name: "key", Type: arrow.BinaryTypes.String}, js("value", arrow.BinaryTypes.String)), Nullable: true},
		{Name: "ld", Type: arrow.LargeListOf(d64), Nullable: true},
	}, nil)
	const u = `"MDEyMzQ1Njc4OWFiY2RlZg=="`
	row := `{"u": ` + u + `, "j": "{}", "c": "[1]", "no": "AA==", "d32": "-1234567.89", "d64": "123456789012345.678",
		"s": {"u": ` + u + `, "j": "1", "d": "0.01"}, "l": ["2", null], "f": [` + u + `], "m": [{"key": "k", "value": "3"}], "ld": ["-1.500", null]}`
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader("["+row+`, {}, `+row+"]"))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	part := rec.NewSlice(1, 3)
	defer part.Release()
	path := filepath.Join(t.TempDir(), "a.parquet")
	alloc := memtest.New(t)
	writeFile(t, path, nil, alloc, rec, part)
	alloc.AssertSize(t, 0)

	tab := mustOpen(t, nil, path)
	var says []string
	var walk func(path string, fs []arrow.Field)
	walk = func(path string, fs []arrow.Field) {
		for _, f := range fs {
			if name, ok := f.Metadata.GetValue(driver.ExtensionName); ok {
				says = append(says, path+f.Name+" "+name)
			}
			if n, ok := f.Type.(arrow.NestedType); ok {
				walk(path+f.Name+".", n.Fields())
			}
		}
	}
	walk("", tab.Schema().Fields())
	if got, want := strings.Join(says, ", "), "u arrow.uuid, j arrow.json, c arrow.json, s.u arrow.uuid, s.j arrow.json, l.item arrow.json, "+
		"f.u arrow.uuid, m.entries.value arrow.json"; !strings.HasPrefix(got, "u arrow.uuid, j arrow.json, c arrow.json, s.u arrow.uuid, s.j arrow.json, l.") ||
		len(says) != strings.Count(want, ",")+1 {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for _, c := range []struct{ column, first string }{
		{"d32", "-1234567.89"}, {"d64", "123456789012345.678"}, {"ld", `["-1.500",null]`}, {"l", `["2",null]`},
	} {
		got := allOfSplit(t, tab, 0, driver.ScanOptions{Columns: []string{c.column}, Alloc: memory.DefaultAllocator})
		a := got.Column(0)
		if a.Len() != 5 || strings.ReplaceAll(a.ValueStr(0), "-1.5\"", "-1.500\"") != c.first || a.ValueStr(4) != a.ValueStr(0) || !a.IsNull(1) || !a.IsNull(3) {
			t.Errorf("%s: %v", c.column, a)
		}
	}

	python := datatest.Python(t, "pyarrow")
	out, err := exec.Command(python, "-c", `
import sys, uuid
from decimal import Decimal as D
import pyarrow as pa, pyarrow.parquet as pq
u = uuid.UUID(bytes=b"0123456789abcdef")
want = {"u": u, "j": "{}", "c": "[1]", "no": b"\0", "d32": D("-1234567.89"), "d64": D("123456789012345.678"), "s": {"u": u, "j": "1", "d": D("0.01")},
        "l": ["2", None], "m": [("k", "3")], "ld": [D("-1.5"), None]}
schema = str(pq.ParquetFile(sys.argv[1]).schema)
assert schema.count("(UUID)") == 3 and schema.count("(JSON)") == 5, schema
t = pq.read_table(sys.argv[1], arrow_extensions_enabled=True, columns=list(want))  # lists of a fixed size that are null it does not read
def plain(v):
    if isinstance(v, dict): return {k: plain(x) for k, x in v.items()}
    if isinstance(v, list): return [plain(x) for x in v]
    return v.bytes if isinstance(v, uuid.UUID) else v
none = dict.fromkeys(want)
got = [plain(r) for r in t.to_pylist()]
assert got == [plain(r) for r in [want, none, want, none, want]], (t.schema, got)
assert t.schema.field("u").type == pa.uuid() and isinstance(t.schema.field("j").type, pa.JsonType), t.schema
`, path).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
