package dataset_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/testserver"
)

// The program of README.md runs on a real S3 server, and gives what a plain loop over the same numbers gives: nulls where the fare is
// none, rows in order of files and rows.
func TestProgram(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "bucket")
	base, query, _ := strings.Cut(s.URL("bucket"), "?")
	ctx := t.Context()
	const files, rows = 3, 5000
	for f := range files {
		trips := dataset.Range(rows).WithColumns(
			fmt.Sprintf("fare_amount = double(id %% 11) - %d.0", f), "trip_distance = double(id % 130)", "tip_amount = id % 7 == 0 ? try_cast(\"\", \"double\") : double(id % 5)",
			"passenger_count = id % 6", "vendor = string(id)")
		if _, err := trips.WriteParquet(ctx, fmt.Sprintf("%s/taxi/year=%d/month=1?%s", base, 2020+f, query), nil); err != nil {
			t.Fatal(err)
		}
	}
	ds := dataset.ReadParquet(base+"/taxi/**/*.parquet?"+query).
		Filter("fare_amount > 0 && trip_distance < 100").
		WithColumns("tip_rate = tip_amount / fare_amount", "log_dist = log1p(trip_distance)").
		Select("tip_rate", "log_dist", "passenger_count")
	defer ds.Close()
	at, batches := 0, 0 // the row that comes next, of all files
	for b, err := range ds.IterBatches(ctx, &dataset.BatchOptions{Rows: 1024}) {
		if err != nil {
			t.Fatal(err)
		}
		rec := b.Record()
		tip, dist, people := rec.Column(0).(*array.Float64), rec.Column(1).(*array.Float64), rec.Column(2).(*array.Int64)
		for i := range b.Rows() {
			var f, id int
			for ; ; at++ {
				if f, id = at/rows, at%rows; f >= files {
					t.Fatal("more rows than there should be")
				}
				if id%11-f > 0 && id%130 < 100 {
					break
				}
			}
			at++
			if null := id%7 == 0; tip.IsNull(i) != null || !null && tip.Value(i) != float64(id%5)/float64(id%11-f) ||
				math.Abs(dist.Value(i)-math.Log1p(float64(id%130))) > 1e-12 || people.Value(i) != int64(id%6) {
				t.Fatalf("row %d of file %d is %v, %v, %v", id, f, tip.ValueStr(i), dist.Value(i), people.Value(i))
			}
		}
		batches++
	}
	for ; at < files*rows; at++ {
		if f, id := at/rows, at%rows; id%11-f > 0 && id%130 < 100 {
			t.Fatalf("row %d of file %d is missing", id, f)
		}
	}
	if batches < 8 {
		t.Errorf("%d batches", batches)
	}
}
