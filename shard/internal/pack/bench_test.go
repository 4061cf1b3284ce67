//go:build unix

package pack

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/mem"
)

// cpu is the time that this process has had a core, all threads together: what a
// busy machine does not spoil.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkPack(b *testing.B) {
	const docs, recs = 1024, 16 // a window
	for _, t := range []arrow.DataType{arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64} {
		rng := rand.New(rand.NewPCG(7, 7))
		cols := make([]arrow.Array, recs)
		var runs []gather.Run
		tokens := 0
		for i := range cols {
			x := array.NewBuilder(memory.DefaultAllocator, arrow.ListOf(t)).(*array.ListBuilder)
			for row, n := range logNormal(rng, docs/recs) {
				x.Append(true)
				for range n {
					x.ValueBuilder().AppendEmptyValue()
				}
				tokens += int(n)
				runs = append(runs, gather.Run{Rec: int32(i), Row: int32(row), N: 1})
			}
			cols[i] = x.NewArray()
			x.Release()
		}
		rng.Shuffle(len(runs), func(i, k int) { runs[i], runs[k] = runs[k], runs[i] })
		for _, m := range []Method{MethodConcat, MethodBestFit} {
			for _, mask := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/%s/mask=%v", m, t, mask), func(b *testing.B) {
					pool := mem.New(1 << 30)
					defer pool.Close()
					b.SetBytes(int64(tokens * t.(arrow.FixedWidthDataType).BitWidth() / 8))
					b.ReportAllocs()
					before := cpu()
					for b.Loop() {
						rec, _, err := packAll(pool, Options{Length: 2048, Method: m, LossMask: mask}, cols, nil, runs)
						if err != nil {
							b.Fatal(err)
						}
						rec.Release()
					}
					b.ReportMetric(float64(tokens)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
					b.ReportMetric(float64(tokens)*float64(b.N)/(cpu()-before).Seconds()/1e6, "Mtokens/cpu-s")
				})
			}
		}
	}
}
