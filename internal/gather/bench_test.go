//go:build unix

package gather

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/mem"
)

// cpuTime is the time that this process has had a core, all threads together: what a
// busy machine does not spoil.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkShuffled(b *testing.B) {
	const recs, rows = 64, 16384
	pool := mem.New(1 << 30) // what batches are allocated from
	defer pool.Close()
	types := []struct {
		name string
		t    arrow.DataType
		add  func(*rand.Rand, array.Builder) int
	}{
		{"int64", arrow.PrimitiveTypes.Int64, func(r *rand.Rand, b array.Builder) int { b.(*array.Int64Builder).Append(r.Int64()); return 8 }},
		{"float32", arrow.PrimitiveTypes.Float32, func(r *rand.Rand, b array.Builder) int { b.(*array.Float32Builder).Append(r.Float32()); return 4 }},
		{"string20", arrow.BinaryTypes.String, func(r *rand.Rand, b array.Builder) int {
			n := 10 + r.IntN(21)
			b.(*array.StringBuilder).Append(strings.Repeat("x", n))
			return n
		}},
		{"list100", arrow.ListOf(arrow.PrimitiveTypes.Int32), func(r *rand.Rand, b array.Builder) int {
			l := b.(*array.ListBuilder)
			l.Append(true)
			n := 50 + r.IntN(101)
			for i := range n {
				l.ValueBuilder().(*array.Int32Builder).Append(int32(i))
			}
			return 4 * n
		}},
	}
	for _, typ := range types {
		rng := rand.New(rand.NewPCG(1, 2))
		cols := make([]arrow.Array, recs)
		bytes := 0
		for i := range cols {
			x := array.NewBuilder(memory.DefaultAllocator, typ.t)
			for range rows {
				bytes += typ.add(rng, x)
			}
			cols[i] = x.NewArray()
			x.Release()
		}
		for _, near := range []bool{true, false} {
			for _, batch := range []int{1024, 16384} {
				runs := make([]Run, batch)
				for i := range runs {
					row := rng.IntN(rows)
					if near { // the open windows of all lanes together: what is in cache
						row = rng.IntN(batch / recs)
					}
					runs[i] = Run{int32(rng.IntN(recs)), int32(row), 1}
				}
				where := map[bool]string{true: "cached", false: "spread"}[near]
				b.Run(fmt.Sprintf("%s/%s/%d", typ.name, where, batch), func(b *testing.B) {
					b.SetBytes(int64(bytes) * int64(batch) / (recs * rows))
					b.ReportAllocs()
					before := cpuTime()
					for b.Loop() {
						a, err := Column(pool, cols, runs)
						if err != nil {
							b.Fatal(err)
						}
						a.Release()
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch), "ns/row")
					b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/float64(b.N)/float64(batch), "cpu-ns/row")
				})
			}
		}
	}
}
