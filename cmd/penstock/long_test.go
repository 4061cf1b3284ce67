package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
)

// Rows that are each larger than the budget take no more than the budget, a fixed amount, and one of them.
func TestLongRowsTakeTheMemoryOfOne(t *testing.T) {
	if memtest.Race {
		t.Skip("the race detector takes memory of its own")
	}
	const budget, row, rows = 32 << 20, 60 << 20, 4
	piece := strings.Repeat("some text ", 1<<10)
	for _, c := range []struct{ kind, name, head, before, behind, condition string }{
		{"text", "x.txt.gz", "", "", "\n", `text > "a"`},
		{"csv", "x.csv.gz", "id,s\n", `1,"`, "\"\n", `s > "a"`},
		{"json", "x.jsonl.gz", "", `{"id": 1, "s": "`, "\"}\n", `s > "a"`},
	} {
		t.Run(c.kind, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.name)
			var b bytes.Buffer
			w, _ := gzip.NewWriterLevel(&b, 1)
			fmt.Fprint(w, c.head)
			for range rows { // piece by piece: what this process has when it starts the other counts as that one's
				fmt.Fprint(w, c.before)
				for range row / len(piece) {
					io.WriteString(w, piece)
				}
				fmt.Fprint(w, c.behind)
			}
			w.Close()
			if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			spec := writeSpec(t, fmt.Sprintf("version: 1\nsource: {%s: {paths: [%s]}}\nsteps: [{filter: '%s'}]\nsink: {count: {}}\nrun: {memory: %d, cpus: 4}\n", c.kind, path, c.condition, budget))
			r := penstock(t, "run", spec, "--json")
			var sum struct {
				Rows int64 `json:"rows_out"`
				RSS  int64 `json:"peak_rss_bytes"`
				Peak int64 `json:"peak_budget_bytes"`
			}
			lines := strings.Split(strings.TrimSpace(r.out), "\n")
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &sum); err != nil || r.code != 0 {
				t.Fatalf("exit %d: %v: %s%s", r.code, err, r.out, r.err)
			}
			t.Logf("resident %d MiB, budget peak %d MiB", sum.RSS>>20, sum.Peak>>20)
			if most := int64(budget*5/4 + 150<<20 + row); sum.Rows != rows || sum.RSS > most || sum.Peak < row {
				t.Errorf("%d rows, resident %d MiB of %d, budget peak %d MiB", sum.Rows, sum.RSS>>20, most>>20, sum.Peak>>20)
			}
		})
	}
}
