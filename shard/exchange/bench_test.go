package exchange

import (
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/shard"
)

// BenchmarkExchange carries messages one way between two nodes in this process, whose CPU time is that of both: packed rows, and the same bytes as a record of numbers and text.
func BenchmarkExchange(b *testing.B) {
	build := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "f", Type: arrow.PrimitiveTypes.Float32}, {Name: "s", Type: arrow.BinaryTypes.String}}, nil))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 16 << 10 {
		build.Field(0).(*array.Int64Builder).Append(rng.Int64())
		build.Field(1).(*array.Float32Builder).Append(rng.Float32())
		build.Field(2).(*array.StringBuilder).Append("some words of text, up to fifty bytes of them here"[:rng.IntN(50)])
	}
	rec := build.NewRecordBatch()
	build.Release()
	defer rec.Release()
	rows := make([]byte, exec.SizeOf(rec))
	for name, next := range map[string]func() shard.Message{
		"packed": func() shard.Message { return shard.Message{Head: []byte("head"), Packed: rows} },
		"record": func() shard.Message { rec.Retain(); return shard.Message{Head: []byte("head"), Record: rec} },
		"small":  func() shard.Message { return shard.Message{Head: []byte("a message without rows")} },
	} {
		b.Run(name, func(b *testing.B) {
			x := pair(b)
			pool := mem.New(256 << 20)
			defer pool.Close()
			if name != "small" {
				b.SetBytes(int64(len(rows)))
			}
			b.ReportAllocs()
			b.ResetTimer()
			done := make(chan error, 1)
			go func() {
				for range b.N {
					if err := x[0].Send(b.Context(), 1, next()); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for range b.N {
				m, err := x[1].Receive(b.Context(), 0, pool)
				if err != nil {
					b.Fatal(err)
				}
				m.Release()
			}
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
