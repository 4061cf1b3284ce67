package remote

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/s3blob"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobcache"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

var (
	out  = flag.String("out", "", "write the figures to this file; without it nothing is measured")
	only = flag.String("only", "", "parts to measure, comma separated: scan, cache, first, hedge; default: all")
)

// report collects the lines of the table.
type report struct {
	t     *testing.T
	lines []string
}

func (r *report) add(what, goal, figure string, args ...any) {
	line := fmt.Sprintf("| %s | %s | %s |", what, fmt.Sprintf(figure, args...), goal)
	r.lines = append(r.lines, line)
	r.t.Log(line)
}

func TestReport(t *testing.T) {
	if *out == "" {
		t.Skip("give -out to measure")
	}
	r := &report{t: t}
	part := func(name string, f func(t *testing.T, r *report)) {
		if *only == "" || slices.Contains(strings.Split(*only, ","), name) {
			t.Run(name, func(t *testing.T) { f(t, r) })
		}
	}
	part("scan", scan)
	part("cache", cached)
	part("first", first)
	part("hedge", hedge)
	load := "unknown"
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(b), " ")
	}
	head := fmt.Sprintf("# Reading from buckets, measured\n\n%s, %d cores, %s/%s, %s. Made by `ONLY=remote bench/run.sh`: the server (versitygw), the proxy that adds latency and the program share the machine. Load average at the end: %s (wall times mean something only where the machine has little else to do; CPU times always do).\n\n| what | figure | goal |\n|---|---|---|\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), load)
	if err := os.WriteFile(*out, []byte(head+strings.Join(r.lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// s3 is a server with a bucket.
type s3 struct {
	*testserver.Server
	proxy *testserver.Proxy
}

func start(t *testing.T) *s3 {
	srv := testserver.S3(t)
	srv.CreateBucket(t, "bench")
	return &s3{srv, testserver.NewProxy(t, srv, testserver.Faults{})}
}

func (s *s3) url(proxy bool) string {
	if proxy {
		return s.Via(s.proxy).URL("bench")
	}
	return s.URL("bench")
}

func (s *s3) path(proxy bool, key string) string {
	base, query, _ := strings.Cut(s.url(proxy), "?")
	return base + "/" + key + "?" + query
}

// late adds latency to every request.
func (s *s3) late(d time.Duration) { s.proxy.Set(testserver.Faults{Base: d}) }

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// timed is the wall and CPU time of f.
func timed(t *testing.T, f func() error) (wall, used time.Duration) {
	t.Helper()
	begin, before := time.Now(), cpu()
	if err := f(); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin), cpu() - before
}

func median(ds []time.Duration) time.Duration {
	ds = slices.Clone(ds)
	slices.Sort(ds)
	return ds[len(ds)/2]
}

// scan compares a scan of all columns with GETs of the same bytes, in turn.
func scan(t *testing.T, r *report) {
	s := start(t)
	ctx := t.Context()
	for _, d := range []struct {
		name string
		ds   *dataset.Dataset
		o    parquetio.EncodingOptions
	}{
		{"floats", dataset.Range(16_000_000).WithColumns("a = random()", "b = random()", "c = random()", "d = random()", "e = random()").Drop("id"),
			parquetio.EncodingOptions{Compression: "none", RowGroupBytes: 16 << 20}},
		{"taxi", dataset.Range(16_000_000).WithColumns("id = id", "passengers = id % 5", "distance = round(random() * 1000.0) / 10.0", "fare = round(random() * 5000.0) / 100.0",
			`zone = concat("zone ", string(id % 200))`), parquetio.EncodingOptions{RowGroupBytes: 16 << 20}},
	} {
		enc := must(parquetio.NewEncoding(&d.o))(t)
		must(d.ds.Write(ctx, s.path(false, d.name), enc, &dataset.WriteOptions{TargetBytes: 48 << 20}))(t)
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
			var bytes int64
			for range rounds {
				w, u := timed(t, func() (err error) {
					bytes, err = gets(ctx, s.url(proxy), d.name+"/")
					return err
				})
				bare, bareCPU = append(bare, w), append(bareCPU, u)
				ds := dataset.ReadParquet(s.path(proxy, d.name))
				w, u = timed(t, func() error {
					_, err := ds.Drain(ctx, nil)
					return err
				})
				whole, wholeCPU = append(whole, w), append(wholeCPU, u)
				ds.Close()
				// The same files, from the server's folder: what decoding alone takes.
				ds = dataset.ReadParquet(filepath.Join(s.Dir(), "bench", d.name))
				_, u = timed(t, func() error {
					_, err := ds.Drain(ctx, nil)
					return err
				})
				localCPU = append(localCPU, u)
				ds.Close()
			}
			mb := float64(bytes) / 1e6
			r.add(fmt.Sprintf("scan of %.0f MB of Parquet (%s, %s) against bare parallel GETs, speed", mb, d.name, c.name), ">= 85 %", "%.0f %% (%.0f of %.0f MB/s; CPU of the program: scan %.2f s, GETs alone %.2f s, the scan of local files %.2f s)",
				100*median(bare).Seconds()/median(whole).Seconds(), mb/median(whole).Seconds(), mb/median(bare).Seconds(), median(wholeCPU).Seconds(), median(bareCPU).Seconds(), median(localCPU).Seconds())
		}
	}
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
	for {
		o, err := it.Next(ctx)
		if err != nil {
			break // io.EOF, or what Wait returns
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
				n := 0
				for n < piece {
					k, err := rd.Read(buf[n:])
					if n += k; err != nil {
						break
					}
				}
				total.Add(int64(n))
				if want := min(piece, o.Size-off); int64(n) != want {
					return fmt.Errorf("%s: %d bytes, not %d", o.Key, n, want)
				}
				return nil
			})
		}
	}
	err = g.Wait()
	return total.Load(), err
}

// cached measures what the cache costs in the first epoch and gives in the second.
func cached(t *testing.T, r *report) {
	s := start(t)
	ctx := t.Context()
	enc := must(parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: "none", RowGroupBytes: 16 << 20}))(t)
	must(dataset.Range(4_000_000).WithColumns("a = random()", "b = random()", "c = random()", "d = random()", "e = random()").
		Write(ctx, s.path(false, "data"), enc, &dataset.WriteOptions{TargetBytes: 48 << 20}))(t)
	var requests atomic.Int64
	s.proxy.Set(testserver.Faults{Base: 20 * time.Millisecond, Only: func(q *http.Request) bool {
		if q.Header.Get("Range") != "" {
			requests.Add(1)
		}
		return false
	}})
	epoch := func(c *blobcache.Cache) (time.Duration, int64) {
		ds := dataset.Read(parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{s.path(true, "data")}, Blob: &blobio.Options{Cache: c}}}))
		defer ds.Close()
		before := requests.Load()
		w, _ := timed(t, func() error {
			_, err := ds.Drain(ctx, nil)
			return err
		})
		return w, requests.Load() - before
	}
	var none, one, two []time.Duration
	var again int64
	for range 3 {
		w, _ := epoch(nil)
		none = append(none, w)
		c := must(blobcache.New(blobcache.Options{Dir: t.TempDir(), Max: 1 << 30}))(t)
		w, _ = epoch(c)
		one = append(one, w)
		w, n := epoch(c)
		two, again = append(two, w), again+n
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	r.add("cache, 20 ms: GETs of the second epoch", "0", "%d", again)
	r.add("cache, 20 ms: time of an epoch without it, of the first and of the second with it", "", "%.2f, %.2f, %.2f s", median(none).Seconds(), median(one).Seconds(), median(two).Seconds())
}

// first measures the time to the first shuffled batch of 1,000 files of 100 row groups of 10 columns.
func first(t *testing.T, r *report) {
	const files = 1000
	s := start(t)
	ctx := t.Context()
	local := t.TempDir()
	cols := []string{}
	for i := range 9 {
		cols = append(cols, fmt.Sprintf("c%d = id * %d + 1", i, i))
	}
	enc := must(parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 10_000}))(t)
	must(dataset.Range(1_000_000).WithColumns(cols...).Write(ctx, filepath.Join(local, "one"), enc, &dataset.WriteOptions{TargetBytes: 1 << 40}))(t)
	name := must(filepath.Glob(filepath.Join(local, "one", "*.parquet")))(t)
	data := must(os.ReadFile(name[0]))(t)
	// All files are links to one, here and in the server's folder.
	b := must(blobio.Open(ctx, s.url(false), nil))(t)
	defer b.Close()
	if err := b.Put(ctx, "one", data, nil); err != nil {
		t.Fatal(err)
	}
	many := filepath.Join(local, "many")
	for dir, one := range map[string]string{many: name[0], filepath.Join(s.Dir(), "bench", "many"): filepath.Join(s.Dir(), "bench", "one")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range files {
			if err := os.Link(one, filepath.Join(dir, fmt.Sprintf("f%04d.parquet", i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	measure := func(path string, rounds int) (plan, batch, used time.Duration) {
		var plans, batches, cpus []time.Duration
		for range rounds {
			runtime.GC()
			begin, before := time.Now(), cpu()
			ds := dataset.ReadParquet(path)
			if _, err := ds.Schema(ctx); err != nil {
				t.Fatal(err)
			}
			plans = append(plans, time.Since(begin))
			its := must(ds.Shards(ctx, 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1024}}))(t)
			bt := must(its[0].Next(ctx))(t)
			batches, cpus = append(batches, time.Since(begin)), append(cpus, cpu()-before)
			if bt.Rows() != 1024 {
				t.Fatalf("%d rows", bt.Rows())
			}
			bt.Release()
			its[0].Close()
			ds.Close()
		}
		return median(plans), median(batches), median(cpus)
	}
	what := fmt.Sprintf("%d files x 100 row groups x 10 columns (%.0f GB): plan and first shuffled batch, ", files, float64(files*len(data))/1e9)
	plan, batch, used := measure(many, 3)
	r.add(what+"local, warm page cache", "<= 1.5 s", "%.2f s (plan %.2f s; CPU %.2f s)", batch.Seconds(), plan.Seconds(), used.Seconds())
	var m0, m1 runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	ds := dataset.ReadParquet(many)
	must(ds.Schema(ctx))(t)
	runtime.GC()
	runtime.ReadMemStats(&m1)
	ds.Close()
	r.add("memory of the plan per column chunk, splits and all", "<= 100 bytes", "%.0f bytes", float64(m1.HeapAlloc-m0.HeapAlloc)/(files*100*10))
	s.late(20 * time.Millisecond)
	before := s.proxy.Requests.Load()
	plan, batch, used = measure(s.path(true, "many"), 3)
	r.add(what+"S3 with 20 ms", "<= 5 s", "%.2f s (plan %.2f s; CPU %.2f s; %d requests)", batch.Seconds(), plan.Seconds(), used.Seconds(), (s.proxy.Requests.Load()-before)/3)
}

// hedge measures waits for batches where 1 % of GETs take 50 times as long as the others.
func hedge(t *testing.T, r *report) {
	s := start(t)
	ctx := t.Context()
	const groups, rows, perBatch = 2400, 4000, 8000
	enc := must(parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: "none", RowGroupRows: rows}))(t)
	must(dataset.Range(groups*rows).WithColumns("a = random()", "b = random()").
		Write(ctx, s.path(false, "data"), enc, &dataset.WriteOptions{TargetBytes: 8 << 20}))(t)
	const base = 20 * time.Millisecond
	var gets, slow atomic.Int64
	// Every 100th GET of data is slow, at random but for the seed; hedges are GETs too.
	pass := func(noHedge bool, seed uint64) (p99, most time.Duration, n int64) {
		gets.Store(0)
		s.proxy.Set(testserver.Faults{Base: base, Slow: 0.01, Latency: 49 * base, Seed: seed, Only: func(q *http.Request) bool {
			if q.Header.Get("Range") == "" {
				return false
			}
			gets.Add(1)
			return true
		}})
		defer func() { slow.Add(s.proxy.Slow.Swap(0)) }()
		ds := dataset.Read(parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{s.path(true, "data")}, Blob: &blobio.Options{NoHedge: noHedge}}}))
		defer ds.Close()
		var waits []time.Duration
		begin := time.Now()
		for b, err := range ds.IterBatches(ctx, &dataset.BatchOptions{Rows: perBatch}) {
			if err != nil {
				t.Fatal(err)
			}
			waits = append(waits, time.Since(begin))
			if b.Rows() == 0 {
				t.Fatal("an empty batch")
			}
			begin = time.Now()
		}
		slices.Sort(waits)
		return waits[len(waits)*99/100], waits[len(waits)-1], gets.Load()
	}
	var with, without []time.Duration
	var nWith, nWithout int64
	for seed := range uint64(3) {
		p, _, n := pass(true, seed)
		without, nWithout = append(without, p), nWithout+n
		p, _, n = pass(false, seed)
		with, nWith = append(with, p), nWith+n
	}
	r.add("1 % of GETs take 1 s, the others 20 ms: p99 of the wait for a batch, without hedging and with", ">= 3x less", "%.0f and %.0f ms: %.1fx", ms(median(without)), ms(median(with)),
		median(without).Seconds()/median(with).Seconds())
	r.add("requests more for it", "<= 3 %", "%.1f %% (%d and %d GETs, %d of them slow)", 100*(float64(nWith)/float64(nWithout)-1), nWith, nWithout, slow.Load())
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
