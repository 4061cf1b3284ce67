package dataset_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/parquetio"
)

// What a sink writes into folders, a source reads back, with its types: all types that folders can have, and hostile values.
func TestPartitionsRoundTrip(t *testing.T) {
	ctx := context.Background()
	texts := []string{"", "00501", "501", "+49", "__HIVE_DEFAULT_PARTITION__", "%5F", "a/b=c%", "..", ".", "~", "null", "NaN", "true", "2024-01-01", "1.10", "é\u00a0x", "_h", ".h", "a\nb", "1"}
	var columns []arrow.Array
	add := func(name string, values ...string) {
		typ, err := typename.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		b := array.NewBuilder(memory.DefaultAllocator, typ)
		for _, v := range values {
			if err := b.AppendValueFromString(v); err != nil {
				t.Fatal(name, v, err)
			}
		}
		b.AppendNull()
		columns = append(columns, b.NewArray())
	}
	add("string", texts...)
	add("large_string", texts...)
	add("bool", "true", "false")
	add("int8", "-128", "0", "127")
	add("int16", "-32768", "1")
	add("int32", "10", "11", "12")
	add("int64", "-9223372036854775808", "9223372036854775807", "1")
	add("uint8", "0", "255")
	add("uint16", "65535", "1")
	add("uint32", "4294967295", "1")
	add("uint64", "18446744073709551615", "0")
	add("date", "0001-01-01", "1969-12-31", "9999-12-31")
	add("date64", "1969-12-31", "2024-02-29")
	add("timestamp[s]", "0001-01-01 00:00:00", "9999-12-31 23:59:59", "2024-01-01 00:00:00")
	add("timestamp[ms]", "1969-12-31 23:59:59.999")
	add("timestamp", "2024-01-01 00:00:00.000001", "2024-01-01 00:00:00")
	add("timestamp[ns]", "1700-01-01 00:00:00.000000001")
	for _, zone := range []string{"UTC", "Europe/Berlin", "+02:00"} {
		b := array.NewTimestampBuilder(memory.DefaultAllocator, &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: zone})
		b.AppendValues([]arrow.Timestamp{0, 1_729_990_800_000_000, 1_729_987_200_000_000, -1}, nil) // an hour that is there twice
		b.AppendNull()
		columns = append(columns, b.NewArray())
	}
	columns = append(columns, array.NewNull(2))
	kinds := []struct {
		name  string
		write func(ds *dataset.Dataset, dir string, o *dataset.WriteOptions) error
		read  func(dir string) driver.Source
	}{
		{"parquet", func(ds *dataset.Dataset, dir string, o *dataset.WriteOptions) error {
			_, err := ds.WriteParquet(ctx, dir, o)
			return err
		}, func(dir string) driver.Source {
			return parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{dir}}})
		}},
		{"ipc", func(ds *dataset.Dataset, dir string, o *dataset.WriteOptions) error {
			_, err := ds.WriteIPC(ctx, dir, o)
			return err
		}, func(dir string) driver.Source {
			return ipcio.New(ipcio.Options{Options: fileset.Options{Paths: []string{dir}}})
		}},
	}
	for _, kind := range kinds {
		for _, k := range columns {
			t.Run(kind.name+" "+typename.Name(k.DataType()), func(t *testing.T) {
				ids := array.NewInt64Builder(memory.DefaultAllocator)
				for i := range k.Len() {
					ids.Append(int64(i))
				}
				schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "k", Type: k.DataType(), Nullable: true}}, nil)
				rec := array.NewRecordBatch(schema, []arrow.Array{ids.NewArray(), k}, int64(k.Len()))
				dir := t.TempDir()
				if err := kind.write(dataset.FromRecords(schema, rec), dir, &dataset.WriteOptions{PartitionBy: []string{"k"}, RunID: "x"}); err != nil {
					t.Fatal(err)
				}
				tab, err := kind.read(dir).Resolve(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer tab.Close()
				if f := tab.Schema().Field(1); !arrow.TypeEqual(f.Type, k.DataType()) {
					t.Fatalf("the type is %v", f.Type)
				}
				seen := 0
				for i := range tab.Splits() {
					r, err := tab.Open(ctx, i, nil)
					if err != nil {
						t.Fatal(err)
					}
					defer r.Close()
					b, err := r.Next(ctx)
					if err != nil {
						t.Fatal(err)
					}
					defer b.Record.Release()
					for row, id := range b.Record.Column(0).(*array.Int64).Int64Values() {
						seen++
						got := b.Record.Column(1)
						if !array.SliceEqual(got, int64(row), int64(row)+1, k, id, id+1) {
							t.Errorf("%s came back as %s", shown(k, int(id)), shown(got, row))
						}
					}
				}
				if seen != k.Len() {
					t.Errorf("%d rows of %d", seen, k.Len())
				}
			})
		}
	}
}

func shown(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	return fmt.Sprintf("%q", a.ValueStr(i))
}
