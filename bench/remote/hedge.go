package main

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/parquetio"
)

// hedge measures waits for batches where 1 % of GETs take 50 times as long as the others.
func hedge(t testing.TB, r *report, small int64) {
	s := start(t)
	ctx := t.Context()
	const rows, perBatch = 4000, 8000
	groups := 2400 / small
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
	r.add("1 % of GETs take 1 s, the others 20 ms: p99 of the wait for a batch, without hedging and with", ">= 3x less", "%.0f and %.0f ms: %.1fx", ms(kit.Median(without)), ms(kit.Median(with)),
		kit.Median(without).Seconds()/kit.Median(with).Seconds())
	r.add("requests more for it", "<= 3 %", "%.1f %% (%d and %d GETs, %d of them slow)", 100*(float64(nWith)/float64(nWithout)-1), nWith, nWithout, slow.Load())
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
