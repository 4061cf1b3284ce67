package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gocloud.dev/blob"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/parquetio"
)

// scan compares a scan of all columns with GETs of the same bytes, in turn.
func scan(t testing.TB, r *report, small int64) {
	s := start(t)
	ctx := t.Context()
	for _, d := range []struct {
		name string
		ds   *dataset.Dataset
		o    parquetio.EncodingOptions
	}{
		{"floats", dataset.Range(16_000_000/small).WithColumns("a = random()", "b = random()", "c = random()", "d = random()", "e = random()").Drop("id"),
			parquetio.EncodingOptions{Compression: "none", RowGroupBytes: 16 << 20}},
		{"taxi", dataset.Range(16_000_000/small).WithColumns("id = id", "passengers = id % 5", "distance = round(random() * 1000.0) / 10.0", "fare = round(random() * 5000.0) / 100.0",
			`zone = concat("zone ", string(id % 200))`), parquetio.EncodingOptions{RowGroupBytes: 16 << 20}},
	} {
		enc := must(parquetio.NewEncoding(&d.o))(t)
		written := must(d.ds.Write(ctx, s.path(false, d.name), enc, &dataset.WriteOptions{TargetBytes: 48 << 20}))(t)
		for _, c := range []struct {
			name    string
			latency time.Duration
		}{{"no latency", 0}, {"20 ms", 20 * time.Millisecond}} {
			s.proxy.Set(testserver.Faults{})
			proxy := c.latency > 0
			if proxy {
				s.late(c.latency)
			}
			const rounds = 3
			var bare, whole, bareCPU, wholeCPU, localCPU []time.Duration
			for range rounds {
				w, u := timed(t, func() error {
					n, err := gets(ctx, s.url(proxy), d.name+"/")
					if err == nil && n != written.Bytes {
						err = fmt.Errorf("%d bytes, not the %d that were written", n, written.Bytes)
					}
					return err
				})
				bare, bareCPU = append(bare, w), append(bareCPU, u)
				ds := dataset.ReadParquet(s.path(proxy, d.name))
				w, u = timed(t, func() error { return drain(ctx, ds, written.Rows) })
				whole, wholeCPU = append(whole, w), append(wholeCPU, u)
				ds.Close()
				// The same files, from the server's folder: what decoding alone takes.
				ds = dataset.ReadParquet(filepath.Join(s.Dir(), "bench", d.name))
				_, u = timed(t, func() error { return drain(ctx, ds, written.Rows) })
				localCPU = append(localCPU, u)
				ds.Close()
			}
			mb := float64(written.Bytes) / 1e6
			r.add(fmt.Sprintf("scan of %.0f MB of Parquet (%s, %s) against bare parallel GETs, speed", mb, d.name, c.name), ">= 85 %", "%.0f %% (%.0f of %.0f MB/s; CPU of the program: scan %.2f s, GETs alone %.2f s, the scan of local files %.2f s)",
				100*kit.Median(bare).Seconds()/kit.Median(whole).Seconds(), mb/kit.Median(whole).Seconds(), mb/kit.Median(bare).Seconds(), kit.Median(wholeCPU).Seconds(), kit.Median(bareCPU).Seconds(), kit.Median(localCPU).Seconds())
		}
	}
}

// drain reads all of ds, which must have so many rows.
func drain(ctx context.Context, ds *dataset.Dataset, rows int64) error {
	st, err := ds.Drain(ctx, nil)
	if err == nil && st.RowsOut != rows {
		err = fmt.Errorf("%d rows, not the %d that were written", st.RowsOut, rows)
	}
	return err
}

// gets fetches every object below prefix by ranges of 8 MiB, 16 at once, into
// buffers that are used again, and returns how many bytes that was.
func gets(ctx context.Context, url, prefix string) (int64, error) {
	b, err := blob.OpenBucket(ctx, url)
	if err != nil {
		return 0, err
	}
	defer b.Close()
	const piece = 8 << 20
	pool := sync.Pool{New: func() any { return new([piece]byte) }}
	var total atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	it := b.List(&blob.ListOptions{Prefix: prefix})
	var listed error
	for {
		o, err := it.Next(ctx)
		if err != nil {
			listed = err
			break
		}
		if strings.Contains(o.Key, "/_") {
			continue
		}
		for off := int64(0); off < o.Size; off += piece {
			g.Go(func() error {
				rd, err := b.NewRangeReader(ctx, o.Key, off, min(piece, o.Size-off), nil)
				if err != nil {
					return err
				}
				defer rd.Close()
				buf := pool.Get().(*[piece]byte)
				defer pool.Put(buf)
				n, err := io.ReadFull(rd, buf[:min(piece, o.Size-off)])
				total.Add(int64(n))
				if err != nil {
					return fmt.Errorf("%s, from %d: %w", o.Key, off, err)
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil { // the list then ends with it, too
		return 0, err
	}
	if listed != io.EOF {
		return 0, listed
	}
	return total.Load(), nil
}
