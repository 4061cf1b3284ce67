package parquetio

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

var writersSeed = flag.Uint64("writers.seed", 0, "seed of TestWriters; 0: another one each time")

// TestWriters reads what parquet-go, pyarrow, DuckDB and Polars write, of random types, nestings, nulls, encodings, codecs, page versions and sizes: types and values are
// those that pyarrow reads, and a scan of some columns and rows gives those of the whole scan.
func TestWriters(t *testing.T) {
	python := datatest.Python(t, "pyarrow", "duckdb", "polars")
	seed := *writersSeed
	if seed == 0 {
		seed = rand.Uint64N(1 << 32)
	}
	t.Logf("-writers.seed %d", seed)
	dir := t.TempDir()
	run := func(name string, args ...string) []byte {
		c := exec.Command(name, append(args, dir, fmt.Sprint(seed))...)
		var errs bytes.Buffer
		c.Stderr = &errs
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(c.Args, " "), err, errs.Bytes())
		}
		return out
	}
	run(datatest.Tool(t, "parquetgo"))
	out := json.NewDecoder(bytes.NewReader(run(python, "-B", "testdata/writers.py")))
	files := map[string]int{}
	rng := rand.New(rand.NewPCG(seed, 5))
	var some scans
	for out.More() {
		var want struct {
			File   string
			Rows   int64
			Names  []string
			Kinds  []string
			Hashes []string
		}
		if err := out.Decode(&want); err != nil {
			t.Fatal(err)
		}
		writer, _, _ := strings.Cut(want.File, "-")
		files[writer]++
		names, cols, rows, err := columns(t, filepath.Join(dir, want.File), driver.ScanOptions{})
		if err != nil || rows != want.Rows || !slices.Equal(names, want.Names) {
			t.Errorf("%s: %d rows of %v, %v; want %d rows of %v", want.File, rows, names, err, want.Rows, want.Names)
			continue
		}
		for c := range cols {
			h := sha256.Sum256([]byte(strings.Join(cols[c], "\n")))
			if got := hex.EncodeToString(h[:]); got != want.Hashes[c] {
				t.Errorf("%s: column %s is another than pyarrow reads: %.200s", want.File, names[c], strings.Join(cols[c], " "))
			}
		}
		path := filepath.Join(dir, want.File)
		tab := mustOpen(t, nil, path).(*table)
		for c, f := range tab.Schema().Fields() {
			got, wantKind := kindText(f), want.Kinds[c]
			if hasTextOfKind(tab.footers[0].schema, c) { // which is binary to pyarrow
				got, wantKind = strings.ReplaceAll(got, "string", "binary"), strings.ReplaceAll(wantKind, "string", "binary")
			}
			if got != wantKind {
				t.Errorf("%s: column %s is %s, to pyarrow %s", want.File, f.Name, got, wantKind)
			}
		}
		if some.n++; some.n%2 == 0 {
			path = bucketFile(t, path)
		}
		some.try(t, rng, path, names, cols)
	}
	t.Logf("%d scans of some rows: %d read, %d left out", some.n, some.read, some.out)
	if some.read == 0 || some.out == 0 {
		t.Error("the scans of some rows do not test")
	}
	if len(files) != 4 || t.Failed() {
		keep := filepath.Join(os.TempDir(), fmt.Sprintf("writers-%d", seed))
		t.Errorf("files by writer: %v; they are in %s (%v)", files, keep, os.CopyFS(keep, os.DirFS(dir)))
	}
}

// hasTextOfKind reports whether leaves of a field are JSON or of an enumeration.
func hasTextOfKind(s *fileSchema, field int) bool {
	return slices.ContainsFunc(s.fields[field].leaves, func(l int) bool {
		t := s.base.Schema.Column(l).LogicalType()
		return t.Equals(schema.JSONLogicalType{}) || t.Equals(schema.EnumLogicalType{})
	})
}

// kindText is the type of a field as kind of testdata/writers.py says it.
func kindText(f arrow.Field) (out string) {
	typ := f.Type
	if x, ok := typ.(arrow.ExtensionType); ok {
		typ = x.StorageType()
	}
	switch t := typ.(type) {
	case *arrow.StructType:
		var kids []string
		for _, k := range t.Fields() {
			kids = append(kids, k.Name+": "+kindText(k))
		}
		out = "struct<" + strings.Join(kids, ", ") + ">"
	case *arrow.MapType:
		out = "map<" + kindText(t.KeyField()) + ", " + kindText(t.ItemField()) + ">"
	case *arrow.FixedSizeListType:
		out = fmt.Sprintf("list[%d]<%s>", t.Len(), kindText(t.ElemField()))
	case *arrow.LargeListType:
		out = "large_list<" + kindText(t.ElemField()) + ">"
	case *arrow.ListType:
		out = "list<" + kindText(t.ElemField()) + ">"
	case *arrow.FixedSizeBinaryType:
		out = fmt.Sprintf("fixed_size_binary[%d]", t.ByteWidth)
	case *arrow.TimestampType:
		if out = fmt.Sprintf("timestamp[%v]", t.Unit); t.TimeZone != "" {
			out = fmt.Sprintf("timestamp[%v, tz=%s]", t.Unit, t.TimeZone)
		}
	case *arrow.Date32Type:
		out = "date32[day]"
	case *arrow.Date64Type:
		out = "date64[ms]"
	case arrow.DecimalType:
		out = fmt.Sprintf("decimal%d(%d, %d)", t.BitWidth(), t.GetPrecision(), t.GetScale())
	default:
		name := map[arrow.Type]string{arrow.FLOAT16: "halffloat", arrow.FLOAT32: "float", arrow.FLOAT64: "double", arrow.STRING: "string", arrow.LARGE_STRING: "large_string"}
		if out = name[t.ID()]; out == "" {
			out = t.String()
		}
	}
	if !f.Nullable {
		out += " not null"
	}
	return out
}

// scans counts scans of some columns and rows of files.
type scans struct{ n, read, out int }

// try reads some columns of each split of a file, from some row on, in small batches, with a predicate: no row that matches is missing,
// and each is that of the whole scan, which is cols.
func (s *scans) try(t *testing.T, rng *rand.Rand, path string, names []string, cols [][]string) {
	t.Helper()
	tab := mustOpen(t, nil, path)
	first := int64(0)
	for i, split := range tab.Splits() {
		all := allOfSplit(t, tab, i, driver.ScanOptions{Alloc: memory.DefaultAllocator})
		o := driver.ScanOptions{Alloc: memtest.New(t), BatchRows: 1 + rng.IntN(90), FromRow: rng.Int64N(split.Rows), Gaps: rng.IntN(2) == 0, Columns: []string{}, AheadBytes: rng.Int64N(2)}
		for _, c := range rng.Perm(len(names))[:1+rng.IntN(min(len(names), 6))] {
			o.Columns = append(o.Columns, names[c])
		}
		for range 20 { // until a column has a literal
			c := rng.IntN(len(names))
			if v := literal(all.Column(c), rng.IntN(int(split.Rows))); v != nil {
				o.Predicate = driver.Predicate{{Column: names[c], Op: []driver.Op{driver.Eq, driver.Lt, driver.Le, driver.Gt, driver.Ge, driver.In}[rng.IntN(6)], Values: []any{v}}}
				break
			}
		}
		name := fmt.Sprintf("%s, split %d, columns %q where %v from %d, batches of %d, gaps %t, ahead %d", path, i, o.Columns, o.Predicate, o.FromRow, o.BatchRows, o.Gaps, o.AheadBytes)
		got := make([]bool, split.Rows)
		err := readAll(t.Context(), tab, i, &o, func(b driver.Batch) {
			rows := b.Rows
			for r := b.Row; b.Rows == nil && r < b.End(); r++ {
				rows = append(rows, r)
			}
			for c, a := range b.Record.Columns() {
				want := cols[slices.Index(names, b.Record.ColumnName(c))]
				for k, v := range text(a) {
					if v != want[first+rows[k]] {
						t.Fatalf("%s: row %d of %s is %s, want %s", name, rows[k], b.Record.ColumnName(c), v, want[first+rows[k]])
					}
				}
			}
			for _, r := range rows {
				if got[r] || r < o.FromRow {
					t.Errorf("%s: row %d is there, or twice", name, r)
				}
				got[r] = true
			}
			if !slices.Equal(o.Columns, columnNames(b.Record)) || len(rows) > o.BatchRows {
				t.Errorf("%s: %d rows of %v", name, len(rows), b.Record.Schema())
			}
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for r := int(o.FromRow); r < len(got); r++ {
			match := true
			for k := range o.Predicate {
				match = match && holds(&o.Predicate[k], all.Column(slices.Index(names, o.Predicate[k].Column)), r)
			}
			if got[r] {
				s.read++
			} else {
				s.out++
			}
			if match && !got[r] {
				t.Fatalf("%s: row %d is missing", name, r)
			}
		}
		all.Release()
		first += split.Rows
	}
}

func columnNames(rec arrow.RecordBatch) (out []string) {
	for _, f := range rec.Schema().Fields() {
		out = append(out, f.Name)
	}
	return out
}

// literal is the value of row r as predicates have it; nil if it is null or NaN, or of a type that holds does not know.
func literal(a arrow.Array, r int) any {
	if a.IsNull(r) {
		return nil
	}
	float := func(f float64) any {
		if math.IsNaN(f) {
			return nil
		}
		return f
	}
	switch a := a.(type) {
	case *array.Int64:
		return a.Value(r)
	case *array.Int32:
		return int64(a.Value(r))
	case *array.Date32:
		return int64(a.Value(r))
	case *array.Timestamp:
		return int64(a.Value(r))
	case *array.Uint64:
		return a.Value(r)
	case *array.Float64:
		return float(a.Value(r))
	case *array.Float32:
		return float(float64(a.Value(r)))
	case *array.String:
		return a.Value(r)
	case *array.Boolean:
		return a.Value(r)
	}
	return nil
}
