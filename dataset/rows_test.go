package dataset_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/parquetio"
)

func parquetSource(path string) driver.Source {
	return parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{path}}})
}

type trip struct {
	ID    int64
	Fare  float64 `arrow:"fare_amount"`
	Note  *string
	When  time.Time
	Tags  []string
	Raw   []byte
	OK    bool
	Small int8
	_     int // not exported: no column
}

type priced struct {
	ID    int64
	Label string
	Twice *float64
	Tags  []string
	When  time.Time
}

func trips(n int) []trip {
	out := make([]trip, n)
	for i := range out {
		note := fmt.Sprint("note ", i)
		out[i] = trip{ID: int64(i), Fare: float64(i) / 4, When: time.UnixMicro(int64(i) * 1e6).UTC(), Raw: []byte{byte(i), 1}, OK: i%2 == 0, Small: int8(i % 100)}
		if i%3 != 0 {
			out[i].Note = &note
		}
		if i%4 != 0 {
			for k := range i % 5 {
				out[i].Tags = append(out[i].Tags, fmt.Sprint("t", k))
			}
		}
	}
	return out
}

// idRange numbers rows; typed rows come from it by MapRows, so both directions are used.
func tripSet(n int) *dataset.Dataset {
	all := trips(n)
	return dataset.MapRows(dataset.Range(int64(n)), func(r struct{ ID int }) (trip, error) { return all[r.ID], nil })
}

func TestTypedRows(t *testing.T) {
	const n = 5000
	want := trips(n)
	i := 0
	for got, err := range dataset.Rows[trip](context.Background(), tripSet(n), nil) {
		if err != nil {
			t.Fatal(err)
		}
		w := want[i]
		if w.Tags == nil && got.Tags != nil && len(got.Tags) == 0 {
			got.Tags = nil
		}
		if !reflect.DeepEqual(got, w) {
			t.Fatalf("row %d: %+v, want %+v", i, got, w)
		}
		i++
	}
	if i != n {
		t.Fatalf("%d rows", i)
	}
}

func TestMapFilterFlatMapRows(t *testing.T) {
	ds := dataset.FilterRows(tripSet(100), func(r struct{ Small int8 }) (bool, error) { return r.Small >= 50, nil })
	ds = dataset.FlatMapRows(ds, func(r trip) ([]priced, error) {
		f := r.Fare * 2
		return []priced{{ID: r.ID, Label: "a", Twice: &f}, {ID: r.ID, Label: "b", Tags: r.Tags}}, nil
	})
	ds = ds.Filter(`label == "b" || twice > 30.0`)
	n := 0
	for r, err := range dataset.Rows[priced](context.Background(), ds, nil) {
		if err != nil {
			t.Fatal(err)
		}
		if r.ID < 50 || r.Label == "a" && *r.Twice <= 30 || r.Label == "b" && r.Twice != nil {
			t.Fatalf("%+v", r)
		}
		n++
	}
	if n != 50+39 { // b: 50; a: fares above 15 are those of ids 61 to 99
		t.Fatalf("%d rows", n)
	}
}

func TestTypedRowErrors(t *testing.T) {
	ctx := context.Background()
	boom := errors.New("boom")
	bad := dataset.MapRows(dataset.Range(10), func(r struct{ ID int64 }) (struct{ X int64 }, error) {
		if r.ID == 7 {
			return struct{ X int64 }{}, boom
		}
		return struct{ X int64 }{r.ID}, nil
	})
	_, err := bad.Drain(ctx, nil)
	if row, ok := fault.PlaceOf(err).Row.Get(); !errors.Is(err, boom) || fault.CodeOf(err) != fault.UserCode || !ok || row != 7 {
		t.Errorf("error %v", err)
	}
	var zero int64
	panics := dataset.MapRows(dataset.Range(10), func(r struct{ ID int64 }) (struct{ X int64 }, error) {
		return struct{ X int64 }{1 / zero}, nil
	})
	if _, err := panics.Drain(ctx, nil); fault.CodeOf(err) != fault.UserCode {
		t.Errorf("panic: %v", err)
	}
	type nulls struct{ Note string }
	if _, err := dataset.MapRows(tripSet(10), func(nulls) (nulls, error) { return nulls{}, nil }).Drain(ctx, nil); fault.CodeOf(err) != fault.RowError {
		t.Errorf("null in a plain field: %v", err)
	}
	type unknown struct{ Nix int }
	_, err = dataset.MapRows(dataset.Range(1), func(unknown) (unknown, error) { return unknown{}, nil }).Schema(ctx)
	if fault.CodeOf(err) != fault.Invalid || fault.PlaceOf(err).Step != "step 1 (map_rows)" {
		t.Errorf("unknown column: %v", err)
	}
	if err := dataset.MapRows(dataset.Range(1), func(int) (unknown, error) { return unknown{}, nil }).Err(); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("not a struct: %v", err)
	}
	if err := dataset.MapRows(dataset.Range(1), func(struct{ C chan int }) (unknown, error) { return unknown{}, nil }).Err(); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a channel: %v", err)
	}
}

// Aggregates equal what big arithmetic gives, for columns with nulls and large offsets.
func TestAggregate(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	schema := arrow.NewSchema([]arrow.Field{{Name: "i", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, {Name: "f", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "u", Type: arrow.PrimitiveTypes.Uint8}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "none", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	const n = 200_000
	sumI, sumF := new(big.Int), new(big.Float).SetPrec(200)
	var fs []float64
	minI, maxI, nullI := int64(math.MaxInt64), int64(math.MinInt64), int64(0)
	for k := range n {
		if rng.IntN(5) == 0 {
			b.Field(0).AppendNull()
			b.Field(1).AppendNull()
			b.Field(3).AppendNull()
			nullI++
		} else {
			i := rng.Int64N(1<<40) - 1<<39
			f := 1e9 + rng.NormFloat64()
			b.Field(0).(*array.Int64Builder).Append(i)
			b.Field(1).(*array.Float64Builder).Append(f)
			b.Field(3).(*array.StringBuilder).Append(fmt.Sprintf("%07d", k))
			sumI.Add(sumI, big.NewInt(i))
			sumF.Add(sumF, big.NewFloat(f))
			fs = append(fs, f)
			minI, maxI = min(minI, i), max(maxI, i)
		}
		b.Field(2).(*array.Uint8Builder).Append(uint8(k))
		b.Field(4).AppendNull()
		b.Field(5).(*array.BooleanBuilder).Append(k == 77)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	_, err := dataset.FromRecords(schema, rec).Aggregate(context.Background(), nil, dataset.Sum("nome"))
	if want := `sum(nome): unknown column "nome"; did you mean "none"?; have i, f, u, s, none, b`; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	got, err := dataset.FromRecords(schema, rec).Aggregate(context.Background(), nil,
		dataset.Sum("i"), dataset.Min("i"), dataset.Max("i"), dataset.Nulls("i"), dataset.Values("i"), dataset.Mean("i"),
		dataset.Sum("f"), dataset.Mean("f"), dataset.Std("f"), dataset.Sum("u"), dataset.Max("s"), dataset.Min("s"),
		dataset.Sum("none"), dataset.Mean("none"), dataset.Max("none"), dataset.Nulls("none"), dataset.Max("b"), dataset.Min("b"))
	if err != nil {
		t.Fatal(err)
	}
	meanBig := new(big.Float).Quo(sumF, big.NewFloat(float64(len(fs))))
	mean, _ := meanBig.Float64()
	m2 := 0.0
	for _, f := range fs {
		m2 += (f - mean) * (f - mean)
	}
	wantF, _ := sumF.Float64()
	near := func(key string, want, tol float64) {
		if g := got[key].(float64); math.Abs(g-want) > tol*math.Abs(want) {
			t.Errorf("%s = %v, want %v", key, g, want)
		}
	}
	near("sum(f)", wantF, 1e-15)
	near("mean(f)", mean, 1e-15)
	near("std(f)", math.Sqrt(m2/float64(len(fs)-1)), 1e-9)
	near("mean(i)", float64(sumI.Int64())/float64(len(fs)), 1e-14)
	sumU := uint64(0)
	for k := range n {
		sumU += uint64(uint8(k))
	}
	for key, want := range map[string]any{"sum(i)": sumI.Int64(), "min(i)": minI, "max(i)": maxI, "nulls(i)": nullI, "count(i)": int64(len(fs)),
		"sum(u)": sumU, "sum(none)": int64(0), "mean(none)": nil, "max(none)": nil, "nulls(none)": int64(n), "max(b)": true, "min(b)": false} {
		if got[key] != want {
			t.Errorf("%s = %v (%T), want %v", key, got[key], got[key], want)
		}
	}
	if got["max(s)"].(string) <= got["min(s)"].(string) {
		t.Errorf("strings: %v %v", got["min(s)"], got["max(s)"])
	}
}

// Aggregates of decimals are exact, over batches, splits and nulls, for every width and scale.
func TestAggregateDecimals(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, typ := range []arrow.DataType{&arrow.Decimal32Type{Precision: 9, Scale: 2}, &arrow.Decimal64Type{Precision: 18, Scale: 0},
		&arrow.Decimal128Type{Precision: 38, Scale: 5}, &arrow.Decimal256Type{Precision: 76, Scale: 40}, &arrow.Decimal128Type{Precision: 38, Scale: -3}} {
		schema := arrow.NewSchema([]arrow.Field{{Name: "d", Type: typ, Nullable: true}, {Name: "none", Type: typ, Nullable: true}}, nil)
		digits := int(typ.(arrow.DecimalType).GetPrecision())
		scale := typ.(arrow.DecimalType).GetScale()
		var recs []arrow.RecordBatch
		sum, lo, hi, n := new(big.Int), (*big.Int)(nil), (*big.Int)(nil), 0
		for range 3 {
			b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
			for range 1000 {
				b.Field(1).AppendNull()
				if rng.IntN(4) == 0 {
					b.Field(0).AppendNull()
					continue
				}
				v, _ := new(big.Int).SetString(strings.Repeat("9", digits), 10)
				v.Rsh(v, uint(rng.IntN(20)))
				if rng.IntN(2) == 0 {
					v.Neg(v)
				}
				switch f := b.Field(0).(type) {
				case *array.Decimal32Builder:
					f.Append(decimal.Decimal32(v.Int64()))
				case *array.Decimal64Builder:
					f.Append(decimal.Decimal64(v.Int64()))
				case *array.Decimal128Builder:
					f.Append(decimal128.FromBigInt(v))
				case *array.Decimal256Builder:
					f.Append(decimal256.FromBigInt(v))
				}
				if n++; lo == nil || v.Cmp(lo) < 0 {
					lo = v
				}
				if hi == nil || v.Cmp(hi) > 0 {
					hi = v
				}
				sum.Add(sum, v)
			}
			recs = append(recs, b.NewRecordBatch())
			b.Release()
		}
		got, err := dataset.FromRecords(schema, recs...).Aggregate(t.Context(), nil, dataset.Sum("d"), dataset.Min("d"), dataset.Max("d"),
			dataset.Mean("d"), dataset.Std("d"), dataset.Values("d"), dataset.Sum("none"), dataset.Min("none"), dataset.Mean("none"))
		for _, r := range recs {
			r.Release()
		}
		if err != nil {
			t.Fatal(err)
		}
		unit := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(scale, -scale))), nil))
		if scale > 0 {
			unit.Inv(unit)
		}
		for key, want := range map[string]*big.Int{"sum(d)": sum, "min(d)": lo, "max(d)": hi, "sum(none)": new(big.Int)} {
			text := got[key].(string)
			v, ok := new(big.Rat).SetString(text)
			if !ok || v.Cmp(new(big.Rat).Mul(new(big.Rat).SetInt(want), unit)) != 0 {
				t.Errorf("%v: %s = %s, want %v units of 10^%d", typ, key, text, want, -scale)
			}
			if _, after, _ := strings.Cut(text, "."); len(after) != int(max(scale, 0)) {
				t.Errorf("%v: %s = %s has not the column's scale", typ, key, text)
			}
		}
		mean, _ := new(big.Rat).Quo(new(big.Rat).Mul(new(big.Rat).SetInt(sum), unit), new(big.Rat).SetInt64(int64(n))).Float64()
		if got["mean(d)"] != mean || got["count(d)"] != int64(n) || got["min(none)"] != nil || got["mean(none)"] != nil || !(got["std(d)"].(float64) > 0) {
			t.Errorf("%v: %v, want a mean of %v", typ, got, mean)
		}
	}
}

func TestAggregateOverflow(t *testing.T) {
	ds := dataset.Range(3).WithColumns("x = 9223372036854775807 - id")
	if _, err := ds.Aggregate(context.Background(), nil, dataset.Sum("x")); fault.CodeOf(err) != fault.RowError {
		t.Fatalf("error %v", err)
	}
	got, err := ds.Aggregate(context.Background(), nil, dataset.Mean("x"), dataset.Max("x"))
	if err != nil || got["mean(x)"].(float64) != 9223372036854775806 || got["max(x)"] != int64(math.MaxInt64) {
		t.Fatalf("%v %v", got, err)
	}
	if _, err := ds.Aggregate(context.Background(), nil, dataset.Sum("nix")); fault.CodeOf(err) != fault.Invalid {
		t.Fatalf("error %v", err)
	}
}
