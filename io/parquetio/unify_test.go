package parquetio

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// kinds are types that meet, or that types makes of each other.
var kinds = [][]string{
	{"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double"},
	{"timestamp[ms]", "timestamp", "timestamp[ns]", "date"},
	{"timestamp[ms, UTC]", "timestamp[us, Europe/Berlin]", "timestamp[ns, UTC]"},
	{"string", "large_string", "binary", "large_binary"},
	{"time32[ms]", "time64[us]", "time64[ns]"},
	{"bool"},
}

// TestFiltersOfUnifiedFiles filters pairs of files whose columns have different types, that meet or that types names: what a scan
// with the predicate leaves out are rows for which one without it shows that it is not true.
func TestFiltersOfUnifiedFiles(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	f := filters{rng: rand.New(rand.NewPCG(seed, 26)), share: 0.3}
	refused := 0
	for k := range 60 {
		dir := t.TempDir()
		o := &Options{Options: fileset.Options{Types: map[string]string{}}}
		var fields [2][]arrow.Field
		for c := range 4 {
			of := kinds[f.rng.IntN(len(kinds))]
			name := fmt.Sprintf("c%d", c)
			for i := range fields {
				typ, err := typename.Parse(of[f.rng.IntN(len(of))])
				if err != nil {
					t.Fatal(err)
				}
				fields[i] = append(fields[i], arrow.Field{Name: name, Type: typ, Nullable: true})
			}
			if f.rng.IntN(3) == 0 {
				o.Types[name] = of[f.rng.IntN(len(of))]
			}
		}
		for i := range fields {
			f.rng.Shuffle(len(fields[i]), func(a, b int) { fields[i][a], fields[i][b] = fields[i][b], fields[i][a] })
			rec := f.record(arrow.NewSchema(fields[i], nil), k%2 == 0)
			writeFile(t, filepath.Join(dir, fmt.Sprint(i)), &EncodingOptions{RowGroupRows: 100, PageBytes: 1 << 10}, memory.DefaultAllocator, rec)
			rec.Release()
		}
		tab, err := open(t, o, dir)
		if err != nil { // kinds without a type for both
			refused++
			continue
		}
		f.table(t, tab, fmt.Sprintf("%v and %v as %v", fields[0], fields[1], o.Types))
	}
	t.Logf("%d filters, %d of them leave out a split; %d pairs are refused", f.tried, f.pruned, refused)
	if f.tried < 1000 || f.pruned < 100 || refused > 50 {
		t.Error("the filters do not test")
	}
}

// record has values that all types of a kind hold, at least mostly.
func (f *filters) record(schema *arrow.Schema, sorted bool) arrow.RecordBatch {
	const rows = 250
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for r := range rows {
		for i, field := range schema.Fields() {
			v := int64(f.rng.IntN(120))
			if sorted {
				v = int64(r / 3)
			}
			const day = 86400
			switch b := b.Field(i).(type) {
			case *array.TimestampBuilder:
				b.Append(arrow.Timestamp(v * day * int64(time.Second/field.Type.(*arrow.TimestampType).Unit.Multiplier())))
			case *array.Date32Builder:
				b.Append(arrow.Date32(v))
			case *array.Time32Builder:
				b.Append(arrow.Time32(v * 1000))
			case *array.Time64Builder:
				b.Append(arrow.Time64(v * int64(time.Second/field.Type.(*arrow.Time64Type).Unit.Multiplier())))
			case *array.BooleanBuilder:
				b.Append(v%2 == 0)
			case *array.StringBuilder:
				b.Append(fmt.Sprint(v))
			case *array.LargeStringBuilder:
				b.Append(fmt.Sprint(v))
			case *array.BinaryBuilder:
				b.Append(fmt.Append(nil, v))
			default:
				if err := b.AppendValueFromString(fmt.Sprint(v)); err != nil {
					panic(err)
				}
			}
			if f.rng.IntN(40) == 0 {
				b.Field(i).(interface{ SetNull(int) }).SetNull(r)
			}
		}
	}
	return b.NewRecordBatch()
}

// Statistics of a file are in its own type: a filter between two of its values, or beyond them, is no value of it.
func TestFiltersBetweenTypes(t *testing.T) {
	dir := t.TempDir()
	a := schemaOf("x", arrow.PrimitiveTypes.Int32, "t", &arrow.TimestampType{Unit: arrow.Millisecond})
	b := schemaOf("x", arrow.PrimitiveTypes.Float64, "t", &arrow.TimestampType{Unit: arrow.Nanosecond})
	writeFile(t, filepath.Join(dir, "a"), nil, memory.DefaultAllocator, fromJSON(t, a, `[{"x":5,"t":"1970-01-01 00:00:00.001"}]`))
	writeFile(t, filepath.Join(dir, "b"), nil, memory.DefaultAllocator, fromJSON(t, b, `[{"x":5.5,"t":"1970-01-01 00:00:00.0015"}]`))
	tab := mustOpen(t, nil, dir)
	for _, c := range []struct {
		term driver.Term
		want string
	}{
		{driver.Term{Column: "x", Op: driver.Lt, Values: []any{5.5}}, "true false"},
		{driver.Term{Column: "x", Op: driver.Ge, Values: []any{5.5}}, "false true"},
		{driver.Term{Column: "x", Op: driver.Eq, Values: []any{5.5}}, "false true"},
		{driver.Term{Column: "x", Op: driver.Gt, Values: []any{1e300}}, "false false"},
		{driver.Term{Column: "t", Op: driver.Ge, Values: []any{int64(1_000_001)}}, "false true"},
		{driver.Term{Column: "t", Op: driver.Lt, Values: []any{int64(1_000_001)}}, "true false"},
		{driver.Term{Column: "t", Op: driver.Eq, Values: []any{int64(1_000_000)}}, "true false"},
	} {
		keep, err := tab.(driver.Pruner).Keep(t.Context(), driver.Predicate{c.term})
		if got := fmt.Sprint(keep); err != nil || got != "["+c.want+"]" {
			t.Errorf("%v: %s, %v; want %s", c.term, got, err, c.want)
		}
	}
}
