package place

import (
	"fmt"
	"testing"
)

// A demand comes, is placed and ends, on many nodes that are half full.
func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		for _, kinds := range []string{"one", "all"} { // how many nodes differ
			b.Run(fmt.Sprintf("nodes=%d/kinds=%s", n, kinds), func(b *testing.B) {
				var m Machine
				one := Resources{MilliCPUs: 1000, GPUs: 1, Memory: 1 << 30}
				for i := range n {
					x := gpus(fmt.Sprintf("n%04d", i), 64, 8)
					x.Capacity.Memory = 64 << 30
					if kinds == "all" {
						x.Capacity.Memory += int64(i) * 4096
					}
					m.Step(up1(x))
					m.Step(want(gang(fmt.Sprintf("half%d", i), 4, one)))
				}
				come, end := want(gang("x", 1, one)), ended("x", 0)
				b.ReportAllocs()
				for b.Loop() {
					if acts := m.Step(come); len(acts) != 1 || acts[0].Do != Place {
						b.Fatal(acts)
					}
					m.Step(end)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/event")
			})
		}
	}
}
