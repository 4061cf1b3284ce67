package dataset_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "gocloud.dev/blob/gcsblob"
	_ "gocloud.dev/blob/s3blob"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/binio"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/io/textio"
)

// Every format, written to a real S3 server and read back through one that
// answers late, with 503, with resets, with half a body, with one that stops, or not at all, gives the same rows.
func TestRemote(t *testing.T) {
	s := testserver.S3(t)
	s.CreateBucket(t, "data")
	p := testserver.NewProxy(t, s, testserver.Faults{})
	remote(t, s.Via(p).URL("data"), p, "parquet", "csv", "csv.zst", "json", "ipc", "ipc.stream", "array", "multiline", "text", "text.gz", "binary")
	t.Logf("%d requests: %d slow, %d errors, %d resets, %d truncated, %d stalled, %d hung", p.Requests.Load(), p.Slow.Load(), p.Errors.Load(),
		p.Resets.Load(), p.Truncated.Load(), p.Stalled.Load(), p.Hung.Load())
	for kind, n := range map[string]*atomic.Int64{"slow": &p.Slow, "error": &p.Errors, "reset": &p.Resets, "truncate": &p.Truncated, "stall": &p.Stalled, "hang": &p.Hung} {
		if n.Load() == 0 {
			t.Errorf("no fault of the kind %s fired", kind)
		}
	}
}

func TestRemoteGCS(t *testing.T) {
	s := testserver.GCS(t)
	s.CreateBucket(t, "data")
	p := testserver.NewProxy(t, s, testserver.Faults{})
	remote(t, s.Via(p).URL("data"), p, "parquet", "text.gz")
	if p.Slow.Load()+p.Errors.Load()+p.Resets.Load()+p.Truncated.Load()+p.Stalled.Load()+p.Hung.Load() == 0 {
		t.Error("no fault fired")
	}
}

func remote(t *testing.T, bucket string, p *testserver.Proxy, formats ...string) {
	ctx := context.Background()
	base, query, _ := strings.Cut(bucket, "?")
	at := func(key string) string { return base + "/" + key + "?" + query }
	ds := dataset.Range(20_000).WithColumns("x = double(id) / 7.0", `s = concat("row ", string(id))`, "part = id % 3")
	rows, err := rowsOf(ds, dataset.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	encoding := func(e driver.Encoding, err error) driver.Encoding {
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	parquet, err := parquetio.NewEncoding(nil)
	if err != nil {
		t.Fatal(err)
	}
	csv, json := encoding(csvio.NewEncoding(nil)), encoding(jsonio.NewEncoding(nil))
	b, err := blobio.Open(ctx, bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for file := range 3 { // which nothing of ours writes
		text := "["
		for row := range 5000 {
			text += fmt.Sprintf(`%s{"id": %d, "s": "row %d of %d"}`, []string{",\n", ""}[max(1-row, 0)], row, row, file)
		}
		if err := b.Put(ctx, fmt.Sprintf("array/%d.json", file), []byte(text+"]"), nil); err != nil {
			t.Fatal(err)
		}
	}
	writes := testserver.Faults{Slow: 0.05, Latency: 100 * time.Millisecond, Error: 0.1, Reset: 0.05, Truncate: 0.1}
	reads := writes
	reads.Stall, reads.Hang = 0.03, 0.03
	for i, c := range []struct {
		name string
		of   string          // whose files are read; "": its own,
		enc  driver.Encoding // written so
		as   bool            // what is read are the rows that were written; else what a server without faults gives
		read func(o fileset.Options) driver.Source
	}{
		{"parquet", "", parquet, true, func(o fileset.Options) driver.Source { return parquetio.New(parquetio.Options{Options: o}) }},
		{"csv", "", csv, true, func(o fileset.Options) driver.Source { return csvio.New(csvio.Options{Options: o}) }},
		{"csv.zst", "", encoding(csvio.NewEncoding(&csvio.EncodingOptions{Compression: "zstd"})), true,
			func(o fileset.Options) driver.Source { return csvio.New(csvio.Options{Options: o}) }},
		{"json", "", json, true, func(o fileset.Options) driver.Source { return jsonio.New(jsonio.Options{Options: o}) }},
		{"ipc", "", encoding(ipcio.NewEncoding(nil)), true, func(o fileset.Options) driver.Source { return ipcio.New(ipcio.Options{Options: o}) }},
		{"ipc.stream", "", encoding(ipcio.NewEncoding(&ipcio.EncodingOptions{Layout: "stream"})), true, func(o fileset.Options) driver.Source { return ipcio.New(ipcio.Options{Options: o}) }},
		{"array", "array", nil, false, func(o fileset.Options) driver.Source { return jsonio.New(jsonio.Options{Options: o}) }},
		{"multiline", "csv", nil, false, func(o fileset.Options) driver.Source { return csvio.New(csvio.Options{Options: o, Multiline: true}) }},
		{"text", "json", nil, false, func(o fileset.Options) driver.Source { return textio.New(textio.Options{Options: o, SplitBytes: 8000}) }},
		{"text.gz", "", encoding(jsonio.NewEncoding(&jsonio.EncodingOptions{Compression: "gzip"})), false,
			func(o fileset.Options) driver.Source { return textio.New(textio.Options{Options: o}) }},
		{"binary", "csv", nil, false, func(o fileset.Options) driver.Source { return binio.New(binio.Options{Options: o}) }},
	} {
		if !slices.Contains(formats, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			defer p.Set(testserver.Faults{})
			path := at(c.of)
			if c.of == "" {
				path = at(c.name)
				if !strings.Contains(c.name, ".") { // what is compressed is written like what is not
					p.Set(writes)
				}
				r, err := ds.Write(ctx, path, c.enc, small)
				if err != nil {
					t.Fatal(err)
				}
				if r.Rows != int64(len(rows)) || r.Files < 2 {
					t.Fatalf("%d rows in %d files", r.Rows, r.Files)
				}
			}
			// What gives no byte for this long is asked again, and again.
			source := c.read(fileset.Options{Paths: []string{path}, Extensions: []string{""}, Blob: &blobio.Options{Timeout: 500 * time.Millisecond, Retries: 10}})
			want := rows
			if !c.as {
				p.Set(testserver.Faults{})
				if want, err = rowsOf(dataset.Read(source), dataset.RunOptions{}); err != nil || len(want) < 2 {
					t.Fatalf("%d rows, %v", len(want), err)
				}
			}
			faults := reads
			faults.Seed = uint64(i)
			p.Set(faults)
			got, err := rowsOf(dataset.Read(source), dataset.RunOptions{CPUs: 4, Memory: 32 << 20})
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
