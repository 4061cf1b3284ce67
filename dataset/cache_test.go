package dataset_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobcache"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

// With a cache, shuffled epochs after the first read nothing from the bucket, another run nothing but listings, and the samples
// are those without a cache.
func TestCachedEpochs(t *testing.T) {
	srv := testserver.S3(t)
	srv.CreateBucket(t, "data")
	base, query, _ := strings.Cut(srv.URL("data"), "?")
	ctx := context.Background()
	const epochs, rows = 3, 120_000
	if _, err := dataset.Range(rows).WithColumns("x = random()", "y = id * 7", `s = concat("row ", string(id))`).
		WriteParquet(ctx, base+"/epochs?"+query, &dataset.WriteOptions{TargetBytes: 100_000}); err != nil {
		t.Fatal(err)
	}
	p := testserver.NewProxy(t, srv, testserver.Faults{})
	base, query, _ = strings.Cut(srv.Via(p).URL("data"), "?")
	var gets atomic.Int64 // of data; what else there is are listings
	p.Set(testserver.Faults{Only: func(r *http.Request) bool {
		if r.Header.Get("Range") != "" {
			gets.Add(1)
		}
		return false
	}})
	dir := t.TempDir()
	// run reads all epochs, and returns how many requests each took, the plan's first.
	run := func(cached bool) (requests []int64, n int64, sum float64) {
		o := parquetio.Options{Options: fileset.Options{Paths: []string{base + "/epochs?" + query}}}
		if cached {
			c, err := blobcache.New(blobcache.Options{Dir: dir, Max: 256 << 20})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			defer func() {
				if s := c.Stats(); s.Corrupt+s.Refused+s.Skipped+s.Evicted != 0 || s.HitBytes == 0 {
					t.Error(s)
				}
			}()
			o.Blob = &blobio.Options{Cache: c}
		}
		ds := dataset.Read(parquetio.New(o)).Select("id", "x", "s")
		defer ds.Close()
		count := func() { requests = append(requests, gets.Swap(0)) }
		if _, err := ds.Schema(ctx); err != nil {
			t.Fatal(err)
		}
		count()
		its, err := ds.Shards(ctx, 2, &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 5}, Options: shard.Options{GlobalBatch: 1000, Epochs: epochs, Shuffle: &shard.Shuffle{WindowRows: 2000, Lanes: 8}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range its {
			defer it.Close()
		}
		for range epochs {
			for range rows / 1000 {
				for _, it := range its {
					b, err := it.Next(ctx)
					if err != nil {
						t.Fatal(err)
					}
					rec := b.Record()
					for i, id := range rec.Column(0).(interface{ Int64Values() []int64 }).Int64Values() {
						n++
						sum += float64(id) * float64(n%1000) * rec.Column(1).(interface{ Value(int) float64 }).Value(i)
					}
					b.Release()
				}
			}
			for _, it := range its {
				if _, err := it.Next(ctx); err == nil {
					t.Fatal("the epoch does not end")
				}
			}
			count()
		}
		return requests, n, sum
	}
	plain, n, sum := run(false)
	first, n1, sum1 := run(true)
	second, n2, sum2 := run(true)
	t.Logf("GETs of plan and epochs: without a cache %v, with %v, again %v", plain, first, second)
	if n != epochs*rows || n1 != n || n2 != n || sum1 != sum || sum2 != sum {
		t.Errorf("rows %d %d %d, sums %v %v %v", n, n1, n2, sum, sum1, sum2)
	}
	if plain[2]+plain[3] == 0 || first[1] == 0 || first[2]+first[3] != 0 { // the second epoch may be read in the end of the first
		t.Errorf("GETs: without a cache %v, with %v", plain, first)
	}
	if second[0]+second[1]+second[2]+second[3] != 0 {
		t.Errorf("GETs of another run: %v", second)
	}
}
