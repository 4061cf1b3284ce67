package prom_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/prom"
)

func gather(t testing.TB, c prometheus.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	fs, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range fs {
		for _, m := range f.Metric {
			key := f.GetName()
			for _, l := range m.Label {
				key += "," + l.GetValue()
			}
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

func TestCollector(t *testing.T) {
	c := prom.NewCollector()
	rows := int64(5)
	c.Observe("taxi")(func() exec.Stats {
		return exec.Stats{RowsIn: rows, HeldBytes: 7, StorageRetries: 9, Inflight: make([]exec.Inflight, 2),
			Ops: []exec.OpStats{{Name: "scan", RowsOut: 3, BytesOut: 30, Busy: time.Second, WaitIn: 2 * time.Second, WaitOut: 3 * time.Second, WaitMem: 4 * time.Second, PeakBytes: 8},
				{Name: "scan", RowsOut: 4, BytesOut: 40, Busy: 10 * time.Second, WaitIn: 20 * time.Second, WaitOut: 30 * time.Second, WaitMem: 40 * time.Second, PeakBytes: 6}}}
	})
	got := gather(t, c)
	for key, want := range map[string]float64{"penstock_rows_in_total,taxi": 5, "penstock_memory_held_bytes,taxi": 7,
		"penstock_storage_retries_total,taxi": 9, "penstock_tasks_inflight,taxi": 2, "penstock_operator_peak_bytes,taxi,scan": 8,
		"penstock_operator_rows_total,taxi,scan": 7, "penstock_operator_bytes_total,taxi,scan": 70,
		"penstock_operator_seconds_total,taxi,scan,busy": 11, "penstock_operator_seconds_total,taxi,scan,wait_input": 22,
		"penstock_operator_seconds_total,taxi,scan,wait_output": 33, "penstock_operator_seconds_total,taxi,scan,wait_memory": 44} {
		if got[key] != want {
			t.Errorf("%s = %v, want %v", key, got[key], want)
		}
	}
	rows = 6
	if got := gather(t, c)["penstock_rows_in_total,taxi"]; got != 6 {
		t.Errorf("a second scrape gives %v", got)
	}
	c.Forget("taxi")
	if got := gather(t, c); len(got) != 0 {
		t.Errorf("a forgotten job gives %v", got)
	}
}

func ExampleCollector() {
	c := prom.NewCollector()
	prometheus.MustRegister(c)
	// In a program: dataset.RunOptions{Observe: c.Observe("taxi")}.
	c.Observe("taxi")(func() exec.Stats { return exec.Stats{RowsOut: 42} })
	fs, _ := prometheus.DefaultGatherer.Gather()
	for _, f := range fs {
		if f.GetName() == "penstock_rows_out_total" {
			fmt.Println(f.Metric[0].GetCounter().GetValue())
		}
	}
	// Output: 42
}
