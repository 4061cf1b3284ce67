package collective

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

// BenchmarkAllReduce moves the same bytes with and without computing; the ratio is what the ring costs beside its sockets. Ranks are goroutines here.
func BenchmarkAllReduce(b *testing.B) {
	for _, world := range []int{2, 4} {
		for _, n := range []int{1, 16 << 10, 1 << 20, 4 << 20} {
			b.Run(fmt.Sprintf("ranks=%d/float32=%d", world, n), func(b *testing.B) { benchReduce(b, world, n) })
			if n >= 1<<20 {
				b.Run(fmt.Sprintf("raw/ranks=%d/float32=%d", world, n), func(b *testing.B) { benchRaw(b, world, n) })
			}
		}
	}
}

func benchReduce(b *testing.B, world, n int) {
	gs := join(b, world)
	xs := make([][]float32, world)
	for r := range xs {
		xs[r] = make([]float32, n)
	}
	b.SetBytes(int64(n) * 4)
	b.ResetTimer()
	must(b, each(world, func(r int) error {
		for range b.N {
			if err := AllReduce(context.Background(), gs[r], xs[r], Sum); err != nil {
				return err
			}
		}
		return nil
	}))
}

// benchRaw passes 2(N-1)/N of n numbers from each rank to the next, and does nothing with them: a goroutine per rank writes, another reads.
func benchRaw(b *testing.B, world, n int) {
	gs := join(b, world)
	bytes := 2 * (world - 1) * (4 * n / world)
	rounds := b.N
	b.SetBytes(int64(n) * 4)
	b.ResetTimer()
	must(b, each(2*world, func(i int) error {
		buf := make([]byte, segment)
		var c net.Conn = gs[i/2].left
		f := c.Read
		if i%2 == 1 {
			f = gs[i/2].right.Write
		}
		for left := bytes * rounds; left > 0; {
			n, err := f(buf[:min(len(buf), left)])
			if err != nil {
				return err
			}
			left -= n
		}
		return nil
	}))
}

func BenchmarkBarrier(b *testing.B) {
	for _, world := range []int{2, 4, 8} {
		b.Run(fmt.Sprint("ranks=", world), func(b *testing.B) {
			gs := join(b, world)
			b.ResetTimer()
			start := time.Now()
			must(b, each(world, func(r int) error {
				for range b.N {
					if err := gs[r].Barrier(context.Background()); err != nil {
						return err
					}
				}
				return nil
			}))
			b.ReportMetric(float64(time.Since(start).Microseconds())/float64(b.N), "us/barrier")
		})
	}
}
