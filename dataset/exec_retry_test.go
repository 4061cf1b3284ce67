package dataset_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
)

// TestExecOnce: a child that dies, or hangs, in the middle of its first life costs a retry, and no row is lost, doubled or moved: not
// those of the batches that it had answered, either.
func TestExecOnce(t *testing.T) {
	const rows = 60_000
	for _, c := range []struct {
		how, end    string
		batch, call time.Duration // most that they may take
	}{{how: "dies", end: "kill -9 $$"}, {how: "hangs", end: "exec sleep 1000", batch: time.Second}, {how: "hangs in a call", end: "exec sleep 1000", call: time.Second}} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			lives := filepath.Join(t.TempDir(), "lives") // a letter for each child that was started
			script := fmt.Sprintf(`[ -e %[1]s ]; first=$?; printf x >> %[1]s; if [ $first != 0 ]; then dd bs=512 count=900 2> /dev/null; %[2]s; fi; exec cat`, lives, c.end)
			ds := dataset.Range(rows).Exec(dataset.ExecOptions{Command: []string{"sh", "-c", script}, Workers: 1, BatchRows: 1000, Timeout: c.batch})
			defer ds.Close()
			var stats func() exec.Stats
			var next int64
			for rec, err := range ds.Records(t.Context(), &dataset.RunOptions{CPUs: 1, CallTimeout: c.call, Observe: func(f func() exec.Stats) { stats = f }}) {
				if err != nil {
					t.Fatal(err)
				}
				for _, id := range rec.Column(0).(*array.Int64).Int64Values() {
					if id != next {
						t.Fatalf("row %d is %d", next, id)
					}
					next++
				}
			}
			n, err := os.ReadFile(lives)
			if err != nil {
				t.Fatal(err)
			}
			// On a machine that stands still a child that is well may be late, too: it was another retry, then.
			if got := stats().Retries; next != rows || got != int64(bytes.Count(n, []byte("x"))-1) || got != 1 && (c.how == "dies" || got == 0) {
				t.Errorf("%d rows, %d retries, %d children", next, got, len(n))
			}
		})
	}
}
