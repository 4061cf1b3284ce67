package local_test

import (
	"context"
	"io"
	"testing"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/io/driver"
)

// BenchmarkPassThrough: the engine's cost per batch, with batches of one row
// that cost nothing else, through three operators; and the same in a bare loop.
func BenchmarkPassThrough(b *testing.B) {
	const n = 1000
	ops := []exec.Operator{exectest.Pass(), exectest.Pass(), exectest.Pass()}
	b.Run("engine", func(b *testing.B) {
		tb := exectest.NewTable(4, n)
		b.ReportAllocs()
		for b.Loop() {
			s, err := local.New(nil).Run(b.Context(), exectest.Scan(tb, ops...), &exec.Options{CPUs: 1, BatchRows: 1, Memory: 64 << 20})
			if err != nil {
				b.Fatal(err)
			}
			for {
				blk, err := s.Next(b.Context())
				if err == io.EOF {
					break
				}
				if err != nil {
					b.Fatal(err)
				}
				blk.Release()
			}
			s.Close()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(4*n), "ns/batch")
	})
	b.Run("bare", func(b *testing.B) {
		tb := exectest.NewTable(4, n)
		bud := exec.NewBudget(64 << 20)
		defer bud.Close()
		acct := bud.Account(b.Context(), "bare")
		b.ReportAllocs()
		for b.Loop() {
			for i := range 4 {
				rd, err := tb.Open(b.Context(), i, &driver.ScanOptions{BatchRows: 1, Alloc: acct})
				if err != nil {
					b.Fatal(err)
				}
				for {
					batch, err := rd.Next(b.Context())
					if err == io.EOF {
						break
					}
					blk := &exec.Block{Batch: batch.Record, Row: batch.Row, Span: 1}
					bare(b.Context(), ops, blk)
				}
				rd.Close()
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(4*n), "ns/batch")
	})
}

func bare(ctx context.Context, ops []exec.Operator, b *exec.Block) {
	defer b.Release()
	if len(ops) == 0 {
		return
	}
	t, _ := ops[0].NewTask(&exec.Env{})
	defer t.Close()
	_ = t.Process(ctx, b, func(o *exec.Block) error {
		bare(ctx, ops[1:], o)
		return nil
	})
}

// BenchmarkThroughput: batches of 16,384 rows through three operators.
func BenchmarkThroughput(b *testing.B) {
	tb := exectest.NewTable(8, 1<<18)
	ops := []exec.Operator{exectest.Pass(), exectest.Pass(), exectest.Pass()}
	for _, cpus := range []int{1, 2} {
		b.Run(map[int]string{1: "1", 2: "2"}[cpus], func(b *testing.B) {
			b.SetBytes(8 << 18 * 16)
			b.ReportAllocs()
			for b.Loop() {
				s, err := local.New(nil).Run(b.Context(), exectest.Scan(tb, ops...), &exec.Options{CPUs: cpus, Memory: 256 << 20})
				if err != nil {
					b.Fatal(err)
				}
				for {
					blk, err := s.Next(b.Context())
					if err != nil {
						break
					}
					blk.Release()
				}
				s.Close()
			}
		})
	}
}
