package dataset_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/csvio"
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

// A filter that leaves out folders gives the rows that one over all rows gives, for all types that
// folders can have, whether the user says the type or the files do.
func TestFoldersThatFiltersLeaveOut(t *testing.T) {
	ctx := context.Background()
	texts := map[string][]string{
		"number": {"-1", "0", "1", "2", "7", "01", "+7", "9007199254740992"},
		"real":   {"-1", "0.1", "0.5", "1.50", "16777216", "1e3", "nan", "inf"},
		"day":    {"1969-12-31", "1970-01-01", "2024-03-31", "2024-10-27"},
		"time":   {"1970-01-01", "2024-03-31T03:00:00", "2024-03-31 00:00", "2024-10-27T02:30:00", "1969-12-31T23:59:59"},
		"moment": {"1970-01-01T00:00:00Z", "2024-03-31T03:00:00+02:00", "2024-10-27T00:30:00Z", "2024-10-27T01:30:00Z"},
		"text":   {"", "a", "b", "01", "1", "2024-03-31", "true"},
	}
	filters := func(values ...string) (out []string) {
		for _, v := range values {
			for _, op := range []string{"==", "!=", "<", "<=", ">", ">="} {
				out = append(out, "k "+op+" "+v)
			}
			out = append(out, "k in ["+v+", "+values[0]+"]", "!(k < "+v+")")
		}
		return append(out, "is_null(k)", "is_not_null(k)")
	}
	numbers := filters("0", "1", "2", "0.5", "7", "-1")
	stamps := filters(`date("2024-03-31")`, `cast("2024-03-31T03:00:00", "timestamp")`, `date("1970-01-01")`)
	tried, fewer := 0, 0
	for _, c := range []struct {
		typ, of string
		filters []string
	}{
		{"int16", "", numbers}, {"int64", "number", append(numbers, filters("9007199254740993", "9007199254740992")...)}, {"uint8", "", numbers},
		{"double", "real", append(numbers, filters("0.1", "16777217", "1000")...)}, {"double", "number", append(numbers, filters("9007199254740993")...)},
		{"float", "real", append(numbers, filters("0.1", "16777217", `cast("0.1", "float")`)...)},
		{"date", "day", stamps}, {"date64", "day", stamps}, {"timestamp[s]", "time", stamps}, {"timestamp[ns]", "time", stamps},
		{"timestamp[ms, Europe/Berlin]", "moment", filters(`cast("2024-03-31T01:00:00Z", "timestamp[us, UTC]")`, `cast("2024-10-27T00:30:00Z", "timestamp[s, UTC]")`)},
		{"string", "text", filters(`"01"`, `"a"`, `""`)}, {"string", "day", filters(`"2024-03-31"`)}, {"string", "number", filters(`"1"`, `"01"`)},
		{"bool", "", append(filters("true", "false"), "k", "!k")},
	} {
		values := texts[c.of]
		if c.of == "" {
			values = []string{"0", "1"}
		}
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
			{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "k", Type: arrow.BinaryTypes.String, Nullable: true}}, nil))
		for i, v := range append(values, "null") {
			b.Field(0).(*array.Int64Builder).Append(int64(i))
			if v == "null" {
				b.Field(1).AppendNull()
			} else {
				b.Field(1).(*array.StringBuilder).Append(v)
			}
		}
		rec := b.NewRecordBatch()
		dir := t.TempDir()
		if _, err := dataset.FromRecords(rec.Schema(), rec).WriteCSV(ctx, dir, &dataset.WriteOptions{PartitionBy: []string{"k"}, RunID: "x"}); err != nil {
			t.Fatal(err)
		}
		src := func() *dataset.Dataset {
			return dataset.Read(csvio.New(csvio.Options{Options: fileset.Options{Paths: []string{dir}, PartitionTypes: map[string]string{"k": c.typ}}}))
		}
		ids := func(filter string) (string, error) {
			var out []int64
			for rec, err := range src().Filter(filter).Records(ctx, nil) {
				if err != nil {
					return "", err
				}
				out = append(out, rec.Column(0).(*array.Int64).Int64Values()...)
			}
			slices.Sort(out)
			return fmt.Sprint(out), nil
		}
		for _, f := range c.filters {
			got, err := ids(f)
			want, err2 := ids("coalesce(" + f + ", false)")
			if (err == nil) != (err2 == nil) || got != want {
				t.Errorf("%s of %s, %s: %s, %v; a filter over all rows gives %s, %v", c.typ, c.of, f, got, err, want, err2)
			}
			if err2 != nil {
				t.Logf("%s of %s, %s: %v", c.typ, c.of, f, err)
			} else if tried++; want != "[]" {
				fewer++
			}
		}
	}
	if tried < 300 || fewer < 200 {
		t.Errorf("%d filters, of which %d give rows: they do not test", tried, fewer)
	}
}

func shown(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	return fmt.Sprintf("%q", a.ValueStr(i))
}
