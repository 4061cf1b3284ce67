package parquetio

import (
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

var update = flag.Bool("update", false, "rewrite testdata/schemas.txt")

// text gives the canonical text of every value of a; testdata/golden.py makes
// the same from what pyarrow reads.
func text(a arrow.Array) []string {
	out := make([]string, a.Len())
	each := func(f func(i int) string) {
		for i := range out {
			if a.IsNull(i) {
				out[i] = "null"
			} else {
				out[i] = f(i)
			}
		}
	}
	switch a := a.(type) {
	case array.ExtensionArray:
		return text(a.Storage())
	case *array.Null:
		each(func(int) string { return "null" })
	case *array.Boolean:
		each(func(i int) string { return strconv.FormatBool(a.Value(i)) })
	case *array.Float16:
		each(func(i int) string { return floatText(float64(a.Value(i).Float32()), uint64(a.Value(i).Uint16()), 4) })
	case *array.Float32:
		each(func(i int) string { return floatText(float64(a.Value(i)), uint64(math.Float32bits(a.Value(i))), 8) })
	case *array.Float64:
		each(func(i int) string { return floatText(a.Value(i), math.Float64bits(a.Value(i)), 16) })
	case *array.Decimal128:
		each(func(i int) string { return a.Value(i).BigInt().String() })
	case *array.Decimal256:
		each(func(i int) string { return a.Value(i).BigInt().String() })
	case *array.FixedSizeBinary:
		each(func(i int) string { return hex.EncodeToString(a.Value(i)) })
	case *array.Binary:
		each(func(i int) string { return hex.EncodeToString(a.Value(i)) })
	case *array.LargeBinary:
		each(func(i int) string { return hex.EncodeToString(a.Value(i)) })
	case *array.String:
		each(func(i int) string { return hex.EncodeToString([]byte(a.Value(i))) })
	case *array.LargeString:
		each(func(i int) string { return hex.EncodeToString([]byte(a.Value(i))) })
	case *array.Struct:
		kids := make([][]string, a.NumField())
		for k := range kids {
			kids[k] = text(a.Field(k))
		}
		each(func(i int) string {
			vs := make([]string, len(kids))
			for k := range vs {
				vs[k] = kids[k][i]
			}
			return "{" + strings.Join(vs, ",") + "}"
		})
	case *array.Map:
		keys, items := text(a.Keys()), text(a.Items())
		each(func(i int) string {
			var vs []string
			for from, to := a.ValueOffsets(i); from < to; from++ {
				vs = append(vs, "("+keys[from]+":"+items[from]+")")
			}
			return "[" + strings.Join(vs, ",") + "]"
		})
	case array.ListLike:
		vals := text(a.ListValues())
		each(func(i int) string {
			from, to := a.ValueOffsets(i)
			return "[" + strings.Join(vals[from:to], ",") + "]"
		})
	default: // integers and times: their bits
		each(func(i int) string { return intText(a, i) })
	}
	return out
}

func floatText(f float64, bits uint64, digits int) string {
	if math.IsNaN(f) {
		return "nan"
	}
	return fmt.Sprintf("%0*x", digits, bits)
}

func intText(a arrow.Array, i int) string {
	b := a.Data().Buffers()[1].Bytes()
	i += a.Data().Offset()
	switch t := a.DataType().(arrow.FixedWidthDataType); a.DataType().ID() {
	case arrow.UINT8:
		return fmt.Sprint(b[i])
	case arrow.INT8:
		return fmt.Sprint(int8(b[i]))
	case arrow.UINT16:
		return fmt.Sprint(arrow.Uint16Traits.CastFromBytes(b)[i])
	case arrow.INT16:
		return fmt.Sprint(arrow.Int16Traits.CastFromBytes(b)[i])
	case arrow.UINT32:
		return fmt.Sprint(arrow.Uint32Traits.CastFromBytes(b)[i])
	case arrow.UINT64:
		return fmt.Sprint(arrow.Uint64Traits.CastFromBytes(b)[i])
	default:
		if t.BitWidth() == 32 {
			return fmt.Sprint(arrow.Int32Traits.CastFromBytes(b)[i])
		}
		return fmt.Sprint(arrow.Int64Traits.CastFromBytes(b)[i])
	}
}

// columns reads all rows of a file as text, column by column.
func columns(t *testing.T, path string, o driver.ScanOptions) (names []string, cols [][]string, rows int64, err error) {
	tab, err := open(t, &Options{Int96: "ns"}, path) // as pyarrow has it
	if err != nil {
		return nil, nil, 0, err
	}
	o.Alloc = memtest.New(t)
	for _, f := range tab.Schema().Fields() {
		names = append(names, f.Name)
	}
	cols = make([][]string, len(names))
	for i, s := range tab.Splits() {
		at := int64(0)
		err := readAll(t.Context(), tab, i, &o, func(b driver.Batch) {
			if b.Row != at {
				t.Errorf("split %d: a batch at row %d, not %d", i, b.Row, at)
			}
			at += b.Record.NumRows()
			for c, a := range b.Record.Columns() {
				if !arrow.TypeEqual(a.DataType(), tab.Schema().Field(c).Type) {
					t.Errorf("column %q is %v", names[c], a.DataType())
				}
				cols[c] = append(cols[c], text(a)...)
			}
		})
		if err != nil {
			return nil, nil, 0, err
		}
		if at != s.Rows {
			t.Errorf("split %d: %d rows of %d", i, at, s.Rows)
		}
		rows += at
	}
	return names, cols, rows, nil
}

// refused are the files that give an error, with its code, and why.
var refused = map[string]struct {
	code fault.Code
	why  string
}{
	"datapage_v1-corrupt-checksum.parquet":           {fault.Corrupt, "the checksum of a page is wrong"},
	"rle-dict-uncompressed-corrupt-checksum.parquet": {fault.Corrupt, "the checksum of a page is wrong"},
	"int96_from_spark.parquet":                       {fault.RowError, "the last value is none: its time of day is negative; pyarrow and DuckDB wrap around"},
	"large_string_map.brotli.parquet":                {fault.Unsupported, "one page has more than 1 GiB"},
}

func TestConformance(t *testing.T) {
	var golden map[string]struct {
		Rows  int64
		Hash  string
		Error string
	}
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	var schemas strings.Builder
	seen := 0
	for _, dir := range []string{datatest.Dir(t, "parquet-testing", "data"), datatest.Dir(t, "userdata")} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(dir, path)
			if err != nil || e.IsDir() || !strings.Contains(rel, ".parquet") || strings.HasSuffix(rel, ".json") {
				return err
			}
			seen++
			t.Run(rel, func(t *testing.T) {
				want, known := golden[rel]
				if !known {
					t.Fatal("not in golden.json")
				}
				names, cols, rows, err := columns(t, path, driver.ScanOptions{})
				bad, isBad := refused[filepath.Base(rel)]
				said := ""
				if strings.HasSuffix(rel, ".encrypted") {
					bad.code, bad.why, isBad, said = fault.Unsupported, "encrypted", true, "encrypted Parquet files are not supported"
					if strings.Contains(rel, "plaintext_footer") {
						said = `row group 0, column "float_field": encrypted columns are not supported`
						if strings.HasPrefix(rel, "aes256") { // in which all are
							said = strings.Replace(said, "float", "boolean", 1)
						}
					}
				}
				switch {
				case isBad && (err == nil || fault.CodeOf(err) != bad.code || !strings.Contains(err.Error(), filepath.Base(rel))):
					t.Fatalf("error %v of code %v; want %v (%s), and the file named", err, fault.CodeOf(err), bad.code, bad.why)
				case isBad && !strings.Contains(err.Error(), said):
					t.Fatalf("error %v; want %s", err, said)
				case isBad:
					return
				case err != nil:
					t.Fatal(err)
				case want.Error != "" && filepath.Base(rel) == "incorrect_map_schema.parquet":
					if m := cols[0]; rows != 1 || len(m) != 1 { // as DuckDB reads it: no key is null
						t.Fatalf("%d rows: %v", rows, m)
					}
					return
				case want.Error != "":
					t.Fatalf("pyarrow says %s", want.Error)
				}
				h := sha256.New()
				for c := range cols {
					fmt.Fprintln(h, names[c])
					for _, v := range cols[c] {
						fmt.Fprintln(h, v)
					}
				}
				if got := hex.EncodeToString(h.Sum(nil))[:32]; rows != want.Rows || got != want.Hash {
					for c := range cols {
						t.Logf("%s: %.600s", names[c], strings.Join(cols[c], " "))
					}
					t.Errorf("%d rows, hash %s; want %d, %s", rows, got, want.Rows, want.Hash)
				}
				fmt.Fprintf(&schemas, "%s: %d rows\n", rel, rows)
				for _, f := range mustOpen(t, &Options{Int96: "ns"}, path).Schema().Fields() {
					fmt.Fprintf(&schemas, "  %s: %v nullable=%v\n", f.Name, f.Type, f.Nullable)
				}
				expected(t, path, cols)
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen != len(golden) {
		t.Errorf("%d files, golden.json has %d", seen, len(golden))
	}
	if *update {
		if err := os.WriteFile("testdata/schemas.txt", []byte(schemas.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if b, err = os.ReadFile("testdata/schemas.txt"); err != nil || string(b) != schemas.String() {
		t.Errorf("the schemas differ from testdata/schemas.txt (%v); run with -update and look at the difference", err)
	}
}

// expected compares with the *_expect.csv beside a file, if there is one: column
// by column, as some names differ. What is not there is null.
func expected(t *testing.T, path string, cols [][]string) {
	f, err := os.Open(strings.TrimSuffix(path, ".parquet") + "_expect.csv")
	if err != nil {
		return
	}
	defer f.Close()
	recs, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(recs[0]) != len(cols) || len(recs)-1 != len(cols[0]) {
		t.Fatalf("%d columns, %d rows; the csv has %d, %d", len(cols), len(cols[0]), len(recs[0]), len(recs)-1)
	}
	schema := mustOpen(t, nil, path).Schema()
	for c := range cols {
		for r, rec := range recs[1:] {
			got := cols[c][r]
			if got == "null" {
				got = ""
			} else if schema.Field(c).Type.ID() == arrow.STRING {
				b, _ := hex.DecodeString(got)
				got = string(b)
			}
			if got != rec[c] {
				t.Fatalf("column %q, row %d: %q, the csv has %q", schema.Field(c).Name, r, got, rec[c])
			}
		}
	}
}
