package parquetio

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// notRead are the files that this package reads and pqarrow does not, with what that says.
var notRead = map[string]string{
	"datapage_v2_empty_datapage.snappy.parquet": "could not decompress page", // of nothing
	"hadoop_lz4_compressed.parquet":             "LZ4 unimplemented",
	"hadoop_lz4_compressed_larger.parquet":      "LZ4 unimplemented",
	"incorrect_map_schema.parquet":              "MAP keys must be required",
	"non_hadoop_lz4_compressed.parquet":         "LZ4 unimplemented",
	"unknown-logical-type.parquet":              "invalid logical type",
}

// TestFilesEqualOracle: of every file of the shared test data that both read, each row group is to this package what it is to pqarrow.
func TestFilesEqualOracle(t *testing.T) {
	dir := datatest.Dir(t)
	groups, unread := 0, map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name := filepath.Base(path)
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".parquet") || refused[name].why != "" {
			return err
		}
		tab := mustOpen(t, &Options{Int96: "ns"}, path).(*table)
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, split := range tab.Splits() {
			want, err := oracleOrPanic(t, b, tab.footers[0].schema, i)
			if err != nil {
				if unread[name] = true; notRead[name] == "" || !strings.Contains(err.Error(), notRead[name]) {
					t.Errorf("%s: pqarrow says %v", path, err)
				}
				break
			}
			got := allOfSplit(t, tab, i, driver.ScanOptions{Alloc: memtest.New(t)})
			if groups++; int(got.NumCols()) != len(want) && split.Rows > 0 {
				t.Errorf("%s, row group %d: %d columns, want %d", path, i, got.NumCols(), len(want))
			}
			for c, a := range got.Columns() {
				if !sameValues(a, want[c]) {
					t.Errorf("%s, row group %d, column %q: %.300v, want %.300v", path, i, got.ColumnName(c), a, want[c])
				}
			}
			got.Release()
			releaseAll(want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(unread)), slices.Sorted(maps.Keys(notRead)); !slices.Equal(got, want) {
		t.Errorf("pqarrow does not read %q, want %q", got, want)
	}
	if t.Logf("%d row groups", groups); groups < 200 {
		t.Error("not all was tested")
	}
}

func oracleOrPanic(t *testing.T, b []byte, s *fileSchema, group int) (out []arrow.Array, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return oracle(t, b, s, group)
}

// sameValues is array.Equal, to which NaN is like no other NaN.
func sameValues(a, b arrow.Array) bool {
	if !arrow.TypeEqual(a.DataType(), b.DataType()) || a.Len() != b.Len() || a.NullN() != b.NullN() {
		return false
	}
	if array.Equal(a, b) {
		return true
	}
	x := text(a)
	return strings.Contains(strings.Join(x, " "), "nan") && slices.Equal(x, text(b))
}
