//go:build unix

package collective

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// BenchmarkAllReduce is beside raw rings, in which the same sockets pass as many bytes and nothing is done with them: one of the same memory, one of a
// buffer that stays in the cache. They take turns, so that all meet the same load; of-raw and of-cached are ratios of speeds, by the clock and (-cpu) by the CPU time of all ranks together. Ranks are
// goroutines here.
func BenchmarkAllReduce(b *testing.B) {
	for _, world := range []int{2, 4} {
		for _, n := range []int{1, 16 << 10, 1 << 20, 4 << 20} {
			b.Run(fmt.Sprintf("ranks=%d/float32=%d", world, n), func(b *testing.B) {
				gs := join(b, world)
				xs, small := make([][]float32, world), make([][]byte, world)
				for r := range xs {
					xs[r], small[r] = make([]float32, n), make([]byte, 2*min(segment, max(2*n, 1)))
				}
				var ring, raw, cached usage
				b.SetBytes(int64(n) * 4)
				for b.Loop() {
					ring.add(func() {
						must(b, each(world, func(r int) error { return AllReduce(context.Background(), gs[r], xs[r], Sum) }))
					})
					b.StopTimer()
					raw.add(func() { must(b, rawRing(gs, n, func(r int) []byte { return view(xs[r]) })) })
					cached.add(func() { must(b, rawRing(gs, n, func(r int) []byte { return small[r] })) })
					b.StartTimer()
				}
				b.ReportMetric(float64(raw.wall)/float64(ring.wall), "of-raw")
				b.ReportMetric(float64(raw.cpu)/float64(ring.cpu), "of-raw-cpu")
				b.ReportMetric(float64(cached.wall)/float64(ring.wall), "of-cached")
				b.ReportMetric(float64(cached.cpu)/float64(ring.cpu), "of-cached-cpu")
			})
		}
	}
}

// rawRing passes 2(N-1)/N of n numbers from each rank to the next: a goroutine per rank writes from the first half of its memory, another reads into the
// second, in pieces of a segment.
func rawRing(gs []*Group, n int, memory func(r int) []byte) []error {
	world := len(gs)
	return each(2*world, func(i int) error {
		m := memory(i / 2)
		half, f := m[:len(m)/2], gs[i/2].right.Write
		if i%2 == 1 {
			half, f = m[len(m)/2:], gs[i/2].left.Read
		}
		at := 0
		for left := 2 * (world - 1) * (4 * n / world); left > 0; {
			n, err := f(half[at:min(len(half), at+segment, at+left)])
			if err != nil {
				return err
			}
			left -= n
			if at += n; at == len(half) {
				at = 0
			}
		}
		return nil
	})
}

// usage is what runs took.
type usage struct{ wall, cpu time.Duration }

func (u *usage) add(f func()) {
	start, cpu := time.Now(), cpuTime()
	f()
	u.wall += time.Since(start)
	u.cpu += cpuTime() - cpu
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
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

// BenchmarkBroadcast is of many bytes: what they take beside themselves is in B/op, of all ranks together.
func BenchmarkBroadcast(b *testing.B) {
	const n = 256 << 20
	gs := join(b, 3)
	x := make([]byte, n)
	b.SetBytes(n)
	b.ReportAllocs()
	for b.Loop() {
		must(b, each(3, func(r int) error { _, err := gs[r].Broadcast(context.Background(), 0, x); return err }))
	}
}
