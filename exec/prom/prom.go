// Package prom shows the statistics of runs as Prometheus metrics. It is the
// only package that knows Prometheus.
//
//	c := prom.NewCollector()
//	prometheus.MustRegister(c)
//	dataset.RunOptions{Observe: c.Observe("taxi")}
package prom

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-data/penstock/exec"
)

// Collector collects from any number of runs, by job name; a later run of a name
// takes the place of the one before. Safe for concurrent use.
type Collector struct {
	mu   sync.Mutex
	jobs map[string]func() exec.Stats
}

// NewCollector returns one that has no runs yet.
func NewCollector() *Collector { return &Collector{jobs: map[string]func() exec.Stats{}} }

// Observe returns what to set as exec.Options.Observe (dataset.RunOptions.Observe).
func (c *Collector) Observe(job string) func(stats func() exec.Stats) {
	return func(stats func() exec.Stats) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.jobs[job] = stats
	}
}

// Forget leaves a job out from now on.
func (c *Collector) Forget(job string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.jobs, job)
}

type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(exec.Stats) float64
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("penstock_"+name, help, append([]string{"job"}, labels...), nil)
}

var runMetrics = []metric{
	{desc("rows_in_total", "Rows read from sources."), prometheus.CounterValue, func(s exec.Stats) float64 { return float64(s.RowsIn) }},
	{desc("rows_out_total", "Rows delivered or written."), prometheus.CounterValue, func(s exec.Stats) float64 { return float64(s.RowsOut) }},
	{desc("bytes_read_total", "Bytes fetched from storage."), prometheus.CounterValue, func(s exec.Stats) float64 { return float64(s.BytesRead) }},
	{desc("splits", "Splits of the plan."), prometheus.GaugeValue, func(s exec.Stats) float64 { return float64(s.Splits) }},
	{desc("splits_done", "Splits that are finished."), prometheus.GaugeValue, func(s exec.Stats) float64 { return float64(s.SplitsDone) }},
	{desc("retries_total", "Attempts after the first."), prometheus.CounterValue, func(s exec.Stats) float64 { return float64(s.Retries) }},
	{desc("storage_retries_total", "Requests of reads made again after an error."), prometheus.CounterValue, func(s exec.Stats) float64 { return float64(s.StorageRetries) }},
	{desc("tasks_inflight", "Tasks at work now."), prometheus.GaugeValue, func(s exec.Stats) float64 { return float64(len(s.Inflight)) }},
	{desc("skipped_rows_total", "Rows left out by on_error."), prometheus.CounterValue, func(s exec.Stats) float64 { return float64(s.Skipped) }},
	{desc("memory_held_bytes", "Bytes of the budget held now."), prometheus.GaugeValue, func(s exec.Stats) float64 { return float64(s.HeldBytes) }},
	{desc("memory_peak_bytes", "Most bytes of the budget held at once."), prometheus.GaugeValue, func(s exec.Stats) float64 { return float64(s.PeakBytes) }},
}

var (
	opRows  = desc("operator_rows_total", "Rows an operator gave.", "operator")
	opBytes = desc("operator_bytes_total", "Bytes an operator gave.", "operator")
	opPeak  = desc("operator_peak_bytes", "Most memory that one task held in an operator.", "operator")
	opTime  = desc("operator_seconds_total", "Time of an operator's tasks, by what they did.", "operator", "state")
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range runMetrics {
		ch <- m.desc
	}
	ch <- opRows
	ch <- opBytes
	ch <- opPeak
	ch <- opTime
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	jobs := maps.Clone(c.jobs)
	c.mu.Unlock()
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		st := jobs[job]()
		for _, m := range runMetrics {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.get(st), job)
		}
		// Two operators of one name count together: a metric appears once.
		sums := map[string]exec.OpStats{}
		var order []string
		for _, o := range st.Ops {
			s, seen := sums[o.Name]
			if !seen {
				order = append(order, o.Name)
			}
			s.RowsOut += o.RowsOut
			s.BytesOut += o.BytesOut
			s.Busy += o.Busy
			s.WaitIn += o.WaitIn
			s.WaitOut += o.WaitOut
			s.WaitMem += o.WaitMem
			s.PeakBytes = max(s.PeakBytes, o.PeakBytes)
			sums[o.Name] = s
		}
		for _, name := range order {
			s := sums[name]
			ch <- prometheus.MustNewConstMetric(opRows, prometheus.CounterValue, float64(s.RowsOut), job, name)
			ch <- prometheus.MustNewConstMetric(opBytes, prometheus.CounterValue, float64(s.BytesOut), job, name)
			ch <- prometheus.MustNewConstMetric(opPeak, prometheus.GaugeValue, float64(s.PeakBytes), job, name)
			for state, d := range map[string]float64{"busy": s.Busy.Seconds(), "wait_input": s.WaitIn.Seconds(), "wait_output": s.WaitOut.Seconds(), "wait_memory": s.WaitMem.Seconds()} {
				ch <- prometheus.MustNewConstMetric(opTime, prometheus.CounterValue, d, job, name, state)
			}
		}
	}
}
