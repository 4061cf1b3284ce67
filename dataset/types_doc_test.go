package dataset_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
)

// exampleTypes has one type for each row of the first table of docs/types.md.
var exampleTypes = []string{
	"null", "bool", "int64", "uint64", "float16", "float", "double", "decimal(18, 2)", "decimal256(50, 2)", "string", "large_string", "string_view",
	"binary", "large_binary", "binary_view", "fixed_size_binary(1)", "date", "date64", "time32[s]", "time64[us]", "timestamp", "timestamp[ns]",
	"timestamp[us, UTC]", "duration", "duration[s]", "month_interval", "list<int64>", "large_list<int64>", "list_view<int64>",
	"fixed_size_list<int64>(2)", "map<string, int64>", "struct<a: int64>", "dictionary<int32, string>", "run_end_encoded<int32, string>",
}

// Every type of docs/types.md is tried where a type may be given: the page says where it may stand,
// and elsewhere it is an error that names it, not a wrong column.
func TestWhereTypesMayStand(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	for name, text := range map[string]string{"x.csv": "x\n\n", "x.jsonl": "{\"x\":null}\n"} {
		if err := writeFile(filepath.Join(dir, name), text); err != nil {
			t.Fatal(err)
		}
	}
	columns := map[string]*dataset.Dataset{}
	for i, e := range []string{`id`, `"1"`, `id == 0`, `timestamp("2024-01-01T00:00:00")`, `split("1,2", ",")`, `duration("1s")`, `cast("a", "binary")`, `"12:00:00"`} {
		columns[fmt.Sprint("c", i)] = dataset.Range(1).WithColumns("x = " + e)
	}
	for i, l := range []string{`{"x":{"a":1}}`, `{"x":{"a":"1"}}`} {
		path := filepath.Join(dir, fmt.Sprint("n", i), "x.jsonl")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(path, l+"\n"); err != nil {
			t.Fatal(err)
		}
		types := map[string]string{"x": []string{"struct<a: int64>", "map<string, string>"}[i]}
		columns[fmt.Sprint("n", i)] = dataset.Read(jsonio.New(jsonio.Options{Options: fileset.Options{Paths: []string{path}, Types: types}}))
	}
	files := map[string]string{}
	for c, ds := range columns {
		files[c] = filepath.Join(dir, "files", c)
		if _, err := ds.WriteParquet(ctx, files[c], nil); err != nil {
			t.Fatal(c, err)
		}
		if _, err := ds.WriteIPC(ctx, files[c]+".ipc", nil); err != nil {
			t.Fatal(c, err)
		}
	}
	works := func(name, typ string, ds *dataset.Dataset) bool {
		tab, err := ds.Collect(ctx, nil)
		if err != nil {
			if c := fault.CodeOf(err); c != fault.Invalid && c != fault.Unsupported && c != fault.RowError {
				t.Errorf("%s as %s: %v (%v)", name, typ, err, c)
			}
			return false
		}
		defer tab.Release()
		f, ok := tab.Schema().FieldsByName("x")
		if got := typename.Name(f[0].Type); !ok || got != typ {
			t.Errorf("%s as %s is %s", name, typ, got)
		}
		return true
	}
	var table strings.Builder
	table.WriteString("| type | `types` of csv | of json | of parquet, ipc, text | `cast` |\n|---|---|---|---|---|\n")
	for _, typ := range exampleTypes {
		one := map[string]string{"x": typ}
		in := func(name string) fileset.Options {
			return fileset.Options{Paths: []string{filepath.Join(dir, name)}, Types: one}
		}
		can := []bool{
			works("csv", typ, dataset.Read(csvio.New(csvio.Options{Options: in("x.csv")}))),
			works("json", typ, dataset.Read(jsonio.New(jsonio.Options{Options: in("x.jsonl")}))), false, false,
		}
		for c, ds := range columns {
			p := works("parquet", typ, dataset.Read(parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{files[c]}, Types: one}})))
			if i := works("ipc", typ, dataset.Read(ipcio.New(ipcio.Options{Options: fileset.Options{Paths: []string{files[c] + ".ipc"}, Types: one}}))); i != p {
				t.Errorf("%s of %s: parquet %v, ipc %v", typ, c, p, i)
			}
			can[2] = can[2] || p
			can[3] = can[3] || works("cast", typ, ds.WithColumns(fmt.Sprintf("x = cast(x, %q)", typ)))
		}
		fmt.Fprintf(&table, "| `%s` |", typ)
		for _, yes := range can {
			table.WriteString(map[bool]string{true: " yes |", false: " |"}[yes])
		}
		table.WriteString("\n")
	}
	doc, err := os.ReadFile("../docs/types.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), table.String()) {
		t.Errorf("docs/types.md lacks this table:\n%s", table.String())
	}
	// Every name of the page is in this test.
	kind := regexp.MustCompile(`^[a-z0-9_]+`)
	known := map[string]bool{}
	for _, typ := range exampleTypes {
		known[kind.FindString(typ)] = true
	}
	for _, line := range strings.Split(string(doc), "\n") {
		first, rest, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "`")
		if ok && strings.HasPrefix(line, "| `") && strings.HasPrefix(rest, " ") || ok && strings.HasPrefix(rest, ",") && strings.HasPrefix(line, "| `") {
			if name := kind.FindString(first); !known[name] && name != "int8" && name != "uint8" {
				t.Errorf("%s is not tried", name)
			}
		}
	}
}
