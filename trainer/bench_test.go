package trainer

import (
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// BenchmarkReport is a report without files of the one rank there is, at the state of a data set. cpu-us/op is what it costs both sides together, whatever else the machine does.
func BenchmarkReport(b *testing.B) {
	for _, lanes := range []int{4, 64} {
		b.Run(fmt.Sprintf("lanes=%d", lanes), func(b *testing.B) {
			c := configOf(b, "bench")
			c.Workers = 1
			c.Data = map[string]Data{"train": {Dataset: dataset.Range(64 * 70_000), Options: dataset.ShardOptions{
				Options: shard.Options{GlobalBatch: 64, Form: shard.Form{Tensors: true}, Shuffle: &shard.Shuffle{Lanes: lanes, WindowRows: 256}}}}}
			fitOK(b, func(c *Context) error {
				s, err := c.Shard("train")
				if err != nil {
					return err
				}
				x, err := s.Next(c)
				if err == io.EOF {
					x, err = s.Next(c)
				}
				if err != nil {
					return err
				}
				x.Release()
				before, n := cpu(), 0
				for b.Loop() {
					n++
					if err := c.Report(map[string]float64{"loss": 1, "accuracy": 0.5}, ""); err != nil {
						return err
					}
				}
				b.ReportMetric(float64((cpu()-before).Microseconds())/float64(n), "cpu-us/op")
				return nil
			}, c)
		})
	}
}

// cpu time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
