package trainer

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/trainer/collective"
)

// BenchmarkAllReduceNodes is a ring of two ranks on one machine, and of two nodes, in turns: ns and CPU ns of all ranks.
func BenchmarkAllReduceNodes(b *testing.B) {
	for _, n := range []int{1, 16 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprint("float32=", n), func(b *testing.B) {
			gs := gangtest.New(b, 2)
			ring := func(nodes bool) []*collective.Group {
				dir := b.TempDir()
				if err := syscall.Chmod(dir, 0o700); err != nil {
					b.Fatal(err)
				}
				all := make([]*collective.Group, 2)
				var wg sync.WaitGroup
				for r := range 2 {
					o := &collective.Options{}
					if nodes {
						l, err := gs[r].Listen("ring")
						if err != nil {
							b.Fatal(err)
						}
						b.Cleanup(func() { l.Close() })
						o.Nodes = []int{0, 1}
						o.Left = func(ctx context.Context) (net.Conn, error) { c, _, err := l.Accept(ctx); return c, err }
						o.Right = func(ctx context.Context) (net.Conn, error) { return gs[r].Dial(ctx, 1-r, "ring") }
					}
					wg.Go(func() {
						var err error
						if all[r], err = collective.Join(b.Context(), dir, r, 2, o); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
				b.Cleanup(func() { all[0].Close(); all[1].Close() })
				return all
			}
			rings := [][]*collective.Group{ring(false), ring(true)}
			var wall, cpu [2]time.Duration
			xs := [][]float32{make([]float32, n), make([]float32, n)}
			for b.Loop() {
				for k, all := range rings {
					began, used := time.Now(), cpuTime(b)
					var wg sync.WaitGroup
					for r := range 2 {
						wg.Go(func() {
							if err := collective.AllReduce(context.Background(), all[r], xs[r], collective.Sum); err != nil {
								b.Error(err)
							}
						})
					}
					wg.Wait()
					wall[k] += time.Since(began)
					cpu[k] += cpuTime(b) - used
				}
			}
			for k, name := range []string{"one", "nodes"} {
				b.ReportMetric(float64(wall[k].Microseconds())/float64(b.N), name+"-us")
				b.ReportMetric(float64(cpu[k].Microseconds())/float64(b.N), name+"-cpu-us")
			}
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
