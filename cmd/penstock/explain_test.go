package main

import (
	"os"
	"strings"
	"testing"
)

// Explain of a spec with shards is the plan that they run, which reads the columns that become tensors and those that
// steps need; of a spec with a sink it is what a run writes, too.
func TestExplainOfShards(t *testing.T) {
	spec := `version: 1
source: {parquet: {paths: [examples/data/flights/]}}
steps: [{filter: delay > 15}]
sink: {parquet: {path: out/rows, partition_by: [month], compression: zstd}}
shards: {global_batch: 256, shuffle: {window_rows: 256, lanes: 8}, columns: {distance: {dtype: float32}}}
run: {cpus: 1, memory: 64MiB}
`
	shards, run := ok(t, "explain", writeSpec(t, spec)), ok(t, "explain", writeSpec(t, strings.Replace(spec, "shards:", "# shards:", 1)))
	for file, got := range map[string]string{"testdata/explain_shards.txt": shards, "testdata/explain_run.txt": run} {
		if want, err := os.ReadFile(file); err != nil || got != string(want) {
			t.Errorf("%s: %v: got\n%s", file, err, got)
		}
	}
}
