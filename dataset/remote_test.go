package dataset_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	_ "gocloud.dev/blob/gcsblob"
	_ "gocloud.dev/blob/s3blob"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/testserver"
)

// Every format, written to a real S3 server and read back through one that
// answers late, with 503, with resets and with half a body, gives the same rows.
func TestRemote(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "data")
	p := testserver.NewProxy(t, s, testserver.Faults{})
	remote(t, s.Via(p).URL("data"), p, "parquet", "csv", "json", "ipc")
}

func TestRemoteGCS(t *testing.T) {
	s := testserver.GCS(t)
	s.CreateBucket(t, "data")
	p := testserver.NewProxy(t, s, testserver.Faults{})
	remote(t, s.Via(p).URL("data"), p, "parquet")
}

func remote(t *testing.T, bucket string, p *testserver.Proxy, formats ...string) {
	ctx := context.Background()
	base, query, _ := strings.Cut(bucket, "?")
	at := func(key string) string { return base + "/" + key + "?" + query }
	ds := dataset.Range(30_000).WithColumns("x = double(id) / 7.0", `s = concat("row ", string(id))`, "part = id % 3")
	want, err := rowsOf(ds, dataset.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	faults := testserver.Faults{Slow: 0.05, Latency: 300 * time.Millisecond, Error: 0.1, Reset: 0.05, Truncate: 0.1}
	for _, c := range []struct {
		name  string
		write func(path string) (*dataset.WriteResult, error)
		read  func(path string) *dataset.Dataset
	}{
		{"parquet", func(p string) (*dataset.WriteResult, error) { return ds.WriteParquet(ctx, p, small) },
			func(p string) *dataset.Dataset { return dataset.ReadParquet(p) }},
		{"csv", func(p string) (*dataset.WriteResult, error) { return ds.WriteCSV(ctx, p, small) },
			func(p string) *dataset.Dataset { return dataset.ReadCSV(p) }},
		{"json", func(p string) (*dataset.WriteResult, error) { return ds.WriteJSON(ctx, p, small) },
			func(p string) *dataset.Dataset { return dataset.ReadJSON(p) }},
		{"ipc", func(p string) (*dataset.WriteResult, error) { return ds.WriteIPC(ctx, p, small) },
			func(p string) *dataset.Dataset { return dataset.ReadIPC(p) }},
	} {
		if !slices.Contains(formats, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			p.Set(faults)
			defer p.Set(testserver.Faults{})
			path := at(c.name)
			r, err := c.write(path)
			if err != nil {
				t.Fatal(err)
			}
			if r.Rows != int64(len(want)) || r.Files < 2 {
				t.Fatalf("%d rows in %d files", r.Rows, r.Files)
			}
			got, err := rowsOf(c.read(path), dataset.RunOptions{CPUs: 4, Memory: 32 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(want) {
				t.Fatalf("%d rows, want %d", len(got), len(want))
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("row %d is %s, want %s", i, got[i], want[i])
				}
			}
		})
	}
	if n := p.Errors.Load() + p.Resets.Load() + p.Truncated.Load() + p.Slow.Load(); n == 0 {
		t.Error("no fault fired")
	}
}

var small = &dataset.WriteOptions{TargetBytes: 20_000}

// Splits of a bucket are read more than one at a time even by one CPU: a server
// that is slow to answer costs its latency once per wave of requests.
func TestRemoteReadsOverlap(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "data")
	base, query, _ := strings.Cut(s.URL("data"), "?")
	path := base + "/wait?" + query
	ctx := context.Background()
	if _, err := dataset.Range(400_000).WithColumns("x = random()").WriteParquet(ctx, path, &dataset.WriteOptions{TargetBytes: 300_000}); err != nil {
		t.Fatal(err)
	}
	p := testserver.NewProxy(t, s, testserver.Faults{})
	base, query, _ = strings.Cut(s.Via(p).URL("data"), "?")
	ds := dataset.ReadParquet(base + "/wait?" + query)
	defer ds.Close()
	if _, err := ds.Schema(ctx); err != nil {
		t.Fatal(err)
	}
	const latency = 300 * time.Millisecond
	p.Set(testserver.Faults{Slow: 1, Latency: latency})
	before, start := p.Requests.Load(), time.Now()
	if _, err := ds.Drain(ctx, &dataset.RunOptions{CPUs: 1}); err != nil {
		t.Fatal(err)
	}
	n, took := p.Requests.Load()-before, time.Since(start)
	if n < 6 || took > time.Duration(n)*latency/2 {
		t.Errorf("%d requests of %v each took %v", n, latency, took)
	}
}

// Take of a remote dataset reads no more than it must.
func TestTakeReadsLittle(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "data")
	base, query, _ := strings.Cut(s.URL("data"), "?")
	path := base + "/many?" + query
	ctx := context.Background()
	if _, err := dataset.Range(400_000).WithColumns("x = random()").WriteParquet(ctx, path, &dataset.WriteOptions{TargetBytes: 300_000}); err != nil {
		t.Fatal(err)
	}
	p := testserver.NewProxy(t, s, testserver.Faults{})
	base, query, _ = strings.Cut(s.Via(p).URL("data"), "?")
	ds := dataset.ReadParquet(base + "/many?" + query)
	defer ds.Close()
	if _, err := ds.Schema(ctx); err != nil {
		t.Fatal(err)
	}
	before := p.Requests.Load()
	rec, err := ds.Take(ctx, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	if rec.NumRows() != 3 {
		t.Fatalf("%d rows", rec.NumRows())
	}
	if n := p.Requests.Load() - before; n > 4 {
		t.Errorf("%d requests for three rows", n)
	}
	before = p.Requests.Load()
	if n, err := ds.Count(ctx, nil); err != nil || n != 400_000 || p.Requests.Load() != before {
		t.Errorf("count %d, %v, with %d requests after the footers were read", n, err, p.Requests.Load()-before)
	}
}
