package csvio

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

func TestEncodingErrors(t *testing.T) {
	e, err := NewEncoding(&EncodingOptions{Compression: "zstd"})
	if err != nil || e.Extension() != ".csv.zst" || string(e.Config()) != `{"compression":"zstd"}` {
		t.Errorf("%v %s", err, e.Config())
	}
	bad := arrow.NewSchema([]arrow.Field{{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)}}, nil)
	if err := e.Check(bad); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `column "l"`) {
		t.Errorf("%v", err)
	}
	for _, o := range []EncodingOptions{{Delimiter: "ab"}, {Compression: "lz4"}, {Level: 3}} {
		if _, err := NewEncoding(&o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	b := array.NewDate32Builder(memory.DefaultAllocator)
	defer b.Release()
	b.Append(10_000_000)
	col := b.NewArray()
	defer col.Release()
	rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "d", Type: arrow.FixedWidthTypes.Date32}}, nil), []arrow.Array{col}, 1)
	defer rec.Release()
	enc, err := e.NewEncoder(io.Discard, rec.Schema(), memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Abort()
	if err := enc.Write(rec); fault.CodeOf(err) != fault.RowError || !strings.Contains(err.Error(), `column "d"`) {
		t.Errorf("%v", err)
	}
}

// What is no time of day is not written as one.
func TestTimeOfDayOutOfRange(t *testing.T) {
	for _, typ := range []arrow.DataType{arrow.FixedWidthTypes.Time32s, arrow.FixedWidthTypes.Time32ms, arrow.FixedWidthTypes.Time64us, arrow.FixedWidthTypes.Time64ns} {
		schema := arrow.NewSchema([]arrow.Field{{Name: "d", Type: typ}}, nil)
		day := int64(24 * time.Hour / typ.(arrow.TemporalWithUnit).TimeUnit().Multiplier())
		for _, v := range []int64{-1, day} {
			b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
			defer b.Release()
			switch b := b.Field(0).(type) {
			case *array.Time32Builder:
				b.AppendValues([]arrow.Time32{0, arrow.Time32(day - 1), arrow.Time32(v)}, nil)
			case *array.Time64Builder:
				b.AppendValues([]arrow.Time64{0, arrow.Time64(day - 1), arrow.Time64(v)}, nil)
			}
			rec := b.NewRecordBatch()
			defer rec.Release()
			e, err := NewEncoding(nil)
			if err != nil {
				t.Fatal(err)
			}
			enc, err := e.NewEncoder(io.Discard, schema, memory.DefaultAllocator)
			if err != nil {
				t.Fatal(err)
			}
			err = enc.Write(rec)
			if row, _ := fault.PlaceOf(err).Row.Get(); fault.CodeOf(err) != fault.RowError || row != 2 || !strings.Contains(err.Error(), `column "d": a time of day`) {
				t.Errorf("%v of %d: %v", typ, v, err)
			}
			enc.Abort()
		}
	}
}

// TestCompression: a file is what its options and its name say, and a level is more than a word.
func TestCompression(t *testing.T) {
	rec := oneLine(testSchema(), 1, 0, 2000)
	defer rec.Release()
	size := map[string]int{}
	for _, c := range []struct {
		kind  string
		level int
		magic string
	}{{"", 0, "id,"}, {"none", 0, "id,"}, {"gzip", 1, "\x1f\x8b"}, {"gzip", 9, "\x1f\x8b"}, {"zstd", 1, "\x28\xb5\x2f\xfd"}, {"zstd", 19, "\x28\xb5\x2f\xfd"}} {
		path := filepath.Join(t.TempDir(), "x")
		write(t, path, EncodingOptions{Compression: c.kind, Level: c.level}, rec)
		b, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(b), c.magic) {
			t.Errorf("%q begins with %q, %v", c.kind, b[:4], err)
		}
		if before := size[c.kind]; before > 0 && len(b) >= before {
			t.Errorf("%q: %d bytes with level 1, %d with %d", c.kind, before, len(b), c.level)
		}
		size[c.kind] = len(b)
	}
	if size["gzip"] > size["none"]*9/10 || size["zstd"] > size["none"]*9/10 {
		t.Errorf("bytes: %v", size)
	}
}
