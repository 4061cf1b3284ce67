package dataset_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/parquetio"
)

// A row group costs as many requests as coalescing promises: one for all that is wanted of it and lies closer than
// 1 MiB, up to 8 MiB of it each.
func TestRequestsPerRowGroup(t *testing.T) {
	srv := testserver.S3(t)
	srv.CreateBucket(t, "data")
	ctx := context.Background()
	const groups = 6
	// Columns a, b and c take as many bytes a row, so a row group lies as |a|b|c|.
	write := func(name string, rows int64, texts ...string) {
		enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: "none", RowGroupRows: rows})
		if err != nil {
			t.Fatal(err)
		}
		base, query, _ := strings.Cut(srv.URL("data"), "?")
		if _, err := dataset.Range(groups*rows).WithColumns(texts...).Drop("id").
			Write(ctx, base+"/"+name+"?"+query, enc, &dataset.WriteOptions{TargetBytes: 1 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	write("small", 20_000, "a = random()", "b = random()", "c = random()")  // 160 kB a chunk
	write("large", 200_000, "a = random()", "b = random()", "c = random()") // 1.6 MB
	p := testserver.NewProxy(t, srv, testserver.Faults{})
	var gets atomic.Int64
	p.Set(testserver.Faults{Only: func(r *http.Request) bool {
		if r.Header.Get("Range") != "" {
			gets.Add(1)
		}
		return false
	}})
	base, query, _ := strings.Cut(srv.Via(p).URL("data"), "?")
	for _, c := range []struct {
		name    string
		columns []string
		want    int64 // requests of a row group
	}{
		{"small", []string{"a", "b", "c"}, 1},
		{"small", []string{"a", "c"}, 1}, // the gap is cheaper than a request
		{"small", []string{"b"}, 1},
		{"large", []string{"a", "b", "c"}, 1},
		{"large", []string{"a", "c"}, 2}, // the gap is not
		{"large", []string{"c"}, 1},
	} {
		t.Run(fmt.Sprint(c.name, c.columns), func(t *testing.T) {
			ds := dataset.ReadParquet(base + "/" + c.name + "?" + query).Select(c.columns...)
			defer ds.Close()
			gets.Store(0)
			if _, err := ds.Schema(ctx); err != nil {
				t.Fatal(err)
			}
			if n := gets.Swap(0); n != 1 {
				t.Errorf("%d requests for the footer of one file", n)
			}
			if _, err := ds.Drain(ctx, nil); err != nil {
				t.Fatal(err)
			}
			if n := gets.Load(); n != groups*c.want {
				t.Errorf("%d requests for %d row groups, want %d for each", n, groups, c.want)
			}
		})
	}
}

// Counting the rows of Parquet files reads their footers, and nothing else.
func TestCountReadsFooters(t *testing.T) {
	srv := testserver.S3(t)
	srv.CreateBucket(t, "data")
	ctx := context.Background()
	base, query, _ := strings.Cut(srv.URL("data"), "?")
	const rows, files = 300_000, 3
	for i := range files {
		if _, err := dataset.Range(rows).WithColumns("a = random()", "b = string(id)").
			WriteParquet(ctx, fmt.Sprintf("%s/f%d?%s", base, i, query), &dataset.WriteOptions{TargetBytes: 1 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	p := testserver.NewProxy(t, srv, testserver.Faults{})
	var gets, bytes atomic.Int64
	p.Set(testserver.Faults{Only: func(r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, ".parquet") {
			gets.Add(1)
			var from, to int64
			if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n != 2 {
				t.Errorf("a request for %q", r.Header.Get("Range"))
			}
			bytes.Add(to - from + 1)
		}
		return false
	}})
	base, query, _ = strings.Cut(srv.Via(p).URL("data"), "?")
	ds := dataset.ReadParquet(base + "/?" + query)
	defer ds.Close()
	n, err := ds.Count(ctx, nil)
	if err != nil || n != rows*files {
		t.Fatal(n, err)
	}
	// A file has 5 MB of rows; of its end 64 KiB are read, without knowing how much of that is footer.
	if g, n := gets.Load(), bytes.Load(); g != files || n > files<<16 {
		t.Errorf("%d requests for %d bytes of %d footers", g, n, files)
	}
}
