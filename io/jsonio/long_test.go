package jsonio

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
)

func TestLongRow(t *testing.T) {
	plain := drivertest.LongText(27 << 20)
	escaped := strings.ReplaceAll(plain, "text", "te\n\"é")
	for _, c := range []struct {
		name, long string
		array      bool
		times      float64
	}{
		{"plain.jsonl", plain, false, 2},
		{"escaped.jsonl", escaped, false, 3.5}, // the line has more than 32 MiB, which are there once more while they are copied
		{"plain.json", plain, true, 4},
		{"escaped.json", escaped, true, 4},
	} {
		var file []byte
		values := []string{"a", c.long, "b", c.long, "c"}
		for i, v := range values {
			b, err := json.Marshal(map[string]any{"id": i, "s": v, "t": "é\n"})
			if err != nil {
				t.Fatal(err)
			}
			file = append(append(file, b...), '\n')
			if c.array && i < len(values)-1 {
				file = append(file, ',')
			}
		}
		if c.array {
			file = append(append([]byte("["), file...), ']')
		}
		drivertest.LongRow(t, c.name, file, "s", values, c.times, func(path string) driver.Source {
			return New(Options{Options: fileset.Options{Paths: []string{path}}, SplitBytes: 1 << 30})
		})
	}
}
